"""Lifetime: Core, network and request are freed or closed in every order; the remaining objects work or raise ClosedError."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from hetero_core.conformance.check import CheckContext, check, require, require_error
from hetero_core.conformance.samples import WAIT_SECONDS, Sample, make_sample
from hetero_core.conformance.threads import run_in_threads
from hetero_core.errors import ClosedError

RUNS_UNDER_CLOSE = 25
KINDS = ("core", "network", "request")


def _make_all(context: CheckContext, sample: Sample) -> dict[str, Any]:
    core = context.make_core()
    network = core.load_network(sample.network, context.device)
    return {"core": core, "network": network, "request": network.create_infer_request()}


@check("contract")
def what_is_left_works_when_others_are_forgotten(context: CheckContext) -> None:
    """Core, network and request may be dropped in any order; the objects still referenced work."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    for order in itertools.permutations(KINDS):
        objects = _make_all(context, sample)
        opened = objects["core"]
        for kind in order:
            del objects[kind]
            gc.collect()
            for runner in ("network", "request"):
                if runner in objects:
                    sample.require_right(objects[runner].infer(inputs), inputs, f"the {runner}, after its {kind} was forgotten")
        opened.close()


@check("contract")
def closing_in_every_order_is_clear(context: CheckContext) -> None:
    """Core and network are closed in both orders, twice each: runs then raise ClosedError, and `wait` returns at once."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    for order in itertools.permutations(("core", "network")):
        objects = _make_all(context, sample)
        sample.require_right(objects["request"].infer(inputs), inputs, "before anything is closed")
        for kind in (*order, *order):
            objects[kind].close()
        for what, action in {
            "a request": lambda objects=objects: objects["request"].infer(inputs),
            "a network": lambda objects=objects: objects["network"].infer(inputs),
            "a new request": lambda objects=objects: objects["network"].create_infer_request(),
        }.items():
            require_error(ClosedError, action, f"{what} of a network that was closed")
        require(objects["request"].wait(0), "waiting on a request of a closed network does not end")


@check("contract")
def results_and_metrics_outlive_everything(context: CheckContext) -> None:
    """Outputs, tensors and metric values stay intact after request, network and Core are closed and freed."""
    sample = make_sample(context, "fork")
    inputs = sample.draw(context.seed)
    objects = _make_all(context, sample)
    objects["request"].start_async(inputs)
    require(objects["request"].wait(WAIT_SECONDS), "the run did not end")
    tensors = {name: objects["request"].get_tensor(name) for name in ("y", "z")}
    outputs = objects["network"].infer(inputs)
    full_name = objects["core"].get_metric(context.device, "FULL_DEVICE_NAME")
    objects["network"].close()
    objects["core"].close()
    objects.clear()
    gc.collect()
    sample.require_right(outputs, inputs, "outputs, after everything was closed")
    sample.require_right(tensors, inputs, "tensors of a request, after everything was closed")
    require(full_name == full_name.strip() and full_name, "the metric is gone")


@check("contract")
def network_goes_on_in_another_core(context: CheckContext) -> None:
    """A second Core loads a network that was read by a first Core, which is closed by then."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    first = context.make_core()
    first.load_network(sample.network, context.device).infer(inputs)
    first.close()
    with context.make_core() as second:
        sample.require_right(second.load_network(sample.network, context.device).infer(inputs), inputs, "in a second Core")


@check("contract")
def device_may_be_made_again_and_again(context: CheckContext) -> None:
    """Ten consecutive Cores each make the device, run a network and close."""
    sample = make_sample(context, "chain")
    for turn in range(10):
        inputs = sample.draw(context.seed + turn)
        with context.make_core() as core:
            sample.require_right(core.load_network(sample.network, context.device).infer(inputs), inputs, f"Core {turn + 1}")


@check("contract")
def closing_frees_nothing_in_use(context: CheckContext) -> None:
    """A network is closed during its runs while a second network of the same model is loaded: no run uses a freed engine."""
    sample = make_sample(context, "chain")
    closing, staying = (context.load(sample.network) for _ in range(2))

    def run(index: int) -> None:
        if index == 0:
            closing.close()
        for turn in range(RUNS_UNDER_CLOSE):
            inputs = sample.draw(context.seed + index * RUNS_UNDER_CLOSE + turn)
            sample.require_right(staying.infer(inputs), inputs, "a second network of the model, whose engine may still be in use")
            try:
                outputs = closing.infer(inputs)
            except ClosedError:
                continue
            sample.require_right(outputs, inputs, "a run under way when its network was closed, whose engine is in use")

    run_in_threads(run, 4)
    staying.close()
