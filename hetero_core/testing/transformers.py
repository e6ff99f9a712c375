"""A small decoder and a small encoder of a language model, with random weights; for tests of states and open lengths, and for examples.

The decoder has GPT-2's order: tokens and positions are embedded; each layer has a norm, causal attention over past and present keys,
a second norm and two products with GELU between. Past keys and values are inputs; the outputs are the past with the present appended.
The encoder is the same without past and mask.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

VOCABULARY, WIDTH, HEADS, LONGEST = 97, 32, 2, 512
_DEPTH = WIDTH // HEADS

_SHAPE_OF_WEIGHT = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "wide": (WIDTH, 4 * WIDTH), "narrow": (4 * WIDTH, WIDTH)}
_NUMBERS = {"zero": 0, "one": 1, "two": 2, "last": [-1], "heads_shape": [0, 0, HEADS, _DEPTH], "flat_shape": [0, 0, WIDTH]}


def decoder_model(layers: int = 2, *, seed: int = 0) -> onnx.ModelProto:
    """Returns the decoder: tokens int64 (1, steps) to logits (1, steps, VOCABULARY).

    `past_key_i`, `past_value_i` (1, HEADS, past, WIDTH / HEADS) are inputs, `present_key_i`, `present_value_i` (..., past + steps, ...)
    outputs, for each layer i. Positions go on from `past`, up to LONGEST in all.
    """
    cache = f"float[1,{HEADS},past,{_DEPTH}] past_key_@, float[1,{HEADS},past,{_DEPTH}] past_value_@"
    outputs_text = f"float[1,{HEADS},total,{_DEPTH}] present_key_@, float[1,{HEADS},total,{_DEPTH}] present_value_@"
    inputs = ", ".join(["int64[1,steps] tokens", *(cache.replace("@", str(layer)) for layer in range(layers))])
    outputs = ", ".join(
        [f"float[1,steps,{VOCABULARY}] logits", *(outputs_text.replace("@", str(layer)) for layer in range(layers))]
    )
    return _build(f"decoder ({inputs}) => ({outputs})", _read("decoder_head"), _read("layer"), layers, seed)


def encoder_model(layers: int = 1, *, seed: int = 0) -> onnx.ModelProto:
    """Returns the encoder: tokens int64 (batch, length) to logits (batch, length, VOCABULARY); length up to LONGEST."""
    layer = "\n".join(line for line in _read("layer").splitlines() if "[join_" not in line and "[mask_" not in line)
    layer = layer.replace("present_key", "key").replace("present_value", "value").replace("masked_@", "scores_@")
    border = f"encoder (int64[batch,length] tokens) => (float[batch,length,{VOCABULARY}] logits)"
    return _build(border, _read("encoder_head"), layer, layers, seed)


def _read(name: str) -> str:
    """Returns a part of a model's text; @ stands for the number of a layer, # for the number of the next layer."""
    return (Path(__file__).parent / "transformer_texts" / f"{name}.onnxtxt").read_text(encoding="utf-8")


def _build(border: str, head: str, layer_text: str, layers: int, seed: int) -> onnx.ModelProto:
    body = "".join(layer_text.replace("@", str(layer)).replace("#", str(layer + 1)) for layer in range(layers))
    tail = f"[norm] normed = LayerNormalization <axis = -1> (hidden_{layers}, scale, shift)"
    tail += " [predict] logits = MatMul (normed, weight_logits)"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {border} {{ {head} {body} {tail} }}')
    generator = np.random.default_rng(seed)
    shapes = {"token_table": (VOCABULARY, WIDTH), "position_table": (LONGEST, WIDTH), "weight_logits": (WIDTH, VOCABULARY)}
    constants = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    for layer in range(layers):
        for name, shape in _SHAPE_OF_WEIGHT.items():
            constants[f"weight_{name}_{layer}"] = generator.standard_normal(shape) / shape[0] ** 0.5
    for name in ["", *(f"_{place}_{layer}" for layer in range(layers) for place in "ab")]:
        constants |= {f"scale{name}": np.ones(WIDTH), f"shift{name}": np.zeros(WIDTH)}
    constants |= {"depth_factor": np.array(_DEPTH**-0.5), "lowest": np.array(-1e9)}
    arrays = {name: array.astype(np.float32) for name, array in constants.items()}
    arrays |= {name: np.array(number, np.int64) for name, number in _NUMBERS.items()}
    read = {value for node in model.graph.node for value in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name in read)
    onnx.checker.check_model(model, full_check=True)
    return model


def ties_of_decoder(layers: int = 2) -> dict[str, str]:
    """Returns the states of the decoder, present -> past, as `Network.with_state` takes them."""
    return {f"present_{kind}_{layer}": f"past_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")}
