"""Shared parts of the ways of computing a convolution: its geometry, its packed weights, and the frame of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.operators.product.epilogue import Epilogue, arrange_added, plan_epilogue
from hetero_cpu.planning.recipe import Array, Call, Recipe, Site
from hetero_cpu.planning.scratch import Shape, cut_scratch, measure_scratch
from hetero_cpu.planning.weights import LaterArray

Image = Array
"""(height, width, channels)."""
Parts = list[tuple[list[Call], slice]]
"""Calls, and the output rows that are done after them."""

_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution of two spatial axes, without its weights: who binds the recipe must not keep them."""

    site: Site
    windows: Windows
    outputs: int
    group: int
    epilogue: Epilogue

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

    @property
    def result_shape(self) -> Shape:
        """The shape of the result, channels last."""
        return (self.batch, *self.windows.outputs, self.outputs)

    def pack(self, purpose: tuple[object, ...], make: Callable[..., Array]) -> Array:
        """Returns the weights in another form, made once."""
        return self.site.weights.pack((self.weight,), purpose, make)

    def pack_later(self, purpose: tuple[object, ...], make: Callable[..., Array]) -> LaterArray:
        """Returns the promise of the weights in another form."""
        return self.site.weights.pack_later((self.weight,), purpose, make)

    def offsets(self, i: int, j: int, begin: int) -> tuple[int, int]:
        """Returns the row and the column of the image that position (i, j) of the kernel reads for the outputs of row `begin`."""
        windows = self.windows
        return (
            begin * windows.strides[0] + i * windows.dilations[0] - windows.pads[0][0],
            j * windows.dilations[1] - windows.pads[1][0],
        )

    def make_recipe(self, bind: Callable[[Array, Array, Sequence[Array]], list[Call]], scratch: Sequence[Shape]) -> Recipe:
        """Returns the recipe of a convolution that is computed as a whole. `bind` gets the images, the results, and the working arrays."""

        def bind_images(x: Array, y: Array, arrays: Sequence[Array]) -> list[tuple[list[Call], Any]]:
            return [(bind(x, y, arrays), slice(None))]

        return self._frame(bind_images, scratch)

    def make_image_recipe(self, bind: Callable[[Image, Image, Sequence[Array]], Parts], scratch: Sequence[Shape]) -> Recipe:
        """Returns the recipe of a convolution that is computed image by image, and within it in parts."""

        def bind_images(x: Array, y: Array, arrays: Sequence[Array]) -> list[tuple[list[Call], Any]]:
            return [(calls, (image, rows)) for image in range(self.batch) for calls, rows in bind(x[image], y[image], arrays)]

        return self._frame(bind_images, scratch)

    def _frame(
        self, bind_parts: Callable[[Array, Array, Sequence[Array]], list[tuple[list[Call], Any]]], scratch: Sequence[Shape]
    ) -> Recipe:
        shapes = [*scratch, self.result_shape if self.epilogue.needs_spare else (0,)]
        batch, height, width, outputs = self.result_shape

        def bind(reads: Sequence[Array], writes: Sequence[Array], memory: Array) -> list[Call]:
            arrays = cut_scratch(memory, shapes)
            x, y = reads[0].transpose(0, 2, 3, 1), writes[0].transpose(0, 2, 3, 1)
            added = arrange_added(self.epilogue.values, reads[1:], (batch, outputs, height, width), channels_last=True)
            spare = arrays[-1] if self.epilogue.needs_spare else y
            calls: list[Call] = []
            for part, picked in bind_parts(x, y, arrays):
                calls += part
                calls += self.epilogue.bind(y[picked], {value: array[picked] for value, array in added.items()}, spare[picked])
            return calls

        return Recipe((self.source, *self.epilogue.values), bind, measure_scratch(shapes), is_channels_last=True)


def read_convolution(site: Site) -> Convolution | None:
    """Returns what a Conv node says; None where it is not two-dimensional, not float32, or its weights are computed."""
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
    epilogue = plan_epilogue(site, bias)
    shape = site.shape(node.inputs[0])
    group = int(node.attributes.get("group", 1))
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if epilogue is None or len(shape) != 4 or auto_pad not in AUTO_PADS or shape[1] != weight.shape[1] * group:
        return None
    pads, strides, dilations = (node.attributes.get(name) for name in ("pads", "strides", "dilations"))
    windows = lay_windows(shape[2:], weight.shape[2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
    expected = site.types[site.group.outputs[0]].shape
    if expected != (shape[0], weight.shape[0], *windows.outputs) or 0 in expected or weight.shape[0] % group:
        return None
    return Convolution(site, windows, int(weight.shape[0]), group, epilogue)
