"""The steps behind a product: bias, additions, an activation, in place on the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hetero_cpu.open.arrays import broadcast
from hetero_cpu.operators.elementwise.activations import BINDERS, NEEDS_SPARE
from hetero_cpu.planning.recipe import Array, Call, Site


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A group's epilogue as calls on arrays of (batch, height, width, channels), or of any one shape. `values` are read from the plan."""

    site: Site
    bias: Array | None
    values: tuple[str, ...]

    @property
    def needs_spare(self) -> bool:
        """Says whether `bind` wants an array like the result."""
        return any(extra.node.op_type in NEEDS_SPARE for extra in self.site.group.epilogue)

    def bind(self, y: Array, added: Mapping[str, Array], spare: Array) -> list[Call]:
        """Returns the calls. y: the result, or a part of it; `added` holds what the values add to this part, in its shape or broadcast."""
        calls: list[Call] = [] if self.bias is None else [partial(np.add, y, _widen_rows(self.bias, y), y)]
        for extra in self.site.group.epilogue:
            if extra.value:
                calls.append(partial(np.add, y, added[extra.value], y))
            else:
                calls += BINDERS[extra.node.op_type](extra.node, self.site.constants, y, y, spare)
        return calls


def plan_epilogue(site: Site, bias: Array | None) -> Epilogue | None:
    """Returns the epilogue of a group, None where one of its parts is not float32."""
    values = tuple(extra.value for extra in site.group.epilogue if extra.value)
    if not site.is_float32(*values):
        return None
    return Epilogue(site, bias, values)


def arrange_added(
    values: Sequence[str], arrays: Sequence[Array], shape: tuple[int, ...], *, channels_last: bool
) -> dict[str, Array]:
    """Returns value -> array broadcast to the ONNX `shape` of the result; its axes in the order of (batch, height, width, channels)."""
    spread = {value: broadcast(array, shape) for value, array in zip(values, arrays, strict=True)}
    return {value: array.transpose(0, 2, 3, 1) if channels_last else array for value, array in spread.items()}


def _widen_rows(bias: Array, y: Array) -> Array:
    # Repeated for a whole row, so that NumPy's inner loop is as long as the row and not as the channels.
    if y.ndim < 2 or y.shape[-2] * bias.size > 1 << 16:
        return bias
    return np.ascontiguousarray(np.broadcast_to(bias, (y.shape[-2], bias.size)))
