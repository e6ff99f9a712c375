"""Units: nodes that belong on one device, read off the graph. Pure functions on a network; no device is known here.

A quantized unit is an operator between DequantizeLinear and QuantizeLinear, which an engine fuses into one integer kernel. A shape node
computes nothing but what others need on the host: the shape of a Reshape, the ends of a Slice, the count of a Tile.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType

_DOMAINS_OF_QUANTIZATION = ("", "com.microsoft")
_ACTIVATIONS = ("Clip", "Relu")
"""Operators that may stand between an operator and its QuantizeLinear: they become limits of the quantization."""

_HOST_INPUTS: Mapping[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"), (1,)
    ),
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare"), (1,)),
}
"""Operator of ONNX's own domain -> the inputs that say how to compute, not what; a device reads them on the host."""
_DTYPES_OF_SHAPES = ("int64", "int32", "bool")
_LARGEST_SHAPE = 1024
"""Bytes up to which integers pass for a shape; a larger tensor is a computation of its own, whichever nodes read it."""


def find_quantized_units(network: Network) -> tuple[tuple[int, ...], ...]:
    """Returns the positions of the nodes of each unit, ascending; units share no node.

    A unit is an operator, the DequantizeLinear nodes that feed it alone, perhaps a Relu or Clip behind it, and the
    QuantizeLinear nodes that alone read the result. A path that leaves a unit leaves it through these and does not return, so
    units can be taken as single nodes, all of them together.
    """
    units = (_find_unit_around(network, index) for index in range(len(network.nodes)))
    return tuple(unit for unit in units if unit)


def _find_unit_around(network: Network, index: int) -> tuple[int, ...]:
    node = network.nodes[index]
    sources = sorted({network.index_of_producer[value] for value in node.inputs if value in network.index_of_producer})
    feeding = [source for source in sources if _is_quantizer(network.nodes[source], "DequantizeLinear")]
    if not feeding or _is_quantizer(node, "DequantizeLinear") or _is_quantizer(node, "QuantizeLinear"):
        return ()
    own = [source for source in feeding if _list_readers(network, network.nodes[source]) == (index,)]
    behind = _follow_to_quantizers(network, index)
    return tuple(sorted((*own, index, *behind))) if own and behind else ()


def _follow_to_quantizers(network: Network, index: int) -> tuple[int, ...]:
    """Returns the activations and QuantizeLinear nodes behind a node, () if another node reads its result."""
    passed: list[int] = []
    while True:
        node = network.nodes[index]
        readers = _list_readers(network, node)
        if readers and all(_quantizes(network, reader, node.outputs[0]) for reader in readers):
            return (*passed, *readers)
        if len(readers) != 1 or network.nodes[readers[0]].op_type not in _ACTIVATIONS:
            return ()
        (index,) = readers
        if network.nodes[index].inputs.count(node.outputs[0]) != 1 or network.nodes[index].inputs[0] != node.outputs[0]:
            return ()
        passed.append(index)


def _list_readers(network: Network, node: Node) -> tuple[int, ...]:
    """Returns the readers of a node's only output, () if it has several outputs or the network returns the output."""
    if len(node.writes) != 1 or node.outputs[0] in network.names_of_outputs:
        return ()
    return network.index_of_consumers.get(node.outputs[0], ())


def _quantizes(network: Network, index: int, value: str) -> bool:
    """Says whether a node quantizes this value, by scales that no node makes: with these it could not be entered from behind."""
    node = network.nodes[index]
    scales = node.inputs[1:]
    return (
        _is_quantizer(node, "QuantizeLinear")
        and node.inputs[0] == value
        and not any(scale in network.index_of_producer for scale in scales)
    )


def _is_quantizer(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _DOMAINS_OF_QUANTIZATION


def find_shape_nodes(network: Network) -> tuple[int, ...]:
    """Returns the ascending positions of shape nodes: small results that only control how other nodes compute."""
    shape_nodes: set[int] = set()
    for index in reversed(range(len(network.nodes))):
        values = network.nodes[index].writes
        if values and all(_is_shape(network, value) and _only_steers(network, value, shape_nodes) for value in values):
            shape_nodes.add(index)
    return tuple(sorted(shape_nodes))


def _is_shape(network: Network, value: str) -> bool:
    """Says whether a value may be a shape or a part of a shape: few integers, or a vector of factors as Resize takes."""
    known = network.type_of(value)
    if not isinstance(known, TensorType):
        return False
    if known.dtype in _DTYPES_OF_SHAPES:
        return known.nbytes is None or known.nbytes <= _LARGEST_SHAPE
    return known.shape is not None and len(known.shape) <= 1 and (known.nbytes or 0) <= _LARGEST_SHAPE


def _only_steers(network: Network, value: str, shape_nodes: set[int]) -> bool:
    readers = network.index_of_consumers.get(value, ())
    if not readers or value in network.names_of_outputs:
        return False
    return all(reader in shape_nodes or _steers(network.nodes[reader], value) for reader in readers)


def _steers(node: Node, value: str) -> bool:
    """Says whether a node reads the value only at inputs that control the computation."""
    host = _HOST_INPUTS.get(node.op_type, ()) if not node.domain else ()
    return value not in node.captures and all(place in host for place, name in enumerate(node.inputs) if name == value)
