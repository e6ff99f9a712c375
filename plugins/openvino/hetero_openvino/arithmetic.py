"""Integer operators that the engine computes wrongly, where NumPy and ONNX's reference are exact.

OpenVINO 2026.4 on processors computes integers of 64 bits and uint32 in int32, saturates those of 8 bits where the standard's reference
wraps around, and gives some operators of the wider ones to kernels of float32, which is exact up to 2^24. A node is refused where a value
that it reads or makes may be larger: because of a constant, or because inputs of `_LEAST` and more would make it so. Inputs themselves are
looked at in each run: `settle_limits` says how large they may be, so that nothing that is made of them is too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hetero_core.engines.inspection import MOVING, dtype_of_input, dtype_of_value
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs
from hetero_core.network.types import ValueSpec
from hetero_openvino.magnitudes import LARGEST, Bound, bound_exactly, find_bounds, is_beyond
from hetero_openvino.producers import walk_producers

EXACT_FLOAT = 2**24
_LEAST = 2**18 - 1
"""The lowest limit of an input; indices of the largest vocabularies are no larger."""
_LONG = frozenset({"int64", "uint32", "uint64"})
_WIDE = _LONG | {"int32"}
_NARROW = ("int16", "uint16")
_GROWING = frozenset({"Einsum", "Gemm", "MatMul", "Pow", "ReduceProd", "ReduceSumSquare"})
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_IN_FLOAT = _COMPARING | frozenset(
    {
        *("Div", "Mod", "ReduceL1", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceSum", "Relu", "Resize", "ReverseSequence", "TopK", "Trilu", "Upsample"),
    }
)
_SATURATING = _GROWING | {"Add", "Mul", "ReduceMean", "Sub", "Sum"}


def find_arithmetic_error(node: Node, graph: Graph) -> str | None:
    """Returns the text of the engine's error in a node of integers, for any values of its inputs, or None."""
    dtype = dtype_of_input(node, graph) or ""
    is_in_float = _is_inexact(node, graph)
    for position, value in enumerate(node.inputs):
        # The frontend saturates constants, and an end beyond the end is the end.
        if node.op_type == "Slice" and position > 0:
            break
        if _exceeds(value, graph, EXACT_FLOAT if is_in_float else LARGEST):
            limit = "float32, which is exact up to 2^24" if is_in_float else "32 bits"
            kind = dtype_of_value(value, graph)
            return f"OpenVINO computes {node.op_type} of {kind} in {limit}; the constant '{value}' has larger values"
    if "int" not in dtype:
        return None
    if node.op_type == "BitShift":
        # bitshift_right_int8_negative_input; a shift by the width or more, or out of a byte
        return "OpenVINO shifts signed integers, and beyond their width, another way than the standard"
    if dtype in ("int8", "uint8"):
        if node.op_type == "Div":
            # div_int8, since the engine's fusion is off
            return f"OpenVINO rounds quotients of {dtype}; the standard cuts them off"
        is_saturating = node.op_type in _SATURATING
        return f"OpenVINO saturates {dtype}; the standard's reference wraps around" if is_saturating else None
    return f"OpenVINO computes {node.op_type} of {dtype} in float32" if node.op_type in _GROWING else None


def find_output_excess(network: Network) -> str | None:
    """Returns why the engine cannot return a constant as it is, or None."""
    names = (spec.name for spec in network.outputs if _exceeds(spec.name, network, LARGEST))
    return next(
        (f"OpenVINO holds integers in 32 bits; the output '{name}' is a constant with larger values" for name in names), None
    )


def settle_limits(network: Network) -> tuple[dict[str, int], dict[str, Bound]]:
    """Returns how large the absolute integers of inputs may be, and the bounds of all values that follow.

    Inputs that are not named may be anything. Under these limits no value is too large for the engine, as long as they can be `_LEAST` or
    more; `find_excess` says of which nodes that is not so.
    """
    limits = {spec.name: LARGEST for spec in network.inputs if _is_limited(spec, network)}
    for value in _list_values_in_float(network):
        for name in _list_origins(value, network):
            if network.inputs[network.index_of_input[name]].dtype in _WIDE:
                limits[name] = EXACT_FLOAT
    dtypes = {spec.name: spec.dtype for spec in network.inputs}
    while True:
        bounds = find_bounds(network, limits)
        excesses = {value for node in network.nodes for value, _ in _list_excesses(node, network, bounds)}
        origins = sorted({name for value in excesses for name in _list_origins(value, network) if dtypes[name] in _WIDE})
        lowered = {name: half for name in origins if (half := limits.get(name, LARGEST) // 2) >= _LEAST}
        if not lowered:
            return limits, bounds
        limits.update(lowered)


def find_excess(node: Node, network: Network, bounds: Mapping[str, Bound]) -> str | None:
    """Returns why the engine cannot compute a node: a value that it reads or makes may be too large, or is not cut off; else None."""
    dtype = ""
    for value, limit in _list_excesses(node, network, bounds):
        kind = "float32, which is exact up to 2^24" if limit == EXACT_FLOAT else "32 bits"
        dtype = str(dtype_of_value(value, network))
        return f"OpenVINO computes {node.op_type} of {dtype} in {kind}; {_describe(value, bounds[value])}"
    for position, value in enumerate(node.outputs):
        dtype = str(dtype_of_value(value, network)) if value else ""
        exact = bound_exactly(node, position, network, bounds) if dtype in _NARROW else None
        if value in network.index_of_consumers and exact is not None and is_beyond(exact, dtype):
            return f"OpenVINO holds {dtype} in 32 bits within a network and does not wrap it around; {_describe(value, exact)}"
    return None


def _describe(value: str, bound: Bound) -> str:
    return f"'{value}' may have values from {bound.low:.17g} to {bound.high:.17g}"


def _list_excesses(node: Node, network: Network, bounds: Mapping[str, Bound]) -> Iterable[tuple[str, int]]:
    """Yields the values of a node that may be too large for the engine, and what the engine is exact up to."""
    is_in_float = not node.domain and _is_inexact(node, network)
    for value in (*node.inputs, *node.outputs):
        dtype = dtype_of_value(value, network) if value else None
        # Constants have a reason of their own, and those that say where a Slice ends are saturated.
        if dtype not in _WIDE or value in network.initializers or (dtype == "int32" and not is_in_float):
            continue
        limit = EXACT_FLOAT if is_in_float else LARGEST
        if value in bounds and bounds[value].largest > limit:
            yield value, limit


def _is_inexact(node: Node, graph: Graph) -> bool:
    """Says whether the engine computes a node of integers in float32 and its result is wrong for some of 32 bits.

    A comparison with constants below 2^24 is right: rounding moves no integer onto such a number, nor past it.
    """
    if node.op_type not in _IN_FLOAT or dtype_of_input(node, graph) not in _WIDE:
        return False
    is_exact = any(value in graph.initializers and not _exceeds(value, graph, EXACT_FLOAT - 2) for value in node.inputs)
    return not (node.op_type in _COMPARING and is_exact)


def _is_limited(spec: ValueSpec, network: Network) -> bool:
    """Says whether the engine is wrong about some numbers of an input, whatever is done with it, or by what is done with it."""
    if spec.dtype in ("int64", "uint64"):
        return True
    waiting, seen = [spec.name], {spec.name}
    while waiting and spec.dtype in ("int32", "uint32"):
        for node in (network.nodes[index] for index in network.index_of_consumers.get(waiting.pop(), ())):
            # All bits of uint32 are there; only who takes them for a number is wrong. Of int32 the lowest number is False as bool.
            is_cast = node.op_type in ("Cast", "CastLike") and not node.domain
            is_cast_to_bool = is_cast and dtype_of_value(node.outputs[0], network) == "bool"
            is_moved = (node.op_type in MOVING and not node.domain) or (is_cast and spec.dtype == "int32")
            if is_cast_to_bool or (spec.dtype == "uint32" and not is_moved):
                return True
            fresh = [value for value in node.outputs if is_moved and value and value not in seen]
            seen.update(fresh)
            waiting += fresh
    return False


def _list_values_in_float(network: Network) -> Iterable[str]:
    """Yields the values that some node, or some node of its bodies, computes in float32 though they are integers."""
    for node in network.nodes:
        if _is_inexact(node, network):
            yield from node.inputs
        bodies = [body for outer in node.bodies.values() for body in iterate_graphs(outer)]
        if any(_is_inexact(inner, body) for body in bodies for inner in body.nodes):
            yield from node.reads


def _list_origins(value: str, network: Network) -> set[str]:
    """Returns the inputs that a value is made of; a size is below the limit whatever it is the size of."""
    producers = walk_producers(value, network, lambda node: node.op_type not in ("Shape", "Size"))
    reads = {name for node in producers if node.op_type not in ("Shape", "Size") for name in node.reads}
    return {value, *reads} & network.index_of_input.keys()


def _exceeds(value: str, graph: Graph, limit: int) -> bool:
    constant = graph.initializers.get(value)
    if constant is None or constant.dtype not in _WIDE or not constant.array.size:
        return False
    if limit == LARGEST and constant.dtype not in _LONG:
        return False
    return bool(constant.array.max() > limit or constant.array.min() < np.int64(-limit) - 1)
