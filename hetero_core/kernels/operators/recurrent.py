"""RNN, GRU and LSTM: forward, reverse and bidirectional, with lengths per sequence; ONNX Runtime's DynamicQuantizeLSTM.

The inputs of all steps go through one GEMM; only the recurrence walks step by step. Small floats are computed in float32. Past the end
of a sequence the state stays and the outputs are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np

from hetero_core.errors import suggest
from hetero_core.kernels.operators.elementwise import activate
from hetero_core.kernels.operators.quantization import center, dynamic_quantize_linear, shape_columns, wrap_sums
from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, Texts, integers_of, multiply, narrow, widen
from hetero_core.kernels.registry import BYTES, FLOAT32, FLOATS, INDEX, INT32, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node

Activation = Callable[[Array], Array]
States = tuple[Array, ...]
CellStep = Callable[[Array, States], States]
_ACTIVATION_COUNTS = {"RNN": 1, "GRU": 2}
"""Activations of a direction; the kinds of LSTM have three."""
_DIRECTIONS = {"direction": ("forward", "reverse", "bidirectional"), "layout": (0, 1)}
# Name -> defaults of alpha and beta, if the function takes them; NaN if the two sources disagree or give no default.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (nan, nan),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (nan, nan),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (nan, None),
}


def refuse_activations(node: Node, input_types: InputTypes) -> str | None:
    """Refuses activations that do not exist, are too few, or need an alpha or a beta that is not given."""
    names = [str(name).casefold() for name in node.attributes.get("activations", ())]
    directions = 2 if node.attributes.get("direction") == "bidirectional" else 1
    needed = _ACTIVATION_COUNTS.get(node.op_type, 3) * directions
    if names and len(names) < needed:
        return f"{node.operator} has {len(names)} activations; it needs {needed}"
    for name in names:
        if name not in _PARAMETERS:
            return f"activation '{name}' of {node.operator} does not exist{suggest(name, _PARAMETERS)}"
    for place, attribute in enumerate(("activation_alpha", "activation_beta")):
        parameter_count = len(node.attributes.get(attribute, ()))
        takers = [name for name in names if _PARAMETERS[name][place] is not None]
        for index, name in enumerate(takers):
            default = _PARAMETERS[name][place]
            if index >= parameter_count and default is not None and isnan(default):
                return f"activation '{name}' of {node.operator} has no {attribute}"
    return None


WALK: Mapping[str, Any] = {"activation_alpha": (), "activation_beta": (), "clip": None, "direction": "forward"}
"""The attributes that all recurrent operators have in common, with their defaults."""
_COMMON: Mapping[str, Any] = {"dtypes": (FLOATS, FLOATS, FLOATS, FLOATS, INDEX, FLOATS), "host": (4,), "refuse": refuse_activations}
_OF_LSTM = {"activations": None, "input_forget": 0}
"""Those of all kinds of LSTM."""
# The shapes of the weights give the hidden size, too.
_LATER = {**_COMMON, "choices": _DIRECTIONS, "shared": {**WALK, "layout": 0}, "unread": {"hidden_size": None}}
# That Y may be left out follows from its absent name, too.
_FIRST = {
    **_COMMON,
    # "foward" is how version 1 spells its default.
    "choices": {"direction": ("foward", *_DIRECTIONS["direction"]), "output_sequence": (0, 1)},
    "shared": WALK,
    "unread": {"hidden_size": None, "output_sequence": 0},
}


def _activate(xp: Namespace, name: str, alpha: float, beta: float, x: Array) -> Array:
    """Returns an activation of the recurrent operators. Source: ONNX LSTM-22, its list of functions."""
    if name == "thresholdedrelu":  # it keeps x = alpha, unlike the operator ThresholdedRelu
        return xp.where(x >= alpha, x, x.dtype.type(0))
    return activate(xp, x, name, alpha, beta)


def choose_activations(
    xp: Namespace, names: Texts, *, activation_alpha: Floats = (), activation_beta: Floats = (), clip: float | None = None, **_: Any
) -> list[Activation]:
    """Returns the functions; each function that takes an alpha or beta consumes the next value. `clip` limits their inputs."""
    chosen: list[Activation] = []
    given = iter(activation_alpha), iter(activation_beta)
    for folded in map(str.casefold, names):
        parameters = zip(_PARAMETERS[folded], given, strict=True)
        alpha, beta = (0.0 if default is None else next(values, default) for default, values in parameters)
        activation = partial(_activate, xp, folded, alpha, beta)
        chosen.append(activation if clip is None else _clip_first(xp, activation, clip))
    return chosen


def _clip_first(xp: Namespace, activation: Activation, limit: float) -> Activation:
    return lambda x: activation(xp.clip(x, -limit, limit))


def walk_steps(xp: Namespace, projected: Array, lengths: Integers, states: States, step: CellStep) -> tuple[Array, States]:
    """Returns the first state at every step, (steps, batch, hidden), and the states at the end."""
    shortest = min(lengths, default=projected.shape[0])
    outputs = []
    for index in range(projected.shape[0]):
        fresh = step(projected[index], states)
        if index < shortest:
            states = fresh
            outputs.append(fresh[0])
            continue
        lives = xp.asarray([[index < length] for length in lengths])
        states = tuple(xp.where(lives, new, old) for new, old in zip(fresh, states, strict=True))
        outputs.append(xp.where(lives, fresh[0], fresh[0].dtype.type(0)))
    return xp.stack(outputs) if outputs else xp.empty((0, *states[0].shape), dtype=states[0].dtype), states


def run_directions(
    xp: Namespace,
    x: Array,
    b: Array | None,
    input_of: Callable[[int], Activation],
    step_of: Callable[[int], CellStep],
    *,
    sizes: tuple[int, int],
    sequence_lens: Array | None,
    initials: tuple[Array | None, ...],
    direction: str = "forward",
    layout: int = 0,
    **_: Any,
) -> tuple[Array, ...]:
    """Returns Y and the final states in the operator's layout.

    b: input bias and state bias of each direction. `input_of` and `step_of` give a direction's product of the inputs and its step.
    sizes: the directions and the hidden size. In a backward direction each sequence begins at its own end.
    """
    directions, hidden = sizes
    wide = xp.swapaxes(widen(x), 0, 1) if layout else widen(x)
    steps, batch = wide.shape[:2]
    lengths = integers_of(sequence_lens) or (steps,) * batch
    longest = max(lengths, default=0)
    rows = wide[:longest].reshape((longest * batch, wide.shape[2]))
    sequences, finals = [], []
    for index in range(directions):
        starts = tuple(
            xp.zeros((batch, hidden), dtype=wide.dtype)
            if initial is None
            else widen(initial[:, index] if layout else initial[index])
            for initial in initials
        )
        order = _reverse_rows(xp, longest, lengths) if direction == "reverse" or index == 1 else slice(None)
        projected = input_of(index)(rows)
        projected = projected if b is None else projected + sum(_split_columns(widen(b[index]), 2))
        projected = projected.reshape((longest, batch, projected.shape[-1]))
        outputs, states = walk_steps(xp, projected[order], lengths, starts, step_of(index))
        sequences.append(outputs[order])
        finals.append(states)
    y = xp.stack(sequences, axis=1)
    if longest < steps:
        y = xp.concatenate([y, xp.zeros((steps - longest, *y.shape[1:]), dtype=y.dtype)])
    y = xp.transpose(y, (2, 0, 1, 3)) if layout else y
    last = (xp.stack(parts, axis=1 if layout else 0) for parts in zip(*finals, strict=True))
    return tuple(narrow(part, x.dtype) for part in (y, *last))


def _reverse_rows(xp: Namespace, steps: int, lengths: Integers) -> Any:
    """Returns the index of (steps, rows, ...) that turns around the steps of each row, as far as it reaches."""
    if min(lengths, default=steps) == steps:
        return slice(None, None, -1)
    places = [[length - 1 - step if step < length else step for length in lengths] for step in range(steps)]
    return xp.asarray(places, dtype=np.int64), xp.arange(len(lengths))[None, :]


def _multiply_by(xp: Namespace, weights: Array) -> Callable[[int], Activation]:
    """Returns a function of a direction that returns its product with the transposed weights."""

    def weigh(index: int) -> Activation:
        transposed = widen(weights[index]).T
        return lambda values: multiply(xp, values, transposed)

    return weigh


def _split_columns(x: Array, count: int) -> list[Array]:
    size = x.shape[-1] // count
    return [x[..., index * size : (index + 1) * size] for index in range(count)]


@kernel("RNN", since=(7, 14, 22), outputs=2, **_LATER)
@kernel("RNN", since=(1,), outputs=2, **_FIRST)
def rnn(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Texts = ("Tanh", "Tanh"),
    **walk: Any,
) -> tuple[Array, ...]:
    """Returns Y and Y_h of H = f(X W^T + H R^T + Wb + Rb)."""
    functions = choose_activations(xp, activations or ("Tanh", "Tanh"), **walk)

    def step_of(index: int) -> CellStep:
        recur, activate = _multiply_by(xp, r)(index), functions[index]
        return lambda projected, states: (activate(projected + recur(states[0])),)

    sizes, initials = (w.shape[0], r.shape[-1]), (initial_h,)
    return run_directions(xp, x, b, _multiply_by(xp, w), step_of, sizes=sizes, sequence_lens=lens, initials=initials, **walk)


@kernel("GRU", since=(7, 14, 22), outputs=2, **_LATER)
@kernel("GRU", since=(3,), outputs=2, **_FIRST)
@kernel("GRU", since=(1,), outputs=2, without=("linear_before_reset",), **_FIRST)
def gru(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Texts | None = None,
    linear_before_reset: int = 0,
    **walk: Any,
) -> tuple[Array, ...]:
    """Returns Y and Y_h of H = (1 - z) h + z H with update gate z and reset gate inside h."""
    functions = choose_activations(xp, activations or ("Sigmoid", "Tanh") * w.shape[0], **walk)
    hidden = r.shape[-1]
    outer_bias = b
    if b is not None and linear_before_reset:
        # The hidden gate's recurrent bias belongs inside the reset when the operator resets after the product.
        outer_bias = xp.concatenate([b[:, : 5 * hidden], xp.zeros_like(b[:, 5 * hidden :])], axis=1)

    def step_of(index: int) -> CellStep:
        gates = widen(r[index])[: 2 * hidden].T
        candidate = widen(r[index])[2 * hidden :].T
        inner_bias = 0 if b is None else widen(b[index])[5 * hidden :]
        activate_gate, activate_candidate = functions[2 * index], functions[2 * index + 1]

        def step(projected: Array, states: States) -> States:
            (state,) = states
            gated = activate_gate(projected[:, : 2 * hidden] + multiply(xp, state, gates))
            update, reset = _split_columns(gated, 2)
            if linear_before_reset:
                recurrent = reset * (multiply(xp, state, candidate) + inner_bias)
            else:
                recurrent = multiply(xp, reset * state, candidate)
            proposed = activate_candidate(projected[:, 2 * hidden :] + recurrent)
            return ((1 - update) * proposed + update * state,)

        return step

    sizes, initials, input_of = (w.shape[0], hidden), (initial_h,), _multiply_by(xp, w)
    return run_directions(xp, x, outer_bias, input_of, step_of, sizes=sizes, sequence_lens=sequence_lens, initials=initials, **walk)


@kernel("LSTM", since=(7, 14, 22), outputs=3, **{**_LATER, "shared": {**_LATER["shared"], **_OF_LSTM}})
@kernel("LSTM", since=(1,), outputs=3, **{**_FIRST, "shared": {**WALK, **_OF_LSTM}})
def lstm(
    xp: Namespace,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    **walk: Any,
) -> tuple[Array, ...]:
    """Returns Y, Y_h and Y_c of C = f C + i c, H = o h(C), with peepholes p and gates in the order i, o, f, c."""
    products, sizes, initials = (_multiply_by(xp, w), _multiply_by(xp, r)), (w.shape[0], r.shape[-1]), (initial_h, initial_c)
    return _run_lstm(xp, x, b, p, *products, sizes=sizes, sequence_lens=sequence_lens, initials=initials, **walk)


def _run_lstm(
    xp: Namespace,
    x: Array,
    b: Array | None,
    p: Array | None,
    input_of: Callable[[int], Activation],
    recur_of: Callable[[int], Activation],
    *,
    sizes: tuple[int, int],
    activations: Texts | None = None,
    clip: float | None = None,
    input_forget: int = 0,
    **walk: Any,
) -> tuple[Array, ...]:
    """Returns the results of an LSTM with peepholes p.

    `input_of` and `recur_of` give a direction's products of the inputs and of the hidden state for the gates i, o, f, c. With input_forget
    the forget gate is 1 minus the input gate. `clip` limits the inputs of the gates and of g, and not the input of h. ONNX's text says "the
    input of activations"; ONNX Runtime and OpenVINO compute it so.
    """
    functions = choose_activations(xp, activations or ("Sigmoid", "Tanh", "Tanh") * sizes[0], **walk)

    def step_of(index: int) -> CellStep:
        recur = recur_of(index)
        peep_i, peep_o, peep_f = (0, 0, 0) if p is None else _split_columns(widen(p[index]), 3)
        activate_gate, activate_cell, activate_output = functions[3 * index : 3 * index + 3]
        if clip is not None:
            activate_gate, activate_cell = (_clip_first(xp, function, clip) for function in (activate_gate, activate_cell))

        def step(projected: Array, states: States) -> States:
            state, cell = states
            to_i, to_o, to_f, to_c = _split_columns(projected + recur(state), 4)
            gate_i = activate_gate(to_i + peep_i * cell)
            gate_f = 1 - gate_i if input_forget else activate_gate(to_f + peep_f * cell)
            cell = gate_f * cell + gate_i * activate_cell(to_c)
            gate_o = activate_gate(to_o + peep_o * cell)
            return gate_o * activate_output(cell), cell

        return step

    return run_directions(xp, x, b, input_of, step_of, sizes=sizes, **walk)


def _quantize_products(xp: Namespace, weights: Array, scales: Array, zero_points: Array) -> Callable[[int], Activation]:
    """Returns `_multiply_by` with 8-bit weights, which are widened once, of values that are quantized to 8 bits first."""

    def weigh(index: int) -> Activation:
        own, scale = weights[index], shape_columns(scales[index], weights[index])
        wide = center(own, shape_columns(zero_points[index], own))

        def multiply_codes(values: Array) -> Array:
            codes, own_scale, own_zero = dynamic_quantize_linear(xp, values)
            return wrap_sums(multiply(xp, center(codes, own_zero), wide)).astype(np.float32) * (own_scale * scale)

        return multiply_codes

    return weigh


@microsoft_kernel(
    "DynamicQuantizeLSTM",
    dtypes=(FLOAT32, BYTES, BYTES, FLOAT32, INT32, FLOAT32, FLOAT32, FLOAT32, FLOAT32, BYTES, FLOAT32, BYTES),
    host=(4,),
    choices={"direction": _DIRECTIONS["direction"], "input_forget": (0, 1)},
    outputs=3,
    refuse=refuse_activations,
    shared={**WALK, **_OF_LSTM},
    unread={"hidden_size": None},
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
    **walk: Any,
) -> tuple[Array, ...]:
    """Returns Y, Y_h and Y_c of an LSTM with inputs and hidden states quantized to 8 bits by their own range before each product.

    w: (directions, input, 4 hidden); r: (directions, hidden, 4 hidden); scales and zero points for each direction, or each of its
    columns.
    """
    products = _quantize_products(xp, w, w_scale, w_zero_point), _quantize_products(xp, r, r_scale, r_zero_point)
    sizes, initials = (w.shape[0], r.shape[1]), (initial_h, initial_c)
    return _run_lstm(xp, x, b, p, *products, sizes=sizes, sequence_lens=sequence_lens, initials=initials, **walk)
