"""Shared parts of the ways of computing a convolution: its geometry and its packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.planning.recipe import Array, Site
from hetero_cpu.planning.weights import LaterArray

_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution of two spatial axes, without its weights: who binds the recipe must not keep them."""

    site: Site
    windows: Windows
    outputs: int
    group: int

    @property
    def source(self) -> str:
        """The value that is convolved."""
        return self.site.node.inputs[0]

    @property
    def batch(self) -> int:
        """The number of images."""
        return self.site.shape(self.source)[0]

    @property
    def channels(self) -> int:
        """The channels of an image."""
        return self.site.shape(self.source)[1]

    @property
    def weight(self) -> Array:
        """The weights (outputs, channels / group, height, width), there while the network is planned."""
        weight = self.site.constant(1)
        assert weight is not None
        return weight

    def pack(self, purpose: tuple[object, ...], make: Callable[..., Array]) -> Array:
        """Returns the weights in another form, made once."""
        return self.site.weights.pack((self.weight,), purpose, make)

    def pack_later(self, purpose: tuple[object, ...], make: Callable[..., Array]) -> LaterArray:
        """Returns the promise of the weights in another form."""
        return self.site.weights.pack_later((self.weight,), purpose, make)


def read_convolution(site: Site) -> Convolution | None:
    """Returns what a Conv node says; None if it is not two-dimensional, not float32, or its weights are computed."""
    node, weight = site.node, site.constant(1)
    if (
        weight is None
        or weight.ndim != 4
        or not site.is_float32(node.inputs[0], node.inputs[1])
        or not set(node.attributes) <= _ATTRIBUTES
    ):
        return None
    bias = site.constant(2)
    if site.has_input(2) and (bias is None or bias.dtype != weight.dtype):
        return None
    shape = site.shape(node.inputs[0])
    group = int(node.attributes.get("group", 1))
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if len(shape) != 4 or auto_pad not in AUTO_PADS or shape[1] != weight.shape[1] * group:
        return None
    pads, strides, dilations = (node.attributes.get(name) for name in ("pads", "strides", "dilations"))
    windows = lay_windows(shape[2:], weight.shape[2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
    expected = site.types[site.group.outputs[0]].shape
    if expected != (shape[0], weight.shape[0], *windows.outputs) or 0 in expected or weight.shape[0] % group:
        return None
    return Convolution(site, windows, int(weight.shape[0]), group)
