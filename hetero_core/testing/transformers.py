"""A small decoder and a small encoder of a language model, with random weights; for tests of states and open lengths, and for examples.

The decoder has GPT-2's order: tokens and positions are embedded; each layer has a norm, causal attention over past and present keys,
another norm and two products with GELU between. Keys and values of the past are inputs; the outputs append those of the present to them.
The encoder is the same without past and mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

VOCABULARY, WIDTH, HEADS, LONGEST = 97, 32, 2, 512
_DEPTH = WIDTH // HEADS

_HEAD = """
    [past_shape] sizes_of_past = Shape (past_key_0)
    [past_length] past_length = Gather (sizes_of_past, two)
    [token_shape] sizes_of_tokens = Shape (tokens)
    [steps] steps = Gather (sizes_of_tokens, one)
    [total] total = Add (past_length, steps)
    [query_positions] query_positions = Range (past_length, total, one)
    [key_positions] key_positions = Range (zero, total, one)
    [query_column] query_column = Unsqueeze (query_positions, last)
    [allowed] allowed = LessOrEqual (key_positions, query_column)
    [embed_tokens] token_vectors = Gather (token_table, tokens)
    [embed_positions] position_vectors = Gather (position_table, query_positions)
    [embed] hidden_0 = Add (token_vectors, position_vectors)
"""

_ENCODER_HEAD = """
    [token_shape] sizes_of_tokens = Shape (tokens)
    [length] count = Gather (sizes_of_tokens, one)
    [positions] positions = Range (zero, count, one)
    [embed_tokens] token_vectors = Gather (token_table, tokens)
    [embed_positions] position_vectors = Gather (position_table, positions)
    [embed] hidden_0 = Add (token_vectors, position_vectors)
"""

_LAYER = """
    [norm_a_@] normed_a_@ = LayerNormalization <axis = -1> (hidden_@, scale_a_@, shift_a_@)
    [project_@] projected_@ = MatMul (normed_a_@, weight_qkv_@)
    [part_@] query_flat_@, key_flat_@, value_flat_@ = Split <axis = 2, num_outputs = 3> (projected_@)
    [query_heads_@] query_heads_@ = Reshape (query_flat_@, heads_shape)
    [key_heads_@] key_heads_@ = Reshape (key_flat_@, heads_shape)
    [value_heads_@] value_heads_@ = Reshape (value_flat_@, heads_shape)
    [query_@] query_@ = Transpose <perm = [0, 2, 1, 3]> (query_heads_@)
    [key_@] key_@ = Transpose <perm = [0, 2, 1, 3]> (key_heads_@)
    [value_@] value_@ = Transpose <perm = [0, 2, 1, 3]> (value_heads_@)
    [join_key_@] present_key_@ = Concat <axis = 2> (past_key_@, key_@)
    [join_value_@] present_value_@ = Concat <axis = 2> (past_value_@, value_@)
    [key_turned_@] key_turned_@ = Transpose <perm = [0, 1, 3, 2]> (present_key_@)
    [scores_@] raw_scores_@ = MatMul (query_@, key_turned_@)
    [scale_@] scores_@ = Mul (raw_scores_@, depth_factor)
    [mask_@] masked_@ = Where (allowed, scores_@, lowest)
    [weigh_@] attention_@ = Softmax <axis = -1> (masked_@)
    [attend_@] mixed_@ = MatMul (attention_@, present_value_@)
    [mixed_back_@] mixed_back_@ = Transpose <perm = [0, 2, 1, 3]> (mixed_@)
    [mixed_flat_@] mixed_flat_@ = Reshape (mixed_back_@, flat_shape)
    [output_@] attended_@ = MatMul (mixed_flat_@, weight_out_@)
    [residual_a_@] middle_@ = Add (hidden_@, attended_@)
    [norm_b_@] normed_b_@ = LayerNormalization <axis = -1> (middle_@, scale_b_@, shift_b_@)
    [widen_@] wide_@ = MatMul (normed_b_@, weight_wide_@)
    [gelu_@] active_@ = Gelu (wide_@)
    [narrow_@] narrowed_@ = MatMul (active_@, weight_narrow_@)
    [residual_b_@] hidden_# = Add (middle_@, narrowed_@)
"""

_SHAPE_OF_WEIGHT = {
    "qkv": (WIDTH, 3 * WIDTH),
    "out": (WIDTH, WIDTH),
    "wide": (WIDTH, 4 * WIDTH),
    "narrow": (4 * WIDTH, WIDTH),
}
_NUMBERS = {
    "zero": 0,
    "one": 1,
    "two": 2,
    "last": [-1],
    "heads_shape": [0, 0, HEADS, _DEPTH],
    "flat_shape": [0, 0, WIDTH],
}


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
    return _build(f"decoder ({inputs}) => ({outputs})", _HEAD, _LAYER, layers, seed)


def encoder_model(layers: int = 1, *, seed: int = 0) -> onnx.ModelProto:
    """Returns the encoder: tokens int64 (batch, length) to logits (batch, length, VOCABULARY); length up to LONGEST."""
    layer = "\n".join(line for line in _LAYER.splitlines() if "[join_" not in line and "[mask_" not in line)
    layer = layer.replace("present_key", "key").replace("present_value", "value").replace("masked_@", "scores_@")
    border = f"encoder (int64[batch,length] tokens) => (float[batch,length,{VOCABULARY}] logits)"
    return _build(border, _ENCODER_HEAD, layer, layers, seed)


def _build(border: str, head: str, layer_text: str, layers: int, seed: int) -> onnx.ModelProto:
    import numpy as np
    import onnx.parser

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
