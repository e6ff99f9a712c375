"""Draws of cases: operators on axes, images and tokens, and operators in ONNX's own domain that only ONNX Runtime supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator
from hetero_core.testing.contrib.quantized_products import draw_windows

_TYPES = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.int8)


def _draw_any(rng: Generator, *sizes: int) -> Any:
    dtype = rng.choose(_TYPES)
    return rng.floats(*sizes, dtype=dtype) if np.dtype(dtype).kind == "f" else rng.numbers(dtype, *sizes)


def _draw_expand(rng: Generator) -> ContribCase:
    rank = rng.integer(1, 4)
    return ContribCase("ExpandDims", (_draw_any(rng, *rng.sizes(rank)), np.asarray(rng.integers(-rank - 1, rank + 1), np.int32)))


def _draw_gather(rng: Generator) -> ContribCase:
    shape = (4, 5, 3)
    depth = rng.integer(1, 4)
    columns = [rng.integers(-size, size, (2, 3)) for size in shape[:depth]]
    return ContribCase("GatherND", (_draw_any(rng, *shape), np.stack(columns, axis=-1).astype(rng.choose((np.int32, np.int64)))))


def _draw_trilu(rng: Generator) -> ContribCase:
    x = _draw_any(rng, *rng.sizes(rng.integer(2, 4)))
    x = x.astype(rng.choose((np.float32, np.float64, np.int64)))
    return ContribCase("Trilu", (x, np.asarray(rng.integers(-4, 5), np.int64) if rng.flip() else None), {"upper": int(rng.flip())})


def _draw_unfold(rng: Generator) -> ContribCase:
    rank = rng.integer(1, 4)
    shape = tuple(int(size) for size in rng.integers(4, 8, rank))
    dtype = rng.choose((np.float32, np.float64, np.int32, np.int64))
    attributes = {"dim": rng.integer(-rank, rank), "size": rng.integer(1, 5), "step": rng.integer(1, 4)}
    return ContribCase("UnfoldTensor", (rng.floats(*shape, scale=9, dtype=dtype),), attributes)


def _draw_distance(rng: Generator) -> ContribCase:
    dtype, (rows, others, size) = rng.choose((np.float32, np.float64)), rng.sizes(3, 9)
    inputs = (rng.floats(rows, size, dtype=dtype), rng.floats(others, size, dtype=dtype))
    return ContribCase("CDist", inputs, {"metric": rng.choose(("euclidean", "sqeuclidean"))}, tolerance=1e-3)


def _draw_inverse(rng: Generator) -> ContribCase:
    size, dtype = rng.integer(1, 6), rng.choose((np.float32, np.float64, np.float16))
    x = rng.standard_normal((*rng.choose(((), (3,), (2, 2))), size, size)) + 4 * size * np.eye(size)
    return ContribCase("Inverse", (x.astype(dtype),), tolerance=1e-3)


def _draw_range(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.int16, np.int32, np.int64, np.float32, np.float64))
    start, limit = (np.asarray(value, dtype) for value in (rng.integers(-5, 5), rng.integers(6, 20)))
    delta = rng.choose((None, np.asarray(2, dtype), np.asarray(-1, dtype)))
    values = (limit, start, delta) if delta is not None and delta < 0 else (start, limit, delta)
    is_vector = rng.flip()
    return ContribCase("Range", tuple(value if value is None or not is_vector else value.reshape(1) for value in values))


def _draw_pad(rng: Generator) -> ContribCase:
    rank = rng.integer(1, 4)
    pads = np.asarray(rng.integers(0, 3, 2 * rank), np.int64)
    value = np.asarray(rng.standard_normal(), np.float32)
    x = rng.floats(*(int(size) for size in rng.integers(3, 6, rank)))
    pads = pads.reshape(rng.choose(((2 * rank,), (1, 2 * rank))))
    values = rng.choose((None, value, value.reshape(1)))
    return ContribCase("Pad", (x, pads, values), {"mode": rng.choose(("constant", "edge", "reflect"))})


def _draw_unique(rng: Generator) -> ContribCase:
    return ContribCase("Unique", (np.asarray(rng.integers(0, 6, rng.integer(1, 12)), np.float32),), {}, (True, True, True))


def _draw_warping(rng: Generator) -> ContribCase:
    shape = rng.sizes(2, 9)
    return ContribCase("DynamicTimeWarping", (rng.floats(*rng.choose((shape, (1, *shape)))),))


def _draw_crop_and_resize(rng: Generator) -> ContribCase:
    count = rng.integer(1, 5)
    corners = rng.uniform(-0.2, 1.2, (count, 4))
    inputs = (
        rng.floats(2, 3, 7, 9),
        corners.astype(np.float32),
        np.asarray(rng.integers(0, 2, count), np.int32),
        np.asarray(rng.integers(1, 6, 2), np.int32),
    )
    attributes = {"mode": rng.choose(("bilinear", "nearest")), "extrapolation_value": float(np.float32(rng.standard_normal()))}
    return ContribCase("CropAndResize", inputs, attributes)


def _draw_grid(rng: Generator) -> ContribCase:
    attributes = {
        "mode": rng.choose(("bilinear", "nearest", "bicubic")),
        "align_corners": int(rng.flip()),
        "padding_mode": rng.choose(("zeros", "border", "reflection")),
    }
    grid = rng.uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
    return ContribCase("GridSample", (rng.floats(2, 3, 6, 7), grid), attributes)


def _draw_masked_pool(rng: Generator) -> ContribCase:
    rank = rng.integer(1, 4)
    attributes = draw_windows(rng, rank, dilates=False)
    shape = (2, 3, *(int(size) for size in rng.integers(7, 10, rank)))
    mask = np.asarray(rng.integers(0, 4, (1, 1, *shape[2:])) > 0, np.int32)
    return ContribCase("MaxpoolWithMask", (rng.floats(*shape), mask), attributes)


def _draw_words(rng: Generator) -> ContribCase:
    words, letters, size, filters, window = rng.integer(1, 4), rng.integer(4, 9), 5, 6, rng.integer(1, 4)
    ids = np.asarray(rng.integers(1, 20, (words, letters)), np.int32)
    for word in ids:
        word[rng.integer(1, letters + 1) :] = 0
    inputs = (ids, rng.floats(filters, 1, window, size), rng.floats(filters), rng.floats(20, size))
    return ContribCase("WordConvEmbedding", inputs, {})


def _draw_repeats(rng: Generator) -> ContribCase:
    ids = np.asarray(rng.integers(0, 4, (3, rng.integer(1, 12))), np.int64)
    return ContribCase("NGramRepeatBlock", (ids, rng.floats(3, 5)), {"ngram_size": rng.integer(1, 5)})


def _draw_bifurcation(rng: Generator) -> ContribCase:
    source = np.asarray(rng.integers(0, 5, rng.integer(4, 12)), np.int64)
    start = int(rng.integers(0, len(source)))
    current = np.asarray(rng.integers(0, 5, rng.integer(1, 6)), np.int64)
    predicted = np.asarray(rng.integers(0, 5, len(source) + 1 - start), np.int64)
    share = int(rng.integers(0, len(source) - start + 1))
    predicted[:share] = source[start : start + share]
    least = rng.integer(1, 3)
    attributes = {"min_ngram_size": least, "max_ngram_size": least + rng.integer(0, 3)}
    inputs = (source, current, np.asarray(start, np.int64), predicted if rng.flip() else None)
    return ContribCase("BifurcationDetector", inputs, attributes, (True, True))


def _draw_hash(rng: Generator) -> ContribCase:
    kind, shape = rng.choose((np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, object)), rng.sizes(2)
    if kind is object:
        texts = ["".join(chr(97 + int(code)) for code in rng.integers(0, 26, rng.integer(0, 9))) for _ in range(np.prod(shape))]
        x = np.asarray(texts, object).reshape(shape)
    else:
        x = rng.floats(*shape, dtype=kind) if np.dtype(kind).kind == "f" else rng.numbers(np.int32, *shape).astype(kind)
    return ContribCase("MurmurHash3", (x,), {"positive": int(rng.flip()), "seed": rng.integer(0, 9)})


def _draw_tokens(rng: Generator) -> ContribCase:
    letters = list("ab ,")
    texts = ["".join(rng.choose(letters) for _ in range(rng.integer(1, 9))) for _ in range(4)]
    attributes: dict[str, Any] = {"mark": 0, "mincharnum": rng.integer(1, 3), "pad_value": "#"}
    attributes |= rng.choose(({"separators": [" "]}, {"separators": [" ", ","]}, {"separators": [""]}, {"tokenexp": "[a-b]+"}))
    attributes["mincharnum"] = 1 if attributes.get("separators") == [""] else attributes["mincharnum"]
    return ContribCase("Tokenizer", (np.asarray(texts, object).reshape(rng.choose(((4,), (2, 2)))),), attributes)


def _draw_grams(rng: Generator) -> ContribCase:
    dtype, reach, heads = rng.choose((np.int32, np.int64)), rng.integer(1, 4), rng.integer(1, 3)
    batch, steps = rng.sizes(2)
    has_eos = rng.flip()
    inputs = (
        np.asarray(rng.integers(0, 9, (batch, steps)), dtype),
        np.asarray(rng.integers(1, 2**20, reach + 1) * 2 + 1, dtype),
        np.asarray(rng.integers(3, 99, reach * heads), dtype),
        np.asarray(rng.integers(0, 9, (batch, reach)), dtype) if rng.flip() else None,
        np.asarray(rng.integers(0, 99, reach * heads), dtype) if rng.flip() else None,
        np.asarray(2, dtype) if has_eos else None,
        np.sort(np.asarray(rng.integers(0, 3, (batch, steps)), np.int32), axis=1) if rng.flip() else None,
    )
    attributes = {"pad_id": 0, "n_head_per_ngram": heads, "max_ngram_size": reach + 1, "reset_on_eos": int(rng.flip())}
    return ContribCase("NGramHashMapping", inputs, attributes, (True, True))


def _legacy(op_type: str, *names: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        attributes = {name: float(np.float32(rng.uniform(0.2, 2))) for name in names}
        return ContribCase(op_type, (rng.floats(*rng.sizes(3)),), attributes, domain="", opset=9)

    return draw


def _draw_image_scaler(rng: Generator) -> ContribCase:
    attributes = {"scale": 0.5, "bias": [0.5, -1.0, 0.25]}
    return ContribCase("ImageScaler", (rng.floats(2, 3, 4, 5),), attributes, domain="", opset=9)


def _draw_crop(rng: Generator) -> ContribCase:
    attributes = {"border": [int(size) for size in rng.integers(0, 3, 4)]} | ({"scale": [2, 3]} if rng.flip() else {})
    return ContribCase("Crop", (rng.floats(2, 3, 7, 8),), attributes, domain="", opset=9)


def _draw_dynamic_slice(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.int32, np.int64))
    bounds = [np.asarray(rng.integers(*limits, 3), dtype) for limits in ((-3, 2), (2, 9))]
    axes = rng.choose((None, np.asarray([0, 1, 2], dtype), np.asarray([2, 0, 1], dtype)))
    return ContribCase("DynamicSlice", (_draw_any(rng, 5, 6, 7), *bounds, axes), domain="", opset=9)


ARRAYS: Mapping[str, Draw] = {
    "ExpandDims": _draw_expand,
    "GatherND": _draw_gather,
    "Trilu": _draw_trilu,
    "UnfoldTensor": _draw_unfold,
    "CDist": _draw_distance,
    "Inverse": _draw_inverse,
    "Range": _draw_range,
    "Pad": _draw_pad,
    "Unique": _draw_unique,
    "DynamicTimeWarping": _draw_warping,
    "CropAndResize": _draw_crop_and_resize,
    "GridSample": _draw_grid,
    "MaxpoolWithMask": _draw_masked_pool,
    "WordConvEmbedding": _draw_words,
    "NGramRepeatBlock": _draw_repeats,
    "BifurcationDetector": _draw_bifurcation,
    "MurmurHash3": _draw_hash,
    "NGramHashMapping": _draw_grams,
    "Tokenizer": _draw_tokens,
    "Affine": _legacy("Affine", "alpha", "beta"),
    "Scale": _legacy("Scale", "scale"),
    "ScaledTanh": _legacy("ScaledTanh", "alpha", "beta"),
    "ParametricSoftplus": _legacy("ParametricSoftplus", "alpha", "beta"),
    "ImageScaler": _draw_image_scaler,
    "Crop": _draw_crop,
    "DynamicSlice": _draw_dynamic_slice,
}
