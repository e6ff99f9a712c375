"""The rows of known errors: each refuses its example and accepts a similar model; corrections are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.engine_rows import Example, check_neighbours, check_row

from hetero_core import Core, Network
from hetero_core.engines.known_errors import KnownError
from hetero_core.testing.compare import describe_mismatch

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

from hetero_openvino import known_errors

Read = Callable[..., Network]
LOOP = "y = Loop ({}, {}, x) <body = b (int64 i, bool g, float[2] a) => (bool h, float[2] o) {{ h = Identity (g) o = Add (a, a) }}>"
SCAN = """g (float[{},2] x, float[2] z) => (y, s) { y, s = Scan <num_scan_inputs = 1,
body = b (float[2] a, float[2] c) => (float[2] d, float[2] e) { d = Add (a, c) e = Neg (d) }> (z, x) }"""
LSTM = "g (float[{},3] x, float[1,8,3] w, float[1,8,2] r) => (y) {{ y = LSTM <hidden_size = 2> (x, w, r) }}"
Q = """g (uint8[2,3] a) => (y) <float s = {{{}}}, float t = {{{}}}, uint8 z = {{0}}, int8[3,2] b = {{{}}}, int8 o = {{0}}>
{{ y = QLinearMatMul (a, s, z, b, s, o, t, z) }}"""
PAIR = """g (uint8[2,3] a) => (y) <float s = {{0.1}}, uint8 z = {{0}}, int8 o = {{0}}, int8[3,2] b = {{{}}}>
{{ d = DequantizeLinear (a, s, z) e = DequantizeLinear (b, s, o) y = MatMul (d, e) }}"""
CONV = """g (uint8[1,3,2,2] a) => (y) <float s = {{0.013}}, float t = {{0.7}}, uint8 z = {{0}}, int8[2,3,1,1] b = {{{}}}, int8 o = {{0}}>
{{ y = QLinearConv (a, s, z, b, s, o, t, z) }}"""
RNN = """g (float[2,3,3] x, float[2,2,3] w, float[2,2,2] r) => (y)
{{ y = RNN <hidden_size = 2, direction = "bidirectional", activations = [{}]> (x, w, r) }}"""
RESIZE = """18 g (float[1,1,4,4] x) => (y) <float[4] s = {{1,1,2,2}}, int64[4] n = {{1,1,8,8}}>
{{ y = Resize <{}mode = "linear"> (x, , s) }}"""
AVERAGE = """g (float[1,1,{}] x) => (y)
{{ y = AveragePool <kernel_shape = [3], pads = [1, 1], strides = [2], ceil_mode = 1, count_include_pad = 1> (x) }}"""
GROUPS = """g (float[1,4,5,5] x, float[2,2,3,3] w) => (y) <int64[2] sizes = {{2, 2}}>
{{ a, b = Split <axis = 1> (x, sizes) c = Conv (a, w) d = Conv (b, w) y = Concat <axis = 1> ({}) }}"""
STRIDE = """g (float[1,6,7,7] x, float[4,2,1,1] w) => (y) <int64[3] sizes = {{1, 2, 3}}>
{{ p, q, r = Split <axis = 1> (x, sizes) m = Relu (q) y = Conv <strides = [{0}, {0}]> (m, w) }}"""
TRANSPOSED = "g (float[{},2,4,4] x, float[2,3,3,3] w) => (y) {{ y = ConvTranspose <strides = [2, 2], {}> (x, w) }}"
EINSUM_OF_CONSTANT = """g (float[2,2] x) => (y) <float[2,2] c = {{-1, 2, 3, -4}}>
{{ {} y = Einsum <equation = "ij,kj->ik"> (x, {}) }}"""
BRANCHES = """g (float[{0},2] x, bool c) => (y)
{{ y = If (c) <then_branch = t () => (a) {{ a = Relu (x) }}, else_branch = e () => (b) {{ b = Abs (x) }}> }}"""
ROI = "g (float[1,1,4,4] x) => (y) <int64[1] b = {{0}}, float[1,4] r = {{0,0,2,2}}> {{ y = RoiAlign {}(x, r, b) }}"
MASKED = "g (float[1,3,4] q, int32[1,3] m) => (y) {{ y = com.microsoft.MultiHeadAttention <num_heads = 2{}> (q, q, q, , m) }}"
BITS = f"""g (float[2,16] a{{}}) => (y) <uint8[3,1,8] b = {{{{{", ".join(map(str, range(24)))}}}}}, float[3] s = {{{{1, 2, 3}}}}>
{{{{ y = com.microsoft.MatMulNBits <K = 16, N = 3, bits = 4, block_size = 16> (a, b, s{{}}) }}}}"""
EXAMPLES: dict[str, Example] = {
    "fixed_size_0": (
        "g (float[0,3] x, int64[2] i) => (y) { y = Gather <axis = 1> (x, i) }",
        "g (float[n,3] x, int64[2] i) => (y) { y = Gather <axis = 1> (x, i) }",
    ),
    "loop_without_iterations": (
        f"g (int64 n, float[2] x) => (y) {{ {LOOP.format('n', '')} }}",
        f"g (float[2] x) => (y) <int64 n = {{2}}> {{ {LOOP.format('n', '')} }}",
    ),
    "loop_of_constants": (
        f"g () => (y) <int64 n = {{20000}}, float[2] x = {{1, 2}}> {{ {LOOP.format('n', '')} }}",
        f"g () => (y) <int64 n = {{3}}, float[2] x = {{1, 2}}> {{ {LOOP.format('n', '')} }}",
    ),
    "scan_of_nothing": (SCAN.replace("{}", "n"), SCAN.replace("{}", "3")),
    "hardmax_of_open_sizes": ("g (float[n,3] x) => (y) { y = Hardmax (x) }", "g (float[2,3] x) => (y) { y = Hardmax (x) }"),
    "nearest_pixel": (
        'g (float[1,1,1,n] x) => (y) <int64[4] s = {1,1,1,7}> { y = Resize <mode = "nearest"> (x, , , s) }',
        'g (float[1,1,1,n] x) => (y) <float[4] s = {1,1,1,2}> { y = Resize <mode = "nearest"> (x, , s) }',
    ),
    "deep_product": (
        "g (float[1,5000000] x, float[5000000,1] w) => (y) { y = MatMul (x, w) }",
        "g (float[1,500000] x, float[500000,1] w) => (y) { y = MatMul (x, w) }",
    ),
    "long_sum": (
        "g (float[2,2000000] x) => (y) { y = ReduceSum (x) }",
        "g (float[2000,2,1000] x) => (y) <int64[1] a = {2}> { y = ReduceSum (x, a) }",
    ),
    "saturating_products": (
        Q.format("0.013", "0.7", "127,127,127,127,127,127"),
        Q.format("0.013", "0.7", "64,64,64,-64,64,64"),
    ),
    "saturating_pairs": (PAIR.format("127,127,127,127,127,127"), PAIR.format("64,64,64,-64,64,64")),
    # Rows of attributes and shapes; the text begins with the opset unless it is 17.
    "attention_window": (
        "25 g (float[1,2,3,4] q) => (y) { y = Attention <left_window_size = 1> (q, q, q) }",
        "23 g (float[1,2,3,4] q) => (y) { y = Attention (q, q, q) }",
    ),
    "attention_causal_past": (
        "23 g (float[1,2,3,4] q) => (y, k, v) { y, k, v = Attention <is_causal = 1> (q, q, q, , q, q) }",
        "23 g (float[1,2,3,4] q) => (y, k, v) { y, k, v = Attention (q, q, q, , q, q) }",
    ),
    "attention_of_no_keys": (
        "24 g (bfloat16[1,2,3,4] q, int64[1] n) => (y) { y = Attention (q, q, q, , , , n) }",
        "24 g (float[1,2,3,4] q, int64[1] n) => (y) { y = Attention (q, q, q, , , , n) }",
    ),
    "bernoulli": ("g (float[3] x) => (y) { y = Bernoulli (x) }", "g (float[3] x) => (y) { y = Floor (x) }"),
    "cast_to_bfloat16": ("g (float[2] x) => (y) { y = Cast <to = 16> (x) }", "g (float[2] x) => (y) { y = Cast <to = 10> (x) }"),
    "cast_twice": (
        "g (float[2] x) => (y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }",
        "g (float16[2] x) => (y) { y = Cast <to = 1> (x) }",
    ),
    "dft": (
        "20 g (float[1,4,3,1] x) => (y) <int64 a = {1}> { y = DFT (x, , a) }",
        "20 g (float[1,4,1] x) => (y) { y = Abs (x) }",
    ),
    "recurrent_layout": (
        LSTM.format("2,3").replace("hidden_size = 2", "hidden_size = 2, layout = 1"),
        LSTM.format("2,3"),
    ),
    "lstm_peepholes": (
        LSTM.format("2,3").replace("(x, w, r)", "(x, w, r, , , , , p)").replace(") => (y)", ", float[1,6] p) => (y)"),
        LSTM.format("2,3"),
    ),
    "lstm_input_forget": (LSTM.format("2,3").replace("hidden_size = 2", "hidden_size = 2, input_forget = 1"), LSTM.format("2,3")),
    "recurrent_activations": (
        RNN.format('"Tanh", "Relu"'),
        RNN.format('"Relu", "Relu"'),
    ),
    "recurrent_states": (
        "g (float[3,4,2] x, float[1,6,2] w, float[1,6,2] r, int32[4] n, float[1,4,2] h) => (y, z) "
        "{ y, z = GRU <hidden_size = 2> (x, w, r, , n, h) }",
        "g (float[3,4,2] x, float[1,6,2] w, float[1,6,2] r, float[1,4,2] h) => (y, z) { y, z = GRU <hidden_size = 2> (x, w, r, , , h) }",
    ),
    "recurrent_lengths": (
        LSTM.format("2,B").replace("(x, w, r)", "(x, w, r, , n)").replace(") => (y)", ", int32[B] n) => (y)"),
        LSTM.format("2,3").replace("(x, w, r)", "(x, w, r, , n)").replace(") => (y)", ", int32[3] n) => (y)"),
    ),
    "recurrent_shared_input": (
        LSTM.format("2,3").replace("=> (y) {", "=> (y, z) { z = Transpose <perm = [1, 0, 2]> (x)"),
        LSTM.format("2,3").replace("=> (y) {", "=> (y, z) { z = Relu (x)"),
    ),
    "zero_factor": ("g (float[2] x) => (y) { y = Selu <alpha: float = 0> (x) }", "g (float[2] x) => (y) { y = Selu (x) }"),
    "lrn_bias": (
        "g (float[1,4,2,2] x) => (y) { y = LRN <size = 3, bias = 1.5> (x) }",
        "g (float[1,4,2,2] x) => (y) { y = LRN <size = 3, bias: float = 2> (x) }",
    ),
    "mean_variance_before_9": (
        "8 g (float[1,2,3,3] x) => (y) { y = MeanVarianceNormalization (x) }",
        "9 g (float[1,2,3,3] x) => (y) { y = MeanVarianceNormalization (x) }",
    ),
    "multinomial": ("g (float[1,3] x) => (y) { y = Multinomial (x) }", "g (float[1,3] x) => (y) { y = Softmax (x) }"),
    "scales_of_channels": (
        CONV.format("1,2,3,4,5,6").replace("b, s, o", "b, c, p").replace("<", "<float[2] c = {0.1,0.2}, int8[2] p = {0,0}, ", 1),
        CONV.format("1,2,3,4,5,6"),
    ),
    "random_normal": (
        "g () => (y) { y = RandomNormal <shape = [2]> () }",
        "g () => (y) { y = RandomNormal <shape = [2], seed = 3.0> () }",
    ),
    "range_stash_type": (
        "27 g (float16 a) => (y) { y = Range <stash_type = 10> (a, a, a) }",
        "27 g (float a) => (y) { y = Range <stash_type = 10> (a, a, a) }",
    ),
    "reduction_axes": (
        "g (float[2,3] x) => (y) { y = ReduceLogSumExp <axes = [1]> (x) }",
        "g (float[2,3] x) => (y) { y = ReduceMax <axes = [1]> (x) }",
    ),
    "reduction_without_axes": (
        "18 g (float[2,3] x) => (y) { y = ReduceL1 <noop_with_empty_axes = 1> (x) }",
        "18 g (float[2,3] x) => (y) { y = ReduceSum <noop_with_empty_axes = 1> (x) }",
    ),
    "resize_attributes": (RESIZE.format("antialias = 1, "), RESIZE.format("")),
    "resize_aligned": (
        RESIZE.format('coordinate_transformation_mode = "align_corners", ').replace("{1,1,2,2}", "{1,1,1.3,1.3}"),
        RESIZE.format('coordinate_transformation_mode = "align_corners", '),
    ),
    "roialign_max": (ROI.format('<mode = "max"> '), ROI.format("")),
    "roialign_coordinates": (
        "g (float[1,1,4,4] x, float[1,n] r) => (y) <int64[1] b = {0}> { y = RoiAlign (x, r, b) }",
        ROI.format(""),
    ),
    "softmax_11": (
        "11 g (float[2,3,4] x) => (y) { y = Softmax <axis = 1> (x) }",
        "11 g (float[2,3,4] x) => (y) { y = Softmax <axis = 2> (x) }",
    ),
    "spacetodepth_crd": (
        '26 g (float[1,1,2,2] x) => (y) { y = SpaceToDepth <blocksize = 2, mode = "CRD"> (x) }',
        "13 g (float[1,1,2,2] x) => (y) { y = SpaceToDepth <blocksize = 2> (x) }",
    ),
    "squeeze_of_no_axes": (
        "g (float[1,2] x) => (y) <int64[0] a = {}> { y = Squeeze (x, a) }",
        "g (float[1,2] x) => (y) <int64[1] a = {0}> { y = Squeeze (x, a) }",
    ),
    "col2im_sizes": (
        "18 g (float[1,4,4] x, int64[2] b) => (y) <int64[2] i = {4,4}> { y = Col2Im <strides = [2, 2]> (x, i, b) }",
        "18 g (float[1,4,4] x) => (y) <int64[2] i = {4,4}, int64[2] b = {2,2}> { y = Col2Im <strides = [2, 2]> (x, i, b) }",
    ),
    "division_by_zero": (
        "g (int32[1] x) => (y) <int32[1] a = {3}, int32[1] b = {0}> { c = Mod (a, b) y = Add (x, c) }",
        "g (int32[1] x) => (y) <int32[1] a = {3}, int32[1] b = {2}> { c = Mod (a, b) y = Add (x, c) }",
    ),
    "gather_elements_beside": (
        "g (float[5,2] x, int64[2,1] i) => (y) { y = GatherElements (x, i) }",
        "g (float[5,2] x, int64[2,2] i) => (y) { y = GatherElements (x, i) }",
    ),
    "prelu_slopes": (
        "g (float[2,3] x, float[2] s) => (y) { y = PRelu (x, s) }",
        "g (float[2,3] x, float[3] s) => (y) { y = PRelu (x, s) }",
    ),
    "top_k": (
        "g (float[2,3] x) => (y, i) <int64[1] k = {4}> { y, i = TopK (x, k) }",
        "g (float[2,3] x) => (y, i) <int64[1] k = {3}> { y, i = TopK (x, k) }",
    ),
    "unique": (
        "g (float[2,1] x) => (y) { y = Unique <axis = 2> (x) }",
        "g (float[2,1] x) => (y) { y = Abs (x) }",
    ),
    "pool_of_unfit_window": (
        "g (float[1,1,4,4] x) => (float[1,1,N,M] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2], ceil_mode = 1> (x) }",
        "g (float[1,1,4,4] x) => (y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x) }",
    ),
    "average_behind_padding": (AVERAGE.format(8), AVERAGE.format(7).replace("ceil_mode = 1, ", "")),
    "max_pool_indices": (
        "g (float[1,1,3,4] x) => (y, i) { y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x) }",
        "g (float[1,1,3,4] x) => (y, i) { y, i = MaxPool <kernel_shape = [2, 2]> (x) }",
    ),
    "max_pool_behind_end": (
        "g (float[1,1,2,2] x) => (y) { y = MaxPool <kernel_shape = [1, 1], strides = [2, 2], ceil_mode = 1> (x) }",
        "g (float[1,1,3,3] x) => (y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x) }",
    ),
    "spread_pixel": (
        "g (float[1,8,4,4] x) => (y, z) { p = MaxPool <kernel_shape = [4, 4]> (x) y = Concat <axis = 3> (p, p) z = Relu (p) }",
        "g (float[1,8,4,4] x) => (y) { p = MaxPool <kernel_shape = [4, 4]> (x) y = Concat <axis = 3> (p, p) }",
    ),
    "group_of_parts": (GROUPS.format("d, c"), GROUPS.format("c, d")),
    "constant_of_more_dimensions": (
        "g (float[3] x) => (y) <float[1,3] b = {1,2,3}> { y = Add (x, b) }",
        "g (float[1,3] x) => (y) <float[3] b = {1,2,3}> { y = Add (x, b) }",
    ),
    "einsum_of_lone_label": (
        'g (float[2,3] x) => (y) { y = Einsum <equation = "ij->i"> (x) }',
        'g (float[2,3] x) => (y) { y = Einsum <equation = "ij->ji"> (x) }',
    ),
    "einsum_of_computed_constant": (
        EINSUM_OF_CONSTANT.format("e = Elu (c)", "e"),
        EINSUM_OF_CONSTANT.format("e = Elu (x)", "c"),
    ),
    "reduced_integers": (
        "g (int8[9,6,2] x) => (y) <int64[1] a = {2}, int32 c = {3}> { k = Cast <to = 6> (x) s = ReduceSum (k, a) y = Add (s, c) }",
        "g (int8[9,6,2] x) => (y) <int64[1] a = {2}, int32 c = {3}> { k = Cast <to = 6> (x) s = Add (k, c) y = ReduceSum (s, a) }",
    ),
    "normalizer_of_magnitudes": (
        'g (float[3,4] x) => (y) { y = ai.onnx.ml.Normalizer <norm = "MAX"> (x) }',
        'g (float[3,4] x) => (y) { y = ai.onnx.ml.Normalizer <norm = "L1"> (x) }',
    ),
    "conv_strides_last_axis": (
        "g (float[2,1,15,1] x, float[4,1,3,3] w) => (y) { y = Conv <pads = [1, 1, 1, 1], strides = [1, 2]> (x, w) }",
        "g (float[2,1,15,4] x, float[4,1,3,3] w) => (y) { y = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, w) }",
    ),
    "conv_lost_strides": (STRIDE.format(2), STRIDE.format(1)),
    "transposed_open_same": (TRANSPOSED.format("B", 'auto_pad = "SAME_UPPER"'), TRANSPOSED.format("1", 'auto_pad = "SAME_UPPER"')),
    "transposed_output_shape": (
        TRANSPOSED.format("1", 'auto_pad = "SAME_UPPER", output_shape = [8, 8]'),
        TRANSPOSED.format("1", "output_shape = [8, 8]"),
    ),
    "fused_by_channels": (
        "g (float[2,3,4,4] x, float[4,4] w) => (y) <float[3,1,1] b = {1,2,3}> { m = MatMul (x, w) y = Add (m, b) }",
        "g (float[2,3,4,4] x, float[4,4] w) => (y) <float[4] b = {1,2,3,4}> { m = MatMul (x, w) y = Add (m, b) }",
    ),
    "if_of_open_sizes": (BRANCHES.format("n"), BRANCHES.format("3")),
    "lp_normalization": ("g (float[2,3] x) => (y) { y = LpNormalization (x) }", "g (float[2,3] x) => (y) { y = Hardmax (x) }"),
    "round_of_quotient": (
        "g (float[2] x, float[2] z) => (y) { d = Div (x, z) y = Round (d) }",
        "g (float[2] x, float[2] z) => (y) { d = Mul (x, z) y = Round (d) }",
    ),
    "dropped_infinities": ("g (float[2] x) => (y) { y = Shrink (x) }", "g (float[2] x) => (y) { y = LeakyRelu (x) }"),
    "tile_of_open_repeats": (
        "g (float[2] x, int64[1] r) => (y) { y = Tile (x, r) }",
        "g (float[2] x) => (y) <int64[1] r = {2}> { y = Tile (x, r) }",
    ),
    "words_to_halves": (
        "21 g (uint16[2] x) => (y) <float16 s = {9216}, uint16 z = {65535}> { y = DequantizeLinear (x, s, z) }",
        "21 g (uint8[2] x) => (y) <float16 s = {9216}, uint8 z = {255}> { y = DequantizeLinear (x, s, z) }",
    ),
    "flatten_of_nothing": (
        "g (float[n,4,8] x) => (y) { y = Flatten <axis = 2> (x) }",
        "g (float[n,4,8] x) => (y) { y = Flatten (x) }",
    ),
    "groups_of_bits": (BITS.format(", int32[16] i", ", , i"), BITS.format("", "")),
    "contrib_attention_masks": (MASKED.format(", unidirectional = 1"), MASKED.format("")),
    "contrib_product_of_batches": (
        "g (float[2,3,4] a, float[2,4,5] b) => (y) { y = com.microsoft.FusedMatMul <transBatchA = 1> (a, b) }",
        "g (float[2,3,4] a, float[2,4,5] b) => (y) { y = com.microsoft.FusedMatMul (a, b) }",
    ),
    "between_codes": (
        "g (float[2] x) => (y) <float s = {0.1}, uint8 z = {3}> { y = QuantizeLinear (x, s, z) }",
        "g (uint8[2] x) => (y) <float s = {0.1}, uint8 z = {3}> { y = DequantizeLinear (x, s, z) }",
    ),
    "quantized_pair": (
        "g (uint8[2] x) => (y) <float s = {0.1}, uint8 z = {3}> { d = DequantizeLinear (x, s, z) y = QuantizeLinear (d, s, z) }",
        "g (float[2] x) => (y) <float s = {0.1}, uint8 z = {3}> { y = QuantizeLinear (x, s, z) }",
    ),
    "quantized_to_words": (
        "21 g (float[2] x) => (y) <float s = {0.1}, int16 z = {3}> { y = QuantizeLinear (x, s, z) }",
        "21 g (float[2] x) => (y) <float s = {0.1}, int8 z = {3}> { y = QuantizeLinear (x, s, z) }",
    ),
}
ROWS = (*known_errors.ROWS, *known_errors.HALF_ROWS, *known_errors.QUANTIZED_ROWS)


def choose_config(row: KnownError) -> dict[str, Any]:
    return {"OPENVINO_QUANTIZED": True} if row in known_errors.QUANTIZED_ROWS else {}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_refuses_its_example_and_takes_its_neighbour(core: Core, row: KnownError) -> None:
    check_row(core, "OPENVINO", row, EXAMPLES[row.name], choose_config(row))


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_neighbours_with_open_sizes_are_right_or_refused(core: Core, row: KnownError) -> None:
    check_neighbours(core, "OPENVINO", EXAMPLES[row.name], choose_config(row))


def infer(core: Core, text: str, opset: int, feed: dict[str, Any], **constants: Any) -> Any:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    assert not core.query_network(model, "OPENVINO").refused
    return core.load_network(model, "OPENVINO").infer(feed)["y"]


ROWS_OF_SCALES = np.linspace(0.01, 0.2, 6).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "scales", "is_transposed"),
    [
        ("w = DequantizeLinear <axis = 0> (q, s) y = MatMul (x, w)", ROWS_OF_SCALES, False),
        ("c = Cast <to = 1> (q) w = Mul (c, s) y = MatMul (x, w)", ROWS_OF_SCALES[:, None], False),
        ("w = DequantizeLinear <axis = 1> (q, s) y = Gemm <transB = 1> (x, w)", ROWS_OF_SCALES, True),
        ("w = DequantizeLinear <axis = 1> (q, s) t = Transpose (w) y = MatMul (x, t)", ROWS_OF_SCALES, True),
    ],
)
@pytest.mark.parametrize("sizes", ["2,6", "B,6"])
def test_scales_along_the_summed_axis_are_not_taken_for_columns(
    core: Core, text: str, scales: Any, sizes: str, *, is_transposed: bool
) -> None:
    rng = np.random.default_rng(0)
    codes, x = rng.integers(-60, 60, (6, 5)).astype(np.int8), rng.standard_normal((2, 6)).astype(np.float32)
    expected = (x.astype(np.float64) @ (codes * ROWS_OF_SCALES[:, None].astype(np.float64))).astype(np.float32)
    stored = np.ascontiguousarray(codes.T) if is_transposed else codes
    y = infer(core, f"(float[{sizes}] x) => (y) {{ {text} }}", 19, {"x": x}, q=stored, s=scales)
    assert describe_mismatch(y, expected) is None


def test_column_scales_are_not_read_as_rows_of_a_table(core: Core) -> None:
    codes = np.arange(-20, 22).reshape(6, 7).astype(np.int8)
    scales = np.arange(1, 8).astype(np.float32)
    text = "(int64[3] x) => (y) { w = DequantizeLinear <axis = 1> (q, s) y = Gather (w, x) }"
    y = infer(core, text, 19, {"x": np.array([3, 0, 5])}, q=codes, s=scales)
    assert y.tolist() == (codes * scales)[[3, 0, 5]].tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_folded_quotient_of_integers_is_cut_off(core: Core, dtype: Any) -> None:
    name = np.dtype(dtype).name
    constants = {"a": np.array([8, -8, 7, -7], dtype), "b": np.array([-3, 3, -2, 2], dtype)}
    y = infer(core, f"({name}[4] x) => (y) {{ k = Div (a, b) y = Add (x, k) }}", 17, {"x": np.zeros(4, dtype)}, **constants)
    assert y.tolist() == [-2, -2, -3, -3]


def test_half_of_a_negative_size_is_cut_off(core: Core) -> None:
    text = "(float[3,7] x) => (y) { s = Shape (x) n = Neg (s) y = Div (n, two) }"
    assert infer(core, text, 17, {"x": np.zeros((3, 7), np.float32)}, two=np.array([2])).tolist() == [-1, -3]


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sizes", [(0, 2), (3, 0), (0, 0)])
def test_recurrent_layer_of_no_steps_or_rows_returns_its_states(core: Core, operator: str, sizes: tuple[int, int]) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    weights = {"w": np.ones((1, gates * 2, 3), np.float32), "r": np.ones((1, gates * 2, 2), np.float32)}
    text = f"(float[T,B,3] x, float[1,B,2] h) => (z, y) {{ z, y = {operator} <hidden_size = 2> (x, w, r, , , h) }}"
    states = np.full((1, sizes[1], 2), 0.5, np.float32)
    y = infer(core, text, 17, {"x": np.zeros((*sizes, 3), np.float32), "h": states}, **weights)
    assert y.shape == (1, sizes[1], 2)
    assert y.tolist() == states.tolist()


def test_sum_of_a_too_long_open_size_is_right(core: Core, read: Read) -> None:
    loaded = core.load_network(read("g (float[n] x) => (y) { y = ReduceSum (x) }"), "OPENVINO")
    assert loaded.infer({"x": np.ones(1000, np.float32)})["y"].tolist() == [1000]
    assert loaded.infer({"x": np.ones(200_000, np.float32)})["y"].tolist() == [200_000]


@pytest.mark.parametrize(
    "text",
    [
        "(float[3] x, bool[0] c) => (y) { y = Compress (x, c) }",
        "(float[3,2] x, int64[0] i) => (y) { y = Gather (x, i) }",
        "(float[1] x) => (y) <int64[1] s = {0}> { y = Expand (x, s) }",
        "(float x) => (y) <int64[0] s = {}> { y = Expand (x, s) }",
    ],
)
def test_lists_of_nothing_are_refused(core: Core, read: Read, text: str) -> None:
    # Expand to the shape of a scalar makes an axis of length 1.
    assert core.query_network(read(f"g {text}"), "OPENVINO").refused
