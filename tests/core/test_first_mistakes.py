"""First mistakes: other projects' names of devices, files, methods and exports; each error says what to use instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hetero_tests.devices_page import PAGE, PROJECTS, TABLE, format_directory, format_table, replace_directory, update_table

from hetero_core import Core, Network
from hetero_core.devices.known_devices import (
    advise_missing,
    find_hardware,
    foreign_names,
    known_devices,
    known_hardware,
    list_unused_hardware,
)
from hetero_core.errors import DeviceNotFoundError, NetworkDeclarationWarning, NetworkNotFoundError, NetworkReadError
from hetero_core.network.writer import network_to_bytes

PACKAGE = """
[project]
name = "hetero-my-chip"
version = "1.2"
dependencies = ["hetero-core>=0.2,<0.3"]
entry-points."hetero_core.devices" = { MY_CHIP = "hetero_my_chip" }
entry-points."hetero_core.hardware" = { npu = "MY_CHIP" }

[tool.hetero]
runs_on = "My chips"
extras = ["driver"]
badge = "https://example.org/badge.json"
"""
Read = Callable[..., Network]


def test_directory_of_devices_is_up_to_date() -> None:
    table, page = json.loads(TABLE.read_text("utf-8")), PAGE.read_text("utf-8")
    is_fresh = (
        TABLE.read_text("utf-8") == format_table(update_table(table, PROJECTS))
        and replace_directory(page, format_directory(table)) == page
    )
    assert is_fresh, "run: PYTHONPATH=tests/shared python -m hetero_tests.devices_page"


def test_table_names_only_known_devices_and_hardware() -> None:
    used = {name.partition(".")[0] for names in foreign_names().values() for name in names}
    assert used <= set(known_devices())
    assert {name for row in known_devices().values() for name in row.hardware} == set(known_hardware())


def test_row_of_another_package_stays_and_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(PACKAGE, "utf-8")
    table = update_table(json.loads(TABLE.read_text("utf-8")), [path])
    (row,) = [row for row in table["devices"] if row["package"] == "hetero-my-chip"]
    assert row == {
        "name": "MY_CHIP",
        "package": "hetero-my-chip",
        "version": "1.2",
        "core": ">=0.2,<0.3",
        "runs_on": "My chips",
        "extras": ["driver"],
        "hardware": ["npu"],
        "badge": "https://example.org/badge.json",
    }
    table = update_table(table, PROJECTS)
    assert row in table["devices"]
    path.write_text(PACKAGE.replace('"1.2"', '"1.3"'), "utf-8")
    rows = update_table(table, [path])["devices"]
    assert [row["version"] for row in rows if row["name"] == "MY_CHIP"] == ["1.3"]
    assert "| `hetero-my-chip[driver]` | My chips | an NPU | ![kit](" in format_directory(table)
    path.write_text(PACKAGE.replace("hetero-my-chip", "hetero-other"), "utf-8")
    with pytest.raises(ValueError, match="two packages announce MY_CHIP"):
        update_table(table, [path])


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


def test_hardware_that_no_installed_device_announces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert find_hardware(str(tmp_path)) == {"rocm"}
    assert list_unused_hardware((), str(tmp_path)) == {"a card for AMD's ROCm": "hetero-torch[torch]"}
    distribution = tmp_path / "hetero_my_chip-1.2.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.4\nName: hetero-my-chip\nVersion: 1.2\n")
    (distribution / "entry_points.txt").write_text("[hetero_core.hardware]\nrocm = MY_CHIP\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list_unused_hardware(("MY_CHIP",), str(tmp_path)) == {}
    assert list_unused_hardware(("CPU",), str(tmp_path)) == {"a card for AMD's ROCm": "hetero-torch[torch]"}


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
