"""The passes that fold and fuse: the numbers stay, the nodes go, every node keeps its origins, and what must not be touched is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_core import Core, Network, Node
from hetero_core.kernels.program import compile_program
from hetero_core.transforms.activations import fuse_gelu
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import drop_unread, fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def parse(text: str, opset: int = 17, **constants: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def evaluate(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The few operators that the tests fold, computed with NumPy."""
    functions: dict[str, Callable[..., Any]] = {"Add": np.add, "Shape": lambda x: np.array(x.shape), "Expand": np.broadcast_to}
    function = functions.get(node.op_type)
    return None if function is None else (np.ascontiguousarray(function(*inputs)),)


def check_same_numbers(
    core: Core, model: onnx.ModelProto, transform: Callable[[Network], Network], *, rtol: float = 1e-5
) -> Network:
    """Returns the transformed network; its outputs are those of the reference evaluator on the model."""
    network = transform(core.read_network(model))
    inputs = [draw_array(index, *(spec.shape or ())) for index, spec in enumerate(network.inputs)]
    expected = ReferenceEvaluator(model).run(None, {spec.name: x for spec, x in zip(network.inputs, inputs, strict=True)})
    for found, wanted in zip(compile_program(network).run(tuple(inputs)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)
    return network


CONV = "g (float[2, 3, 5, 5] x) => (float[2, 4, 3, 3] y)"
NORM = {"s": draw_array(1, 4), "b": draw_array(2, 4), "m": draw_array(3, 4), "v": np.abs(draw_array(4, 4)) + 0.5}


def test_norm_scale_and_shift_become_part_of_the_convolution(core: Core) -> None:
    model = parse(
        f"{CONV} {{ [c] a = Conv (x, w) [n] d = BatchNormalization (a, s, b, m, v) [t] e = Mul (d, k) [p] y = Add (h, e) }}",
        w=draw_array(5, 4, 3, 3, 3),
        k=draw_array(6, 4, 1, 1),
        h=draw_array(7, 1, 4, 1, 1),
        **NORM,
    )
    network = check_same_numbers(core, model, fold_affines)
    assert [(node.op_type, node.origins, node.outputs) for node in network.nodes] == [("Conv", ("c", "n", "t", "p"), ("y",))]
    assert len(network.initializers) == 2


def test_scale_and_shift_without_convolution_become_part_of_the_norm(core: Core) -> None:
    model = parse(
        "g (float[2, 4, 5, 5] x) => (float[2, 4, 5, 5] y) { d = BatchNormalization (x, s, b, m, v) e = Mul (d, k) y = Add (e, h) }",
        k=draw_array(6, 4, 1, 1),
        h=draw_array(7, 4, 1, 1),
        **NORM,
    )
    network = check_same_numbers(core, model, fold_affines)
    assert [(node.op_type, len(node.origins)) for node in network.nodes] == [("BatchNormalization", 3)]


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("{ y = Conv (x, w) z = BatchNormalization (y, s, b, m, v) }", {}),
        ("{ a = Conv (x, w) y = Relu (a) z = BatchNormalization (a, s, b, m, v) }", {}),
        ("{ y = Conv (x, w) z = Mul (y, row) }", {"row": draw_array(1, 3)}),
        ("{ y = Conv (x, w) c = Abs (y) z = Mul (c, k) }", {"k": draw_array(1, 4, 1, 1)}),
    ],
    ids=["an output", "two readers", "another axis", "no convolution before"],
)
def test_scale_stays_where_it_is_not_the_convolutions_alone(core: Core, text: str, constants: dict[str, Any]) -> None:
    used = {name: array for name, array in NORM.items() if "BatchNormalization" in text}
    model = parse(
        f"g (float[2, 3, 5, 5] x) => (float[2, 4, 3, 3] y, float[2, 4, 3, 3] z) {text}",
        w=draw_array(5, 4, 3, 3, 3),
        **used,
        **constants,
    )
    network = check_same_numbers(core, model, fold_affines)
    assert [node.op_type for node in network.nodes] == [node.op_type for node in model.graph.node]


def test_norm_is_folded_in_float64(core: Core) -> None:
    """A large mean and a large shift cancel: folded in float32 nothing would be left of the third digit."""
    model = parse(
        "g (float[1, 1, 1, 1] x) => (float[1, 1, 1, 1] y) { a = Conv (x, w, c) y = BatchNormalization (a, s, b, m, v) }",
        w=np.ones((1, 1, 1, 1), np.float32),
        c=np.array([3e7], np.float32),
        s=np.array([1.1], np.float32),
        b=np.array([0.125], np.float32),
        m=np.array([3e7], np.float32),
        v=np.array([0.3], np.float32),
    )
    network = fold_affines(core.read_network(model))
    bias = network.initializers[network.nodes[0].inputs[2]].array
    assert abs(float(bias[0]) - 0.125) < 1e-6


def test_constants_are_computed_and_shapes_that_are_known(core: Core) -> None:
    model = parse(
        "g (float[2, 3] x) => (float[2, 3] y) { k = Add (one, two) s = Shape (x) e = Expand (k, s) y = Mul (x, e) }",
        one=draw_array(1, 3),
        two=draw_array(2, 3),
    )
    network = check_same_numbers(core, model, lambda given: fold_constants(given, evaluate))
    assert [node.op_type for node in network.nodes] == ["Mul"]
    assert list(network.initializers) == ["e"]


def test_nothing_random_or_large_is_computed_ahead_and_outputs_keep_their_node(core: Core) -> None:
    model = parse(
        """g (float[1] x) => (float[a, b] y, float[1] o, float[3] r) {
           big = Expand (one, huge) y = Mul (x, big) o = Add (one, one) r = RandomNormal <shape = [3]> () }""",
        one=np.ones(1, np.float32),
        huge=np.array([1024, 1024]),
    )
    network = core.read_network(model)
    assert fold_constants(network, evaluate) is network


def test_unread_nodes_and_constants_are_dropped(core: Core) -> None:
    model = parse("g (float[1] x) => (float[1] y) { a = Add (x, one) b = Neg (a) y = Abs (x) }", one=np.ones(1, np.float32))
    network = drop_unread(core.read_network(model))
    assert [node.op_type for node in network.nodes] == ["Abs"]
    assert dict(network.initializers) == {}
    assert drop_unread(network) is network


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("{ a = Dropout (x) y = Neg (a) }", ["Neg"]),
        ("{ a, m = Dropout (x, half) y = Neg (a) }", ["Neg"]),
        ("{ a = Dropout (x, half, no) y = Neg (a) }", ["Neg"]),
        ("{ a = Dropout (x, half, yes) y = Neg (a) }", ["Dropout", "Neg"]),
        ("{ a, m = Dropout (x) b = Cast <to = 1> (m) y = Mul (a, b) }", ["Dropout", "Cast", "Mul"]),
    ],
)
def test_dropout_vanishes_unless_it_trains_or_its_mask_is_read(core: Core, text: str, kept: list[str]) -> None:
    constants = {"half": np.float32(0.5), "no": np.bool_(False), "yes": np.bool_(True)}
    model = parse(
        f"g (float[2] x) => (float[2] y) {text}", **{name: value for name, value in constants.items() if f" {name}" in text}
    )
    network = eliminate_copies(eliminate_dropout(core.read_network(model)))
    assert [node.op_type for node in network.nodes] == kept


LAYER_NORM = """g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{
    [mean] m = ReduceMean <axes = [-1]> (x) [center] c = Sub (x, m) [square] q = {square} [variance] v = ReduceMean <axes = [{axis}]> (q)
    [shift] e = Add (v, epsilon) [root] r = Sqrt (e) [norm] n = Div (c, r) [scale] s = Mul (n, w) [bias] y = Add ({last}) }}"""
PARAMETERS = {"w": draw_array(1, 8), "b": draw_array(2, 8), "epsilon": np.float32(1e-3), "two": np.float32(2)}


@pytest.mark.parametrize(("square", "axis", "last"), [("Pow (c, two)", -1, "s, b"), ("Mul (c, c)", 2, "b, s")])
def test_layer_normalization_that_was_written_out_becomes_one_node(core: Core, square: str, axis: int, last: str) -> None:
    constants = {name: value for name, value in PARAMETERS.items() if name != "two" or "two" in square}
    model = parse(LAYER_NORM.format(square=square, axis=axis, last=last), **constants)
    network = check_same_numbers(core, model, fuse_layer_normalization)
    assert [(node.op_type, node.inputs) for node in network.nodes] == [("LayerNormalization", ("x", "w", "b"))]
    assert network.nodes[0].origins == ("mean", "center", "square", "variance", "shift", "root", "norm", "scale", "bias")
    assert network.nodes[0].attributes["epsilon"] == pytest.approx(1e-3)


@pytest.mark.parametrize(("square", "axis"), [("Pow (x, two)", -1), ("Pow (c, w)", -1), ("Pow (c, two)", 1)])
def test_what_only_looks_like_layer_normalization_stays(core: Core, square: str, axis: int) -> None:
    text = LAYER_NORM.format(square=square, axis=axis, last="s, b")
    if axis == 1:
        text = text.replace("e = Add (v, epsilon)", "t = ReduceMean <axes = [-1]> (v) e = Add (t, epsilon)")
    constants = {name: value for name, value in PARAMETERS.items() if name != "two" or "two" in square}
    network = fuse_layer_normalization(core.read_network(parse(text, **constants)))
    assert "LayerNormalization" not in [node.op_type for node in network.nodes]


@pytest.mark.parametrize(
    "text",
    [
        "d = Div (x, root) e = Erf (d) a = Add (e, one) p = Mul (x, a) y = Mul (p, half)",
        "d = Mul (inverse, x) e = Erf (d) a = Add (one, e) p = Mul (a, x) y = Mul (half, p)",
        "d = Div (x, root) e = Erf (d) a = Add (e, one) h = Mul (x, half) y = Mul (h, a)",
        "d = Div (x, root) e = Erf (d) a = Add (e, one) h = Mul (half, x) y = Mul (a, h)",
    ],
)
def test_gelu_that_was_written_out_becomes_one_node(core: Core, text: str) -> None:
    numbers = {"root": 2**0.5, "inverse": 0.5**0.5, "one": 1.0, "half": 0.5}
    constants = {name: np.float32(number) for name, number in numbers.items() if name in text}
    model = parse(f"g (float[3, 7] x) => (float[3, 7] y) {{ {text} }}", **constants)
    network = check_same_numbers(core, model, fuse_gelu)
    assert [(node.op_type, node.inputs, len(node.origins)) for node in network.nodes] == [("Gelu", ("x",), len(model.graph.node))]


@pytest.mark.parametrize(
    "text",
    [
        "d = Div (x, one) e = Erf (d) a = Add (e, one) p = Mul (x, a) y = Mul (p, half)",
        "d = Div (root, x) e = Erf (d) a = Add (e, one) p = Mul (x, a) y = Mul (p, half)",
        "d = Div (x, root) e = Erf (d) a = Add (e, one) p = Mul (e, a) y = Mul (p, half)",
        "d = Div (x, root) e = Erf (d) a = Add (e, one) p = Mul (x, a) h = Mul (p, half) y = Sub (h, e)",
    ],
    ids=["another divisor", "divided the other way", "another factor", "read outside"],
)
def test_what_only_looks_like_gelu_stays(core: Core, text: str) -> None:
    constants = {name: np.float32(number) for name, number in {"root": 2**0.5, "one": 1.0, "half": 0.5}.items() if name in text}
    network = core.read_network(parse(f"g (float[3, 7] x) => (float[3, 7] y) {{ {text} }}", **constants))
    assert fuse_gelu(network) is network
