"""The seed models of the mutators: small, and together with every kind of field of a model file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

from hetero_core import InputInfo
from hetero_core.network.reader import read_network
from hetero_core.network.writer import network_to_proto
from hetero_core.testing.models import dynamic_batch_model, if_model, loop_model, lstm_model
from hetero_core.transforms.editing import edit

TEXTS = {
    "chain": "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) b = Neg(a) y = Relu(b) }",
    "shapes": """g (float[N,4] x) => (float[M,K] y) <int64[2] s = {-1, 2}> {
        r = Reshape(x, s) t = Shape(r) c = Cast <to = 1>(t) k = Constant <value_int = 1>() u = Unsqueeze(r, k) q = Squeeze(u, k)
        p, o = Split <axis = 1, num_outputs = 2>(q) y = Concat <axis = 1>(p, o) }""",
    "convolution": """g (float[1,2,5,5] x) => (float[1,3,3,3] y) <float[3] b = {1, 2, 3}> {
        w = ConstantOfShape <value = float[1] {0.5}>(s) y = Conv <kernel_shape = [3, 3], strides = [1, 1], pads = [0, 0, 0, 0]>(x, w, b)
        s = Constant <value_ints = [3, 2, 3, 3]>() }""",
    "types": """g (int8[4] x, float[4] z) => (float16[4] y, string[2] t, bool[4] m) <string[2] t = {"a", "b"}, int4[3] n = {1, -2, 3}> {
        a = Cast <to = 1>(x) d = Add(a, z) y = Cast <to = 10>(d) m = Greater(a, z) }""",
    "quantized": """g (float[3] x) => (float[3] y) <float s = {0.5}, uint8 p = {3}> {
        q = QuantizeLinear(x, s, p) d = DequantizeLinear(q, s, p) y = Clip(d) }""",
    "sequence": """g (float[2] x) => (float[2] y) <int64 i = {0}> {
        s = SequenceConstruct(x, x) l = SequenceLength(s) y = SequenceAt(s, i) }""",
    "scan": """g (float[3] x) => (float y, float[3] z) <float f = {0}> {
        y, z = Scan <num_scan_inputs = 1, body = b (float s, float e) => (float o, float r) { o = Add(s, e) r = Identity(o) }>(f, x) }""",
    "custom": "g (float[2] x) => (float[2] y) { a = com.acme.Twist <angle = 0.5, names = [\"p\", \"q\"]>(x) y = Abs(a) }",
}  # fmt: skip

FUNCTION = """
<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[2] x) => (float[2] y) { y = local.twice <alpha = 2.0>(x) }
<opset_import: ["": 20], domain: "local">
twice <alpha>(a) => (b) { c = Constant <value_float: float = @alpha>() d = Mul(a, c) b = Identity(d) }
"""


@cache
def list_seeds() -> dict[str, bytes]:
    """Returns name -> model file, in a fixed order."""
    models = {name: parse_text(text) for name, text in TEXTS.items()}
    models |= {"function": onnx.parser.parse_model(FUNCTION), "weights": make_external(), "sparse": make_sparse()}
    models |= {"border": make_border()}
    models |= {"if": if_model(), "loop": loop_model(), "lstm": lstm_model(), "dynamic": dynamic_batch_model()}
    seeds = {name: model.SerializeToString(deterministic=True) for name, model in models.items()}
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(folder.glob("*/*/model.onnx")):
        if path.stat().st_size < 4000:
            seeds[path.parent.name] = path.read_bytes()
    return seeds


def make_border() -> onnx.ModelProto:
    """Returns a model with a state, a default, bounds and a layout, as hetero writes them."""
    text = """g (float[n] x, float[2] w, float[2] past) => (float[n] y, float[2] present) <float[2] w = {1, 2}> {
        y = Neg(x) present = Add(past, w) }"""
    network = edit(read_network(parse_text(text))).with_optional_inputs(["w"]).with_shapes({"n": range(1, 9)})
    network = network.with_state({"present": "past"}, initial={"past": np.ones(2, np.float32)})
    return network_to_proto(network.with_inputs({"x": InputInfo("U8", scale=2)}))


def parse_text(text: str) -> onnx.ModelProto:
    """Returns a model of ONNX text without its header."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.acme": 1]> {text}')


def make_external() -> onnx.ModelProto:
    """Returns a model with a weight in a missing file."""
    model = parse_text("g (float[300] x) => (float[300] y) { y = Add(x, w) }")
    tensor = onnx.numpy_helper.from_array(np.zeros(300, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", "1200")):
        tensor.external_data.add(key=key, value=text)
    model.graph.initializer.append(tensor)
    return model


def make_sparse() -> onnx.ModelProto:
    """Returns a model with a sparse constant, and metadata wherever ONNX allows it."""
    model = parse_text("g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }")
    values = onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.array([1, 4], np.int64), "w_indices")
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[2, 3]))
    model.metadata_props.add(key="author", value="nobody")
    model.graph.node[0].metadata_props.add(key="hetero.affinity", value="CPU")
    return model
