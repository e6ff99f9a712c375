"""Declared shapes are hints: computed shapes win on every device; a contradiction is a warning, or an error if configured."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import InferenceError, InvalidNetworkError, NetworkDeclarationWarning
from hetero_core.network.border import OutputInfo, unpack_hints
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import TensorType
from hetero_core.network.writer import network_to_bytes

DEVICES = [("CPU", {}), ("TEMPLATE", {}), ("ORT", {}), ("HETERO:TEMPLATE,CPU", {}), ("HETERO:ORT,CPU", {})]

# Reshape reads its target shape from an input, so its output shape is unknown before the run.
UNPROVED = """g (float[N] x, int64[R] s) => (float[1,M] y) <float[2,2] a, float[1,M] b> {
    [abs] e = Abs (x) [reshape] a = Reshape (e, s) [relu] b = Relu (a) [neg] y = Neg (b)
}"""
PINS = {
    "HETERO:TEMPLATE,CPU": {"reshape": "TEMPLATE", "relu": "CPU"},
    "HETERO:ORT,CPU": {"abs": "CPU", "reshape": "ORT", "relu": "CPU"},
}
PROVED = """g (float[25,4] x) => (float[1] y, float[25,4] z) <float[7] m, int64[1] axes = {1}> {
    [top] m = ReduceSum <keepdims = 0> (x, axes) [sum] y = Neg (m) [copy] z = Relu (x)
}"""
X = np.arange(-6, 6, dtype=np.float32)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


@pytest.mark.parametrize(("device", "config"), DEVICES)
def test_wrong_declaration_is_corrected_with_a_warning(core: Core, device: str, config: dict[str, str]) -> None:
    with pytest.warns(NetworkDeclarationWarning) as caught:
        network = core.read_network(parse(PROVED))
    assert sorted(str(entry.message) for entry in caught) == [
        "value 'm' of 'g' is declared as float32[7], but node 'top' (ReduceSum-13) gives float32[25]; the computed shape is used. "
        "Correct the declaration or remove it.",
        "value 'y' of 'g' is declared as float32[1], but node 'sum' (Neg-13) gives float32[25]; the computed shape is used. "
        "Correct the declaration or remove it.",
    ]
    assert network.type_of("y") == network.type_of("m") == TensorType("float32", (25,))
    pins = {"HETERO:TEMPLATE,CPU": {"top": "TEMPLATE", "sum": "CPU"}, "HETERO:ORT,CPU": {"top": "ORT", "sum": "CPU"}}
    loaded = core.load_network(network.with_affinity(pins[device]) if device in pins else network, device, config)
    x = np.arange(100, dtype=np.float32).reshape(25, 4)
    outputs = loaded.infer({"x": x})
    np.testing.assert_allclose(outputs["y"], -x.sum(axis=1, dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(outputs["z"], x)


@pytest.mark.parametrize(("device", "config"), DEVICES)
@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 3, 2), (1, 12)])
def test_unprovable_declaration_changes_no_answer(core: Core, device: str, config: dict[str, str], shape: tuple[int, ...]) -> None:
    network = core.read_network(parse(UNPROVED)).with_affinity(PINS.get(device, {}))
    loaded = core.load_network(network, device, config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            y = loaded.infer({"x": X, "s": np.array(shape, np.int64)})["y"]
            np.testing.assert_array_equal(y, -np.abs(X).reshape(shape))
    assert {entry.category for entry in caught} <= {NetworkDeclarationWarning}
    of_output = [str(entry.message) for entry in caught if "value 'y'" in str(entry.message)]
    message = (
        f"network 'g' on {device}: value 'y' of node 'neg' (Neg-13) is declared as float32[1,M], but has shape {list(shape)}; "
        "the computed shape is used. Correct the declaration or remove it."
    )
    assert [text.partition(": ")[2] for text in of_output] == ([] if shape == (1, 12) else [message.partition(": ")[2]])
    of_values = [str(entry.message).partition("value '")[2][:1] for entry in caught]
    assert len(of_values) == len(set(of_values)), "each value is named once"


def test_unproved_shape_is_stated_and_no_device_gets_it(core: Core) -> None:
    network = core.read_network(parse(UNPROVED))
    assert network.type_of("a") == TensorType("float32", (2, 2))
    assert network.outputs[0].type == TensorType("float32", (1, "M"))
    assert core.load_network(network, "CPU").outputs[0].type == TensorType("float32")


def test_size_from_an_input_is_not_fixed_by_a_declaration(core: Core) -> None:
    loaded = core.load_network(parse("g (float[N,2] x) => (float[1,2] y) { [relu] y = Relu (x) }"), "CPU")
    assert loaded.outputs[0].type == TensorType("float32", ("N", 2))
    loaded.infer({"x": np.ones((1, 2), np.float32)})
    with pytest.warns(
        NetworkDeclarationWarning, match=r"value 'y' of node 'relu' \(Relu-14\) is declared as float32\[1,2\], but has"
    ):
        assert loaded.infer({"x": np.ones((3, 2), np.float32)})["y"].shape == (3, 2)
    assert loaded.infer({"x": np.ones((4, 2), np.float32)})["y"].shape == (4, 2)


def test_size_names_of_inputs_override_declared_sizes(core: Core) -> None:
    network = core.read_network(parse("g (float[N] x, float[M] z) => (float[M] y, float[label] w) { y = Relu (x) w = Neg (x) }"))
    assert [spec.type for spec in network.outputs] == [TensorType("float32", ("N",)), TensorType("float32", ("label",))]


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "ORT", "HETERO:CPU"])
def test_constant_of_another_shape_than_declared_is_read(core: Core, device: str) -> None:
    text = """g (float[2] x) => (float[1] y) <int64 k> {
        k = Constant <value = int64[1] {0}> () m = ReduceMax <keepdims = 0> (x) y = Unsqueeze (m, k)
    }"""
    message = r"^value 'k' of 'g' is declared as int64\[\], but the constant itself gives int64\[1\]; the computed shape is used"
    with pytest.warns(NetworkDeclarationWarning, match=message):
        network = core.read_network(parse(text))
    loaded = core.load_network(network, device)
    assert loaded.infer({"x": np.array([3, 5], np.float32)})["y"].tolist() == [5.0]


@pytest.mark.parametrize("text", [PROVED, UNPROVED], ids=["at_read", "in_a_run"])
def test_warning_filter_error_raises_the_declaration_warning(core: Core, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NetworkDeclarationWarning, match=r"value '[my]' of .* is declared as"):
            core.load_network(core.read_network(parse(text)), "CPU").infer({"x": X, "s": np.array([2, 6], np.int64)})


def test_declaration_in_a_body_is_corrected(core: Core) -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) <float[3] m> { [n] m = Relu (x) p = Neg (m) },
                    else_branch = e () => (float[2] q) { q = Abs (x) }>
    }"""
    with pytest.warns(NetworkDeclarationWarning, match=r"value 'm' of 't' is declared as float32\[3\], but node 'n' \(Relu-14\)"):
        network = core.read_network(parse(text))
    body = network.nodes[0].bodies["then_branch"]
    assert body.type_of("m") == TensorType("float32", (2,))


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "ORT", "HETERO:TEMPLATE,CPU"])
def test_strict_declarations_give_back_the_errors(core: Core, device: str) -> None:
    strict = {"STRICT_DECLARATIONS": "YES"}
    with pytest.warns(NetworkDeclarationWarning):
        network = core.read_network(parse(PROVED))
    with pytest.raises(InvalidNetworkError) as refused:
        core.load_network(network, device, strict)
    assert str(refused.value).startswith(f"cannot load network 'g' on {device}: value ")
    assert "value 'y' of 'g' is declared as float32[1], but node 'sum' (Neg-13) gives float32[25]" in str(refused.value)
    assert str(refused.value).endswith("Correct the declaration or remove it, or load without STRICT_DECLARATIONS.")
    loaded = core.load_network(parse(UNPROVED), device, strict)
    for _ in range(2):
        loaded.infer({"x": X, "s": np.array([1, 12], np.int64)})
        with pytest.raises(
            InferenceError, match=r"is declared as float32\[.*\], but has shape \[12\].* load without STRICT_DECLARATIONS"
        ):
            loaded.infer({"x": X, "s": np.array([12], np.int64)})


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (int64[2] y) { y = Relu (x) }",
        "g (float[2] x) => (y) <int64[2] w = {1, 2}, double[2] v> { v = Cast <to = 1> (w) y = Add (x, v) }",
        "g (float[2] x) => (y) <double[2] k> { k = Constant <value = float[2] {1, 2}> () y = Add (x, k) }",
    ],
)
def test_element_types_stay_strict(core: Core, text: str) -> None:
    with pytest.raises(InvalidNetworkError, match="correct the declaration or remove it"):
        core.read_network(parse(text))


def test_changed_input_shapes_are_not_compared_with_the_file(core: Core) -> None:
    network = core.read_network(parse("g (float[N] x, int64[R] s) => (float[2,2] y) { y = Reshape (x, s) }"))
    loaded = core.load_network(network.with_shapes({"x": (6,)}), "CPU")
    y = loaded.infer({"x": np.arange(6, dtype=np.float32), "s": np.array([2, 3], np.int64)})["y"]
    assert y.shape == (2, 3)


@pytest.mark.parametrize("device", ["CPU", "HETERO:TEMPLATE,CPU"])
def test_imported_network_computes_the_same_and_warns_as_well(core: Core, device: str) -> None:
    stream = io.BytesIO()
    network = core.read_network(parse(UNPROVED)).with_affinity(PINS.get(device, {}))
    core.load_network(network, device).export_network(stream)
    imported = core.import_network(stream.getvalue(), device)
    with pytest.warns(NetworkDeclarationWarning) as caught:
        y = imported.infer({"x": X, "s": np.array([2, 6], np.int64)})["y"]
    np.testing.assert_array_equal(y, -np.abs(X).reshape(2, 6))
    assert any(
        "value 'y' of node 'neg' (Neg-13) is declared as float32[1,M], but has shape [2, 6]" in str(w.message) for w in caught
    )
    strict = core.import_network(stream.getvalue(), device, {"STRICT_DECLARATIONS": "YES"})
    with pytest.raises(InferenceError, match="load without STRICT_DECLARATIONS"):
        strict.infer({"x": X, "s": np.array([2, 6], np.int64)})


@pytest.mark.parametrize(
    "section", [b"{}", b"[[1]]", b'[["y", "float32", [[]], "n"]]', b'[["y", "float33", [1], "n"]]', b"[" * 9000]
)
def test_unreadable_declared_shapes_of_a_blob_are_refused(section: bytes) -> None:
    if section == b"{}":
        assert unpack_hints(section).hints == {}
        return
    with pytest.raises(InvalidNetworkError, match=r"the declared shapes in a blob cannot be read: .* Export the network again\."):
        unpack_hints(section)


@pytest.mark.parametrize(("axes", "shape"), [(-2, (3, 4, 1, 5)), (0, (1, 3, 4, 5)), (1, (3, 1, 4, 5))])
@pytest.mark.parametrize(("device", "config"), [*DEVICES, ("CPU", {"CPU_KERNELS": "NUMPY"})])
def test_axes_of_a_run_override_their_declared_shape(
    core: Core, device: str, config: dict[str, str], axes: int, shape: tuple[int, ...]
) -> None:
    loaded = core.load_network(
        parse("g (float[3,4,5] x, int64[] a) => (float[3,1,4,5] y) { y = Unsqueeze (x, a) }"), device, config
    )
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NetworkDeclarationWarning)
        y = loaded.infer({"x": x, "a": np.array(axes)})["y"]
    np.testing.assert_array_equal(y, x.reshape(shape))


@pytest.mark.parametrize(("device", "config"), DEVICES)
@pytest.mark.parametrize("is_first", [True, False])
def test_shape_declared_by_a_branch_is_no_proof(core: Core, device: str, config: dict[str, str], is_first: bool) -> None:
    """The inferred shape of If comes from the shapes that its bodies declare."""
    text = """g (bool c, float[N] x, int64[R] s) => (float[3] y) <float[3] p> {
        p = If (c) <then_branch = t () => (float[3] u) <float[2] m> { m = Reshape (x, s) u = Neg (m) },
                    else_branch = e () => (float[3] q) { q = Reshape (x, s) }>
        y = Abs (p)
    }"""
    loaded = core.load_network(parse(text), device, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NetworkDeclarationWarning)
        y = loaded.infer({"c": np.array(is_first), "x": X, "s": np.array([3, 4], np.int64)})["y"]
    np.testing.assert_array_equal(y, np.abs(X).reshape(3, 4))


@pytest.mark.parametrize(
    "call",
    [
        "If (c) <then_branch = t () => (x, k) {}, else_branch = e () => (l, x) { l = Abs (k) }>",
        "If (c) <then_branch = t () => (x, v) { v = If (c) <then_branch = u () => (k) {}, else_branch = e () => (x) {}> },"
        " else_branch = f () => (k, x) {}>",
        "Loop (one, c, x) <body = b (int64 i, bool d, float[N] p) => (d, k, x) {}>",
    ],
)
def test_a_body_may_hand_out_a_value_from_around_it(core: Core, call: str) -> None:
    """The network is cut behind the node, where the element types have to be known."""
    model = parse(
        f"g (bool c, float[N] x) => (w, z) <int64 one = {{1}}> {{ [first] k = Neg (x) [body] y, z = {call} [last] w = Abs (y) }}"
    )
    network = core.read_network(model).with_affinity({"first": "TEMPLATE", "body": "CPU", "last": "TEMPLATE"})
    outputs = core.load_network(network, "HETERO:CPU,TEMPLATE").infer({"c": np.array(True), "x": X})
    np.testing.assert_array_equal(outputs["w"], np.abs(X))
    np.testing.assert_array_equal(np.ravel(outputs["z"]), X if "Loop" in call else -X)


@pytest.mark.parametrize("device", ["CPU", "ORT"])
@pytest.mark.parametrize(("trips", "shape"), [(0, (0, 3)), (2, (2, 3))])
def test_loop_without_iterations_has_the_size_of_its_body(core: Core, device: str, trips: int, shape: tuple[int, ...]) -> None:
    text = """g (int64 n, float[N] x, int64[R] s) => (float[K,3] y) {
        go = Constant <value = bool {1}> ()
        y = Loop (n, go) <body = b (int64 i, bool c) => (bool d, float[3] v) { d = Identity (c) v = Reshape (x, s) }>
    }"""
    y = core.load_network(parse(text), device).infer({"n": np.array(trips), "x": X[:3], "s": np.array([3], np.int64)})["y"]
    assert y.shape == shape


def test_part_of_a_network_has_the_hints_of_its_values(core: Core) -> None:
    part = cut_subnetwork(core.read_network(parse(UNPROVED)), ["relu"])
    assert [str(spec) for spec in (*part.inputs, *part.outputs)] == ["a: float32[2,2]", "b: float32[1,M]"]
    loaded = core.load_network(part, "CPU")
    assert loaded.inputs[0].type == loaded.outputs[0].type == TensorType("float32")


def test_written_network_is_read_with_the_same_types_and_hints(core: Core) -> None:
    network = core.read_network(parse(UNPROVED))
    again = core.read_network(network_to_bytes(network))
    assert again.types == network.types
    assert again.declarations.hints == network.declarations.hints


def test_output_in_another_layout_has_no_unproved_shape(core: Core) -> None:
    network = core.read_network(parse("g (float[N] x, int64[4] s) => (float[1,2,3,4] y) { y = Reshape (x, s) }"))
    turned = network.with_outputs({"y": OutputInfo(layout="NHWC")})
    y = core.load_network(turned, "CPU").infer({"x": X, "s": np.array([2, 1, 3, 2], np.int64)})["y"]
    np.testing.assert_array_equal(y, X.reshape(2, 1, 3, 2).transpose(0, 2, 3, 1))
