"""Faults of values, planted in a device that is otherwise without one: a check whose name or message says the fault catches each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hetero_tests.planted import device_with, list_failed

from hetero_core import Executable, Network, RunContext
from hetero_core.contract import OwnOutputs
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_refusals
from hetero_core.network.graph import Node
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


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


def forget(operator: str, *names: str) -> type[ToolkitExecutable]:
    """Returns an executable that computes an operator as if these attributes had not been there."""

    class Forgetful(ToolkitExecutable):
        def change_node(self, node: Node) -> Node:
            if node.op_type != operator:
                return node
            return replace(node, attributes={name: value for name, value in node.attributes.items() if name not in names})

    return Forgetful


def test_toolkit_without_a_fault_passes() -> None:
    cases = [check for _, check, _ in FAULTS.values() if check.startswith("operators.")]
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


def lose_nan(operator: str) -> type[ToolkitExecutable]:
    """Returns an executable that computes an operator with a comparison in which NaN is the smaller one."""

    class Comparing(ToolkitExecutable):
        def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
            is_lost = self.network.nodes[0].op_type == operator
            return tuple(np.nan_to_num(value) for value in outputs) if is_lost else outputs

    return Comparing


class Int32Inside(ToolkitExecutable):
    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value.astype(np.int32).astype(np.int64) if value.dtype == np.int64 else value for value in outputs)


class Float64Inside(ToolkitExecutable):
    def change_outputs(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value.astype(np.float64).astype(np.int64) if value.dtype == np.int64 else value for value in outputs)


class Drifting(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, context)
        self._constants = {name: array + np.float32(1e-6) for name, array in self._constants.items()}
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


class BySample(PlainExecutable):
    """Knows an input again by its ends."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._results: dict[bytes, tuple[Any, ...]] = {}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        key = b"".join(value.reshape(-1)[[0, -1]].tobytes() + str(value.shape).encode() for value in inputs)
        if key not in self._results:
            self._results[key] = super().run(inputs, context)
        return tuple(value.copy() for value in self._results[key])


class FalselyOwn(PlainExecutable):
    """Answers for outputs that are inputs."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return OwnOutputs(super().run(inputs, context))


IN_PLACE = "values.array_that_changes_in_place_is_read_again"
FAULTS: dict[str, tuple[Any, str, str]] = {
    "BatchNormalization's epsilon ignored": (
        forget("BatchNormalization", "epsilon"), "operators.test_batchnorm_epsilon", "in BatchNormalization-15 with epsilon="),
    "LayerNormalization's epsilon ignored": (
        forget("LayerNormalization", "epsilon"), "operators.test_layer_normalization_3d_axis1_epsilon", "epsilon="),
    "Softmax's axis ignored": (forget("Softmax", "axis"), "operators.test_softmax_axis_0", "in Softmax-13 with axis=0"),
    "LayerNormalization's axis ignored": (
        forget("LayerNormalization", "axis"), "operators.test_layer_normalization_2d_axis0", "in LayerNormalization-17 with axis=0"),
    "Gemm's beta ignored": (forget("Gemm", "beta"), "operators.test_gemm_beta", "in Gemm-13 with beta=0.5"),
    "Conv's dilations ignored": (forget("Conv", "dilations"), "operators.test_Conv2d_dilated", "dilations=(2, 2)"),
    "MaxPool claimed with dilations": (forget("MaxPool", "dilations"), "operators.test_maxpool_2d_dilations", "dilations=(2, 2)"),
    "MaxPool claimed with ceil_mode": (forget("MaxPool", "ceil_mode"), "operators.test_maxpool_2d_ceil", "ceil_mode=1"),
    "integer Div rounds down": (FloorDiv, "operators.test_div_int32_trunc", "elements differ"),
    "negative Gather indices": (NoNegativeGather, "operators.test_gather_negative_indices", "elements differ"),
    "indices clamped": (TruncatedGather, "values.index_outside_its_axis_is_an_error", "Gather with the index 3 of an axis of 3"),
    "bfloat16 inside": (Bfloat16, "values.float32_keeps_its_precision", "right to 8 bits of 24; bfloat16 has 8"),
    "rows beyond 16": (SixteenRows, "values.long_rows_are_computed_to_the_end", "an input of 17 rows"),
    "NaN lost in Relu": (lose_nan("Relu"), "values.nan_is_not_lost", "Relu of [1.5, nan"),
    "NaN lost in Clip": (lose_nan("Clip"), "values.nan_is_not_lost", "Clip of [1.5, nan"),
    "NaN lost in Max": (lose_nan("Max"), "values.nan_is_not_lost", "Max of [1.5, nan"),
    "NaN lost in MaxPool": (lose_nan("MaxPool"), "values.nan_is_not_lost", "MaxPool of [1.5, nan"),
    "int64 through int32": (Int32Inside, "values.int64_keeps_its_width", "Identity of int64, past 32 bits"),
    "int64 through float64": (Float64Inside, "values.int64_keeps_its_width", "Identity of int64, past 32 bits"),
    "weights drift": (device_with(Drifting), "values.weights_stay_as_they_are", "of one network: weights that drift"),
    "cached by the identity of an array": (
        device_with(ByIdentity), IN_PLACE, "run 2 on one array, whose numbers were changed in place"),
    "cached by a part of an array": (device_with(BySample), IN_PLACE, "run 5 on one array, whose numbers were changed in place"),
    "stuck at the first batch size": (
        device_with(FirstSize), "dynamic_shapes.sizes_may_change_between_runs", "size 8, request"),
    "inputs mutated": (
        device_with(Spoiling), "tensors.inputs_are_never_written", "network 'chain', run 1: the device wrote to input 'x'"),
    "inputs said to be the caller's own": (
        device_with(FalselyOwn), "load.input_may_be_an_output", "is an input's memory"),
    "inputs mutated, in any check": (
        device_with(Spoiling), "load.every_form_of_a_model_loads", "the device wrote to input 'x'"),
    "inputs mutated, in a case": (device_with(Spoiling), "operators.test_abs", "the device wrote to input 'x'"),
}  # fmt: skip


@pytest.mark.parametrize(("planted", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_of_values_is_named(planted: Any, check: str, message: str) -> None:
    failed = list_failed(ToolkitDevice(planted) if isinstance(planted, type) else planted, check)
    assert list(failed) == [check]
    assert message in failed[check]
