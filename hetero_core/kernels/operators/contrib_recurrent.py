"""LSTMs of ONNX Runtime's own: DynamicQuantizeLSTM, whose products are of 8 bits, and AttnLSTM, which attends to a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.kernels.operators.contrib_quantized_products import mat_mul_integer_to_float
from hetero_core.kernels.operators.quantization import dynamic_quantize_linear
from hetero_core.kernels.operators.recurrent import (
    WALK,
    CellStep,
    States,
    choose_activations,
    make_lstm_step,
    refuse_activations,
    run_directions,
    sum_biases,
    walk_steps,
)
from hetero_core.kernels.operators.softmax import softmax_of
from hetero_core.kernels.precision import Array, Namespace, integers_of
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import BYTES, FLOAT32, INT32, microsoft_kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

_LOWEST = np.float32(np.finfo(np.float32).min)
_LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


def _refuse(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    return refuse_activations(node, input_types, count=3)


_COMMON: Mapping[str, Any] = {
    "choices": {"direction": ("forward", "reverse", "bidirectional"), "input_forget": (0, 1)},
    "outputs": 3,
    "refuse": _refuse,
    "shared": WALK,
    "unread": {"hidden_size": None},
}


def _reverse_rows(xp: Namespace, steps: int, lengths: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns indices of (steps, rows, ...) that turn around the steps of each row, as far as it reaches."""
    places = [[length - 1 - step if step < length else step for length in lengths] for step in range(steps)]
    return xp.asarray(places, dtype=np.int64).reshape((steps, len(lengths))), xp.arange(len(lengths))[None, :]


def _start(xp: Namespace, initial: Array | None, index: int, batch: int, size: int) -> Array:
    return xp.zeros((batch, size), dtype=np.float32) if initial is None else initial[index]


@microsoft_kernel(
    "DynamicQuantizeLSTM",
    dtypes=(FLOAT32, BYTES, BYTES, FLOAT32, INT32, FLOAT32, FLOAT32, FLOAT32, FLOAT32, BYTES, FLOAT32, BYTES),
    host=(4,),
    **_COMMON,
)
def dynamic_quantize_lstm(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero_point: Array,
    r_scale: Array,
    r_zero_point: Array,
    *,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
    **walk: Any,
) -> tuple[Array, Array, Array]:
    """Returns Y, Y_h and Y_c of an LSTM whose inputs and hidden states are quantized to 8 bits by their own range before each product.

    w: (directions, input, 4 hidden); r: (directions, hidden, 4 hidden); scales and zero points for each direction, or each of its
    columns. Source: ONNX Runtime, com.microsoft.DynamicQuantizeLSTM-1.
    """
    steps, batch = x.shape[:2]
    size = r.shape[1]
    lengths = integers_of(sequence_lens) or (steps,) * batch
    names = activations or _LSTM_ACTIVATIONS * w.shape[0]
    functions = choose_activations(xp, names, **walk)
    bias_of = sum_biases(b)
    results = []
    for index in range(w.shape[0]):

        def multiply(values: Array, weights: Array, scale: Array, zero: Array) -> Array:
            codes, own_scale, own_zero = dynamic_quantize_linear(xp, values)
            return mat_mul_integer_to_float(xp, codes, weights, own_scale, scale, own_zero, zero)

        # Steps beyond all sequences do not count for the range.
        longest = max(lengths, default=0)
        projected = multiply(x[:longest].reshape((longest * batch, x.shape[2])), w[index], w_scale[index], w_zero_point[index])
        filler = xp.zeros(((steps - longest) * batch, 4 * size), dtype=np.float32)
        projected = xp.concatenate([projected, filler], axis=0)

        def recur(hidden: Array, index: int = index) -> Array:
            return multiply(hidden, r[index], r_scale[index], r_zero_point[index])

        starts = _start(xp, initial_h, index, batch, size), _start(xp, initial_c, index, batch, size)
        peepholes = None if p is None else p[index]
        step = make_lstm_step(
            xp, recur, functions[3 * index : 3 * index + 3], peepholes=peepholes, clip=clip, couples=bool(input_forget)
        )
        rows = projected.reshape((steps, batch, 4 * size)) + bias_of(index)
        # Each row begins at its own end, since the rows of one step share the range of their codes.
        order = _reverse_rows(xp, steps, lengths) if walk.get("direction") == "reverse" or index == 1 else slice(None)
        outputs, states = walk_steps(xp, rows[order], lengths, starts, step, backward=False)
        results.append((outputs[order], *states))
    ys, hs, cs = zip(*results, strict=True)
    return xp.stack(ys, axis=1), xp.stack(hs), xp.stack(cs)


@microsoft_kernel(
    "AttnLSTM",
    dtypes=(*(FLOAT32,) * 4, INT32, *(FLOAT32,) * 7, INT32, FLOAT32),
    host=(4, 12),
    **_COMMON,
)
def attention_lstm(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    qw: Array,
    mw: Array,
    v: Array,
    m: Array,
    memory_seq_lens: Array | None = None,
    aw: Array | None = None,
    *,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
    **walk: Any,
) -> tuple[Array, Array, Array]:
    """Returns Y, Y_h and Y_c of an LSTM whose input has what it attended to in a memory behind it.

    w: (directions, 4 hidden, input + attention); m: (batch, memory steps, depth); qw, mw: projections of query and memory; v: weights
    of their tanh; aw: the projection of (hidden, context). Source: ONNX Runtime, com.microsoft.AttnLSTM-1; Bahdanau et al. 2015.
    """
    batch, width = x.shape[1:]
    names = activations or _LSTM_ACTIVATIONS * w.shape[0]
    functions = choose_activations(xp, names, **walk)
    memory_lengths = integers_of(memory_seq_lens) or (m.shape[1],) * batch
    is_there = xp.asarray([[step < length for step in range(m.shape[1])] for length in memory_lengths])
    values = xp.where(is_there[..., None], m, np.float32(0))

    def step_of(index: int) -> CellStep:
        keys, attended_weights = multiply(xp, values, mw[index]), w[index][:, width:].T
        peepholes = None if p is None else p[index]
        step = make_lstm_step(
            xp, lambda hidden: multiply(xp, hidden, r[index].T), functions[3 * index : 3 * index + 3],
            peepholes=peepholes, clip=clip, couples=bool(input_forget),
        )  # fmt: skip

        def attend(hidden: Array) -> Array:
            scores = xp.sum(v[index] * xp.tanh(keys + multiply(xp, hidden, qw[index])[:, None]), axis=-1)
            shares = softmax_of(xp, xp.where(is_there, scores, _LOWEST), 1)
            context = xp.sum(shares[..., None] * values, axis=1)
            return context if aw is None else multiply(xp, xp.concatenate([hidden, context], axis=1), aw[index])

        def step_and_attend(projected: Array, states: States) -> States:
            hidden, cell, attended = states
            hidden, cell = step(projected + multiply(xp, attended, attended_weights), (hidden, cell))
            return hidden, cell, attend(hidden)

        return step_and_attend

    # Before its first step a row has attended to nothing.
    nothing = xp.zeros((w.shape[0], batch, w.shape[2] - width), dtype=np.float32)
    y, h, c, _ = run_directions(
        xp, x, w[..., :width], r, sequence_lens=sequence_lens, initials=(initial_h, initial_c, nothing),
        bias_of=sum_biases(b), step_of=step_of, **walk,
    )  # fmt: skip
    return y, h, c
