"""Draws of cases: LSTMs, linear attention, convolutions with a state, and sequences that stand one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator, choose, draw_floats, draw_integers, draw_scale, flip

_STEP = 1e-2
"""A hidden state on the border between two codes of 8 bits falls to either side by the last bit of a sigmoid."""


def _draw_states(rng: Generator, directions: int, batch: int, size: int) -> tuple[Any, Any]:
    return tuple(draw_floats(rng, directions, batch, size) if flip(rng) else None for _ in range(2))  # type: ignore[return-value]


def _draw_lstm_attributes(rng: Generator, size: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"hidden_size": size, "direction": choose(rng, ("forward", "reverse", "bidirectional"))}
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
    directions, dtype = 2 if attributes["direction"] == "bidirectional" else 1, choose(rng, (np.int8, np.uint8))
    sizes = (directions, 4 * size) if flip(rng) else (directions,)
    zeros = [np.full(sizes, 0 if dtype == np.int8 else rng.integers(256), dtype) for _ in range(2)]
    lengths = np.asarray(rng.integers(1, steps + 1, batch), np.int32) if flip(rng) else None
    inputs = (
        draw_floats(rng, steps, batch, width),
        draw_integers(rng, dtype, directions, width, 4 * size),
        draw_integers(rng, dtype, directions, size, 4 * size),
        draw_floats(rng, directions, 8 * size) if flip(rng) else None,
        lengths,
        *_draw_states(rng, directions, batch, size),
        draw_floats(rng, directions, 3 * size) if rng.integers(3) == 0 else None,
        draw_scale(rng, *sizes) / 10,
        zeros[0],
        draw_scale(rng, *sizes) / 10,
        zeros[1],
    )
    constants = frozenset({1, 2, 8, 9, 10, 11})
    return ContribCase("DynamicQuantizeLSTM", inputs, attributes, (True, True, True), constants, tolerance=_STEP)


def _draw_attention_lstm(rng: Generator) -> ContribCase:
    steps, batch, width, size, memory, depth, inner = (
        int(value) for value in rng.integers((1, 1, 2, 2, 1, 2, 2), (6, 4, 6, 5, 6, 5, 5))
    )
    attributes = _draw_lstm_attributes(rng, size)
    directions, has_layer = 2 if attributes["direction"] == "bidirectional" else 1, flip(rng)
    attended = 3 if has_layer else depth
    lengths = np.asarray(rng.integers(1, steps + 1, batch), np.int32) if flip(rng) else None
    inputs = (
        draw_floats(rng, steps, batch, width),
        draw_floats(rng, directions, 4 * size, width + attended),
        draw_floats(rng, directions, 4 * size, size),
        draw_floats(rng, directions, 8 * size) if flip(rng) else None,
        lengths,
        *_draw_states(rng, directions, batch, size),
        draw_floats(rng, directions, 3 * size) if rng.integers(3) == 0 else None,
        draw_floats(rng, directions, size, inner),
        draw_floats(rng, directions, depth, inner),
        draw_floats(rng, directions, inner),
        draw_floats(rng, batch, memory, depth),
        np.asarray(rng.integers(1, memory + 1, batch), np.int32) if flip(rng) else None,
        draw_floats(rng, directions, depth + size, attended) if has_layer else None,
    )
    return ContribCase("AttnLSTM", inputs, attributes, (True, True, True), tolerance=1e-3)


def _normalized(x: Any) -> Any:
    return (x / np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))).astype(x.dtype)


def _draw_linear(rng: Generator) -> ContribCase:
    batch, steps, size, v_size = int(rng.integers(1, 3)), int(rng.integers(1, 6)), choose(rng, (4, 8)), choose(rng, (4, 6))
    heads, groups = choose(rng, ((2, 2), (4, 2), (1, 1), (2, 4)))
    rule = choose(rng, ("linear", "gated", "delta", "gated_delta"))
    state = (batch, groups, size, v_size)
    past = draw_floats(rng, *state) if flip(rng) else None
    width = groups * (size if flip(rng) else 1)
    decay = -np.abs(draw_floats(rng, batch, steps, width)) if rule.startswith("gated") else None
    beta = rng.uniform(0, 1, (batch, steps, groups if flip(rng) else 1)).astype(np.float32) if rule.endswith("delta") else None
    key = _normalized(draw_floats(rng, batch, steps, groups, size)).reshape((batch, steps, groups * size))
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule}
    attributes |= {"scale": 0.5} if flip(rng) else {}
    inputs = (draw_floats(rng, batch, steps, heads * size), key, draw_floats(rng, batch, steps, groups * v_size), past, decay, beta)
    return ContribCase("LinearAttention", inputs, attributes, (True, True), tolerance=1e-3)


def _draw_delta(rng: Generator) -> ContribCase:
    dtype = choose(rng, (np.float32, np.float32, np.float16))
    heads, repeats, size, v_size = int(rng.integers(1, 3)), int(rng.integers(1, 3)), choose(rng, (4, 8)), choose(rng, (4, 6))
    lengths = rng.integers(1, 4, int(rng.integers(1, 4)))
    tokens, batch, wide = int(lengths.sum()), len(lengths), heads * repeats
    rule = choose(rng, ("linear", "gated", "delta", "gated_delta"))
    is_gated, is_delta = rule.startswith("gated"), rule.endswith("delta")
    gate = choose(rng, ("none", "softplus", "sigmoid")) if is_gated else "none"
    width = (size,) if flip(rng) else ()
    raw = draw_floats(rng, tokens, wide, *width)
    inputs = (
        draw_floats(rng, tokens, heads, size, dtype=dtype),
        draw_floats(rng, tokens, heads, size, dtype=dtype),
        draw_floats(rng, tokens, wide, v_size, dtype=dtype),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        (raw if gate != "none" else -np.abs(raw)) if is_gated else None,
        rng.uniform(0, 1, (tokens, wide)).astype(np.float32) if is_delta else None,
        draw_floats(rng, batch, wide, v_size, size),
        draw_floats(rng, wide) if gate != "none" else None,
        draw_floats(rng, wide) if gate != "none" else None,
    )
    attributes: dict[str, Any] = {"update_rule": rule, "gate_activation": gate, "qk_l2_norm": 1}
    if is_delta and flip(rng):
        attributes["beta_activation"] = "sigmoid"
    return ContribCase("GatedDeltaNet", inputs, attributes, (True, True), tolerance=1e-3)


def _draw_gate(rng: Generator) -> ContribCase:
    dtype, heads, has_rate = choose(rng, (np.float32, np.float16)), int(rng.integers(1, 5)), flip(rng)
    a, b = (draw_floats(rng, 2, 3, heads, dtype=dtype) for _ in range(2))
    inputs = (a, draw_floats(rng, heads), -np.abs(draw_floats(rng, heads)), b if has_rate else None)
    return ContribCase("LinearAttentionGate", inputs, {}, (True, True) if has_rate else (True,))


def _draw_conv(rng: Generator) -> ContribCase:
    batch, channels, steps, taps, dilation = (int(value) for value in rng.integers((1, 1, 1, 1, 1), (3, 6, 6, 5, 3)))
    is_last = flip(rng)
    reach = (taps - 1) * dilation
    slot = (batch, reach, channels) if is_last else (batch, channels, reach)
    past = draw_floats(rng, *slot) if flip(rng) else None
    attributes: dict[str, Any] = {
        "activation": choose(rng, ("none", "silu", "swish")),
        "dilation": dilation,
        "channels_last": int(is_last),
    }
    x = draw_floats(rng, *((batch, steps, channels) if is_last else (batch, channels, steps)))
    inputs = (x, draw_floats(rng, channels, 1, taps), draw_floats(rng, channels) if flip(rng) else None, past)
    return ContribCase("CausalConvWithState", inputs, attributes, (True, True))


def _draw_packed_conv(rng: Generator) -> ContribCase:
    dtype = choose(rng, (np.float32, np.float16))
    channels, taps, dilation = (int(value) for value in rng.integers((1, 1, 1), (6, 5, 3)))
    lengths = rng.integers(1, 5, int(rng.integers(1, 4)))
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    capacity = choose(rng, (0, 0, 3))
    counts = np.asarray(rng.integers(0, 5, len(lengths)), np.int32) if capacity else None
    inputs = (
        draw_floats(rng, int(bounds[-1]), channels, dtype=dtype),
        draw_floats(rng, channels, 1, taps, dtype=dtype),
        bounds,
        draw_floats(rng, channels, dtype=dtype) if flip(rng) else None,
        draw_floats(rng, len(lengths), channels, (taps - 1) * dilation, dtype=dtype),
        counts,
    )
    attributes: dict[str, Any] = {"activation": choose(rng, ("none", "silu", "swish")), "dilation": dilation}
    attributes |= {"state_update_capacity": capacity} if capacity else {}
    return ContribCase("VarlenCausalConvWithState", inputs, attributes, (True, True, True) if capacity else (True, True))


def _draw_packed_grams(rng: Generator) -> ContribCase:
    dtype, reach, heads = choose(rng, (np.int32, np.int64)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    lengths = rng.integers(1, 5, int(rng.integers(1, 4)))
    bounds, batch = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), len(lengths)
    tokens, capacity, has_segments = int(bounds[-1]), choose(rng, (0, 0, 3)), flip(rng)
    past = np.asarray(rng.integers(0, 9, (batch, reach)), dtype) if flip(rng) else None
    segments = np.sort(np.asarray(rng.integers(0, 3, tokens), np.int32)) if has_segments else None
    past_segments = np.zeros((batch, reach), np.int32) if has_segments and past is not None else None
    inputs = (
        np.asarray(rng.integers(0, 9, tokens), dtype),
        np.asarray(rng.integers(1, 2**20, reach + 1) * 2 + 1, dtype),
        np.asarray(rng.integers(3, 99, reach * heads), dtype),
        bounds,
        past,
        np.asarray(rng.integers(0, 99, reach * heads), dtype) if flip(rng) else None,
        np.asarray(2, dtype) if flip(rng) else None,
        segments,
        past_segments,
        np.asarray(rng.integers(0, 5, batch), np.int32) if capacity else None,
    )
    attributes: dict[str, Any] = {
        "pad_id": 0,
        "n_head_per_ngram": heads,
        "max_ngram_size": reach + 1,
        "reset_on_eos": int(flip(rng)),
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
