"""Images whose channels lie side by side, as the kernels of windows and of resizing read them, and copies of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_cpu.machine.native import NativeCall
from hetero_cpu.open.arrays import lay_empty
from hetero_cpu.operators.layout.copies import Copy, plan_copy
from hetero_cpu.operators.windows.window_plan import has_channel_vectors
from hetero_cpu.planning.recipe import Array
from hetero_cpu.planning.scratch import cut_scratch, measure_scratch


@dataclass(frozen=True, slots=True)
class ImageReading:
    """How a step reads an image: where it lies, or as a copy in working memory of `shape`, (batch, height, width, channels)."""

    copy: Copy | None
    shape: tuple[int, int, int, int]

    @property
    def scratch(self) -> int:
        """The bytes of working memory."""
        return 0 if self.copy is None else measure_scratch([self.shape])

    def bind(self, x: Array, scratch: Array) -> tuple[list[NativeCall], Array]:
        """Returns the calls that copy the image, none where it is read where it lies, and what is read, its channels the second axis."""
        if self.copy is None:
            return [], x
        (image,) = cut_scratch(scratch, [self.shape])
        return [self.copy.bind(image, x.transpose(0, 2, 3, 1))], image.transpose(0, 3, 1, 2)


def read_image(x: Array, *, workers: int) -> ImageReading | None:
    """Returns how an array like x, (batch, channels, height, width), is read; None if kernels can neither read nor copy it."""
    if x.ndim != 4 or x.dtype != np.float32:
        return None
    batch, channels, height, width = x.shape
    shape = batch, height, width, channels
    if has_channel_vectors(x):
        return ImageReading(None, shape)
    copy = plan_copy(lay_empty(shape, np.float32), x.transpose(0, 2, 3, 1), workers=workers)
    return None if copy is None else ImageReading(copy, shape)
