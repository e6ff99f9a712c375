"""Recurrences in the place of attention: LinearAttention, GatedDeltaNet and their gate; causal convolutions that keep a state."""

from __future__ import annotations

from itertools import pairwise
from math import prod, sqrt
from typing import Any

import numpy as np

from hetero_core.kernels.operators.activations import sigmoid_of, softplus_of
from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, widen
from hetero_core.kernels.registry import FLOAT32, FLOATS, INT32, SMALL_FLOATS, kernel, microsoft_kernel

_RULES = ("linear", "gated", "delta", "gated_delta")
_ACTIVATIONS = ("none", "silu", "swish")


def step_state(state: Array, k: Array, v: Array, decay: Array | None, rate: Array | None, rule: str) -> tuple[Array, Array]:
    """Returns the state (..., key size, value size) after one step, and the update that was added for the key.

    decay: (..., key size or 1), to be multiplied; rate: (..., 1).
    """
    if rule.startswith("gated"):
        assert decay is not None, "a gated rule has a decay"
        state = state * decay[..., None]
    added = v
    if rule.endswith("delta"):
        added = rate * (v - (k[..., None, :] @ state)[..., 0, :])
    return state + k[..., :, None] * added[..., None, :], added


@kernel("LinearAttention", since=(27,), dtypes=FLOATS, choices={"update_rule": _RULES}, outputs=2, without=("state_window",))
@microsoft_kernel("LinearAttention", dtypes=SMALL_FLOATS, choices={"update_rule": _RULES, "state_window": (0,)}, outputs=2)
def linear_attention(
    xp: Namespace,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """Returns scale * q^T S at each step, and the last state S.

    Heads of queries may share those of keys, or the other way round; the chunk size is a hint without effect.
    Source: ONNX LinearAttention-27; ONNX Runtime, com.microsoft.LinearAttention-1.
    """
    batch, steps = query.shape[:2]
    q, k, v = (
        widen(x).reshape((batch, steps, heads, prod(x.shape[2:]) // heads))
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    if k.shape[3] != q.shape[3]:
        k = k.reshape((batch, steps, kv_num_heads * k.shape[3] // q.shape[3], q.shape[3]))
        k = xp.repeat(k, kv_num_heads // k.shape[2], axis=2)
    shape = (batch, kv_num_heads, q.shape[3], v.shape[3])
    state = xp.zeros(shape, dtype=np.float32) if past_state is None else widen(past_state)
    decays: Array = (
        None if decay is None else xp.exp(widen(decay)).reshape((batch, steps, kv_num_heads, prod(decay.shape[2:]) // kv_num_heads))
    )
    rates: Array = None if beta is None else widen(beta)[..., None]
    factor = np.float32(scale or 1 / sqrt(q.shape[3]))
    outputs = []
    for step in range(steps):
        state, _ = step_state(
            state, k[:, step], v[:, step], None if decays is None else decays[:, step], None if rates is None else rates[:, step],
            update_rule,
        )  # fmt: skip
        outputs.append(factor * _read_state(xp, q[:, step], state))
    heads = max(q_num_heads, kv_num_heads)
    y = xp.stack(outputs, axis=1).reshape((batch, steps, heads * v.shape[3])) if steps else xp.zeros((batch, 0, heads * v.shape[3]))
    dtype = query.dtype if past_state is None else past_state.dtype
    return narrow(y, query.dtype), narrow(state, dtype)


def _read_state(xp: Namespace, q: Array, state: Array) -> Array:
    """Returns q^T S for each head of queries, or for each head of the state if it has more."""
    if q.shape[1] >= state.shape[1]:
        wide = xp.repeat(state, q.shape[1] // state.shape[1], axis=1)
        return (q[..., None, :] @ wide)[..., 0, :]
    return (xp.repeat(q, state.shape[1] // q.shape[1], axis=1)[..., None, :] @ state)[..., 0, :]


@microsoft_kernel("LinearAttentionGate", dtypes=(SMALL_FLOATS, FLOAT32, FLOAT32, SMALL_FLOATS), outputs=2)
def linear_attention_gate(
    xp: Namespace, a: Array, dt_bias: Array, decay_scale: Array, b: Array | None = None
) -> tuple[Array, Array]:
    """Returns decay_scale * softplus(a + dt_bias), and sigmoid(b). Source: ONNX Runtime, com.microsoft.LinearAttentionGate-1."""
    decay = narrow(decay_scale * softplus_of(xp, widen(a) + dt_bias), a.dtype)
    return decay, decay if b is None else narrow(sigmoid_of(xp, widen(b)), b.dtype)


def _activate(xp: Namespace, x: Array, activation: str) -> Array:
    return x if activation == "none" else x * sigmoid_of(xp, x)


@microsoft_kernel(
    "CausalConvWithState",
    halves=(0, 1),
    dtypes=FLOAT32,
    choices={
        "activation": _ACTIVATIONS,
        "channels_last": (0, 1),
        "input_channel_offset": (0,),
        "input_channels": (0,),
        "ndim": (1,),
        "state_channels_last": (-1,),
        "state_length": (0,),
        "state_update_capacity": (0,),
        "state_window": (0,),
    },
    outputs=2,
)
def microsoft_causal_conv_with_state(
    xp: Namespace,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> tuple[Array, Array]:
    """Returns the depthwise convolution of each step with those before it, and the inputs that the next call needs.

    x: (batch, channels, steps), or (batch, steps, *channels) with channels_last.
    Source: ONNX Runtime, com.microsoft.CausalConvWithState-1.
    """
    channels = weight.shape[0]
    first = xp.swapaxes(x.reshape((*x.shape[:2], channels)), 1, 2) if channels_last else x
    batch, _, steps = first.shape
    reach = (weight.shape[2] - 1) * dilation
    past: Array = xp.zeros((batch, channels, reach), dtype=np.float32)
    if past_state is not None:
        past = xp.swapaxes(past_state.reshape((batch, reach, channels)), 1, 2) if channels_last else past_state
    padded = xp.concatenate([past, first], axis=2)
    total = _convolve_taps(xp, padded, weight[:, 0], steps, dilation)
    y = _activate(xp, total if bias is None else total + bias[:, None], activation)
    state = padded[:, :, steps:]
    if channels_last:
        y = xp.swapaxes(y, 1, 2).reshape(x.shape)
        state = xp.swapaxes(state, 1, 2).reshape((batch, reach, *x.shape[2:]))
    return xp.ascontiguousarray(y), xp.ascontiguousarray(state)


def _convolve_taps(xp: Namespace, padded: Array, weight: Array, steps: int, dilation: int) -> Array:
    """Returns (..., channels, steps): each channel of padded (..., channels, reach + steps) with its own taps (channels, taps)."""
    total = xp.zeros((*padded.shape[:-1], steps), dtype=np.float32)
    for tap in range(weight.shape[1]):
        total = total + padded[..., tap * dilation : tap * dilation + steps] * weight[:, tap, None]
    return total


@microsoft_kernel(
    "VarlenCausalConvWithState",
    dtypes=(SMALL_FLOATS, SMALL_FLOATS, INT32, SMALL_FLOATS, SMALL_FLOATS, INT32),
    host=(2, 5),
    choices={"activation": _ACTIVATIONS, "delta_offset": (0,), "group_size": (1,)},
    outputs=3,
    unread={"delta_offset": 0, "group_size": 1},
)
def packed_causal_conv_with_state(
    xp: Namespace,
    x: Array,
    weight: Array,
    cumulative_sequence_length: Array,
    bias: Array | None,
    initial_state: Array,
    capture_count: Array | None = None,
    *,
    activation: str = "none",
    dilation: int = 1,
    state_update_capacity: int = 0,
) -> tuple[Array, Array, Array]:
    """Returns the results of CausalConvWithState for concatenated sequences and their initial inputs.

    x: (tokens, channels); cumulative_sequence_length: the start of each sequence, and the end. Source: ONNX Runtime,
    com.microsoft.VarlenCausalConvWithState-1.
    """
    bounds = integers_of(cumulative_sequence_length)
    captures = integers_of(capture_count) or (0,) * (len(bounds) - 1)
    reach = (weight.shape[2] - 1) * dilation
    outputs, states, updates = [], [], []
    for row, (begin, end) in enumerate(pairwise(bounds)):
        own = x[begin:end]
        padded = xp.concatenate([widen(initial_state[row]), widen(own).T], axis=1)
        total = _convolve_taps(xp, padded, widen(weight[:, 0]), end - begin, dilation)
        outputs.append(_activate(xp, total if bias is None else total + widen(bias)[:, None], activation).T)
        states.append(padded[:, padded.shape[1] - reach :])
        count = max(min(captures[row], state_update_capacity, end - begin), 0)
        filler = xp.zeros((state_update_capacity - count, x.shape[1]), dtype=x.dtype)
        updates.append(xp.concatenate([own[:count], filler], axis=0))
    return narrow(xp.concatenate(outputs, axis=0), x.dtype), narrow(xp.stack(states), initial_state.dtype), xp.stack(updates)


_GATES = ("none", "softplus", "qwen", "sigmoid", "kda")


@microsoft_kernel(
    "GatedDeltaNet",
    dtypes=(*(SMALL_FLOATS,) * 3, INT32, SMALL_FLOATS, SMALL_FLOATS, FLOAT32, FLOAT32, FLOAT32),
    host=(3,),
    choices={
        "beta_activation": ("none", "sigmoid"),
        "gate_activation": _GATES,
        "qk_l2_norm": (0, 1),
        "state_update_capacity": (0,),
        "update_rule": _RULES,
    },
    outputs=2,
    unread={"chunk_size": 64, "state_update_capacity": 0},
)
def gated_delta_net(
    xp: Namespace,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    cu_seqlens: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    initial_state: Array | None = None,
    a_log: Array | None = None,
    dt_bias: Array | None = None,
    *,
    beta_activation: str = "none",
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """Returns the linear attention of concatenated sequences, and the last state of each (heads, value, key).

    query, key: (tokens, heads, size), or (batch, steps, heads, size), or query, key and value in one. Source: ONNX Runtime,
    com.microsoft.GatedDeltaNet-1.
    """
    if key is None or value is None:
        if initial_state is None:
            raise ValueError("packed queries, keys and values need an initial_state, which tells their sizes")
        query, key, value = _unpack(xp, query, initial_state)
    q, k, v = (widen(x.reshape((prod(x.shape[:-2]), *x.shape[-2:]))) for x in (query, key, value))
    if qk_l2_norm:
        q, k = (x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + np.float32(1e-6)) for x in (q, k))
    tokens, heads = v.shape[:2]
    q, k = (xp.repeat(x, heads // x.shape[1], axis=1) for x in (q, k))
    decays = _open_gate(xp, decay, a_log, dt_bias, (tokens, heads), gate_activation, gate_lower_bound)
    rates: Array = None if beta is None else widen(beta).reshape((tokens, heads, 1))
    rates = sigmoid_of(xp, rates) if rates is not None and beta_activation == "sigmoid" else rates
    batch = 1 if initial_state is None else initial_state.shape[0]
    bounds = integers_of(cu_seqlens) or tuple(row * (tokens // max(batch, 1)) for row in range(batch + 1))
    factor = np.float32(scale or 1 / sqrt(q.shape[2]))
    outputs, states = [], []
    for row, (begin, end) in enumerate(pairwise(bounds)):
        empty = xp.zeros((heads, k.shape[2], v.shape[2]), dtype=np.float32)
        state = empty if initial_state is None else xp.swapaxes(initial_state[row], 1, 2)
        for at in range(begin, end):
            own_decay, own_rate = None if decays is None else decays[at], None if rates is None else rates[at]
            state, _ = step_state(state, k[at], v[at], own_decay, own_rate, update_rule)
            outputs.append(factor * (q[at][:, None, :] @ state)[:, 0])
        states.append(xp.swapaxes(state, 1, 2))
    y = xp.stack(outputs) if outputs else xp.zeros((0, heads, v.shape[2]), dtype=np.float32)
    return narrow(y.reshape((*query.shape[:-2], heads, v.shape[2])), query.dtype), xp.ascontiguousarray(xp.stack(states))


def _unpack(xp: Namespace, packed: Array, state: Array) -> tuple[Array, Array, Array]:
    """Returns query, key and value of (..., all of them), whose sizes the state (batch, heads, value, key) tells."""
    heads, value_size, key_size = state.shape[1:]
    shared = (packed.shape[-1] - heads * value_size) // 2
    parts = (packed[..., :shared], packed[..., shared : 2 * shared], packed[..., 2 * shared :])
    sizes = (key_size, key_size, value_size)
    q, k, v = (part.reshape((*part.shape[:-1], part.shape[-1] // size, size)) for part, size in zip(parts, sizes, strict=True))
    return q, k, v


def _open_gate(
    xp: Namespace,
    decay: Array | None,
    a_log: Array | None,
    dt_bias: Array | None,
    lead: tuple[int, int],
    activation: str,
    bound: float,
) -> Any:
    """Returns the factors of the state, (tokens, heads, key size or 1)."""
    if decay is None:
        return None
    tokens, heads = lead
    raw = widen(decay).reshape((tokens, heads, decay.size // (tokens * heads) if decay.size else 1))
    if activation != "none":
        rate = xp.exp(a_log).reshape((heads, 1))
        raw = raw if dt_bias is None else raw + dt_bias.reshape((heads, -1))
        raw = np.float32(bound) * sigmoid_of(xp, rate * raw) if activation in ("sigmoid", "kda") else -rate * softplus_of(xp, raw)
    return xp.exp(raw)
