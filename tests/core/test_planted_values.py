"""Faults of values, planted in a device that is otherwise without one: a check whose name or message says the fault catches each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero_core import Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.devices.query import require_all_supported
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_refusals
from hetero_core.network.graph import Node
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


def list_failed(plugin: object, *patterns: str) -> dict[str, str]:
    """Runs the checks whose names match; returns the reasons of those that failed."""
    outcomes = run_checks(choose_checks((), patterns), make_target("PLANTED", plugin=plugin), limit=120)
    return {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"}


class ToolkitExecutable(PlainExecutable):
    """The network as the toolkit compiles it; a fault is planted in its nodes before, or in its values on the way in and out."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._program = compile_program(replace(network, nodes=tuple(self.change_node(node) for node in network.nodes)))

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return self.change_outputs(inputs, self._program.run(self.change_inputs(inputs)))

    def change_node(self, node: Node) -> Node:
        return node

    def change_inputs(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs

    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return outputs


class ToolkitDevice(PlainDevice):
    def __init__(self, executable: Callable[[Network], Executable] = ToolkitExecutable) -> None:
        self._executable = executable

    def find_refusal(self, node: Node, network: Network) -> str | None:
        return find_refusals(network).get(node.name)

    def make_executable(self, network: Network) -> Executable:
        return self._executable(network)


def device_with(executable: Callable[[Network], Executable]) -> PlainDevice:
    class Planted(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            return executable(network)

    return Planted()


def forget(operator: str, *names: str) -> type[ToolkitExecutable]:
    """Returns an executable that computes an operator as if these attributes had not been there."""

    class Forgetful(ToolkitExecutable):
        def change_node(self, node: Node) -> Node:
            if node.op_type != operator:
                return node
            return replace(node, attributes={name: value for name, value in node.attributes.items() if name not in names})

    return Forgetful


ATTRIBUTE_CASES = {
    "epsilon of normalization": ("BatchNormalization", "epsilon", "test_batchnorm_epsilon"),
    "epsilon of layers": ("LayerNormalization", "epsilon", "test_layer_normalization_3d_axis1_epsilon"),
    "axis of Softmax": ("Softmax", "axis", "test_softmax_axis_0"),
    "axis of LayerNormalization": ("LayerNormalization", "axis", "test_layer_normalization_2d_axis0"),
    "beta of Gemm": ("Gemm", "beta", "test_gemm_beta"),
    "dilations of Conv": ("Conv", "dilations", "test_Conv2d_dilated"),
    "MaxPool claimed with all its attributes": ("MaxPool", "dilations", "test_maxpool_2d_dilations"),
    "MaxPool claimed with ceil_mode": ("MaxPool", "ceil_mode", "test_maxpool_2d_ceil"),
}


@pytest.mark.parametrize(("operator", "attribute", "case"), ATTRIBUTE_CASES.values(), ids=ATTRIBUTE_CASES)
def test_attribute_that_is_ignored_is_caught_by_the_case_that_has_it(operator: str, attribute: str, case: str) -> None:
    failed = list_failed(ToolkitDevice(forget(operator, attribute)), f"operators.{case}")
    assert list(failed) == [f"operators.{case}"], failed


def test_toolkit_without_a_fault_passes() -> None:
    cases = [f"operators.{case}" for _, _, case in ATTRIBUTE_CASES.values()]
    assert list_failed(ToolkitDevice(), "values.*", *cases) == {}


class FloorDiv(ToolkitExecutable):
    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        is_integer = self.network.nodes[0].op_type == "Div" and inputs[0].dtype.kind == "i"
        return (np.floor_divide(*inputs),) if is_integer else outputs


class TruncatedGather(ToolkitExecutable):
    """Takes an index that is not there for the nearest that is."""

    def change_inputs(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.network.nodes[0].op_type.startswith("Gather"):
            return inputs
        return inputs[0], np.clip(inputs[1], self.least, 2)

    least = -3


class NoNegativeGather(TruncatedGather):
    least = 0


class Bfloat16(ToolkitExecutable):
    def change_inputs(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        import ml_dtypes

        return tuple(
            value.astype(ml_dtypes.bfloat16).astype(value.dtype) if value.dtype == np.float32 else value for value in inputs
        )


class SixteenRows(ToolkitExecutable):
    """A kernel with a block of 16 rows, and no loop around it."""

    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for value in outputs:
            if value.ndim > 1:
                value[16:] = 0
        return outputs


class NumberForNan(ToolkitExecutable):
    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(np.nan_to_num(value) if value.dtype.kind == "f" else value for value in outputs)


class Int32Inside(ToolkitExecutable):
    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value.astype(np.int32).astype(np.int64) if value.dtype == np.int64 else value for value in outputs)


class Drifting(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, context)
        self._constants = {name: array + np.float32(0.001) for name, array in self._constants.items()}
        return outputs


class ByIdentity(PlainExecutable):
    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._results: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        key = tuple(value.__array_interface__["data"][0] for value in inputs)
        if key not in self._results:
            self._results[key] = super().run(inputs, context)
        return tuple(value.copy() for value in self._results[key])


class FirstSize(PlainExecutable):
    """Computes as many rows as the first input had."""

    rows = 0

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self.rows = self.rows or len(inputs[0])
        return tuple(value[: self.rows] for value in super().run(inputs, context))


class Spoiling(PlainExecutable):
    """Leaves zeros in the arrays of the caller."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, context)
        for value in inputs:
            if value.flags.writeable:
                value[...] = 0
        return outputs


VALUE_FAULTS: dict[str, tuple[Any, str, str]] = {
    "integer Div": (ToolkitDevice(FloorDiv), "operators.test_div_int32_trunc", "elements differ"),
    "negative Gather indices": (ToolkitDevice(NoNegativeGather), "operators.test_gather_negative_indices", "elements differ"),
    "indices clamped": (ToolkitDevice(TruncatedGather), "values.index_outside_its_axis_is_an_error", "Gather with the index 3"),
    "bfloat16 inside": (ToolkitDevice(Bfloat16), "values.float32_keeps_its_precision", "right to 8 bits of 24; bfloat16 has 8"),
    "bfloat16 inside a case": (ToolkitDevice(Bfloat16), "operators.test_tanh", "elements differ"),
    "rows beyond 16": (ToolkitDevice(SixteenRows), "values.long_rows_are_computed_to_the_end", "an input of 17 rows"),
    "NaN lost": (ToolkitDevice(NumberForNan), "values.nan_is_not_lost", "Relu of [1.5, nan"),
    "int64 in int32": (ToolkitDevice(Int32Inside), "values.int64_keeps_its_width", "Identity of int64, past 32 bits"),
    "weights drift": (device_with(Drifting), "values.weights_stay_as_they_are", "run 2 of one network"),
    "cached by identity": (
        device_with(ByIdentity),
        "values.array_that_changes_in_place_is_read_again",
        "run 2 on one array, whose numbers were changed in place",
    ),
    "first batch size": (device_with(FirstSize), "dynamic_shapes.sizes_may_change_between_runs", "size 8, request"),
    "inputs spoiled": (
        device_with(Spoiling),
        "tensors.inputs_are_never_written",
        "network 'chain', run 1: the device wrote to input 'x'",
    ),
    "inputs spoiled in any check": (device_with(Spoiling), "load.every_form_of_a_model_loads", "the device wrote to input 'x'"),
    "inputs spoiled in a case": (device_with(Spoiling), "operators.test_abs", "the device wrote to input 'x'"),
}


@pytest.mark.parametrize(("device", "check", "message"), VALUE_FAULTS.values(), ids=VALUE_FAULTS)
def test_fault_of_values_is_named(device: Any, check: str, message: str) -> None:
    failed = list_failed(device, check)
    assert list(failed) == [check]
    assert message in failed[check]


def test_claim_that_loading_refuses_is_said_in_these_words() -> None:
    class Promising(PlainDevice):
        @hookimpl
        def load_network(self, device: Any, network: Network) -> Executable:
            refused = {node.name: "no memory for tables" for node in network.nodes if node.op_type == "Abs"}
            supported = {node.name: str(device) for node in network.nodes if node.op_type != "Abs"}
            require_all_supported(device, network, QueryResult(supported, refused))
            return super().load_network(device, network)

    failed = list_failed(Promising(), "operators.test_abs", "query.claimed_network_loads")
    assert all("claimed by query, refused by load" in reason for reason in failed.values())
    assert list(failed) == ["query.claimed_network_loads", "operators.test_abs"]
