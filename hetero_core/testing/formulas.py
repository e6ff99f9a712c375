"""Formulas of the small models: each computes a model's outputs in float64 without any engine.

A formula takes the arrays of the model by name, inputs and constants together, and returns the outputs by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


def compute_if(values: Arrays) -> list[Any]:
    """Returns the outputs of `models.if_model`. Source: the model's text."""
    product = values["x"] @ values["weight"]
    hidden = np.where(product < 0, 0.1 * product, product)
    chosen = hidden + values["x"] if values["condition"] else np.tanh(hidden * values["scale"])
    return [_sigmoid(chosen)]


def compute_loop(values: Arrays) -> list[Any]:
    """Returns the outputs of `models.loop_model`. Source: the model's text."""
    state, means = values["x"], []
    for _ in range(int(values["trip_count"])):
        state = np.tanh(state @ values["weight"] - values["x"])
        means.append(state.mean(axis=1))
    return [state, 2 * np.array(means).reshape(-1, state.shape[0])]


def compute_lstm(values: Arrays) -> list[Any]:
    """Returns the outputs of `models.lstm_model`. Source: ONNX LSTM-14 and the model's text; gates in the order input, output, forget,
    cell.
    """
    x, hidden = values["x"], values["recurrence"].shape[2]
    steps = np.zeros((x.shape[0], 2, x.shape[1], hidden))
    last_h, last_c = values["initial_h"].copy(), values["initial_c"].copy()
    for direction in range(2):
        bias = values["bias"][direction].reshape(2, -1).sum(axis=0)
        for step in range(x.shape[0]) if direction == 0 else reversed(range(x.shape[0])):
            gates = x[step] @ values["weight"][direction].T + last_h[direction] @ values["recurrence"][direction].T + bias
            gate_i, gate_o, gate_f, gate_c = np.split(gates, 4, axis=1)
            last_c[direction] = _sigmoid(gate_f) * last_c[direction] + _sigmoid(gate_i) * np.tanh(gate_c)
            last_h[direction] = _sigmoid(gate_o) * np.tanh(last_c[direction])
            steps[step, direction] = last_h[direction]
    joined = steps.transpose(0, 2, 1, 3).reshape(5, 2, 8)
    return [joined @ values["projection"] + values["projection_bias"], last_h, last_c]


def compute_dynamic_batch(values: Arrays) -> list[Any]:
    """Returns the outputs of `models.dynamic_batch_model`. Source: the model's text."""
    c1 = _convolve(values["images"], values["conv1_weight"], stride=1) + values["conv1_bias"][:, None, None]
    rows, channels, height, width = c1.shape
    p1 = np.maximum(c1, 0).reshape(rows, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5))
    flat = np.maximum(_convolve(p1, values["conv2_weight"], stride=2), 0).reshape(rows, -1)
    return [flat @ values["gemm_weight"].T + values["gemm_bias"]]


def compute_residual(values: Arrays) -> list[Any]:
    """Returns the outputs of `models.residual_model`. Source: the model's text."""
    stem = np.maximum(_convolve(values["images"], values["stem_weight"], stride=1), 0)
    narrow = np.maximum(_normalize(_convolve(stem, values["left_weight"], stride=1), values), 0)
    right = _sigmoid(_convolve(stem, values["right_weight"], stride=1))
    joined = np.concatenate([narrow + stem, right * stem], axis=1)
    scores = joined.mean(axis=(2, 3)) @ values["gemm_weight"].T + values["gemm_bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return [powers / powers.sum(axis=1, keepdims=True)]


FORMULAS: Mapping[str, Callable[[Arrays], list[Any]]] = {
    "if": compute_if,
    "loop": compute_loop,
    "lstm": compute_lstm,
    "dynamic_batch": compute_dynamic_batch,
    "residual": compute_residual,
}
"""The formula of each small model, by name."""


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _normalize(x: Any, values: Arrays) -> Any:
    """ONNX BatchNormalization-15 with epsilon 1e-5."""
    scale, bias, mean, variance = (values[name][:, None, None] for name in ("scale", "shift", "mean", "variance"))
    return scale * (x - mean) / np.sqrt(variance + 1e-5) + bias


def _convolve(x: Any, weight: Any, *, stride: int) -> Any:
    """Returns the convolution of images (n, c, h, w) with weights (m, c, 3, 3), padded by 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,mcij->nmhw", windows, weight)
