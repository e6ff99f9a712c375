"""The Conv kernel, with and without shifted rows of columns: results agree with the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_core.kernels.operators.convolution import conv, conv_transpose, max_pool

# Shapes of x and w, and the attributes. Cases: few and many outputs, ranks, groups, rows cut into blocks, sums cut into pieces.
CASES = {
    "few outputs": ((2, 32, 40, 40), (16, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "one output": ((1, 16, 30, 41), (1, 16, 3, 5), {"pads": (1, 2, 1, 2)}),
    "no pads": ((1, 24, 25, 60), (4, 24, 2, 4), {}),
    "uneven pads": ((1, 24, 25, 60), (4, 24, 4, 2), {"pads": (0, 1, 3, 0)}),
    "SAME_LOWER": ((1, 16, 17, 50), (8, 16, 4, 4), {"auto_pad": "SAME_LOWER"}),
    "dilations": ((1, 16, 40, 60), (8, 16, 3, 3), {"dilations": (5, 2), "pads": (5, 2, 5, 2)}),
    "two blocks of rows": ((1, 64, 70, 70), (8, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
    "long sums": ((1, 300, 12, 30), (8, 300, 3, 3), {"pads": (1, 1, 1, 1)}),
    "groups": ((2, 96, 14, 30), (12, 32, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    "one axis": ((2, 40, 500), (8, 40, 7), {"pads": (3, 3), "dilations": (2,)}),
    "three axes": ((1, 32, 9, 20, 31), (8, 32, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    "no images": ((0, 32, 20, 20), (8, 32, 3, 3), {}),
    "strides": ((1, 32, 40, 40), (8, 32, 3, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}),
    "wide pads": ((1, 32, 20, 20), (8, 32, 3, 3), {"dilations": (8, 8), "pads": (8, 8, 8, 8)}),
    "many outputs": ((1, 32, 40, 40), (24, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "depthwise": ((1, 3, 40, 12000), (6, 1, 5, 5), {"group": 3, "pads": (2, 2, 2, 2), "dilations": (2, 1)}),
    "few channels": ((1, 3, 160, 160), (16, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
}  # fmt: skip
TOLERANCES = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}


def convolve(x: np.ndarray, w: np.ndarray, *, pads=None, auto_pad="NOTSET", strides=None, dilations=None, group=1) -> np.ndarray:
    """Returns the convolution in float64, computed window by window."""
    rank = w.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    flat = pads or (0,) * (2 * rank)
    if auto_pad == "SAME_LOWER":
        flat = tuple(size // 2 for size in w.shape[2:]) + tuple((size - 1) // 2 for size in w.shape[2:])
    widths = [(0, 0), (0, 0), *((flat[axis], flat[axis + rank]) for axis in range(rank))]
    padded = np.pad(x.astype(np.float64), widths)
    extents = tuple((size - 1) * dilation + 1 for size, dilation in zip(w.shape[2:], dilations, strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=tuple(range(2, 2 + rank)))
    picked = windows[
        (slice(None), slice(None), *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))
    ]
    parts = zip(np.split(picked, group, axis=1), np.split(w.astype(np.float64), group), strict=True)
    taps = tuple(range(2, 2 + rank))
    sums = [np.tensordot(part, weights, axes=((1, *(axis + rank for axis in taps)), (1, *taps))) for part, weights in parts]
    return np.moveaxis(np.concatenate(sums, axis=-1), -1, 1)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_conv_is_the_sum_of_products_over_each_window(case: str, dtype: str) -> None:
    x_shape, w_shape, attributes = CASES[case]
    rng = np.random.default_rng(11)
    x, w, b = (rng.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape, w_shape[:1]))
    y = conv(np, x, w, b, **attributes)
    expected = convolve(x, w, **attributes) + b.astype(np.float64).reshape((-1, *(1,) * (w.ndim - 2)))
    assert y.dtype == dtype
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=TOLERANCES[dtype] * np.abs(expected).max(initial=1))


def test_conv_of_strided_images_reads_the_view() -> None:
    rng = np.random.default_rng(12)
    x = rng.standard_normal((1, 20, 30, 32)).astype(np.float32).transpose(0, 3, 1, 2)[:, ::2]
    w = rng.standard_normal((4, 16, 3, 3)).astype(np.float32)
    np.testing.assert_allclose(conv(np, x, w), convolve(x, w), rtol=0, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 3])
def test_windows_longer_than_an_axis_are_refused(stride: int) -> None:
    with pytest.raises(ValueError, match="a window of 4 does not fit an axis of 3 padded by 0 and 0"):
        max_pool(np, np.ones((1, 1, 3), np.float32), kernel_shape=(4,), strides=(stride,))


@pytest.mark.parametrize("kernel", [conv, conv_transpose])
def test_a_bias_of_another_length_is_refused(kernel) -> None:
    x, w = np.ones((1, 8, 5), np.float32), np.ones((8, 8, 3), np.float32)
    with pytest.raises(ValueError, match=r"a bias of shape \(3,\) for 8 channels: expected \(8,\)"):
        kernel(np, x, w, np.ones(3, np.float32))


@pytest.mark.parametrize("pads", [(0, 6), (6, 0), (4, 2)])
def test_pads_longer_than_the_result_are_refused(pads: tuple[int, int]) -> None:
    x, w = np.ones((1, 8, 3), np.float32), np.ones((8, 8, 3), np.float32)
    assert conv_transpose(np, x, w, pads=(2, 3)).shape == (1, 8, 0)
    with pytest.raises(ValueError, match=r"cut off more than the \[5\] elements that the filters reach"):
        conv_transpose(np, x, w, pads=pads)
