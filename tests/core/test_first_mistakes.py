"""First mistakes: other projects' names of devices, files, methods and exports; each error says what to use instead."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.devices.known_devices import FOREIGN_NAMES, HARDWARE, KNOWN_DEVICES, advise_missing, list_unused_hardware
from hetero_core.errors import DeviceNotFoundError, NetworkDeclarationWarning, NetworkNotFoundError, NetworkReadError
from hetero_core.network.writer import network_to_bytes

ROOT = Path(__file__).parents[2]
Read = Callable[..., Network]


def test_known_devices_are_those_of_the_plugins() -> None:
    projects = [tomllib.loads(path.read_text("utf-8"))["project"] for path in ROOT.glob("plugins/*/pyproject.toml")]
    announced = {name: project["name"] for project in projects for name in project["entry-points"]["hetero_core.devices"]}
    assert {device: requirement.partition("[")[0] for device, requirement in KNOWN_DEVICES.items()} == announced
    used = {name.partition(".")[0] for names in FOREIGN_NAMES.values() for name in names} | {row[2] for row in HARDWARE}
    assert used <= set(KNOWN_DEVICES)


@pytest.mark.parametrize(
    ("device", "advice"),
    [
        ("GPU", "install it with 'pip install hetero-cupy'"),
        ("AUTO", "install it with 'pip install hetero-auto'"),
        ("CUDAEXECUTIONPROVIDER", "use 'GPU' ('pip install hetero-cupy') or 'ORT.CUDA' ('pip install hetero-onnxruntime[cpu]')"),
        ("CPUEXECUTIONPROVIDER", "use 'CPU' or 'ORT' ("),
        ("TENSORRTEXECUTIONPROVIDER", "use 'ORT.TENSORRT' ("),
        ("ACMEEXECUTIONPROVIDER", "use 'ORT.ACME' ("),
        ("CUDA", "use 'GPU' ("),
        ("NPU", "use 'OPENVINO.NPU' ("),
    ],
)
def test_missing_device_says_what_to_use_or_install(device: str, advice: str) -> None:
    assert advice in advise_missing(device, ("CPU",))


@pytest.mark.parametrize("device", ["cuda:0", "CUDAExecutionProvider", "HETERO:cuda:0,CPU"])
def test_foreign_names_are_recognized_in_device_strings(device: str, read: Read) -> None:
    network = read("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    with Core() as core, pytest.raises(DeviceNotFoundError, match=r"it is another project's name: use 'GPU'.*; installed are "):
        core.load_network(network, device)


def test_hardware_without_a_device_is_listed(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert list_unused_hardware((), str(tmp_path)) == {"a card for AMD's ROCm": "hetero-torch[torch]"}
    assert list_unused_hardware(("TORCH",), str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("name", "first", "cure"),
    [
        ("a.pt", b"PK", "torch.onnx.export"),
        ("a.PTH", b"PK", "torch.onnx.export"),
        ("a.xml", b"<?xml", "Export the model that it was made from to ONNX"),
        ("a.tflite", b"\x1c\0\0\0TFL3", "tf2onnx.convert --tflite"),
        ("a.h5", b"\x89HDF", "format='onnx'"),
        ("a.pb", b"\x0a\x05", "tf2onnx.convert --graphdef"),
        ("saved_model.pb", b"\x08\x01\x12", "tf2onnx.convert --saved-model"),
        ("a.safetensors", b"\x10\0\0", "optimum-cli export onnx"),
        ("a.engine", b"ftrt", "Use the ONNX model that it was built from"),
    ],
)
def test_model_of_another_project_names_its_exporter(name: str, first: bytes, cure: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(first + bytes(100))
    with Core() as core, pytest.raises(NetworkReadError, match=f"'{path}': it is .*, not an ONNX model") as caught:
        core.load_network(str(path), "CPU")
    assert cure in str(caught.value)


def test_onnx_model_is_read_under_any_name(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(network_to_bytes(read("g (float[2] x) => (float[2] y) { y = Neg (x) }")))
    with Core() as core:
        assert core.load_network(path, "CPU").infer({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]
        with pytest.raises(NetworkNotFoundError):
            core.load_network(tmp_path / "missing.pt", "CPU")


def test_session_methods_name_their_counterparts(read: Read) -> None:
    with Core() as core:
        loaded = core.load_network(read("g (float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }"), "CPU")
        with pytest.raises(TypeError) as caught:
            loaded.run(None, {})
        call = 'outputs = loaded.infer({"x": ..., "w": ...}), a dict by the names of the outputs: y'
        assert str(caught.value) == f"use infer: {call}"
        for name in ("get_inputs", "get_outputs"):
            with pytest.raises(AttributeError, match=r"use loaded\.inputs and loaded\.outputs, two tuples$"):
                getattr(loaded, name)


RESHAPE = "g (float[N,3,4] x) => (float[?,?] y) <int64[2] s = {%s}> { [first] a = Relu (x) [flat] y = Reshape (a, s) }"


def test_constant_shape_that_contradicts_an_open_size_warns(read: Read) -> None:
    with pytest.warns(NetworkDeclarationWarning, match=r"node 'flat' \(Reshape-\d+\) reshapes 'a' \[N, 3, 4\]") as caught:
        read(RESHAPE % "2, 12")
    (warning,) = caught
    text = str(warning.message)
    assert "to the constant shape [2, 12], so that only N = 2 can run" in text
    assert "dynamic_shapes of torch.onnx.export" in text


@pytest.mark.parametrize("sizes", ["-1, 12", "0, 12", "1, -1", "5, 5"])
def test_shapes_that_fit_several_sizes_do_not_warn(sizes: str, read: Read) -> None:
    read(RESHAPE % sizes)


def test_fixed_and_unknown_sizes_do_not_warn(read: Read) -> None:
    read("g (float[2,6] x) => (float[12] y) <int64[1] s = {12}> { y = Reshape (x, s) }")
    read("g (float[N,M] x) => (float[12] y) <int64[1] s = {12}> { y = Reshape (x, s) }")
    read("g (float[N,N] x) => (float[16] y) <int64[1] s = {16}> { y = Reshape (x, s) }")
