"""The rank of an output whose sizes follow from values of the run, where onnx infers none.

A device that compiles for ranks, and a cut, need no more than that. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add, sub

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.contrib_types import TypedNode
from hetero_core.network.graph import Node
from hetero_core.network.types import LARGEST_RANK, TensorType, ValueType, rank_of


def infer_ranks(node: Node, input_types: Sequence[ValueType | None]) -> dict[str, ValueType]:
    """Returns output -> tensor type with rank alone, its sizes open, for the outputs whose rank follows from the types of the inputs.

    Raises: InvalidNetworkError for a rank that no array has. Engines follow it: 30 Gathers of a value by itself have 2**30 dimensions.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    rank = None if rule is None else rule(TypedNode(node, input_types))
    if rank is not None and rank > LARGEST_RANK:
        raise InvalidNetworkError(
            f"node {node.label} makes an array of {rank} dimensions; an array has at most {LARGEST_RANK}. Correct the shapes, or export "
            "the model again."
        )
    return {} if rank is None or rank < 0 else {value: TensorType(None, (None,) * rank) for value in node.writes}


def _rank_of(node: TypedNode, index: int) -> int | None:
    return rank_of(node.type(index))


def _length_of(node: TypedNode, index: int) -> int | None:
    """Returns how many elements a list of sizes or axes has."""
    length = node.size(index, 0)
    return length if _rank_of(node, index) == 1 and isinstance(length, int) else None


def _join(rank: int | None, other: int | None, compute: Callable[[int, int], int]) -> int | None:
    return None if rank is None or other is None else compute(rank, other)


def _reduce(node: TypedNode) -> int | None:
    rank = _rank_of(node, 0)
    if rank is None or node.integer("keepdims", 1):
        return rank
    if _length_of(node, 1) == 0:
        return rank if node.integer("noop_with_empty_axes") else 0
    # Without a list of axes onnx knows the answer.
    return _join(rank, _length_of(node, 1), sub)


def _unsqueeze(node: TypedNode) -> int | None:
    axes = node.integers("axes")
    return _join(_rank_of(node, 0), _length_of(node, 1) if axes is None else len(axes), add)


def _gather(node: TypedNode) -> int | None:
    # A scalar has no axis to be gathered along.
    return _join(_rank_of(node, 0) or None, _rank_of(node, 1), lambda rank, of_indices: rank + of_indices - 1)


_RULES: Mapping[str, Callable[[TypedNode], int | None]] = {
    "ConstantOfShape": lambda node: _length_of(node, 0),
    "Expand": lambda node: _join(_rank_of(node, 0), _length_of(node, 1), max),
    "Gather": _gather,
    "OneHot": lambda node: _join(_rank_of(node, 0), 1, add),
    "Reshape": lambda node: _length_of(node, 1),
    "Squeeze": lambda node: _join(_rank_of(node, 0), _length_of(node, 1), sub),
    "Unsqueeze": _unsqueeze,
    **dict.fromkeys(("Pad", "Slice", "Split", "Tile"), lambda node: _rank_of(node, 0)),
    **{f"Reduce{name}": _reduce for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
}
