"""The rank of an output whose sizes follow from values of the run, where onnx infers none.

A device that compiles for ranks, and a cut, need no more than that. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Node
from hetero_core.network.types import LARGEST_RANK, TensorType, ValueType

InputTypes = Sequence[ValueType | None]


def infer_ranks(node: Node, input_types: InputTypes) -> dict[str, ValueType]:
    """Returns output -> tensor type with rank alone, its sizes open, for the outputs whose rank follows from the types of the inputs.

    Raises: InvalidNetworkError for a rank that no array has. Engines follow it: 30 Gathers of a value by itself have 2**30 dimensions.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    rank = None if rule is None else rule(node, input_types)
    if rank is not None and rank > LARGEST_RANK:
        raise InvalidNetworkError(
            f"node {node.label} makes an array of {rank} dimensions; an array has at most {LARGEST_RANK}. Correct the shapes, or export "
            "the model again."
        )
    return {} if rank is None or rank < 0 else {value: TensorType(None, (None,) * rank) for value in node.writes}


def _rank_of(input_types: InputTypes, index: int) -> int | None:
    input_type = input_types[index] if index < len(input_types) else None
    return len(input_type.shape) if isinstance(input_type, TensorType) and input_type.shape is not None else None


def _length_of(input_types: InputTypes, index: int) -> int | None:
    """Returns how many elements a list of sizes or axes has."""
    input_type = input_types[index] if index < len(input_types) else None
    if not isinstance(input_type, TensorType) or input_type.shape is None or len(input_type.shape) != 1:
        return None
    return input_type.shape[0] if isinstance(input_type.shape[0], int) else None


def _keep(node: Node, input_types: InputTypes) -> int | None:
    return _rank_of(input_types, 0)


def _follow_list(index: int) -> Callable[[Node, InputTypes], int | None]:
    return lambda node, input_types: _length_of(input_types, index)


def _expand(node: Node, input_types: InputTypes) -> int | None:
    rank, length = _rank_of(input_types, 0), _length_of(input_types, 1)
    return None if rank is None or length is None else max(rank, length)


def _reduce(node: Node, input_types: InputTypes) -> int | None:
    rank = _rank_of(input_types, 0)
    if rank is None or node.attributes.get("keepdims", 1):
        return rank
    axes = _length_of(input_types, 1)
    if axes == 0:
        return rank if node.attributes.get("noop_with_empty_axes", 0) else 0
    # Without a list of axes onnx knows the answer.
    return None if axes is None else rank - axes


def _squeeze(node: Node, input_types: InputTypes) -> int | None:
    rank, axes = _rank_of(input_types, 0), _length_of(input_types, 1)
    return None if rank is None or axes is None else rank - axes


def _unsqueeze(node: Node, input_types: InputTypes) -> int | None:
    listed = node.attributes.get("axes")
    rank, axes = _rank_of(input_types, 0), len(listed) if isinstance(listed, tuple) else _length_of(input_types, 1)
    return None if rank is None or axes is None else rank + axes


def _gather(node: Node, input_types: InputTypes) -> int | None:
    rank, of_indices = _rank_of(input_types, 0), _rank_of(input_types, 1)
    return None if not rank or of_indices is None else rank + of_indices - 1


def _one_hot(node: Node, input_types: InputTypes) -> int | None:
    rank = _rank_of(input_types, 0)
    return None if rank is None else rank + 1


_RULES: Mapping[str, Callable[[Node, InputTypes], int | None]] = {
    "ConstantOfShape": _follow_list(0),
    "Expand": _expand,
    "Gather": _gather,
    "OneHot": _one_hot,
    "Pad": _keep,
    "Reshape": _follow_list(1),
    "Slice": _keep,
    "Split": _keep,
    "Squeeze": _squeeze,
    "Tile": _keep,
    "Unsqueeze": _unsqueeze,
    **{f"Reduce{name}": _reduce for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
}
