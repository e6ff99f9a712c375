"""RNN-1, GRU-3 and LSTM-1: as version 7, plus `output_sequence`, a hint that Y may be left out, which an absent name says, too."""

from __future__ import annotations

from hetero_core.kernels.operators.recurrent import gru, lstm, refuse_activations, rnn
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import FLOATS, INDEX, kernel

_CHOICES = {"direction": ("forward", "reverse", "bidirectional"), "output_sequence": (0, 1)}
_INPUTS = (FLOATS, FLOATS, FLOATS, FLOATS, INDEX, FLOATS)


@kernel("RNN", since=(1,), dtypes=_INPUTS, host=(4,), choices=_CHOICES, outputs=2, refuse=refuse_activations)
def rnn_1(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    output_sequence: int = 0,
) -> tuple[Array, ...]:
    """Returns what RNN-7 returns. Source: ONNX RNN-1."""
    return rnn(
        xp, x, w, r, b, sequence_lens, initial_h, activation_alpha=activation_alpha, activation_beta=activation_beta,
        activations=activations, clip=clip, direction=direction,
    )  # fmt: skip


@kernel("GRU", since=(3,), dtypes=_INPUTS, host=(4,), choices=_CHOICES, outputs=2, refuse=refuse_activations)
def gru_3(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> tuple[Array, ...]:
    """Returns what GRU-7 returns. Source: ONNX GRU-3."""
    return gru(
        xp, x, w, r, b, sequence_lens, initial_h, activation_alpha=activation_alpha, activation_beta=activation_beta,
        activations=activations, clip=clip, direction=direction, linear_before_reset=linear_before_reset,
    )  # fmt: skip


@kernel("LSTM", since=(1,), dtypes=(*_INPUTS, FLOATS, FLOATS), host=(4,), choices=_CHOICES, outputs=3, refuse=refuse_activations)
def lstm_1(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    output_sequence: int = 0,
) -> tuple[Array, ...]:
    """Returns what LSTM-7 returns; clip is missing as it is there. Source: ONNX LSTM-1."""
    return lstm(
        xp, x, w, r, b, sequence_lens, initial_h, initial_c, p, activation_alpha=activation_alpha, activation_beta=activation_beta,
        activations=activations, direction=direction, input_forget=input_forget,
    )  # fmt: skip
