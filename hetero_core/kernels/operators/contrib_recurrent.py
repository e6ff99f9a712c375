"""LSTMs of ONNX Runtime's own: DynamicQuantizeLSTM, whose products are of 8 bits, and AttnLSTM, which attends to a memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero_core.kernels.operators.contrib_quantized import BYTES, DOMAIN, FLOAT32
from hetero_core.kernels.operators.contrib_quantized_products import mat_mul_integer_to_float
from hetero_core.kernels.operators.quantization import dynamic_quantize_linear
from hetero_core.kernels.operators.recurrent import choose_activations, refuse_activations
from hetero_core.kernels.operators.softmax import softmax_of
from hetero_core.kernels.precision import Array, Namespace, integers_of
from hetero_core.kernels.registry import kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

INT32 = frozenset({"int32"})
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_LOWEST = np.float32(np.finfo(np.float32).min)
_LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")
Product = Callable[[Array], Array]
States = tuple[Array, Array]


def _refuse(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    return refuse_activations(node, input_types, count=3)


def _walk_gates(
    xp: Namespace,
    projected: Array,
    recur: Product,
    start: States,
    lengths: tuple[int, ...],
    *,
    functions: list[Any],
    bias: Array | None,
    peepholes: Array | None,
    clip: float | None,
    couples: bool,
    is_backward: bool,
    observe: Callable[[Array, Array], Array] | None = None,
) -> tuple[Array, Array, Array]:
    """Returns the hidden states of all steps, and the last hidden and cell state. Backward, each row begins at its own end.

    Gates stand in the order input, output, forget, cell. The clip limits what goes into a gate. `observe` gives what is added to the
    projection of a step, from the hidden state before it and from which rows have begun.
    """
    hidden, cell = start
    size = hidden.shape[-1]
    parts = (0, 0, 0) if peepholes is None else (peepholes[:size], peepholes[size : 2 * size], peepholes[2 * size :])

    def limit(x: Array) -> Array:
        return x if clip is None else xp.clip(x, np.float32(-clip), np.float32(clip))

    steps = projected.shape[0]
    outputs = [hidden] * steps
    begun = xp.zeros((hidden.shape[0], 1), dtype=bool)
    order = _reverse_rows(xp, steps, lengths) if is_backward else None
    projected = projected if order is None else projected[order]
    for index in range(steps):
        gates = projected[index] + recur(hidden)
        gates = gates if observe is None else gates + observe(hidden, begun)
        shifts = (0, 0, 0, 0) if bias is None else tuple(bias[place * size : (place + 1) * size] for place in range(4))
        to_i, to_o, to_f, to_c = (gates[:, place * size : (place + 1) * size] for place in range(4))
        gate_i = functions[0](limit(to_i + parts[0] * cell + shifts[0]))
        gate_f = 1 - gate_i if couples else functions[0](limit(to_f + parts[2] * cell + shifts[2]))
        new_cell = gate_f * cell + gate_i * functions[1](limit(to_c + shifts[3]))
        gate_o = functions[0](limit(to_o + parts[1] * new_cell + shifts[1]))
        new_hidden = gate_o * functions[2](new_cell)
        lives = xp.asarray([[index < length] for length in lengths])
        begun = begun | lives
        outputs[index] = xp.where(lives, new_hidden, np.float32(0))
        hidden, cell = xp.where(lives, new_hidden, hidden), xp.where(lives, new_cell, cell)
    stacked = xp.stack(outputs)
    return stacked if order is None else stacked[order], hidden, cell


def _reverse_rows(xp: Namespace, steps: int, lengths: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns indices of (steps, rows, ...) that turn around the steps of each row, as far as it reaches."""
    places = [[length - 1 - step if step < length else step for length in lengths] for step in range(steps)]
    return xp.asarray(places, dtype=np.int64).reshape((steps, len(lengths))), xp.arange(len(lengths))[None, :]


def _multiply_transposed(xp: Namespace, weights: Array, x: Array) -> Array:
    return xp.matmul(x, weights.T)


def _start(xp: Namespace, initial: Array | None, index: int, batch: int, size: int) -> Array:
    return xp.zeros((batch, size), dtype=np.float32) if initial is None else initial[index]


@kernel(
    "DynamicQuantizeLSTM",
    since=(0,),
    domain=DOMAIN,
    dtypes=(FLOAT32, BYTES, BYTES, FLOAT32, INT32, FLOAT32, FLOAT32, FLOAT32, FLOAT32, BYTES, FLOAT32, BYTES),
    host=(4,),
    choices={"direction": _DIRECTIONS, "input_forget": (0, 1)},
    outputs=3,
    refuse=_refuse,
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
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Array, Array, Array]:
    """Returns Y, Y_h and Y_c of an LSTM whose inputs and hidden states are quantized to 8 bits by their own range before each product.

    w: (directions, input, 4 hidden); r: (directions, hidden, 4 hidden); scales and zero points for each direction, or each of its
    columns. Source: ONNX Runtime, com.microsoft.DynamicQuantizeLSTM-1.
    """
    steps, batch = x.shape[:2]
    size = r.shape[1]
    lengths = integers_of(sequence_lens) or (steps,) * batch
    names = activations or _LSTM_ACTIVATIONS * w.shape[0]
    functions = choose_activations(xp, names, activation_alpha, activation_beta, None)
    results = []
    for index in range(w.shape[0]):

        def multiply(values: Array, weights: Array, scale: Array, zero: Array) -> Array:
            codes, own_scale, own_zero = dynamic_quantize_linear(xp, values)
            return mat_mul_integer_to_float(xp, codes, weights, own_scale, scale, own_zero, zero)

        # Steps beyond all sequences do not count for the range.
        longest = max(lengths, default=0)
        projected = multiply(x[:longest].reshape((longest * batch, -1)), w[index], w_scale[index], w_zero_point[index])
        filler = xp.zeros(((steps - longest) * batch, 4 * size), dtype=np.float32)
        projected = xp.concatenate([projected, filler], axis=0)

        def recur(hidden: Array, index: int = index) -> Array:
            return multiply(hidden, r[index], r_scale[index], r_zero_point[index])

        bias = None if b is None else b[index, : 4 * size] + b[index, 4 * size :]
        start = (_start(xp, initial_h, index, batch, size), _start(xp, initial_c, index, batch, size))
        walked = _walk_gates(
            xp,
            projected.reshape((steps, batch, -1)),
            recur,
            start,
            lengths,
            functions=functions[3 * index : 3 * index + 3],
            bias=bias,
            peepholes=None if p is None else p[index],
            clip=clip,
            couples=bool(input_forget),
            is_backward=direction == "reverse" or index == 1,
        )
        results.append(walked)
    ys, hs, cs = zip(*results, strict=True)
    return xp.stack(ys, axis=1), xp.stack(hs), xp.stack(cs)


@kernel(
    "AttnLSTM",
    since=(0,),
    domain=DOMAIN,
    dtypes=(*(FLOAT32,) * 4, INT32, *(FLOAT32,) * 7, INT32, FLOAT32),
    host=(4, 12),
    choices={"direction": _DIRECTIONS, "input_forget": (0, 1)},
    outputs=3,
    refuse=_refuse,
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
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Array, Array, Array]:
    """Returns Y, Y_h and Y_c of an LSTM whose input has what it attended to in a memory behind it.

    w: (directions, 4 hidden, input + attention); m: (batch, memory steps, depth); qw, mw: projections of query and memory; v: weights
    of their tanh; aw: the projection of (hidden, context). Source: ONNX Runtime, com.microsoft.AttnLSTM-1; Bahdanau et al. 2015.
    """
    steps, batch, width = x.shape
    size = r.shape[-1]
    lengths = integers_of(sequence_lens) or (steps,) * batch
    names = activations or _LSTM_ACTIVATIONS * w.shape[0]
    functions = choose_activations(xp, names, activation_alpha, activation_beta, None)
    memory_lengths = integers_of(memory_seq_lens) or (m.shape[1],) * batch
    is_there = xp.asarray([[step < length for step in range(m.shape[1])] for length in memory_lengths])
    values = xp.where(is_there[..., None], m, np.float32(0))
    results = []
    for index in range(w.shape[0]):
        keys = xp.matmul(values, mw[index])

        def observe(hidden: Array, begun: Array, index: int = index, keys: Array = keys) -> Array:
            scores = xp.sum(v[index] * xp.tanh(keys + xp.matmul(hidden, qw[index])[:, None]), axis=-1)
            shares = softmax_of(xp, xp.where(is_there, scores, _LOWEST), 1)
            context = xp.sum(shares[..., None] * values, axis=1)
            joined = context if aw is None else xp.matmul(xp.concatenate([hidden, context], axis=1), aw[index])
            # Before its first step a row has attended to nothing.
            return xp.matmul(xp.where(begun, joined, np.float32(0)), w[index][:, width:].T)

        bias = None if b is None else b[index, : 4 * size] + b[index, 4 * size :]
        start = (_start(xp, initial_h, index, batch, size), _start(xp, initial_c, index, batch, size))
        walked = _walk_gates(
            xp,
            xp.matmul(x, w[index][:, :width].T),
            partial(_multiply_transposed, xp, r[index]),
            start,
            lengths,
            functions=functions[3 * index : 3 * index + 3],
            bias=bias,
            peepholes=None if p is None else p[index],
            clip=clip,
            couples=bool(input_forget),
            is_backward=direction == "reverse" or index == 1,
            observe=observe,
        )
        results.append(walked)
    ys, hs, cs = zip(*results, strict=True)
    return xp.stack(ys, axis=1), xp.stack(hs), xp.stack(cs)
