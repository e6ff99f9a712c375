"""CPU: claims, refusals, blobs, cancellation, and no writes to memory of the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Extension, Network
from hetero_core.errors import BlobMismatchError, HeteroError, InvalidNetworkError, MemoryLimitError, UnsupportedNodesError
from hetero_core.testing.models import dynamic_batch_model, light_inputs, lstm_model

Read = Callable[..., Network]


@pytest.fixture
def read(core: Core) -> Read:
    return lambda text: core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.acme": 1]> {text}'))


def test_unknown_attribute_is_refused(core: Core) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("consumed_inputs", [1]))
    assert "consumed_inputs" in core.query_network(core.read_network(model), "CPU").refused["Relu_0"]


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_blob_gives_the_same_numbers_in_another_core(core: Core, tmp_path: Path, kernels: str) -> None:
    for model in (dynamic_batch_model(), lstm_model()):
        inputs = light_inputs(model)
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
        expected = loaded.infer(inputs)
        loaded.export_network(tmp_path / "c.blob")
        with Core() as fresh:
            imported = fresh.import_network(tmp_path / "c.blob", "CPU", {"CPU_KERNELS": kernels})
            assert (imported.inputs, imported.outputs, imported.name) == (loaded.inputs, loaded.outputs, loaded.name)
            for name, value in imported.infer(inputs).items():
                np.testing.assert_array_equal(value, expected[name])
    with pytest.raises(BlobMismatchError, match="the blob's device is CPU, here it is TEMPLATE"):
        core.import_network(tmp_path / "c.blob", "TEMPLATE")


def test_extension_of_a_blob_is_needed_at_import(core: Core, read: Read, tmp_path: Path) -> None:
    extension = Extension("com.acme", "Twist", 1, lambda x: x[::-1].copy(), lambda types, attributes: types)
    core.add_extension(extension, "CPU")
    loaded = core.load_network(read("g (float[2] x) => (float[2] y) { a = com.acme.Twist(x) y = Neg(a) }"), "CPU")
    loaded.export_network(tmp_path / "e.blob")
    with Core() as fresh:
        with pytest.raises(UnsupportedNodesError, match="Twist"):
            fresh.import_network(tmp_path / "e.blob", "CPU")
        fresh.add_extension(extension, "CPU")
        assert fresh.import_network(tmp_path / "e.blob", "CPU").infer({"x": np.array([1, 2], np.float32)})["y"].tolist() == [-2, -1]


def test_infinities_and_nan_arise_without_warning(core: Core, read: Read) -> None:
    loaded = core.load_network(read("g (float[3] x) => (float[3] y) { a = Log(x) y = Div(a, x) }"), "CPU")
    np.testing.assert_array_equal(loaded.infer({"x": np.array([0, -1, 1], np.float32)})["y"], [-np.inf, np.nan, 0])


def test_cancelled_run_ends_between_two_nodes(core: Core, read: Read) -> None:
    entered, leave, ran = threading.Event(), threading.Event(), []

    def wait(x: Any) -> Any:
        entered.set()
        assert leave.wait(60)
        return x

    def record(x: Any) -> Any:
        ran.append(x)
        return x

    for name, function in (("Wait", wait), ("Record", record)):
        core.add_extension(Extension("com.acme", name, 1, function, lambda types, attributes: types), "CPU")
    loaded = core.load_network(read("g (float[1] x) => (float[1] y) { a = com.acme.Wait(x) y = com.acme.Record(a) }"), "CPU")
    request = loaded.create_infer_request()
    request.start_async({"x": np.ones(1, np.float32)})
    assert entered.wait(60)
    request.cancel()
    leave.set()
    core.close()
    assert ran == []


def test_constant_that_grows_is_not_made_at_load(core: Core, read: Read) -> None:
    text = "g (float[1] x) => (float[N] y) <int64[1] s = {16777216}, float[1] o = {1}> { a = Expand(o, s) y = Add(a, x) }"
    loaded = core.load_network(read(text), "CPU", {"MEMORY_LIMIT": 1 << 20})
    with pytest.raises(MemoryLimitError, match=r"node 'Expand_0' \(Expand-13\) needs 67108864 bytes"):
        loaded.infer({"x": np.ones(1, np.float32)})


def test_node_that_misses_an_input_is_refused_at_read(core: Core) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,2] x) => (float[1,2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Add(a, w) }'
    )
    del model.graph.node[1].input[1]
    with pytest.raises(InvalidNetworkError, match=r"node 'Add_1' \(Add-14\) has 1 inputs; its operator has 2"):
        core.query_network(model, "CPU")


def test_window_attributes_that_contradict_inputs_fail_in_a_run(core: Core, read: Read) -> None:
    text = "g (float[1,1,4,4] x) => (float[1,1,N,M] y) { y = AveragePool <kernel_shape = [2, 2], strides = [1]> (x) }"
    network = read(text)
    with pytest.raises(HeteroError, match="AveragePool_0"):
        core.load_network(network, "CPU").infer({"x": np.ones((1, 1, 4, 4), np.float32)})
