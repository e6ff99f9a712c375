"""Layouts: the order of axes as one letter each ("NHWC"), checked against shapes and against each other. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.border import LAYOUT_OF_RANK
from hetero_core.network.types import ValueSpec


def read_layout(layout: str, rank: int, where: str) -> str:
    """Returns the layout in capitals.

    Raises: InvalidNetworkError unless it has one letter for each axis, no letter twice.
    """
    text = layout.upper()
    if len(text) != rank or len(set(text)) != rank or not text.isalpha():
        raise InvalidNetworkError(
            f"{where}: layout '{layout}' does not name {rank} axes; expected {rank} different letters, as in "
            f"'{LAYOUT_OF_RANK.get(rank, 'NCDHW')}'"
        )
    return text


def find_model_layout(spec: ValueSpec, known: str | None, said: str | None, where: str) -> str:
    """Returns the order of the axes in the model: as said, as known from before, or by the rank.

    Raises: InvalidNetworkError if no layout follows from these.
    """
    if spec.shape is None:
        raise InvalidNetworkError(f"{where}: the number of axes of {spec} is not known; give the input a shape with with_shapes")
    rank = len(spec.shape)
    layout = said if said is not None else known if known is not None else LAYOUT_OF_RANK.get(rank)
    if layout is None:
        raise InvalidNetworkError(f"{where}: {rank} axes have no usual layout; say the model's, as in model_layout='NTHWC'")
    return read_layout(layout, rank, where)


def order_axes(source: str, target: str, where: str) -> tuple[int, ...]:
    """Returns for each axis of `target` its position in `source`.

    Raises: InvalidNetworkError if the two differ in their letters.
    """
    if sorted(source) != sorted(target):
        raise InvalidNetworkError(
            f"{where}: layout '{source}' and the model's layout '{target}' name different axes; use the same letters, or say the model's "
            "in model_layout"
        )
    return tuple(source.index(letter) for letter in target)
