"""One bug of each kind, planted in a device that is otherwise without fault: a check of the conformance kit with a name catches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import Outcome, make_target, run_checks
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

CASES = ("operators.test_abs", "operators.test_neg", "operators.test_add", "operators.test_sub", "operators.test_tanh")


def run_kit(plugin: object, *patterns: str) -> list[Outcome]:
    """Runs the checks whose names match, every one but single cases and models where none is given."""
    levels = () if patterns else ("contract", "concurrency", "export")
    return list(run_checks(choose_checks(levels, patterns), make_target("PLANTED", plugin=plugin), limit=120))


def list_failed(plugin: object, *patterns: str) -> dict[str, str]:
    return {outcome.check.name: outcome.reason for outcome in run_kit(plugin, *patterns) if outcome.status == "failed"}


def device_with(executable: Callable[[Network], Executable]) -> PlainDevice:
    class Planted(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            return executable(network)

    return Planted()


def test_device_without_a_bug_passes_every_check() -> None:
    outcomes = run_kit(PlainDevice()) + run_kit(PlainDevice(), "operators.*")
    assert {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"} == {}
    skipped = {outcome.check.name for outcome in outcomes if outcome.status == "skipped" and outcome.check.level != "operators"}
    assert {name.partition(".")[0] for name in skipped} == {
        *("properties", "extensions", "values", "meaning", "exporting", "device_facts", "memory")
    }
    assert sum(outcome.check.level == "operators" and outcome.status == "passed" for outcome in outcomes) > 20


class WrongAbs(PlainExecutable):
    def compute(self, node: Any, inputs: list[Any]) -> Any:
        return inputs[0] if node.op_type == "Abs" else super().compute(node, inputs)


class InPlaceNeg(PlainExecutable):
    def compute(self, node: Any, inputs: list[Any]) -> Any:
        # A kernel for intermediate values, used for inputs of the network, too.
        if node.op_type == "Neg" and inputs[0].flags.writeable:
            return np.negative(inputs[0], out=inputs[0])
        return super().compute(node, inputs)


class Timeless(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return super().run(inputs, RunContext(context.state, outputs=context.outputs, token=context.token))


class Mixing(PlainExecutable):
    """Keeps what belongs to a run on itself, where the next run finds it."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._given: tuple[Any, ...] = ()
        self._both = threading.Barrier(2)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self._given = inputs
        try:
            # Until a second run is here, too; alone it goes on after a moment.
            self._both.wait(0.02)
        except threading.BrokenBarrierError:
            self._both.reset()
        return super().run(self._given, context)


class OneBuffer(PlainExecutable):
    """Gives every run the same array."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._buffers: dict[tuple[int, ...], Any] = {}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, context)
        if any(value is None for value in outputs):
            return outputs
        for index, value in enumerate(outputs):
            np.copyto(self._buffers.setdefault((index, *value.shape), np.empty_like(value)), value)
        return tuple(self._buffers[index, *value.shape] for index, value in enumerate(outputs))


class Wide(PlainExecutable):
    def compute(self, node: Any, inputs: list[Any]) -> Any:
        return np.asarray(super().compute(node, inputs), np.float64)


class TransposedProduct(PlainExecutable):
    def compute(self, node: Any, inputs: list[Any]) -> Any:
        inputs = [inputs[0], inputs[1].T.copy()] if node.op_type == "MatMul" else inputs
        return super().compute(node, inputs)


def test_part_of_a_split_that_is_wrong_is_caught_with_the_seed_and_the_nodes() -> None:
    failed = list_failed(device_with(TransposedProduct), "hetero.each_node_of_if", "hetero.random_parts_of_if")
    assert list(failed) == ["hetero.each_node_of_if", "hetero.random_parts_of_if"]
    assert "on the reference: output 'y': expected" in failed["hetero.each_node_of_if"]
    assert "seed 0, with" in failed["hetero.random_parts_of_if"]
    sound = list_failed(PlainDevice(), "hetero.each_node_of_if", "hetero.random_parts_of_if")
    assert sound == {}


class Evaluating(PlainExecutable):
    def compute(self, node: Any, inputs: list[Any]) -> Any:
        from onnx.reference.op_run import OpRun
        from onnx.reference.ops.op_neg import Neg

        assert issubclass(Neg, OpRun)
        return Neg.eval(inputs[0]) if node.op_type == "Neg" else super().compute(node, inputs)


class OneForAll(PlainDevice):
    @hookimpl
    def metrics(self) -> dict[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1")}

    @hookimpl
    def query_network(self, device: Any, network: Network) -> QueryResult:
        result = super().query_network(device, network)
        return QueryResult(dict.fromkeys(result.supported, "PLANTED.0"), result.refused)


class Forgetful(PlainDevice):
    @hookimpl
    def load_network(self, device: Any, network: Network) -> Executable:
        return PlainExecutable(network)


class Fickle(PlainDevice):
    def __init__(self) -> None:
        self.count = 0

    def find_refusal(self, node: Any, network: Network) -> str | None:
        self.count += 1
        reason = super().find_refusal(node, network)
        return reason and f"{reason}, asked {self.count} times"


class Boaster(PlainDevice):
    def find_refusal(self, node: Any, network: Network) -> str | None:
        return None


class Renaming(PlainDevice):
    @hookimpl
    def import_network(self, device: Any, payload: Any) -> Executable:
        found = super().import_network(device, payload)

        class Negated(PlainExecutable):
            def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
                return tuple(-value for value in super().run(inputs, context))

        return Negated(found.network)


FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "wrong operator": (lambda: device_with(WrongAbs), "operators.test_abs", "28 of 60 elements differ"),
    "wrong dtype": (
        lambda: device_with(Wide),
        "operators.test_abs",
        "returned float64 for output 'y'; expected an array of float32",
    ),
    "inner values overwritten": (
        lambda: device_with(InPlaceNeg),
        "tensors.inputs_are_never_written",
        "'y' holds what is expected of 'z'",
    ),
    "configuration ignored": (
        lambda: device_with(Timeless),
        "perf_counts.times_are_there_when_asked_for",
        "the device does not fill context.profile",
    ),
    "id ignored": (OneForAll, "properties.id_of_a_call_is_the_id_in_use", "expected {'PLANTED.1'}, got {'PLANTED.0'}"),
    "state that threads share": (
        lambda: device_with(Mixing),
        "threading.threads_share_a_loaded_network",
        "of 8 that share the network, run",
    ),
    "output buffers reused": (
        lambda: device_with(OneBuffer),
        "requests.requests_keep_their_own_results",
        "request 0, after 4 requests ran",
    ),
    "results overwritten by the next run": (
        lambda: device_with(OneBuffer),
        "tensors.results_belong_to_the_caller",
        "output 'y' of run 1 changed with a later run",
    ),
    "load takes more than query": (
        Forgetful,
        "query.refused_network_is_refused_by_load_for_the_same_reasons",
        "load_network loads it, though query_network refuses ['unknown']",
    ),
    "refusal texts that differ": (
        Fickle,
        "query.refused_network_is_refused_by_load_for_the_same_reasons",
        "load_network says",
    ),
    "unknown operator taken": (Boaster, "query.unknown_operator_is_refused_with_a_reason", "takes com.acme.KnownToNobody"),
    "reference evaluator in secret": (
        lambda: device_with(Evaluating),
        "operators.test_neg",
        "the device does not say so in the metric REFERENCE_NODES",
    ),
    "blob of something else": (Renaming, "exporting.imported_network_is_the_exported_one", "'chain', imported, output 'y'"),
}


@pytest.mark.parametrize(("device", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_named(device: Callable[[], Any], check: str, message: str) -> None:
    failed = list_failed(device(), check)
    assert list(failed) == [check]
    assert message in failed[check]


def test_operator_that_is_computed_wrongly_is_caught_by_its_case_alone() -> None:
    assert list(list_failed(device_with(WrongAbs), *CASES)) == ["operators.test_abs"]


def test_check_that_hangs_is_given_up_and_the_others_run() -> None:
    free = threading.Event()

    class Stuck(PlainExecutable):
        def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
            free.wait(60)
            return super().run(inputs, context)

    checks = choose_checks(patterns=["tensors.inputs_are_never_written", "query.every_node_is_named_once_in_order"])
    outcomes = list(run_checks(checks, make_target("PLANTED", plugin=device_with(Stuck)), limit=0.5))
    free.set()
    status = {outcome.check.name: outcome.status for outcome in outcomes}
    assert status == {"tensors.inputs_are_never_written": "failed", "query.every_node_is_named_once_in_order": "passed"}
    (reason,) = [outcome.reason for outcome in outcomes if outcome.status == "failed"]
    assert reason == "did not end within 0.5 seconds; the device, or the core, hangs"


def test_device_that_runs_nothing_is_told_so() -> None:
    class Nothing(PlainDevice):
        def find_refusal(self, node: Any, network: Network) -> str | None:
            return "this device runs nothing at all"

    outcomes = run_kit(Nothing(), "query.*", "load.*")
    status = {outcome.check.name: outcome for outcome in outcomes}
    assert "it runs nothing that the other checks could use" in status["query.claimed_network_loads"].reason
    assert status["load.constant_may_be_an_output"].status == "skipped"
    assert "takes none of Tanh, Sigmoid" in status["load.constant_may_be_an_output"].reason


def test_core_is_closed_after_each_check_also_when_it_fails() -> None:
    opened: list[Core] = []

    def make_core() -> Core:
        core = Core()
        core.register_plugin("PLANTED", device_with(Wide))
        opened.append(core)
        return core

    target = make_target("PLANTED", make_core=make_core)
    list(run_checks(choose_checks(patterns=["tensors.*", "operators.test_abs"]), target))
    assert len(opened) > 9
    assert all(core._is_closed for core in opened)
