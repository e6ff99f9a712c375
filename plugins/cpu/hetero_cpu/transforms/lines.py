"""Passes that compute windows as others, which have machine code: those over sequences as windows over images of height 1, and a
ConvTranspose whose windows overlap as a convolution, the outputs of a stride as its channels.

A value of (batch, channels, length) has a twin of (batch, channels, 1, length). Operators that work element by element, and those along the
channels, follow on the twin; for any other reader the value is made of it by a view.

```text
output t, before pads, is of phase t % stride:   y[stride q + r] = sum over j of x[q - j] weight[r + stride j]
Conv (batch, stride * channels, q) ── Transpose, Reshape: views if the result lies channels last ── Slice: the pads
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.matching import read_integers, read_shape
from hetero_cpu.transforms.writer import Writer, derive_constant, rewrite_operators

_WINDOWS = frozenset({"AveragePool", "Conv", "ConvTranspose", "MaxPool"})
_WHOLE = frozenset({"BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"})
_ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
        "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "MultiplyAdd", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu",
        "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu"
    }
)  # fmt: skip
_BEFORE = {"dilations": (1,), "kernel_shape": (1,), "output_padding": (0,), "output_shape": (1,), "strides": (1,)}
"""The numbers of the new axis, which stands before the length."""


def lift_lines(network: Network) -> Network:
    """Returns the network with its windows over sequences as windows over images of height 1."""
    lifter = _Lifter(network)
    for node in network.nodes:
        lifter.add_node(node)
    for spec in network.outputs:
        lifter.make(spec.name)
    return drop_unread(lifter.write_network()) if lifter.has_windows else network


class _Lifter(Writer):
    """The network as far as it is rewritten."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.twins: dict[str, str] = {}
        self.pending: dict[str, tuple[str, ...]] = {}
        """The origins of values that exist as twins alone."""
        self.has_windows = False

    def add_node(self, node: Node) -> None:
        """Adds a node, on twins if that is possible."""
        if not node.domain and self._lift(node):
            return
        for value in node.reads:
            self.make(value)
        self.nodes.append(node)

    def make(self, value: str) -> None:
        """Makes a value that exists as a twin alone."""
        if value in self.pending:
            self._move("Squeeze", self.twins[value], value, self.pending.pop(value))

    def _move(self, op_type: str, source: str, target: str, origins: tuple[str, ...]) -> None:
        self.label, self.origins = target, origins
        self.add(op_type, source, self.add_integers(2), output=target)

    def _lift(self, node: Node) -> bool:
        is_window = node.op_type in _WINDOWS
        # Old operators broadcast along an axis that is named.
        if not node.inputs or not all(map(self._is_line, node.outputs)) or "broadcast" in node.attributes:
            return False
        if is_window:
            if not self._is_line(node.inputs[0]):
                return False
            weights = [self.constants.get(name) for name in node.inputs[1:2]]
            if any(weight is None or weight.dtype != "float32" or len(weight.shape) != 3 for weight in weights):
                return False
            if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
                return False
            inputs = (self._find_twin(node.inputs[0], node), *map(self._widen, node.inputs[1:2]), *node.inputs[2:])
        elif not any(name in self.twins for name in node.reads):
            return False
        elif node.inputs[0] in self.twins and self._takes_image(node):
            inputs = (self.twins[node.inputs[0]], *node.inputs[1:])
        elif (
            node.op_type == "Concat" and node.attributes.get("axis") in (1, -2) and all(name in self.twins for name in node.inputs)
        ):
            inputs = tuple(self.twins[name] for name in node.inputs)
        elif node.op_type in _ELEMENTWISE:
            if not all(not name or name in self.constants or self._is_line(name) for name in node.inputs):
                return False
            inputs = tuple(
                self._widen(name) if name in self.constants else self._find_twin(name, node) if name else "" for name in node.inputs
            )
        else:
            return False
        self.has_windows |= is_window
        for output in node.outputs:
            self.pending[output] = node.origins
        attributes = _widen_attributes(node) if is_window or "axis" in node.attributes else node.attributes
        self.nodes.append(replace(node, inputs=inputs, outputs=tuple(map(self._name_twin, node.outputs)), attributes=attributes))
        return True

    def _takes_image(self, node: Node) -> bool:
        """Says whether only the first input has the axes of an image, and the operator works along its batch and channels."""
        if node.op_type == "Split":
            return node.attributes.get("axis") in (1, -2)
        if node.op_type == "Slice":
            return read_integers(self.network, (*node.inputs, *("",) * 4)[3]) == (1,)
        return node.op_type in _WHOLE

    def _is_line(self, value: str) -> bool:
        return value not in self.constants and self.dtype(value) == "float32" and len(self.shape(value) or ()) == 3

    def _name_twin(self, value: str) -> str:
        twin, (batch, channels, length) = self.names.value(f"{value}/image"), self.shape(value) or ()
        self.twins[value], self.types[twin] = twin, TensorType("float32", (batch, channels, 1, length))
        return twin

    def _find_twin(self, value: str, node: Node) -> str:
        if value not in self.twins:
            self._move("Unsqueeze", value, self._name_twin(value), node.origins)
        return self.twins[value]

    def _widen(self, value: str) -> str:
        """Returns a constant with an axis before the last, which a constant of a single axis does not need."""
        constant = self.constants[value]
        if len(constant.shape) < 2:
            return value
        shape = (*constant.shape[:-1], 1, constant.shape[-1])
        wide = derive_constant(constant, lambda array: array.reshape(shape), shape, constant.dtype)
        return self.hold(wide, self.names.value(f"{value}/image"))


def _widen_attributes(node: Node) -> Mapping[str, Any]:
    attributes = {name: (*_BEFORE.get(name, ()), *value) if name in _BEFORE else value for name, value in node.attributes.items()}
    if "pads" in attributes:
        begin, end = attributes["pads"]
        attributes["pads"] = (0, begin, 0, end)
    if "axis" in attributes:
        attributes["axis"] = 1
    return MappingProxyType(attributes)


_FARTHEST = np.iinfo(np.int64).max


def convolve_upsampling(network: Network) -> Network:
    """Returns the network with each ConvTranspose of images or volumes, of a single group, as a Conv if its windows overlap or are cut.

    The sizes of volumes must be known, and those of images, unless the stride along the height is 1.
    """
    return rewrite_operators(network, {("", "ConvTranspose"): _convolve})


def _convolve(network: Network, node: Node, writer: Writer) -> bool:
    weight, bias = (network.initializers.get(value) for value in (*node.inputs, "", "")[1:3])
    own, shape = node.attributes, read_shape(network, node.inputs[0])
    if weight is None or weight.dtype != "float32" or len(weight.shape) not in (4, 5) or shape is None:
        return False
    if (any(node.inputs[2:]) and bias is None) or own.get("group", 1) != 1 or own.get("output_shape"):
        return False
    if own.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(dilation != 1 for dilation in own.get("dilations", ())):
        return False
    outputs, *kernel = weight.shape[1:]
    rank = len(kernel)
    strides, pads = tuple(own.get("strides", (1,) * rank)), tuple(own.get("pads", (0,) * (2 * rank)))
    more = tuple(own.get("output_padding", (0,) * rank))
    if strides == tuple(kernel) and not any((*pads, *more)):
        return False  # a step of its own
    taps = [-(-size // stride) for size, stride in zip(kernel, strides, strict=True)]
    ends = [
        tap * stride - size + pad - extra
        for tap, stride, size, pad, extra in zip(taps, strides, kernel, pads[rank:], more, strict=True)
    ]
    sizes = [size + tap - 1 if isinstance(size, int) else None for size, tap in zip(shape[2:], taps, strict=True)]
    if min(ends) < 0 or ((rank == 3 or strides[0] > 1) and not all(type(size) is int for size in sizes)):
        return False
    phases = prod(strides)
    filters = writer.add_constant(_turn_filters(weight.array, strides, taps))
    biases = [] if bias is None else [writer.add_constant(np.tile(bias.array, phases))]
    ahead = [tap - 1 for tap in taps]
    value = writer.add("Conv", node.inputs[0], filters, *biases, pads=(*ahead, *ahead), kernel_shape=tuple(taps))
    value = writer.add("Transpose", value, perm=(0, *range(2, rank + 2), 1))
    target: tuple[int, ...] = (0, 0, -1, outputs)
    if rank == 3 or strides[0] > 1:
        known = [size for size in sizes if size is not None]
        # The phases of an axis come behind its places, one axis after another; those of the last axis are there already.
        for axis in range(rank - 1):
            phases //= strides[axis]
            places = known[axis], prod(known[axis + 1 :])
            value = writer.add("Reshape", value, writer.add_integers(-1 if axis else 0, *places, strides[axis], phases * outputs))
            value = writer.add("Transpose", value, perm=(0, 1, 3, 2, 4))
        target = (-1 if rank == 3 else 0, *(size * stride for size, stride in zip(known, strides, strict=True)), outputs)
    value = writer.add("Reshape", value, writer.add_integers(*target))
    value = writer.add("Transpose", value, perm=(0, rank + 1, *range(1, rank + 1)))
    bounds = [pads[:rank], [-end if end else _FARTHEST for end in ends], range(2, rank + 2)]
    writer.add("Slice", value, *(writer.add_integers(*numbers) for numbers in bounds))
    writer.end_with(node.outputs[0])
    return True


def _turn_filters(weight: Any, strides: tuple[int, ...], taps: list[int]) -> Any:
    """Returns the filters of the convolution: (phases * outputs, channels, taps). weight: (channels, outputs, [depth,] height, width)."""
    channels, outputs, *kernel = weight.shape
    sizes = list(zip(taps, strides, strict=True))
    ends = [tap * stride - size for (tap, stride), size in zip(sizes, kernel, strict=True)]
    whole = np.pad(weight, ((0, 0), (0, 0), *((0, end) for end in ends)))
    phases = np.flip(
        whole.reshape(channels, outputs, *(size for pair in sizes for size in pair)), tuple(range(2, 2 + 2 * len(taps), 2))
    )
    filters = phases.transpose(*range(3, 3 + 2 * len(taps), 2), 1, 0, *range(2, 2 + 2 * len(taps), 2))
    return np.ascontiguousarray(filters.reshape(-1, channels, *taps))
