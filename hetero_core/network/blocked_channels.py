"""Operators of `com.microsoft.nchwc`, which ONNX Runtime writes when it saves a network with all optimizations, as operators of ONNX.

Between its ReorderInput and ReorderOutput, channels lie in blocks of 8 or 16, padded with zeros to whole blocks. Every operator there
computes the same on plain channels with the same padding: filters are put back in order, a ReorderInput pads, and a ReorderOutput
cuts off. The file does not state the size of a block: it follows from the filters, or is the size that ONNX Runtime takes on this
processor.

A node that cannot be restored stays as it is, and devices refuse it by its name: so do all nodes of a network before opset 11.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import EMPTY, Graph, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.scopes import BLOCKED_DOMAIN, make_unique, since_version

_POOLING = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")


def restore_channels(graph: Graph, opset: int) -> Graph:
    """Returns the graph with ONNX's operators of this opset in place of those of blocked channels, bodies included."""
    return graph if opset < 11 else _restore(graph, opset, _find_block(graph))


def _restore(graph: Graph, opset: int, block: int) -> Graph:
    restoration = _Restoration(graph, opset, block)
    for node in graph.nodes:
        restoration.add(node)
    return replace(
        graph,
        nodes=tuple(restoration.nodes),
        initializers=MappingProxyType(restoration.initializers),
        types=MappingProxyType({**graph.types, **{name: each.type for name, each in restoration.initializers.items()}}),
    )


class _Restoration:
    """The rewritten nodes and constants of a graph, in order."""

    def __init__(self, graph: Graph, opset: int, block: int) -> None:
        self.nodes: list[Node] = []
        self.initializers: dict[str, Initializer] = dict(graph.initializers)
        self._graph, self._opset, self._block = graph, opset, block
        self._names = {*graph.types, *graph.initializers, *(name for node in graph.nodes for name in (node.name, *node.writes))}

    def add(self, node: Node) -> None:
        """Adds a node, or the operators of ONNX in its place."""
        node = node.with_bodies({key: _restore(body, self._opset, self._block) for key, body in node.bodies.items()})
        rules = {
            "Conv": self._add_convolution,
            "ReorderInput": self._add_padding,
            "ReorderOutput": self._add_cut,
            "Upsample": self._add_resize,
            **dict.fromkeys(_POOLING, self._add_pooling),
        }
        (rules.get(node.op_type, self.nodes.append) if node.domain == BLOCKED_DOMAIN else self.nodes.append)(node)

    def _add_convolution(self, node: Node) -> None:
        weights = self._graph.initializers.get(node.inputs[1])
        if weights is None or len(weights.shape) != 4:
            self.nodes.append(node)
            return
        self.initializers[node.inputs[1]] = Initializer(weights.dtype, weights.shape, _order_filter(weights, node, self._block))
        if len(node.inputs) < 4 and "activation" not in node.attributes:
            self._add(node, "Conv", node.inputs, node.attributes, node.outputs)
        else:
            self.nodes.append(replace(node, op_type="FusedConv", domain="com.microsoft", since_version=0))

    def _add_pooling(self, node: Node) -> None:
        # Written for every opset, with its default before opset 19.
        ignored = "dilations" if node.op_type == "AveragePool" and self._opset < 19 else None
        attributes = {name: value for name, value in node.attributes.items() if name != ignored}
        self._add(node, node.op_type, node.inputs, attributes, node.outputs)

    def _add_padding(self, node: Node) -> None:
        inputs = node.inputs
        if node.attributes.get("channels_last", 0):
            inputs = (self._add(node, "Transpose", inputs, {"perm": (0, 3, 1, 2)}),)
        block, axis = self._add_constant("block", np.array([self._block])), self._add_constant("axis", np.array([1]))
        before, after = self._add_constant("before", np.zeros(5, np.int64)), self._add_constant("after", np.zeros(2, np.int64))
        channels = self._add(node, "Gather", (self._add(node, "Shape", inputs), axis), {"axis": 0})
        missing = self._add(node, "Mod", (self._add(node, "Neg", (channels,)), block))
        pads = self._add(node, "Concat", (before, missing, after), {"axis": 0})
        self._add(node, "Pad", (*inputs, pads), outputs=node.outputs)

    def _add_cut(self, node: Node) -> None:
        bounds = {"starts": [0], "ends": [int(node.attributes["channels"])], "axes": [1]}
        inputs = (*node.inputs, *(self._add_constant(name, np.array(values)) for name, values in bounds.items()))
        if node.attributes.get("channels_last", 0):
            self._add(node, "Transpose", (self._add(node, "Slice", inputs),), {"perm": (0, 2, 3, 1)}, node.outputs)
        else:
            self._add(node, "Slice", inputs, outputs=node.outputs)

    def _add_resize(self, node: Node) -> None:
        scales = self._add_constant("scales", np.array(node.attributes["scales"], np.float32))
        roi = self._add_constant("roi", np.zeros(0, np.float32))
        mode = node.attributes.get("mode", "nearest")
        attributes = {
            "coordinate_transformation_mode": node.attributes.get("coordinate_transformation_mode", "asymmetric"),
            "mode": mode,
            **({"nearest_mode": "floor"} if mode == "nearest" else {}),
        }
        self._add(node, "Resize", (node.inputs[0], roi, scales), attributes, node.outputs)

    def _add(
        self,
        node: Node,
        op_type: str,
        inputs: tuple[str, ...],
        attributes: Mapping[str, Any] = EMPTY,
        outputs: tuple[str, ...] = (),
    ) -> str:
        """Adds an operator of ONNX in place of a node if it makes the node's outputs, else a step on the way; returns its first value."""
        name = node.name
        if not outputs:
            name, value = (make_unique(f"{each}_{op_type.lower()}", self._names) for each in (node.name, node.outputs[0]))
            outputs = (value,)
        self.nodes.append(
            replace(
                node,
                name=name,
                op_type=op_type,
                inputs=inputs,
                outputs=outputs,
                domain="",
                opset=self._opset,
                since_version=since_version(op_type, "", self._opset),
                attributes=MappingProxyType(dict(attributes)),
            )
        )
        return outputs[0]

    def _add_constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        unique = make_unique(f"channels_{name}", self._names)
        self.initializers[unique] = Initializer.of_array(array)
        return unique


def _order_filter(weights: Initializer, node: Node, block: int) -> Callable[[], np.ndarray[Any, Any]]:
    """Returns the function that puts a filter back in order: (O/b, I/c, h, w, c of I, b of O) -> (O, I, h, w), c being b or 1."""
    outputs, inputs, height, width = weights.shape
    are_inputs_blocked = inputs != 1 if int(node.attributes.get("group", 1)) > 1 else inputs >= block
    inner = block if are_inputs_blocked else 1

    def order() -> np.ndarray[Any, Any]:
        blocked = weights.array.reshape(outputs // block, inputs // inner, height, width, inner, block)
        return np.ascontiguousarray(blocked.transpose(0, 5, 1, 4, 2, 3)).reshape(weights.shape)

    return order


def _find_block(graph: Graph) -> int:
    """Returns the number of channels in a block: 8 if a filter has an odd number of eights, else the size of this processor."""
    for each in iterate_graphs(graph):
        for node in each.nodes:
            is_convolution = node.domain == BLOCKED_DOMAIN and node.op_type == "Conv"
            weights = each.initializers.get(node.inputs[1]) if is_convolution else None
            if weights is not None and weights.shape[0] % 16:
                return 8
    # 16 for AVX-512 and 64-bit ARM. Source: ONNX Runtime 1.32, MlasNchwcGetBlockSize.
    if platform.machine().lower() in ("aarch64", "arm64"):
        return 16
    flags = Path("/proc/cpuinfo")
    return 16 if flags.exists() and " avx512f" in flags.read_text(encoding="utf-8", errors="replace") else 8
