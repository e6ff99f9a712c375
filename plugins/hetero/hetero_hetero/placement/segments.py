"""Segments: runs of nodes between narrow frontiers of a network, the pieces that placement puts on devices.

A frontier stands between two nodes that follow one another in topological order; it is as wide as the number of values that cross it.
The network is cut at its narrowest frontiers first, and stretches with much of the work again at the next width. Small neighbours of
one kind are joined, and branches of a stretch that share no value become segments of their own. No segment begins before a segment
that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from math import prod
from typing import Any

from hetero_core.dtypes import bits_of_dtype
from hetero_core.network.arrays import digest_array
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_hetero.digraph import find_components, reverse_edges

MOST_SEGMENTS = 48
_WIDEST = 8
"""Values; a frontier that more cross is not cut."""
FORBIDDEN = 1_000_000
"""The width of a frontier that cannot be cut."""
_OPEN_SIZE = 16
"""The size that estimates of work assume for an open dimension."""
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger"))
_RECURRENT = frozenset(("LSTM", "GRU", "RNN", "Scan", "Loop"))
_SEARCHING = frozenset(("NonMaxSuppression", "TopK", "Unique", "NonZero", "RoiAlign", "GridSample"))
_SMALL_CONSTANT = 64
"""Elements; such a constant is an axis, a shape or a scale, whose values shape what is compiled."""

Traits = Sequence[object]
"""A trait of each node, the devices that take it: nodes of equal traits may be measured together."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions of nodes in topological order, the inner values that it reads and makes for others, and its estimated work."""

    nodes: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    work: float


def cut_segments(
    network: Network, units: Iterable[Sequence[int]], traits: Traits, *, most: int = MOST_SEGMENTS
) -> tuple[Segment, ...]:
    """Returns segments that hold each node once, in an order in which they can run; about `most` of them, fewer for small networks.

    `units` are nodes that no cut separates. Nodes of different `traits` are in different segments if a cut between them is
    possible.
    """
    if not network.nodes:
        return ()
    work = [estimate_work(network, node) for node in network.nodes]
    widths = measure_widths(network, units)
    total = sum(work)
    kinds = [(trait, _find_kind(node)) for node, trait in zip(network.nodes, traits, strict=True)]
    blocks: list[range] = []
    for block in _cut_stretch(network, range(len(work)), widths, work, total / most):
        # Further cuts between nodes that different devices take.
        cuts = (index for index in block[:-1] if traits[index] != traits[index + 1] and widths[index] <= _WIDEST)
        blocks += _cut_at(block, [index + 1 for index in cuts])
    least = total / most
    joined = _join_small(blocks, work, kinds, least)
    while len(joined) > 2 * most:
        least *= 2
        joined = _join_small(joined, work, [None] * len(work), least)
    pieces = [piece for block in joined for piece in _split_branches(network, block, work, least)]
    return tuple(describe_segment(network, piece, sum(work[index] for index in piece)) for piece in pieces)


def describe_segment(network: Network, nodes: Sequence[int], work: float) -> Segment:
    """Returns the segment of these nodes with the inner values at its border."""
    inside, makers, readers = set(nodes), network.index_of_producer, network.index_of_consumers
    read = dict.fromkeys(value for index in nodes for value in network.nodes[index].reads)
    made = [value for index in nodes for value in network.nodes[index].writes]
    reads = tuple(value for value in read if value in makers and makers[value] not in inside)
    writes = tuple(value for value in made if not inside.issuperset(readers.get(value, ())))
    return Segment(tuple(nodes), reads, writes, work)


def estimate_work(network: Network, node: Node) -> float:
    """Returns the operations of a node, roughly: multiplications of products, else the elements that it reads and makes."""
    elements = float(sum(_count_elements(network, value) for value in node.writes))
    weights = [
        prod(size for size in network.initializers[value].type.shape or () if isinstance(size, int))
        for value in node.inputs
        if value in network.initializers
    ]
    shape = _find_shape(network, node.inputs[0]) if node.inputs else ()
    rows = _size(shape[0]) if shape else 1
    if node.op_type in _PRODUCTS and max(weights, default=0):
        made = _find_shape(network, node.writes[0]) if node.writes else ()
        axis = 1 if "Conv" in node.op_type and len(made) > 1 else -1
        return 2 * elements * max(max(weights) / (_size(made[axis]) if made else 1), 1.0)
    if node.op_type in _PRODUCTS:
        return 2 * elements * (_size(shape[-1]) if shape else _OPEN_SIZE)
    if node.op_type in _RECURRENT and weights:
        # Each step multiplies by all weights.
        return 2.0 * rows * sum(weights)
    if node.domain == "ai.onnx.ml":
        # A visit of a tree's node waits for memory; a row visits few of them, each as dear as many operations of a product.
        return elements + rows * max((len(value) for value in node.attributes.values() if isinstance(value, tuple)), default=1)
    read = sum(_count_elements(network, value) for value in node.reads if value not in network.initializers)
    return elements + read + 10_000 * sum(len(body.nodes) for body in node.bodies.values())


def _find_shape(network: Network, value: str) -> tuple[Any, ...]:
    known = network.type_of(value)
    return (known.shape or ()) if isinstance(known, TensorType) else ()


def _size(size: object) -> int:
    return max(size, 1) if isinstance(size, int) else _OPEN_SIZE


def _count_elements(network: Network, value: str) -> int:
    return prod(_size(size) for size in _find_shape(network, value))


def measure_widths(network: Network, units: Iterable[Sequence[int]]) -> list[int]:
    """Returns for each frontier, by the node before it, how many values cross it; `FORBIDDEN` or more if no cut is possible."""
    count = len(network.nodes)
    change = [0] * (count + 1)
    spans = [
        (position, max(readers), 1 if _may_cross(network, value) else FORBIDDEN)
        for value, position in network.index_of_producer.items()
        if (readers := network.index_of_consumers.get(value, ()))
    ]
    for first, last, width in (*spans, *((min(unit), max(unit), FORBIDDEN) for unit in units)):
        change[first] += width
        change[last] -= width
    return list(accumulate(change[:count]))


def _may_cross(network: Network, value: str) -> bool:
    """Says whether a value is a tensor of numbers, which can be sent to a process."""
    known = network.type_of(value)
    return isinstance(known, TensorType) and known.dtype is not None and bits_of_dtype(known.dtype) is not None


def _cut_stretch(network: Network, stretch: range, widths: Sequence[int], work: Sequence[float], enough: float) -> list[range]:
    """Returns the stretch cut at its narrowest frontiers, and those pieces again that hold more than `enough` of the work.

    A stretch of branches is not cut across them.
    """
    inner = [widths[index] for index in stretch[:-1]]
    if not inner or min(inner) > _WIDEST or sum(work[index] for index in stretch) <= enough:
        return [stretch]
    narrowest = min(inner)
    if narrowest > 1 and len(_split_branches(network, stretch, work, enough)) > 1:
        return [stretch]
    ends = [index + 1 for index in stretch[:-1] if widths[index] == narrowest]
    return [part for piece in _cut_at(stretch, ends) for part in _cut_stretch(network, piece, widths, work, enough)]


def _cut_at(stretch: range, ends: Sequence[int]) -> list[range]:
    return list(map(range, (stretch.start, *ends), (*ends, stretch.stop)))


def _find_kind(node: Node) -> str:
    """Returns the kind of a node's work, at which engines are differently good."""
    is_quantized = any(word in node.op_type for word in ("Integer", "Quantize", "QLinear"))
    kinds = {"steps": node.op_type in _RECURRENT, "search": node.op_type in _SEARCHING, "quantized": is_quantized}
    return "ml" if node.domain == "ai.onnx.ml" else next((kind for kind, is_own in kinds.items() if is_own), "")


def _join_small(blocks: Sequence[range], work: Sequence[float], kinds: Sequence[object], least: float) -> list[range]:
    """Returns the blocks after each block with less than `least` work has joined the next block of its kind. A large block ends the
    joining, so that repeated blocks are joined alike.
    """
    joined: list[range] = []
    is_small = False
    for block in blocks:
        if is_small and not _differ(joined[-1], block, kinds):
            joined[-1] = range(joined[-1].start, block.stop)
        else:
            joined.append(block)
        is_small = sum(work[index] for index in joined[-1]) < least
    if is_small and len(joined) > 1 and not _differ(joined[-2], joined[-1], kinds):
        last = joined.pop()
        joined[-1] = range(joined[-1].start, last.stop)
    return joined


def _differ(first: range, second: range, kinds: Sequence[object]) -> bool:
    return {kinds[index] for index in first} != {kinds[index] for index in second}


def _split_branches(network: Network, block: range, work: Sequence[float], least: float) -> list[tuple[int, ...]]:
    """Returns the branches of a block and the nodes behind that join them; the block itself if it has fewer than two large branches."""
    for join in range(block.stop - 1, block.start, -1):
        branches = _find_components(network, range(block.start, join))
        large = [branch for branch in branches if sum(work[index] for index in branch) >= least / 2]
        if len(large) >= 2 and all(_may_cross(network, value) for index in block for value in network.nodes[index].writes):
            return [*branches, tuple(range(join, block.stop))] if len(branches) <= len(large) + 1 else [tuple(block)]
        if block.stop - join >= 4:
            break
    return [tuple(block)]


def _find_components(network: Network, stretch: range) -> list[tuple[int, ...]]:
    """Returns the sets of nodes that share values with each other and not with the rest of the stretch, by first node."""
    makers = [
        [
            maker - stretch.start
            for value in network.nodes[index].reads
            if (maker := network.index_of_producer.get(value, -1)) in stretch
        ]
        for index in stretch
    ]
    components = find_components((makers, reverse_edges(makers)), len(stretch))
    return [tuple(stretch[place] for place in places) for places in components]


def sign_segment(network: Network, segment: Segment, shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns a digest that two segments share if they differ in names and weights alone.

    Operators with attributes, their wiring, the types of all values, the contents of small constants count. `shapes` are the shapes
    of values in a real run, for types with open sizes. A node with bodies equals no other node.
    """
    numbers: dict[str, int] = {}
    digest = sha256()

    def feed(*items: object) -> None:
        digest.update(repr(items).encode())

    for index in segment.nodes:
        node = network.nodes[index]
        feed(node.operator, node.name if node.bodies else "")
        for value in (*node.inputs, "|", *node.outputs):
            if value not in numbers:
                numbers[value] = len(numbers)
                constant = network.initializers.get(value)
                feed(str(network.type_of(value)), tuple(shapes.get(value, ())), value in segment.writes, constant is not None)
                if constant is not None:
                    sizes = [size for size in constant.type.shape or () if isinstance(size, int)]
                    feed(str(constant.type), constant.digest if prod(sizes) <= _SMALL_CONSTANT else "")
            feed(numbers[value])
        for key in sorted(node.attributes):
            attribute = node.attributes[key]
            feed(key, digest_array(attribute) if hasattr(attribute, "dtype") else "" if key in node.bodies else attribute)
    return digest.hexdigest()
