"""Draws of cases: LSTMs, linear attention, convolutions with a state, and packed sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator

_STEP = 1e-2
"""A hidden state on the border between two codes of 8 bits falls to either side by the last bit of a sigmoid."""


def _draw_states(rng: Generator, directions: int, batch: int, size: int) -> tuple[Any, Any]:
    return tuple(rng.floats(directions, batch, size) if rng.flip() else None for _ in range(2))  # type: ignore[return-value]


def _draw_lstm_attributes(rng: Generator, size: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"hidden_size": size, "direction": rng.choose(("forward", "reverse", "bidirectional"))}
    if rng.integers(4) == 0:
        attributes["clip"] = 0.75
    if rng.integers(4) == 0:
        attributes["input_forget"] = 1
    if rng.integers(4) == 0:
        names = ["Sigmoid", "Tanh", "Relu"]
        attributes["activations"] = names * (2 if attributes["direction"] == "bidirectional" else 1)
    return attributes


def _draw_quantized_lstm(rng: Generator) -> ContribCase:
    steps, batch, width, size = (int(value) for value in rng.integers((1, 1, 2, 2), (6, 4, 8, 6)))
    attributes = _draw_lstm_attributes(rng, size)
    directions, dtype = 2 if attributes["direction"] == "bidirectional" else 1, rng.choose((np.int8, np.uint8))
    sizes = (directions, 4 * size) if rng.flip() else (directions,)
    zeros = [np.full(sizes, 0 if dtype == np.int8 else rng.integers(256), dtype) for _ in range(2)]
    lengths = np.asarray(rng.integers(1, steps + 1, batch), np.int32) if rng.flip() else None
    inputs = (
        rng.floats(steps, batch, width),
        rng.numbers(dtype, directions, width, 4 * size),
        rng.numbers(dtype, directions, size, 4 * size),
        rng.floats(directions, 8 * size) if rng.flip() else None,
        lengths,
        *_draw_states(rng, directions, batch, size),
        rng.floats(directions, 3 * size) if rng.integers(3) == 0 else None,
        rng.scales(*sizes) / 10,
        zeros[0],
        rng.scales(*sizes) / 10,
        zeros[1],
    )
    constants = frozenset({1, 2, 8, 9, 10, 11})
    return ContribCase("DynamicQuantizeLSTM", inputs, attributes, (True, True, True), constants, tolerance=_STEP)


def _draw_attention_lstm(rng: Generator) -> ContribCase:
    steps, batch, width, size, memory, depth, inner = (
        int(value) for value in rng.integers((1, 1, 2, 2, 1, 2, 2), (6, 4, 6, 5, 6, 5, 5))
    )
    attributes = _draw_lstm_attributes(rng, size)
    directions, has_layer = 2 if attributes["direction"] == "bidirectional" else 1, rng.flip()
    attended = 3 if has_layer else depth
    lengths = np.asarray(rng.integers(1, steps + 1, batch), np.int32) if rng.flip() else None
    inputs = (
        rng.floats(steps, batch, width),
        rng.floats(directions, 4 * size, width + attended),
        rng.floats(directions, 4 * size, size),
        rng.floats(directions, 8 * size) if rng.flip() else None,
        lengths,
        *_draw_states(rng, directions, batch, size),
        rng.floats(directions, 3 * size) if rng.integers(3) == 0 else None,
        rng.floats(directions, size, inner),
        rng.floats(directions, depth, inner),
        rng.floats(directions, inner),
        rng.floats(batch, memory, depth),
        np.asarray(rng.integers(1, memory + 1, batch), np.int32) if rng.flip() else None,
        rng.floats(directions, depth + size, attended) if has_layer else None,
    )
    return ContribCase("AttnLSTM", inputs, attributes, (True, True, True), tolerance=1e-3)


def _normalized(x: Any) -> Any:
    return (x / np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))).astype(x.dtype)


def _draw_linear(rng: Generator) -> ContribCase:
    batch, steps, size, v_size = rng.integer(1, 3), rng.integer(1, 6), rng.choose((4, 8)), rng.choose((4, 6))
    heads, groups = rng.choose(((2, 2), (4, 2), (1, 1), (2, 4)))
    rule = rng.choose(("linear", "gated", "delta", "gated_delta"))
    state = (batch, groups, size, v_size)
    past = rng.floats(*state) if rng.flip() else None
    width = groups * (size if rng.flip() else 1)
    decay = -np.abs(rng.floats(batch, steps, width)) if rule.startswith("gated") else None
    beta = rng.uniform(0, 1, (batch, steps, groups if rng.flip() else 1)).astype(np.float32) if rule.endswith("delta") else None
    key = _normalized(rng.floats(batch, steps, groups, size)).reshape((batch, steps, groups * size))
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule}
    attributes |= {"scale": 0.5} if rng.flip() else {}
    inputs = (rng.floats(batch, steps, heads * size), key, rng.floats(batch, steps, groups * v_size), past, decay, beta)
    return ContribCase("LinearAttention", inputs, attributes, (True, True), tolerance=1e-3)


def _draw_delta(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float32, np.float16))
    heads, repeats, size, v_size = rng.integer(1, 3), rng.integer(1, 3), rng.choose((4, 8)), rng.choose((4, 6))
    lengths = rng.integers(1, 4, rng.integer(1, 4))
    tokens, batch, wide = int(lengths.sum()), len(lengths), heads * repeats
    rule = rng.choose(("linear", "gated", "delta", "gated_delta"))
    is_gated, is_delta = rule.startswith("gated"), rule.endswith("delta")
    gate = rng.choose(("none", "softplus", "sigmoid")) if is_gated else "none"
    width = (size,) if rng.flip() else ()
    raw = rng.floats(tokens, wide, *width)
    inputs = (
        rng.floats(tokens, heads, size, dtype=dtype),
        rng.floats(tokens, heads, size, dtype=dtype),
        rng.floats(tokens, wide, v_size, dtype=dtype),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        (raw if gate != "none" else -np.abs(raw)) if is_gated else None,
        rng.uniform(0, 1, (tokens, wide)).astype(np.float32) if is_delta else None,
        rng.floats(batch, wide, v_size, size),
        rng.floats(wide) if gate != "none" else None,
        rng.floats(wide) if gate != "none" else None,
    )
    attributes: dict[str, Any] = {"update_rule": rule, "gate_activation": gate, "qk_l2_norm": 1}
    if is_delta and rng.flip():
        attributes["beta_activation"] = "sigmoid"
    return ContribCase("GatedDeltaNet", inputs, attributes, (True, True), tolerance=1e-3)


def _draw_gate(rng: Generator) -> ContribCase:
    dtype, heads, has_rate = rng.choose((np.float32, np.float16)), rng.integer(1, 5), rng.flip()
    a, b = (rng.floats(2, 3, heads, dtype=dtype) for _ in range(2))
    inputs = (a, rng.floats(heads), -np.abs(rng.floats(heads)), b if has_rate else None)
    return ContribCase("LinearAttentionGate", inputs, {}, (True, True) if has_rate else (True,))


def _draw_conv(rng: Generator) -> ContribCase:
    batch, channels, steps, taps, dilation = (int(value) for value in rng.integers((1, 1, 1, 1, 1), (3, 6, 6, 5, 3)))
    is_last = rng.flip()
    reach = (taps - 1) * dilation
    slot = (batch, reach, channels) if is_last else (batch, channels, reach)
    past = rng.floats(*slot) if rng.flip() else None
    attributes: dict[str, Any] = {
        "activation": rng.choose(("none", "silu", "swish")),
        "dilation": dilation,
        "channels_last": int(is_last),
    }
    x = rng.floats(*((batch, steps, channels) if is_last else (batch, channels, steps)))
    inputs = (x, rng.floats(channels, 1, taps), rng.floats(channels) if rng.flip() else None, past)
    return ContribCase("CausalConvWithState", inputs, attributes, (True, True))


def _draw_packed_conv(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float16))
    channels, taps, dilation = (int(value) for value in rng.integers((1, 1, 1), (6, 5, 3)))
    lengths = rng.integers(1, 5, rng.integer(1, 4))
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    capacity = rng.choose((0, 0, 3))
    counts = np.asarray(rng.integers(0, 5, len(lengths)), np.int32) if capacity else None
    inputs = (
        rng.floats(int(bounds[-1]), channels, dtype=dtype),
        rng.floats(channels, 1, taps, dtype=dtype),
        bounds,
        rng.floats(channels, dtype=dtype) if rng.flip() else None,
        rng.floats(len(lengths), channels, (taps - 1) * dilation, dtype=dtype),
        counts,
    )
    attributes: dict[str, Any] = {"activation": rng.choose(("none", "silu", "swish")), "dilation": dilation}
    attributes |= {"state_update_capacity": capacity} if capacity else {}
    return ContribCase("VarlenCausalConvWithState", inputs, attributes, (True, True, True) if capacity else (True, True))


def _draw_packed_grams(rng: Generator) -> ContribCase:
    dtype, reach, heads = rng.choose((np.int32, np.int64)), rng.integer(1, 4), rng.integer(1, 3)
    lengths = rng.integers(1, 5, rng.integer(1, 4))
    bounds, batch = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), len(lengths)
    tokens, capacity, has_segments = int(bounds[-1]), rng.choose((0, 0, 3)), rng.flip()
    past = np.asarray(rng.integers(0, 9, (batch, reach)), dtype) if rng.flip() else None
    segments = np.sort(np.asarray(rng.integers(0, 3, tokens), np.int32)) if has_segments else None
    past_segments = np.zeros((batch, reach), np.int32) if has_segments and past is not None else None
    inputs = (
        np.asarray(rng.integers(0, 9, tokens), dtype),
        np.asarray(rng.integers(1, 2**20, reach + 1) * 2 + 1, dtype),
        np.asarray(rng.integers(3, 99, reach * heads), dtype),
        bounds,
        past,
        np.asarray(rng.integers(0, 99, reach * heads), dtype) if rng.flip() else None,
        np.asarray(2, dtype) if rng.flip() else None,
        segments,
        past_segments,
        np.asarray(rng.integers(0, 5, batch), np.int32) if capacity else None,
    )
    attributes: dict[str, Any] = {
        "pad_id": 0,
        "n_head_per_ngram": heads,
        "max_ngram_size": reach + 1,
        "reset_on_eos": int(rng.flip()),
    }
    attributes |= {"state_update_capacity": capacity} if capacity else {}
    return ContribCase("VarlenNGramHashMapping", inputs, attributes, (True, True, has_segments, bool(capacity)))


SEQUENCES: Mapping[str, Draw] = {
    "DynamicQuantizeLSTM": _draw_quantized_lstm,
    "AttnLSTM": _draw_attention_lstm,
    "LinearAttention": _draw_linear,
    "GatedDeltaNet": _draw_delta,
    "LinearAttentionGate": _draw_gate,
    "CausalConvWithState": _draw_conv,
    "VarlenCausalConvWithState": _draw_packed_conv,
    "VarlenNGramHashMapping": _draw_packed_grams,
}
