"""Fourier transforms and windows: DFT, STFT, HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix.

A last axis of 1 holds real numbers, of 2 real and imaginary parts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.precision import Array, Floats, Namespace, integers_of, narrow, normalize_axis, widen
from hetero_core.kernels.registry import FLOATS, INDEX, INT64, kernel

_FLAGS = {"inverse": (0, 1), "onesided": (0, 1)}
# float16 and bfloat16 outputs are rounded from float64.
_WINDOW_DTYPES = {"output_datatype": (1, 10, 11, 16), "periodic": (0, 1)}


@kernel("DFT", since=(20,), dtypes=(FLOATS, INDEX, INT64), host=(1, 2), choices=_FLAGS)
def dft(
    xp: Namespace, x: Array, dft_length: Array | None = None, axis: Array | None = None, *, inverse: int = 0, onesided: int = 0
) -> Array:
    """Returns the discrete Fourier transform along an axis."""
    wide = widen(x)
    place = normalize_axis(-2 if axis is None else integers_of(axis)[0], x.ndim)
    length = integers_of(dft_length)[0] if dft_length is not None else None
    signal = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if inverse and onesided:
        size = 2 * (x.shape[place] - 1) if length is None else length
        return narrow(xp.fft.irfft(signal, n=size, axis=place)[..., None], x.dtype)
    if onesided:
        if x.shape[-1] == 2:
            raise ValueError("a one-sided transform takes a real signal")
        spectrum = xp.fft.rfft(signal, n=length, axis=place)
    else:
        spectrum = (xp.fft.ifft if inverse else xp.fft.fft)(signal, n=length, axis=place)
    return narrow(xp.stack([spectrum.real, spectrum.imag], axis=-1), x.dtype)


kernel("DFT", since=(17,), dtypes=(FLOATS, INDEX), host=(1,), choices=_FLAGS)(partial(dft, axis=1))


@kernel("STFT", since=(17,), dtypes=(FLOATS, INDEX, FLOATS, INDEX), host=(1, 3), choices={"onesided": (0, 1)})
def stft(
    xp: Namespace, signal: Array, frame_step: Array, window: Array | None = None, frame: Array | None = None, *, onesided: int = 1
) -> Array:
    """Returns the transforms of windowed frames of a signal (batch, length, 1 or 2), or (batch, length) as torch's exporter writes it."""
    signal = signal if signal.ndim == 3 else signal[..., None]
    step = integers_of(frame_step)[0]
    default = signal.shape[1] if window is None else window.shape[0]
    length = default if frame is None else integers_of(frame)[0]
    count = (signal.shape[1] - length) // step + 1
    frames = xp.stack([signal[:, index * step : index * step + length] for index in range(count)], axis=1)
    if window is not None:
        frames = narrow(widen(frames) * widen(window).reshape((-1, 1)), signal.dtype)
    return dft(xp, frames, None, 2, onesided=onesided)


def _count_window(size: Array, **_: Any) -> int:
    """Returns the bytes of the window in float64."""
    return integers_of(size)[0] * 8


def _register_window(op_type: str, coefficients: Floats) -> None:
    @kernel(op_type, since=(17,), dtypes=INDEX, choices=_WINDOW_DTYPES, runs_on_host=True, count_bytes=_count_window)
    def make_window(xp: Namespace, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        """Returns a sum of cosines, c0 - c1 cos(t) + c2 cos(2 t), over a period (periodic) or from end to end."""
        count = integers_of(size)[0]
        span = count if periodic else count - 1
        with np.errstate(invalid="ignore"):  # a window of a single element from end to end is 0 / 0, as in the function bodies
            angles = 2 * np.pi * np.arange(count) / span if count else np.empty(0)
        total = sum((-1) ** index * factor * np.cos(index * angles) for index, factor in enumerate(coefficients))
        return np.asarray(total).astype(numpy_dtype(dtype_of_onnx(output_datatype) or "float32"))


_register_window("HannWindow", (0.5, 0.5))
_register_window("HammingWindow", (25 / 46, 21 / 46))
_register_window("BlackmanWindow", (0.42, 0.5, 0.08))


def _count_mels(num_mel_bins: Array, dft_length: Array, *_: Any, **__: Any) -> int:
    """Returns the bytes of the matrix in float64."""
    return (integers_of(dft_length)[0] // 2 + 1) * integers_of(num_mel_bins)[0] * 8


@kernel(
    "MelWeightMatrix",
    since=(17,),
    dtypes=(INDEX, INDEX, INDEX, FLOATS),
    choices={"output_datatype": (1, 10, 11, 16)},
    runs_on_host=True,
    count_bytes=_count_mels,
)
def mel_weight_matrix(
    xp: Namespace, mel_bins: Array, dft_length: Array, sample_rate: Array, least: Array, most: Array, *, output_datatype: int = 1
) -> Array:
    """Returns triangles of height 1 that map spectrum bins to mel bins, mel(f) = 2595 log10(1 + f / 700)."""
    bins, length, rate = (integers_of(value)[0] for value in (mel_bins, dft_length, sample_rate))
    low, high = (2595 * np.log10(1 + float(edge.reshape(-1)[0]) / 700) for edge in (least, most))
    mels = np.arange(bins + 2) * (high - low) / (bins + 2) + low
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((length + 1) * hertz // rate).astype(int)
    rows = np.arange(length // 2 + 1)
    y = np.zeros((len(rows), bins))
    for index in range(bins):
        left, center, right = places[index : index + 3]
        if center == left:
            y[center, index] = 1
        else:
            rising = (rows >= left) & (rows <= center)
            y[rising, index] = (rows[rising] - left) / (center - left)
        if right > center:
            falling = (rows >= center) & (rows < right)
            y[falling, index] = (right - rows[falling]) / (right - center)
    return y.astype(numpy_dtype(dtype_of_onnx(output_datatype) or "float32"))
