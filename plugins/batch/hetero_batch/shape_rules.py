"""Shapes of values with images: which of their elements is the size of the batch, and whether a Gather or Slice takes it."""

from __future__ import annotations

from hetero_batch.views import SIZE, Axis, NodeView, shape_with_size_at, size_place


def describe_shape(view: NodeView) -> Axis:
    """Shape, Size: a shape with the size of the batch at its place, or None if that is cut off."""
    axis, rank = view.axis(0), len(view.shape(0))
    if not isinstance(axis, int) or view.node.op_type == "Size":
        return SIZE
    start, end = (int(view.node.attributes.get(name, default)) for name, default in (("start", 0), ("end", rank)))
    start, end = (max(0, min(bound + rank if bound < 0 else bound, rank)) for bound in (start, end))
    return shape_with_size_at(axis - start) if start <= axis < end else None


def takes_size(view: NodeView) -> bool:
    """Says whether a Gather or Slice of a shape takes the size of the batch, as far as is known."""
    (length,) = view.shape(0)
    places = view.constant(1, "starts")
    if not isinstance(length, int) or places is None:
        return True
    if view.node.op_type == "Slice":
        ends, steps = view.constant(2, "ends"), view.constant(4) or [1]
        if ends is None or len(places) != 1:
            return True
        places = list(range(length))[places[0] : ends[0] : steps[0]]
    return size_place(view.axis(0)) in [place % length for place in places]
