"""TEMPLATE: its passes, its corrections of onnx.reference, its refusals, its blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_template.transforms import transform_network

from hetero_core import Core, Network
from hetero_core.errors import BlobMismatchError, UnsupportedNodesError
from hetero_core.testing.compare import assert_same

Read = Callable[..., Network]
RNG = np.random.default_rng(5)


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Read:
    def read_text(text: str, opset: int = 17) -> Network:
        return core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}'))

    return read_text


def run(core: Core, network: Network, **inputs: np.ndarray[Any, Any]) -> Any:
    return next(iter(core.load_network(network, "TEMPLATE").infer(inputs).values()))


def test_passes_eliminate_decompose_and_fuse_with_origins(read: Read) -> None:
    network = read(
        "g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 4}> { i = Identity(x) d = Div(i, w) a = Relu(d) y = Relu(a) }"
    )
    transformed = transform_network(network)
    assert [(node.op_type, node.origins) for node in transformed.nodes] == [
        ("Reciprocal", ("Div_1",)),
        ("Mul", ("Div_1",)),
        ("Relu", ("Relu_2", "Relu_3")),
    ]


@pytest.mark.parametrize("divisor", ["1e-38", "3e38", "0"])
def test_division_that_a_reciprocal_would_spoil_stays(read: Read, core: Core, divisor: str) -> None:
    network = read(f"g (float[1] x) => (float[1] y) <float[1] w = {{{divisor}}}> {{ y = Div(x, w) }}")
    assert [node.op_type for node in transform_network(network).nodes] == ["Div"]
    x = np.array([float(divisor) * 0.5], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(core, network, x=x), x / np.float32(divisor))


def test_refused_operators_are_refused_by_query_and_load_alike(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Relu(x) y = Exp(a) }")
    config = {"TEMPLATE_REFUSED_OPERATORS": ["Exp"]}
    result = core.query_network(network, "TEMPLATE.1", config)
    assert dict(result.supported) == {"Relu_0": "TEMPLATE.1"}
    assert dict(result.refused) == {"Exp_1": "operator Exp is refused by TEMPLATE_REFUSED_OPERATORS"}
    with pytest.raises(UnsupportedNodesError) as caught:
        core.load_network(network, "TEMPLATE", config)
    assert "cannot load network 'g' on TEMPLATE: 1 of 2 nodes are refused" in str(caught.value)
    assert "node 'Exp_1' (Exp-13), TEMPLATE: operator Exp is refused by TEMPLATE_REFUSED_OPERATORS" in str(caught.value)


@pytest.mark.parametrize("opset", [7, 8, 9, 13])
def test_old_batch_normalization_uses_the_stored_statistics(core: Core, read: Read, opset: int) -> None:
    x = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)
    scale, bias, mean = (RNG.standard_normal(3).astype(np.float32) for _ in range(3))
    var = RNG.uniform(0.5, 1.5, 3).astype(np.float32)
    head = "g (float[2,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,4,4] y)"
    network = read(f"{head} {{ y = BatchNormalization(x, s, b, m, v) }}", opset)
    wide = [value.astype(np.float64).reshape(1, 3, 1, 1) for value in (scale, bias, mean, var)]
    expected = wide[0] * (x.astype(np.float64) - wide[2]) / np.sqrt(wide[3] + 1e-5) + wide[1]
    assert_same(run(core, network, x=x, s=scale, b=bias, m=mean, v=var), expected.astype(np.float32))


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_lrn_goes_over_more_channels_than_images(core: Core, read: Read, size: int) -> None:
    x = RNG.standard_normal((2, 7, 3, 3)).astype(np.float32)
    network = read(
        f"g (float[2,7,3,3] x) => (float[2,7,3,3] y) {{ y = LRN<size = {size}, alpha = 0.5, beta = 0.75, bias = 2.0>(x) }}"
    )
    wide, expected = x.astype(np.float64), np.empty(x.shape)
    for channel in range(7):
        neighbours = [c for c in range(7) if channel - (size - 1) // 2 <= c <= channel + -(-(size - 1) // 2)]
        total = sum(wide[:, c] ** 2 for c in neighbours)
        expected[:, channel] = wide[:, channel] / (2.0 + 0.5 / size * total) ** 0.75
    assert_same(run(core, network, x=x), expected.astype(np.float32))


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, None), (11, 1), (9, 2), (11, -1), (13, None), (13, 1)])
def test_softmax_before_13_works_on_the_flattened_input(
    core: Core, read: Read, operator: str, opset: int, axis: int | None
) -> None:
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    text = "" if axis is None else f"<axis = {axis}>"
    wide = x.astype(np.float64)
    if opset < 13:
        position = (1 if axis is None else axis) % 3
        wide = wide.reshape(int(np.prod(x.shape[:position])), -1)
        along = 1
    else:
        along = -1 if axis is None else axis
    expected = np.exp(wide) / np.exp(wide).sum(axis=along, keepdims=True)
    expected = (np.log(expected) if operator == "LogSoftmax" else expected).reshape(x.shape)
    network = read(f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {operator}{text}(x) }}", opset)
    assert_same(run(core, network, x=x), expected.astype(np.float32))


def test_training_form_of_batch_normalization_is_refused(core: Core, read: Read) -> None:
    network = read("g (float[2,3] x, float[3] s) => (float[2,3] y, float[3] m) { y, m = BatchNormalization(x, s, s, s, s) }", 9)
    assert "inference with one output" in core.query_network(network, "TEMPLATE").refused["BatchNormalization_0"]


def test_correction_reaches_into_bodies(core: Core, read: Read) -> None:
    network = read(
        """g (bool c, float[1,4,2,2] x) => (float[1,4,2,2] y) {
           y = If<then_branch = t () => (float[1,4,2,2] p) { p = LRN<size = 3, alpha = 1.0, bias = 1.0, beta = 1.0>(x) },
                  else_branch = e () => (float[1,4,2,2] q) { q = Neg(x) }>(c) }"""
    )
    x = RNG.standard_normal((1, 4, 2, 2)).astype(np.float32)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    expected = x / (1 + (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]) / 3)
    assert_same(run(core, network, c=np.array(True), x=x), expected.astype(np.float32))


def test_blob_comes_back_and_other_plugins_versions_do_not(core: Core, read: Read, tmp_path: Path) -> None:
    network = read("g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { a = Div(x, w) y = Relu(a) }")
    loaded = core.load_network(network, "TEMPLATE.1", {"TEMPLATE_REFUSED_OPERATORS": "Exp"})
    loaded.export_network(tmp_path / "t.blob")
    imported = core.import_network(tmp_path / "t.blob", "TEMPLATE")
    x = np.array([[3, 4], [-1, 5]], np.float32)
    np.testing.assert_array_equal(imported.infer({"x": x})["y"], loaded.infer({"x": x})["y"])
    assert imported.get_config("TEMPLATE_REFUSED_OPERATORS") == ("Exp",)
    assert imported.fingerprint == loaded.fingerprint == network.fingerprint
    with pytest.raises(BlobMismatchError, match="the blob's device is TEMPLATE, here it is CPU"):
        core.import_network(tmp_path / "t.blob", "CPU")
    with pytest.raises(BlobMismatchError, match="TEMPLATE_REFUSED_OPERATORS is Abs in the call and Exp in the blob"):
        core.import_network(tmp_path / "t.blob", "TEMPLATE", {"TEMPLATE_REFUSED_OPERATORS": "Abs"})


def test_scan_of_more_inputs_than_it_has_is_refused_at_once(core: Core) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2] i, float[3,2] x) => (float[2] y, float[3,2] z) {
        y, z = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] n) => (float[2] o, float[2] p) {
        o = Add(s, n) p = Identity(o) }>(i, x) }"""
    )
    (attribute,) = [one for one in model.graph.node[0].attribute if one.name == "num_scan_inputs"]
    attribute.i = 2**63 - 1
    refused = core.query_network(core.read_network(model), "TEMPLATE").refused
    assert "says that it scans 9223372036854775807 inputs and has 2" in refused["Scan_0"]


def test_scan_that_walks_backwards_is_refused_as_the_evaluator_lacks_it(core: Core) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] a, float[3,2] x) => (float[2] y, float[3,2] z) {
        y, z = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b (float[2] s, float[2] n) => (float[2] o, float[2] p) {
            o = Add (s, n) p = Abs (o) }> (a, x) }"""
    network = core.read_network(onnx.parser.parse_model(text))
    assert "input_direction" in core.query_network(network, "TEMPLATE").refused["Scan_0"]
    feeds = {"a": np.zeros(2, np.float32), "x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    assert core.load_network(network, "HETERO:TEMPLATE,CPU").infer(feeds)["y"].tolist() == [6, 9]
