"""Threading: eight threads share a network, a device and a Core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_core.conformance.check import CheckContext, CheckFailed, check, require, require_equal
from hetero_core.conformance.samples import WAIT_SECONDS, Arrays, Sample, load_sample, make_mixed, make_sample, make_samples
from hetero_core.conformance.threads import THREADS, run_in_threads
from hetero_core.errors import DeviceNotFoundError, HeteroError, PluginError
from hetero_core.runtime.queue import AsyncInferQueue

if TYPE_CHECKING:
    from hetero_core.core import Core

ROUNDS = 100


@check("concurrency")
def threads_share_a_loaded_network(context: CheckContext) -> None:
    """Eight threads call `infer` of a shared network: each gets the results of its own inputs."""
    for form, sample in make_samples(context, "chain", "dynamic", "pair").items():
        _share_network(context, form, sample)


def _share_network(context: CheckContext, form: str, sample: Sample) -> None:
    loaded = context.load(sample.network)

    def run(index: int) -> None:
        for turn in range(ROUNDS):
            shapes = {"x": (1 + (index + turn) % 5, 2)} if form == "dynamic" else {}
            inputs = sample.draw(context.seed + index * ROUNDS + turn, **shapes)
            sample.require_right(
                loaded.infer(inputs), inputs, f"'{form}', thread {index} of {THREADS} that share the network, run {turn}"
            )

    run_in_threads(run)


@check("concurrency")
def threads_have_requests_of_their_own(context: CheckContext) -> None:
    """Eight threads make requests of one network and run them synchronously and asynchronously: each gets its own results."""
    sample, loaded = load_sample(context, "fork")

    def run(index: int) -> None:
        request = loaded.create_infer_request()
        for turn in range(ROUNDS // 2):
            inputs = sample.draw(context.seed + index * ROUNDS + turn)
            sample.require_right(request.infer(inputs), inputs, f"thread {index}, synchronous run {turn}")
            request.start_async(inputs)
            require(request.wait(WAIT_SECONDS), f"thread {index}: the run did not end")
            outputs = {name: request.get_tensor(name) for name in ("y", "z")}
            sample.require_right(outputs, inputs, f"thread {index}, asynchronous run {turn}")

    run_in_threads(run)


@check("concurrency")
def threads_query_and_load_at_once(context: CheckContext) -> None:
    """Eight threads query and load the same and different networks, in a Core that has not made the device yet."""
    samples = list(make_samples(context, "chain", "dynamic", "fork", "pair").values())
    mixed, expected = make_mixed(context)
    with context.make_core() as core:

        def run(index: int) -> None:
            for turn in range(10):
                sample = samples[(index + turn) % len(samples)]
                inputs = sample.draw(context.seed + index)
                what = f"thread {index}, load {turn}, while others load"
                sample.require_right(_load_and_run(core, sample, inputs, context.device, what), inputs, what)
                answer = core.query_network(mixed, context.device)
                require_equal(dict(answer.refused), dict(expected.refused), f"thread {index}, what is refused")

        run_in_threads(run)


def _load_and_run(core: Core, sample: Sample, inputs: Arrays, device: str, what: str) -> Arrays:
    try:
        with core.load_network(sample.network, device) as loaded:
            return loaded.infer(inputs)
    except HeteroError as error:
        # The same networks load and run correctly in sequence.
        raise CheckFailed(f"{what}: a race in load, it got the network of another load or none: {error}") from error


@check("concurrency")
def threads_read_and_set_properties_at_once(context: CheckContext) -> None:
    """Eight threads read and set metrics and configuration: every value read is a value that was set."""

    def run(index: int) -> None:
        for turn in range(ROUNDS):
            context.core.set_config({"PERF_COUNT": (index + turn) % 2 == 0}, context.device)
            require(context.core.get_config(context.device, "PERF_COUNT") in (True, False), "PERF_COUNT is neither on nor off")
            for name in ("FULL_DEVICE_NAME", "SUPPORTED_METRICS"):
                require(context.get_metric(name), f"the metric {name} is empty")
            context.core.get_versions(context.device)

    run_in_threads(run)


@check("concurrency")
def threads_load_while_a_name_comes_and_goes(context: CheckContext) -> None:
    """While one thread unregisters and registers a second name, the other threads work; the only error is "not registered"."""
    if context.facts.plugin is None or "plugin" not in context.facts.capabilities:
        names: tuple[str, ...] = ()
    else:
        names = ("COMES_AND_GOES",)
    sample = make_sample(context, "chain")

    def run(index: int) -> None:
        for turn in range(20):
            if names and index == 0:
                context.core.register_plugin(names[0], context.facts.plugin)
                context.core.unregister_plugin(names[0])
                continue
            inputs = sample.draw(context.seed + index)
            outputs = context.load(sample.network).infer(inputs)
            sample.require_right(outputs, inputs, f"thread {index}, load {turn}")
            try:
                if names:
                    context.core.get_metric(names[0], "FULL_DEVICE_NAME")
            except (DeviceNotFoundError, PluginError):
                pass

    run_in_threads(run)


@check("concurrency")
def threads_share_a_queue(context: CheckContext) -> None:
    """Four threads start runs on one queue: the callback comes once for each start, with the result of that start."""
    sample, loaded = load_sample(context, "chain")
    results: list[tuple[int, object]] = []
    with AsyncInferQueue(loaded, 3) as queue:
        queue.set_callback(lambda request, index: results.append((index, request.get_tensor("y").copy())))

        def run(thread: int) -> None:
            for turn in range(25):
                index = thread * 25 + turn
                queue.start_async(sample.draw(context.seed + index), index)

        run_in_threads(run, 4)
        queue.wait_all()
    require_equal(sorted(index for index, _ in results), list(range(100)), "the starts that were called back")
    for index, value in results:
        sample.require_right({"y": value}, sample.draw(context.seed + index), f"start {index}")
