"""How many bytes an operator makes, worked out from shapes and a few numbers before it makes them; for operators that grow.

A rule is given the inputs of the node (arrays, lists of them, None) and its attributes, and returns bytes: those of the outputs, where
a kernel first makes something larger those of that. Sums are Python's integers, which do not overflow. What does not fit together is
no affair of a rule: it may raise, and the kernel says what is wrong. `sizes.SIZE_RULES` says which operator has which rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, prod
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.precision import integers_of, normalize_axes, normalize_axis
from hetero_core.kernels.windows import lay_windows

Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Rule = Callable[[Inputs, Attributes], int]

_TEXT = 57
"""Bytes of a short text and of the pointer to it."""
_NUMBER = 40
"""Bytes of a number in a Python list."""


def product(sizes: Iterable[Any]) -> int:
    """Returns the product of sizes as a plain integer."""
    return prod(int(size) for size in sizes)


def _item(x: Any) -> int:
    return int(x.dtype.itemsize)


def _item_of(dtype: int | None, default: int) -> int:
    name = None if dtype is None else dtype_of_onnx(dtype)
    return default if name is None else int(numpy_dtype(name).itemsize)


def broadcast_sizes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the common shape; where shapes do not agree the larger size. NumPy's own function refuses what no array could be."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def elementwise(inputs: Inputs, attributes: Attributes) -> int:
    """Arithmetic: all inputs broadcast together; before opset 7 with `broadcast` the first one has the shape."""
    return _count_broadcast(inputs, attributes) * _item(inputs[0])


def comparing(inputs: Inputs, attributes: Attributes) -> int:
    """As `elementwise`, with a bool for each element."""
    return _count_broadcast(inputs, attributes)


def choosing(inputs: Inputs, attributes: Attributes) -> int:
    """Where: the elements are those of the second input."""
    return _count_broadcast(inputs, attributes) * _item(inputs[1])


def _count_broadcast(inputs: Inputs, attributes: Attributes) -> int:
    if "broadcast" in attributes:
        return int(inputs[0].size)
    return product(broadcast_sizes(*(x.shape for x in inputs if x is not None)))


def concatenating_strings(inputs: Inputs, attributes: Attributes) -> int:
    """StringConcat: a text for each element, as long as both together."""
    count = _count_broadcast(inputs, attributes)
    return count * _TEXT + sum(count // max(int(x.size), 1) * sum(map(len, x.reshape(-1).tolist())) for x in inputs)


def splitting_strings(inputs: Inputs, attributes: Attributes) -> int:
    """StringSplit: as many columns as the text with most pieces has."""
    delimiter = attributes.get("delimiter") or None
    texts = inputs[0].reshape(-1).tolist()
    pieces = max((len(text.split()) if delimiter is None else text.count(delimiter) + 1 for text in texts), default=0)
    return len(texts) * min(pieces, int(attributes.get("maxsplit", pieces)) + 1) * 8


def expanding(inputs: Inputs, attributes: Attributes) -> int:
    """Expand; the kernel makes a view, and whoever reads it the elements."""
    return product(broadcast_sizes(inputs[0].shape, integers_of(inputs[1]))) * _item(inputs[0])


def tiling(inputs: Inputs, attributes: Attributes) -> int:
    """Tile; of version 1 with one axis."""
    return int(inputs[0].nbytes) * product(integers_of(inputs[1]))


def filling(inputs: Inputs, attributes: Attributes) -> int:
    """ConstantOfShape."""
    value = attributes.get("value")
    return product(integers_of(inputs[0])) * (4 if value is None else _item(value))


def counting(inputs: Inputs, attributes: Attributes) -> int:
    """Range; counted in int64 before it is in the type of the result."""
    start, limit, delta = (np.asarray(value).reshape(-1)[0].item() for value in inputs)
    steps = (
        -((start - limit) // delta) if all(isinstance(one, int) for one in (start, limit, delta)) else ceil((limit - start) / delta)
    )
    return max(int(steps), 0) * (8 + _item(inputs[0]))


def marking(inputs: Inputs, attributes: Attributes) -> int:
    """EyeLike, RandomUniformLike and the like: as many elements, of another type perhaps."""
    return int(inputs[0].size) * _item_of(attributes.get("dtype"), _item(inputs[0]))


def one_hot(inputs: Inputs, attributes: Attributes) -> int:
    """OneHot, whose kernel compares first."""
    return int(inputs[0].size) * integers_of(inputs[1])[0] * (1 + _item(inputs[2]))


def drawing(inputs: Inputs, attributes: Attributes) -> int:
    """RandomNormal, RandomUniform."""
    return product(attributes["shape"]) * _item_of(attributes.get("dtype"), 4)


def sampling(inputs: Inputs, attributes: Attributes) -> int:
    """Multinomial."""
    return int(inputs[0].shape[0]) * int(attributes.get("sample_size", 1)) * _item_of(attributes.get("dtype"), 4)


def padding(inputs: Inputs, attributes: Attributes) -> int:
    """Pad; all but the constant mode work with a list of positions for each axis."""
    x = inputs[0]
    given = attributes.get("pads", attributes.get("paddings"))
    pads = integers_of(inputs[1]) if given is None else tuple(given)
    has_axes = len(inputs) > 3 and inputs[3] is not None
    axes = normalize_axes(integers_of(inputs[3]), x.ndim) if has_axes else tuple(range(x.ndim))
    sizes = list(x.shape)
    for index, axis in enumerate(axes):
        sizes[axis] += pads[index] + pads[index + len(axes)]
    return product(sizes) * _item(x) + (0 if attributes.get("mode", "constant") == "constant" else max(sizes) * _NUMBER)


def center_padding(inputs: Inputs, attributes: Attributes) -> int:
    """CenterCropPad."""
    x, axes = inputs[0], attributes.get("axes")
    sizes = list(x.shape)
    for axis, size in zip(range(x.ndim) if axes is None else normalize_axes(axes, x.ndim), integers_of(inputs[1]), strict=True):
        sizes[axis] = size
    return product(sizes) * _item(x)


def resizing(inputs: Inputs, attributes: Attributes) -> int:
    """Resize and Upsample; the positions of each axis are a list."""
    x = inputs[0]
    sizes = _resized(inputs, attributes)
    return product(sizes) * _item(x) + max(sizes, default=0) * _NUMBER


def _resized(inputs: Inputs, attributes: Attributes) -> list[int]:
    x = inputs[0]
    axes = normalize_axes(attributes["axes"], x.ndim) if attributes.get("axes") else tuple(range(x.ndim))
    if "height_scale" in attributes:
        scales: Sequence[float] = (1.0, 1.0, attributes["height_scale"], attributes["width_scale"])
    elif "scales" in attributes:
        scales = attributes["scales"]
    else:
        wanted = integers_of(inputs[3]) if len(inputs) > 3 else ()
        given = inputs[1] if len(inputs) < 3 else inputs[2]
        scales = (
            [size / x.shape[axis] for size, axis in zip(wanted, axes, strict=True)] if wanted else [float(one) for one in given]
        )
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        if wanted and policy != "stretch":
            scales = [min(scales) if policy == "not_larger" else max(scales)] * len(axes)
        elif wanted:
            return [dict(zip(axes, wanted, strict=True)).get(axis, size) for axis, size in enumerate(x.shape)]
    sizes = list(x.shape)
    for axis, scale in zip(axes, scales, strict=True):
        sizes[axis] = floor(sizes[axis] * scale)
    return sizes


def gathering(inputs: Inputs, attributes: Attributes) -> int:
    """Gather."""
    x, indices = inputs[:2]
    axis = normalize_axis(attributes.get("axis", 0), x.ndim)
    return product((*x.shape[:axis], *x.shape[axis + 1 :])) * int(indices.size) * _item(x)


def gathering_slices(inputs: Inputs, attributes: Attributes) -> int:
    """GatherND."""
    x, indices = inputs[:2]
    taken = attributes.get("batch_dims", 0) + indices.shape[-1]
    return product(indices.shape[:-1]) * product(x.shape[taken:]) * _item(x)


def concatenating(inputs: Inputs, attributes: Attributes) -> int:
    """Concat, and ConcatFromSequence, in whose list one tensor may stand many times."""
    values = inputs[0] if isinstance(inputs[0], list) else inputs
    return sum(int(x.nbytes) for x in values)


def multiplying(inputs: Inputs, attributes: Attributes) -> int:
    """MatMul."""
    return _count_product(inputs[0], inputs[1]) * _item(inputs[0])


def multiplying_integers(inputs: Inputs, attributes: Attributes) -> int:
    """MatMulInteger; summed in float64."""
    return _count_product(inputs[0], inputs[1]) * 8


def multiplying_quantized(inputs: Inputs, attributes: Attributes) -> int:
    """QLinearMatMul; summed in float64."""
    return _count_product(inputs[0], inputs[3]) * 8


def _count_product(a: Any, b: Any) -> int:
    left = a.shape if a.ndim > 1 else (1, *a.shape)
    right = b.shape if b.ndim > 1 else (*b.shape, 1)
    return product(broadcast_sizes(left[:-2], right[:-2])) * int(left[-2]) * int(right[-1])


def multiplying_matrices(inputs: Inputs, attributes: Attributes) -> int:
    """Gemm."""
    a, b = inputs[:2]
    return int(a.shape[1 if attributes.get("transA") else 0]) * int(b.shape[0 if attributes.get("transB") else 1]) * _item(a)


def summing_products(inputs: Inputs, attributes: Attributes) -> int:
    """Einsum: the output, not what lies between two products of several."""
    left, arrow, right = attributes["equation"].replace(" ", "").partition("->")
    size_of: dict[str, int] = {}
    spread: list[tuple[int, ...]] = []
    for term, x in zip(left.split(","), inputs, strict=True):
        letters = term.replace("...", "")
        before = len(term.partition("...")[0])
        hidden = x.ndim - len(letters)
        sizes = x.shape[:before] + x.shape[before + hidden :]
        spread.append(tuple(x.shape[before : before + hidden]))
        for letter, size in zip(letters, sizes, strict=True):
            size_of[letter] = max(size, size_of.get(letter, size))
    kept = right.replace("...", "") if arrow else [letter for letter in size_of if left.count(letter) == 1]
    return product(size_of[letter] for letter in kept) * product(broadcast_sizes(*spread)) * _item(inputs[0])


def recurring(inputs: Inputs, attributes: Attributes) -> int:
    """RNN, GRU, LSTM: a state for each step."""
    x, r = inputs[0], inputs[2]
    return int(x.shape[0]) * int(x.shape[1]) * int(r.shape[0]) * int(r.shape[2]) * _item(x)


def attending(inputs: Inputs, attributes: Attributes) -> int:
    """Attention: the products of queries and keys, and the output."""
    q, k, v = inputs[:3]
    heads = q.shape[1] if q.ndim == 4 else attributes["q_num_heads"]
    size = v.shape[3] if v.ndim == 4 else v.shape[2] // attributes["kv_num_heads"]
    past = inputs[4].shape[2] if len(inputs) > 4 and inputs[4] is not None else 0
    return product((q.shape[0], heads, q.shape[-2], k.shape[-2] + past + size)) * _item(q)


def convolving(inputs: Inputs, attributes: Attributes) -> int:
    """Conv."""
    x, w = inputs[:2]
    return _slide(x, tuple(w.shape[2:]), int(w.shape[0]), attributes) * _item(x)


def convolving_integers(inputs: Inputs, attributes: Attributes) -> int:
    """ConvInteger; summed in float64."""
    x, w = inputs[:2]
    return _slide(x, tuple(w.shape[2:]), int(w.shape[0]), attributes) * 8


def convolving_quantized(inputs: Inputs, attributes: Attributes) -> int:
    """QLinearConv; summed in float64."""
    x, w = inputs[0], inputs[3]
    return _slide(x, tuple(w.shape[2:]), int(w.shape[0]), attributes) * 8


def pooling(inputs: Inputs, attributes: Attributes) -> int:
    """MaxPool, AveragePool, LpPool."""
    x = inputs[0]
    return _slide(x, tuple(attributes["kernel_shape"]), int(x.shape[1]), attributes) * _item(x)


def _slide(x: Any, kernel: tuple[int, ...], channels: int, attributes: Attributes) -> int:
    """Returns the elements of the windows' results, or of the padded input where it has more."""
    windows = lay_windows(
        tuple(x.shape[2:]),
        kernel,
        auto_pad=attributes.get("auto_pad", "NOTSET"),
        pads=attributes.get("pads"),
        strides=attributes.get("strides"),
        dilations=attributes.get("dilations"),
        ceil_mode=attributes.get("ceil_mode", 0),
    )
    padded = product(size + begin + end for size, (begin, end) in zip(windows.sizes, windows.pads, strict=True))
    return int(x.shape[0]) * max(channels * product(windows.outputs), int(x.shape[1]) * padded)


def spreading(inputs: Inputs, attributes: Attributes) -> int:
    """ConvTranspose: the whole of it, from which pads are cut, or the shape that is asked for."""
    x, w = inputs[:2]
    rank = x.ndim - 2
    ones = (1,) * rank
    full = product(
        stride * (size - 1) + more + (tap - 1) * dilation + 1
        for stride, size, more, tap, dilation in zip(
            attributes.get("strides") or ones,
            x.shape[2:],
            attributes.get("output_padding") or (0,) * rank,
            w.shape[2:],
            attributes.get("dilations") or ones,
            strict=True,
        )
    )
    wanted = product(tuple(attributes.get("output_shape") or (0,))[-rank:])
    return int(x.shape[0]) * int(w.shape[1]) * int(attributes.get("group", 1)) * max(full, wanted) * _item(x)


def unpooling(inputs: Inputs, attributes: Attributes) -> int:
    """MaxUnpool."""
    x = inputs[0]
    rank = x.ndim - 2
    steps, pads = attributes.get("strides") or (1,) * rank, attributes.get("pads") or (0,) * (2 * rank)
    kernel = attributes["kernel_shape"]
    sizes = [(x.shape[2 + axis] - 1) * steps[axis] + kernel[axis] - pads[axis] - pads[axis + rank] for axis in range(rank)]
    wanted = integers_of(inputs[2]) if len(inputs) > 2 else ()
    return max(product((*x.shape[:2], *sizes)), product(wanted) if wanted else 0) * _item(x)


def laying_columns(inputs: Inputs, attributes: Attributes) -> int:
    """Col2Im."""
    x, image, block = inputs[0], integers_of(inputs[1]), integers_of(inputs[2])
    pads = attributes.get("pads") or (0,) * (2 * len(image))
    padded = product(size + pads[axis] + pads[axis + len(image)] for axis, size in enumerate(image))
    return int(x.shape[0]) * (int(x.shape[1]) // max(product(block), 1)) * padded * _item(x)


def laying_grid(inputs: Inputs, attributes: Attributes) -> int:
    """AffineGrid."""
    sizes = integers_of(inputs[1])[2:]
    return int(inputs[0].shape[0]) * product(sizes) * len(sizes) * _item(inputs[0])


def sampling_grid(inputs: Inputs, attributes: Attributes) -> int:
    """GridSample."""
    x, grid = inputs[:2]
    return int(x.shape[0]) * int(x.shape[1]) * product(grid.shape[1:-1]) * _item(x)


def aligning_regions(inputs: Inputs, attributes: Attributes) -> int:
    """RoiAlign: its samples."""
    x, rois = inputs[:2]
    bins = attributes.get("output_height", 1) * attributes.get("output_width", 1) * max(attributes.get("sampling_ratio", 0), 1) ** 2
    return int(rois.shape[0]) * int(x.shape[1]) * int(bins) * _item(x)


def pooling_regions(inputs: Inputs, attributes: Attributes) -> int:
    """MaxRoiPool."""
    x, rois = inputs[:2]
    return int(rois.shape[0]) * int(x.shape[1]) * product(attributes["pooled_shape"]) * _item(x)


def transforming(inputs: Inputs, attributes: Attributes) -> int:
    """DFT: complex numbers along an axis of another length."""
    x = inputs[0]
    given = integers_of(inputs[2])[0] if len(inputs) > 2 and inputs[2] is not None else attributes.get("axis", -2)
    axis = normalize_axis(given, x.ndim)
    length = integers_of(inputs[1])[0] if len(inputs) > 1 and inputs[1] is not None else x.shape[axis]
    return product((*x.shape[:axis], *x.shape[axis + 1 : -1])) * length * 2 * _item(x)


def transforming_frames(inputs: Inputs, attributes: Attributes) -> int:
    """STFT: the frames, which overlap."""
    signal, step = inputs[0], integers_of(inputs[1])[0]
    window = inputs[2] if len(inputs) > 2 else None
    length = signal.shape[1] if window is None else window.shape[0]
    if len(inputs) > 3 and inputs[3] is not None:
        length = integers_of(inputs[3])[0]
    return int(signal.shape[0]) * int((signal.shape[1] - length) // step + 1) * int(length) * 2 * _item(signal)


def windowing(inputs: Inputs, attributes: Attributes) -> int:
    """HannWindow and the like, computed in float64."""
    return integers_of(inputs[0])[0] * 8


def weighing_mels(inputs: Inputs, attributes: Attributes) -> int:
    """MelWeightMatrix, computed in float64."""
    return (integers_of(inputs[1])[0] // 2 + 1) * integers_of(inputs[0])[0] * 8


def counting_grams(inputs: Inputs, attributes: Attributes) -> int:
    """TfIdfVectorizer: a column for each place that the attribute names."""
    x = inputs[0]
    return (int(max(attributes["ngram_indexes"])) + 1) * (int(x.shape[0]) if x.ndim > 1 else 1) * 4
