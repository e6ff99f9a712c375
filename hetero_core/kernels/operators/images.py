"""ImageDecoder: images in files' formats. It runs on the host, with Pillow, and is refused where Pillow is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO

import numpy as np

from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import UINT8, kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
# First bytes of formats whose codec is an optional part of Pillow, and what Pillow calls that part.
_CODECS = (
    (b"\xff\xd8\xff", "jpg", "JPEG"),
    (b"\x00\x00\x00\x0cjP  ", "jpg_2000", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "jpg_2000", "JPEG 2000"),
    (b"\x89PNG", "zlib", "PNG"),
    (b"RIFF", "webp", "WebP"),
)


def _refuse_without_pillow(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    if find_spec("PIL") is None:
        return f"{node.operator} needs Pillow, which is not installed; pip install hetero-core[images]"
    return None


@kernel(
    "ImageDecoder",
    since=(20,),
    dtypes=UINT8,
    choices={"pixel_format": tuple(_MODES)},
    runs_on_host=True,
    refuse=_refuse_without_pillow,
)
def decode_image(xp: Namespace, encoded_stream: Array, *, pixel_format: str = "RGB") -> Array:
    """Returns the pixels of an encoded image, uint8 (height, width, channels); no pixels where it is damaged or unknown.

    Raises: RuntimeError when the image has a format for which this Pillow was built without a codec. Source: ONNX ImageDecoder-20.
    """
    from PIL import Image, UnidentifiedImageError, features  # optional, and slow to import

    encoded = encoded_stream.tobytes()
    for magic, feature, name in _CODECS:
        if encoded.startswith(magic) and not features.check(feature):
            raise RuntimeError(f"cannot decode a {name} image: Pillow was built without '{feature}'; install a Pillow that has it")
    try:
        with Image.open(BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert(_MODES[pixel_format]))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        # Pillow raises these for what is no image or breaks off; the operator then gives an empty matrix.
        return np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), dtype=np.uint8)
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels
