"""Image files as inputs. Nothing is guessed: no scaling, no cropping, no change of colours; the input's shape says the layout.

A uint8 input gets the pixels 0..255, a float input the pixels divided by 255. Imports Pillow when an image is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.dtypes import FLOAT_DTYPES, numpy_dtype
from hetero_core.network.types import Dimension, ValueSpec

if TYPE_CHECKING:
    import numpy as np

# Modes of Pillow whose pixels are 8-bit channels.
_CHANNELS_OF_MODE = {"L": 1, "RGB": 3, "RGBA": 4}
# Palettes and black-and-white are ways to store one of these.
_PLAIN_MODE = {"1": "L", "P": "RGB"}


def read_image(path: Path, spec: ValueSpec) -> np.ndarray[Any, Any]:
    """Returns the pixels in the layout and element type of the input; height and width are those of the file.

    Raises: UsageError where Pillow is missing, the layout is not clear, or channels or element type do not fit; OSError.
    """
    pixels = _read_pixels(path)
    return _convert_type(_lay_out(pixels, path, spec), path, spec)


def measure_image(path: Path) -> tuple[int, int, int]:
    """Returns height, width and channels of an image file. Raises: UsageError."""
    try:
        height, width, channels = _read_pixels(path).shape
    except OSError as error:
        raise UsageError(f"cannot read the image '{path}': {error.strerror or error}") from error
    return height, width, channels


def _read_pixels(path: Path) -> np.ndarray[Any, Any]:
    """Returns uint8 (height, width, channels)."""
    import numpy as np

    try:
        from PIL import Image  # the optional extra
    except ImportError as error:
        raise UsageError(f"reading '{path}' needs Pillow; install it with: pip install 'hetero-core[images]'") from error
    with Image.open(path) as image:
        plain = image.convert(_PLAIN_MODE[image.mode]) if image.mode in _PLAIN_MODE else image
        if plain.mode not in _CHANNELS_OF_MODE:
            modes = ", ".join(sorted(_CHANNELS_OF_MODE))
            raise UsageError(f"image '{path}' has mode {image.mode}; expected 8 bits a channel ({modes}). Convert it first")
        return np.array(plain).reshape(plain.height, plain.width, _CHANNELS_OF_MODE[plain.mode])


def _lay_out(pixels: np.ndarray[Any, Any], path: Path, spec: ValueSpec) -> np.ndarray[Any, Any]:
    axis = _find_channel_axis(path, spec)
    shape = spec.shape or ()
    channels = 1 if axis is None else shape[axis]
    if pixels.shape[2] != channels:
        raise UsageError(f"image '{path}' has {pixels.shape[2]} channels; input {spec} takes {channels}. Convert the image first")
    if axis is None:
        return pixels[:, :, 0]
    laid_out = pixels.transpose(2, 0, 1) if axis == len(shape) - 3 else pixels
    return laid_out[None] if len(shape) == 4 else laid_out


def _find_channel_axis(path: Path, spec: ValueSpec) -> int | None:
    """Returns the axis of the channels, None for (height, width).

    Raises: UsageError unless exactly one of the two places for it has a size of 1, 3 or 4.
    """
    shape: tuple[Dimension, ...] = spec.shape or ()
    if len(shape) == 2:
        return None
    candidates = [
        axis for axis in (len(shape) - 3, len(shape) - 1) if len(shape) in (3, 4) and shape[axis] in _CHANNELS_OF_MODE.values()
    ]
    if len(candidates) == 1:
        return candidates[0]
    raise UsageError(
        f"image '{path}' cannot be laid out for input {spec}: expected (height, width), or one axis of 1, 3 or 4 channels before "
        "or behind them and perhaps a batch axis in front. Give the input as a .npy file"
    )


def _convert_type(pixels: np.ndarray[Any, Any], path: Path, spec: ValueSpec) -> np.ndarray[Any, Any]:
    if spec.dtype == "uint8":
        return pixels
    if spec.dtype in FLOAT_DTYPES:
        import numpy as np

        return (pixels / np.float32(255)).astype(numpy_dtype(spec.dtype))
    raise UsageError(f"image '{path}' gives uint8 or floats; input {spec} takes neither. Give the input as a .npy file")
