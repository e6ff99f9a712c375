"""The passes in their order: transformed models with fixed and open sizes answer as ONNX Runtime does for the original model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.passes import join_network, specialize_network, transform_network
from hetero_cpu.symbols.evaluation import read_static_signature
from hetero_tests.larger_models import bert_model, gpt2_step_model, vit_tiny_model

from hetero_core import Core, Network
from hetero_core.testing.compare import assert_same
from hetero_core.testing.models import light_inputs
from hetero_core.testing.reference_session import open_reference_session

RELATIVE = 1e-4


@pytest.fixture
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def parse(text: str, **constants: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def run_engine(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    return list(open_reference_session(model.SerializeToString()).run(None, inputs))


def compile_network(core: Core, model: onnx.ModelProto) -> Network:
    network = transform_network(core.read_network(model))
    signature = read_static_signature(network.inputs)
    assert signature is not None
    return join_network(specialize_network(network, signature))


ENCODER = ["MatMul", "Add"] * 3 + ["Attention", "MatMul", "Add", "Add", "LayerNormalization"]
MLP = ["MatMul", "Add", "Gelu", "MatMul", "Add"]


def test_layer_of_bert_has_no_reshapes_and_transposes(core: Core) -> None:
    model = bert_model(1, layers=1, length=8)
    network = compile_network(core, model)
    assert sorted(node.op_type for node in network.nodes) == sorted([*ENCODER, *MLP, "Add", "LayerNormalization"])
    origins = {origin for node in network.nodes for origin in node.origins}
    constants = {node.name for node in core.read_network(model).nodes if node.op_type in ("Identity", "Constant")}
    assert {node.name for node in core.read_network(model).nodes} - constants == origins


@pytest.mark.parametrize(
    ("model", "transposes"),
    [(vit_tiny_model(1, layers=1), 1), (gpt2_step_model(1, layers=1, past=3, words=997), 4)],
    ids=["vit_tiny", "gpt2_step"],
)
def test_transposes_left_in_a_transformer(core: Core, model: onnx.ModelProto, transposes: int) -> None:
    network = compile_network(core, model)
    operators = [node.op_type for node in network.nodes]
    assert operators.count("Attention") == 1
    # A constant that is transposed for a product is a view.
    assert sum(node.op_type == "Transpose" and node.inputs[0] not in network.initializers for node in network.nodes) == transposes
    assert "Softmax" not in operators
    inputs = light_inputs(model)
    for value, expected in zip(core.load_network(model, "CPU").infer(inputs).values(), run_engine(model, inputs), strict=True):
        assert_same(value, expected, rtol=RELATIVE)


OPEN_ATTENTION = """g (float[batch, length, 12] x, int64[batch, length] seen) => (float[batch, length, 12] y) {
    a = MatMul (x, wq) b = MatMul (x, wk) c = MatMul (x, wv)
    d = Reshape (a, heads) q = Transpose <perm = [0, 2, 1, 3]> (d)
    e = Reshape (b, heads) k = Transpose <perm = [0, 2, 3, 1]> (e)
    f = Reshape (c, heads) v = Transpose <perm = [0, 2, 1, 3]> (f)
    z = Cast <to = 1> (seen) i = Sub (one, z) l = Mul (i, lowest) m = Unsqueeze (l, axes)
    s = MatMul (q, k) t = Div (s, root) u = Add (t, m) p = Softmax <axis = -1> (u)
    o = MatMul (p, v) r = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape (r, joined) }"""


def test_attention_of_open_sizes_is_found_for_each_set_of_shapes(core: Core) -> None:
    model = parse(
        OPEN_ATTENTION,
        **{name: draw_array(index, 12, 12) for index, name in enumerate(("wq", "wk", "wv"))},
        heads=np.array([0, 0, 3, 4]),
        joined=np.array([0, 0, 12]),
        one=np.float32(1),
        lowest=np.float32(-1e4),
        root=np.float32(2),
        axes=np.array([1, 2]),
    )
    loaded = core.load_network(model, "CPU")
    network = transform_network(core.read_network(model))
    for batch, length in ((1, 5), (3, 2), (1, 1)):
        special = join_network(specialize_network(network, ((batch, length, 12), (batch, length))))
        (attention,) = (node for node in special.nodes if node.op_type == "Attention")
        assert attention.attributes["q_num_heads"] == 3
        seen = np.random.default_rng([batch, length]).integers(0, 2, (batch, length))
        inputs = {"x": draw_array(9, batch, length, 12), "seen": seen}
        assert_same(loaded.infer(inputs)["y"], run_engine(model, inputs)[0], rtol=RELATIVE)
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0


CHANNELS_LAST = """g (float[1, 9, 9, 3] x) => (float[1, 5] y) {
    a = Transpose <perm = [0, 3, 1, 2]> (x) b = Pad (a, pads) c = Conv (b, w1) d = Transpose <perm = [0, 2, 3, 1]> (c)
    e = Mul (d, scale) f = Add (e, shift) g1 = Relu (f)
    h = Transpose <perm = [0, 3, 1, 2]> (g1) i = Conv <pads = [1, 1, 1, 1]> (h, w2) j = Transpose <perm = [0, 2, 3, 1]> (i)
    k = Add (j, shift) l = Clip (k, low, high) m = Add (l, g1)
    n = Transpose <perm = [0, 3, 1, 2]> (m) o = GlobalAveragePool (n) p = Flatten (o) y = Gemm (p, w3) }"""


def test_model_that_was_exported_channels_last_is_right(core: Core) -> None:
    model = parse(
        CHANNELS_LAST,
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        w1=draw_array(1, 8, 3, 3, 3),
        w2=draw_array(2, 8, 8, 3, 3),
        w3=draw_array(3, 8, 5),
        scale=draw_array(4, 8),
        shift=draw_array(5, 1, 1, 8),
        low=np.float32(0),
        high=np.float32(6),
    )
    inputs = {"x": draw_array(6, 1, 9, 9, 3)}
    assert_same(core.load_network(model, "CPU").infer(inputs)["y"], run_engine(model, inputs)[0], rtol=RELATIVE)
