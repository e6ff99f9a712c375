"""Decoders with random weights in the form of the model builder of onnxruntime-genai: ONNX Runtime's operators, a growing cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tests.open_models import VOCABULARY, Builder

_BLOCK = 32


def make_genai_decoder(
    *, layers: int = 4, width: int = 512, heads: int = 8, groups: int = 2, longest: int = 1024, bits: int = 32, **attributes: float
) -> onnx.ModelProto:
    """Returns a decoder. Inputs: tokens, attention_mask, past keys and values. Outputs: logits, present keys and values.

    With 4 `bits` all products are MatMulNBits. `attributes` are further ones of GroupQueryAttention.
    """
    b, size, rng = Builder(), width // heads, np.random.default_rng(7)
    add_microsoft = partial(b.add, domain="com.microsoft")

    def multiply(x: str, depth: int, columns: int, name: str = "") -> str:
        if bits == 32:
            return b.add("MatMul", x, b.weight(depth, columns), name=name)
        codes = b.constant(rng.integers(0, 256, (columns, depth // _BLOCK, _BLOCK * bits // 8)).astype(np.uint8))
        scales = b.constant((rng.uniform(0.5, 1.5, columns * depth // _BLOCK) / (4.6 * np.sqrt(depth))).astype(np.float32))
        return add_microsoft("MatMulNBits", x, codes, scales, name=name, K=depth, N=columns, bits=bits, block_size=_BLOCK)

    def scale() -> str:
        return b.constant((1 + 0.1 * rng.standard_normal(width)).astype(np.float32))

    def add_skip(x: str, other: str, label: str) -> tuple[str, str]:
        total = f"sum_{label}"
        normed = add_microsoft("SkipSimplifiedLayerNormalization", x, other, scale(), others=("", "", total), epsilon=1e-6)
        return normed, total

    one = b.constant([1])
    ends = b.add("Cast", b.add("Sub", b.add("ReduceSum", "attention_mask", one, keepdims=0), one), to=TensorProto.INT32)
    total = b.add("Cast", b.add("Gather", b.add("Shape", "attention_mask"), b.constant(1), axis=0), to=TensorProto.INT32)
    angles = np.outer(np.arange(longest), 10000.0 ** (-np.arange(0, size, 2) / size))
    cos, sin = (b.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    x = b.add("Gather", b.weight(VOCABULARY, width), "tokens")
    normed = b.add("SimplifiedLayerNormalization", x, scale(), axis=-1, epsilon=1e-6, stash_type=1)
    inputs: dict[str, tuple[int, list[object]]] = {
        "tokens": (TensorProto.INT64, ["batch", "steps"]),
        "attention_mask": (TensorProto.INT64, ["batch", "total"]),
    }
    outputs: dict[str, list[object]] = {"logits": ["batch", "steps", VOCABULARY]}
    inner = width * 11 // 4 // _BLOCK * _BLOCK
    for layer in range(layers):
        caches, presents = ([f"{kind}_{part}_{layer}" for part in ("key", "value")] for kind in ("past", "present"))
        inputs.update((name, (TensorProto.FLOAT, ["batch", groups, "past", size])) for name in caches)
        outputs.update((name, ["batch", groups, "total", size]) for name in presents)
        packed = multiply(normed, width, (heads + 2 * groups) * size)
        own: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1, **attributes}
        mixed = add_microsoft("GroupQueryAttention", packed, "", "", *caches, ends, total, cos, sin, others=presents, **own)
        normed, x = add_skip(x, multiply(mixed, heads * size, width), f"attention_{layer}")
        gate = multiply(normed, width, inner)
        active = b.add("Mul", gate, b.add("Sigmoid", gate))
        wide = b.add("Mul", active, multiply(normed, width, inner))
        normed, x = add_skip(x, multiply(wide, inner, width), f"feed_forward_{layer}")
    multiply(normed, width, VOCABULARY, "logits")
    return b.finish(inputs, outputs)
