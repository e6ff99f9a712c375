"""Draws of cases: operators on axes, images, tokens, and those of ONNX's own domain that only ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator, choose, draw_floats, draw_integers, draw_sizes, flip
from hetero_core.testing.contrib.quantized_products import draw_windows

_TYPES = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.int8)


def _draw_any(rng: Generator, *sizes: int) -> Any:
    dtype = choose(rng, _TYPES)
    return draw_floats(rng, *sizes, dtype=dtype) if np.dtype(dtype).kind == "f" else draw_integers(rng, dtype, *sizes)


def _draw_expand(rng: Generator) -> ContribCase:
    rank = int(rng.integers(1, 4))
    return ContribCase(
        "ExpandDims", (_draw_any(rng, *draw_sizes(rng, rank)), np.asarray(rng.integers(-rank - 1, rank + 1), np.int32))
    )


def _draw_gather(rng: Generator) -> ContribCase:
    shape = (4, 5, 3)
    depth = int(rng.integers(1, 4))
    columns = [rng.integers(-size, size, (2, 3)) for size in shape[:depth]]
    return ContribCase("GatherND", (_draw_any(rng, *shape), np.stack(columns, axis=-1).astype(choose(rng, (np.int32, np.int64)))))


def _draw_trilu(rng: Generator) -> ContribCase:
    x = _draw_any(rng, *draw_sizes(rng, int(rng.integers(2, 4))))
    x = x.astype(choose(rng, (np.float32, np.float64, np.int64)))
    return ContribCase("Trilu", (x, np.asarray(rng.integers(-4, 5), np.int64) if flip(rng) else None), {"upper": int(flip(rng))})


def _draw_unfold(rng: Generator) -> ContribCase:
    rank = int(rng.integers(1, 4))
    shape = tuple(int(size) for size in rng.integers(4, 8, rank))
    dtype = choose(rng, (np.float32, np.float64, np.int32, np.int64))
    attributes = {"dim": int(rng.integers(-rank, rank)), "size": int(rng.integers(1, 5)), "step": int(rng.integers(1, 4))}
    return ContribCase("UnfoldTensor", (draw_floats(rng, *shape, scale=9, dtype=dtype),), attributes)


def _draw_distance(rng: Generator) -> ContribCase:
    dtype, (rows, others, size) = choose(rng, (np.float32, np.float64)), draw_sizes(rng, 3, 9)
    inputs = (draw_floats(rng, rows, size, dtype=dtype), draw_floats(rng, others, size, dtype=dtype))
    return ContribCase("CDist", inputs, {"metric": choose(rng, ("euclidean", "sqeuclidean"))}, tolerance=1e-3)


def _draw_inverse(rng: Generator) -> ContribCase:
    size, dtype = int(rng.integers(1, 6)), choose(rng, (np.float32, np.float64, np.float16))
    x = rng.standard_normal((*choose(rng, ((), (3,), (2, 2))), size, size)) + 4 * size * np.eye(size)
    return ContribCase("Inverse", (x.astype(dtype),), tolerance=1e-3)


def _draw_range(rng: Generator) -> ContribCase:
    dtype = choose(rng, (np.int16, np.int32, np.int64, np.float32, np.float64))
    start, limit = (np.asarray(value, dtype) for value in (rng.integers(-5, 5), rng.integers(6, 20)))
    delta = choose(rng, (None, np.asarray(2, dtype), np.asarray(-1, dtype)))
    values = (limit, start, delta) if delta is not None and delta < 0 else (start, limit, delta)
    is_vector = flip(rng)
    return ContribCase("Range", tuple(value if value is None or not is_vector else value.reshape(1) for value in values))


def _draw_pad(rng: Generator) -> ContribCase:
    rank = int(rng.integers(1, 4))
    pads = np.asarray(rng.integers(0, 3, 2 * rank), np.int64)
    value = np.asarray(rng.standard_normal(), np.float32)
    x = draw_floats(rng, *(int(size) for size in rng.integers(3, 6, rank)))
    pads = pads.reshape(choose(rng, ((2 * rank,), (1, 2 * rank))))
    values = choose(rng, (None, value, value.reshape(1)))
    return ContribCase("Pad", (x, pads, values), {"mode": choose(rng, ("constant", "edge", "reflect"))})


def _draw_unique(rng: Generator) -> ContribCase:
    return ContribCase("Unique", (np.asarray(rng.integers(0, 6, int(rng.integers(1, 12))), np.float32),), {}, (True, True, True))


def _draw_warping(rng: Generator) -> ContribCase:
    shape = draw_sizes(rng, 2, 9)
    return ContribCase("DynamicTimeWarping", (draw_floats(rng, *choose(rng, (shape, (1, *shape)))),))


def _draw_crop_and_resize(rng: Generator) -> ContribCase:
    count = int(rng.integers(1, 5))
    corners = rng.uniform(-0.2, 1.2, (count, 4))
    inputs = (
        draw_floats(rng, 2, 3, 7, 9),
        corners.astype(np.float32),
        np.asarray(rng.integers(0, 2, count), np.int32),
        np.asarray(rng.integers(1, 6, 2), np.int32),
    )
    attributes = {"mode": choose(rng, ("bilinear", "nearest")), "extrapolation_value": float(np.float32(rng.standard_normal()))}
    return ContribCase("CropAndResize", inputs, attributes)


def _draw_grid(rng: Generator) -> ContribCase:
    attributes = {
        "mode": choose(rng, ("bilinear", "nearest", "bicubic")),
        "align_corners": int(flip(rng)),
        "padding_mode": choose(rng, ("zeros", "border", "reflection")),
    }
    grid = rng.uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
    return ContribCase("GridSample", (draw_floats(rng, 2, 3, 6, 7), grid), attributes)


def _draw_masked_pool(rng: Generator) -> ContribCase:
    rank = int(rng.integers(1, 4))
    attributes = draw_windows(rng, rank, dilates=False)
    shape = (2, 3, *(int(size) for size in rng.integers(7, 10, rank)))
    mask = np.asarray(rng.integers(0, 4, (1, 1, *shape[2:])) > 0, np.int32)
    return ContribCase("MaxpoolWithMask", (draw_floats(rng, *shape), mask), attributes)


def _draw_words(rng: Generator) -> ContribCase:
    words, letters, size, filters, window = int(rng.integers(1, 4)), int(rng.integers(4, 9)), 5, 6, int(rng.integers(1, 4))
    ids = np.asarray(rng.integers(1, 20, (words, letters)), np.int32)
    for word in ids:
        word[int(rng.integers(1, letters + 1)) :] = 0
    inputs = (ids, draw_floats(rng, filters, 1, window, size), draw_floats(rng, filters), draw_floats(rng, 20, size))
    return ContribCase("WordConvEmbedding", inputs, {})


def _draw_repeats(rng: Generator) -> ContribCase:
    ids = np.asarray(rng.integers(0, 4, (3, int(rng.integers(1, 12)))), np.int64)
    return ContribCase("NGramRepeatBlock", (ids, draw_floats(rng, 3, 5)), {"ngram_size": int(rng.integers(1, 5))})


def _draw_bifurcation(rng: Generator) -> ContribCase:
    source = np.asarray(rng.integers(0, 5, int(rng.integers(4, 12))), np.int64)
    start = int(rng.integers(0, len(source)))
    current = np.asarray(rng.integers(0, 5, int(rng.integers(1, 6))), np.int64)
    predicted = np.asarray(rng.integers(0, 5, len(source) + 1 - start), np.int64)
    share = int(rng.integers(0, len(source) - start + 1))
    predicted[:share] = source[start : start + share]
    least = int(rng.integers(1, 3))
    attributes = {"min_ngram_size": least, "max_ngram_size": least + int(rng.integers(0, 3))}
    inputs = (source, current, np.asarray(start, np.int64), predicted if flip(rng) else None)
    return ContribCase("BifurcationDetector", inputs, attributes, (True, True))


def _draw_hash(rng: Generator) -> ContribCase:
    kind, shape = choose(rng, (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, object)), draw_sizes(rng, 2)
    if kind is object:
        texts = [
            "".join(chr(97 + int(code)) for code in rng.integers(0, 26, int(rng.integers(0, 9)))) for _ in range(np.prod(shape))
        ]
        x = np.asarray(texts, object).reshape(shape)
    else:
        x = (
            draw_floats(rng, *shape, dtype=kind)
            if np.dtype(kind).kind == "f"
            else draw_integers(rng, np.int32, *shape).astype(kind)
        )
    return ContribCase("MurmurHash3", (x,), {"positive": int(flip(rng)), "seed": int(rng.integers(0, 9))})


def _draw_tokens(rng: Generator) -> ContribCase:
    letters = list("ab ,")
    texts = ["".join(choose(rng, letters) for _ in range(int(rng.integers(1, 9)))) for _ in range(4)]
    attributes: dict[str, Any] = {"mark": 0, "mincharnum": int(rng.integers(1, 3)), "pad_value": "#"}
    attributes |= choose(rng, ({"separators": [" "]}, {"separators": [" ", ","]}, {"separators": [""]}, {"tokenexp": "[a-b]+"}))
    attributes["mincharnum"] = 1 if attributes.get("separators") == [""] else attributes["mincharnum"]
    return ContribCase("Tokenizer", (np.asarray(texts, object).reshape(choose(rng, ((4,), (2, 2)))),), attributes)


def _draw_grams(rng: Generator) -> ContribCase:
    dtype, reach, heads = choose(rng, (np.int32, np.int64)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    batch, steps = draw_sizes(rng, 2)
    has_eos = flip(rng)
    inputs = (
        np.asarray(rng.integers(0, 9, (batch, steps)), dtype),
        np.asarray(rng.integers(1, 2**20, reach + 1) * 2 + 1, dtype),
        np.asarray(rng.integers(3, 99, reach * heads), dtype),
        np.asarray(rng.integers(0, 9, (batch, reach)), dtype) if flip(rng) else None,
        np.asarray(rng.integers(0, 99, reach * heads), dtype) if flip(rng) else None,
        np.asarray(2, dtype) if has_eos else None,
        np.sort(np.asarray(rng.integers(0, 3, (batch, steps)), np.int32), axis=1) if flip(rng) else None,
    )
    attributes = {"pad_id": 0, "n_head_per_ngram": heads, "max_ngram_size": reach + 1, "reset_on_eos": int(flip(rng))}
    return ContribCase("NGramHashMapping", inputs, attributes, (True, True))


def _legacy(op_type: str, *names: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        attributes = {name: float(np.float32(rng.uniform(0.2, 2))) for name in names}
        return ContribCase(op_type, (draw_floats(rng, *draw_sizes(rng, 3)),), attributes, domain="", opset=9)

    return draw


def _draw_image_scaler(rng: Generator) -> ContribCase:
    attributes = {"scale": 0.5, "bias": [0.5, -1.0, 0.25]}
    return ContribCase("ImageScaler", (draw_floats(rng, 2, 3, 4, 5),), attributes, domain="", opset=9)


def _draw_crop(rng: Generator) -> ContribCase:
    attributes = {"border": [int(size) for size in rng.integers(0, 3, 4)]} | ({"scale": [2, 3]} if flip(rng) else {})
    return ContribCase("Crop", (draw_floats(rng, 2, 3, 7, 8),), attributes, domain="", opset=9)


def _draw_dynamic_slice(rng: Generator) -> ContribCase:
    dtype = choose(rng, (np.int32, np.int64))
    bounds = [np.asarray(rng.integers(*limits, 3), dtype) for limits in ((-3, 2), (2, 9))]
    axes = choose(rng, (None, np.asarray([0, 1, 2], dtype), np.asarray([2, 0, 1], dtype)))
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
