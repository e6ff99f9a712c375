"""The end of a product, as its kernel computes it: a bias, one tensor that is added, functions of each element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_cpu.machine.arithmetic import Activation
from hetero_cpu.machine.native import Array
from hetero_cpu.operators.elementwise.native_activations import read_activation
from hetero_cpu.planning.recipe import Site


@dataclass(frozen=True, slots=True)
class NativeEpilogue:
    """`bias`: one number for each channel, or None; `added`: a value of the shape of the result, or none; then the activations."""

    bias: Array | None
    added: str
    activations: tuple[Activation, ...]


def read_native_epilogue(site: Site, bias: Array | None, outputs: int, *, channel_axis: int) -> NativeEpilogue | None:
    """Returns the epilogue of a product with `outputs` channels; None if it holds what the kernel does not compute."""
    added, activations = "", []
    shape = site.types[site.group.outputs[0]].shape
    for extra in site.group.epilogue:
        if not extra.value:
            activation = read_activation(extra.node, site.constants)
            if activation is None:
                return None
            activations.append(activation)
            continue
        vector = _read_vector(site, extra.value, shape or (), outputs, channel_axis)
        if vector is not None and not added:
            bias = vector if bias is None else bias.reshape(-1) + vector
        elif not added and site.is_float32(extra.value) and site.shape(extra.value) == shape and extra.value not in site.constants:
            added = extra.value
        else:
            return None
    return NativeEpilogue(bias, added, tuple(activations))


def list_overwritten(site: Site, source: str, added: str) -> tuple[int, ...]:
    """Returns the positions among (source, added) whose memory the result may take: that of `added`, where the source does not lie there.

    Other tiles read the source after the first one is written; what is added is read where it is written.
    """
    return (1,) if added and not np.may_share_memory(site.prototypes[source], site.prototypes[added]) else ()


def _read_vector(site: Site, value: str, shape: tuple[object, ...], outputs: int, channel_axis: int) -> Array | None:
    """Returns a constant that adds one number to each channel, None for another value."""
    constant = site.constants.get(value)
    if constant is None or constant.dtype != np.float32 or constant.ndim > len(shape):
        return None
    sizes = (1,) * (len(shape) - constant.ndim) + constant.shape
    channel_shape = tuple(outputs if axis == channel_axis % len(shape) else 1 for axis in range(len(shape)))
    if sizes == channel_shape:
        return constant.reshape(-1)
    return np.full(outputs, constant.reshape(-1)[0], np.float32) if constant.size == 1 else None
