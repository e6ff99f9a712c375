"""ImageDecoder: every pixel format, bytes that are no image, and a machine without Pillow."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hetero_core.kernels.operators import vision
from hetero_core.kernels.registry import find_refusal
from hetero_core.network.graph import Node

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) * 4


def encode(format_name: str, pixels: np.ndarray[Any, Any] = PIXELS, mode: str = "RGB") -> np.ndarray[Any, Any]:
    stream = BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, format_name)
    return np.frombuffer(stream.getvalue(), np.uint8)


@pytest.mark.parametrize("encoded", [b"", b"no image", bytes(encode("PNG")[:45])], ids=["empty", "text", "cut"])
def test_undecodable_image_is_an_empty_matrix(encoded: bytes) -> None:
    assert vision.decode_image(np, np.frombuffer(encoded, np.uint8)).shape == (0, 0, 3)


def test_format_without_codec_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import features

    encoded = encode("PNG")
    monkeypatch.setattr(features, "check", lambda feature: feature != "zlib")
    with pytest.raises(RuntimeError, match="cannot decode a PNG image: Pillow was built without 'zlib'"):
        vision.decode_image(np, encoded)


def test_without_pillow_the_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    refusal = find_refusal(Node("n", "ImageDecoder", ("x",), ("y",), since_version=20), [None])
    assert refusal == "ImageDecoder-20 needs Pillow, which is not installed; pip install hetero-core[images]"
