"""Loads that are kept: what a device exports of a file is imported where the same file is loaded again, and nothing stale ever is."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core, Extension
from hetero_core.blobs import kept_loads
from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult
from hetero_core.errors import NetworkDeclarationWarning
from hetero_core.hookspecs import hookimpl
from hetero_core.limits import ReadLimits
from hetero_core.network.writer import pack_network, unpack_network

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float[2] w = {FACTORS}> { y = Mul(x, w) }'


class Scaled(Executable):
    """Multiplies by the constant of the network."""

    keeps_loads = True

    def __init__(self, network: Any) -> None:
        self.network, self.inputs, self.outputs = network, network.inputs, network.outputs
        (self.factors,) = (constant.array for constant in network.initializers.values())

    def run(self, inputs: tuple[Any, ...], context: Any) -> tuple[Any, ...]:
        return (inputs[0] * self.factors,)


class ScalingDevice:
    """Counts its loads and imports."""

    def __init__(self) -> None:
        self.loads = self.imports = 0
        self.section: Mapping[str, Any] | None = None

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {
            "SCALING_MODE": ConfigKey(str, "A", "Shapes what is compiled."),
            "SCALING_LOG": ConfigKey(str, "", "Does not.", runtime=True),
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Any) -> QueryResult:
        return QueryResult({node.name: str(device) for node in network.nodes})

    @hookimpl
    def load_network(self, device: DeviceName, network: Any, config: Mapping[str, Any]) -> Executable:
        self.loads += 1
        return Scaled(network)

    @hookimpl
    def export_network(self, executable: Scaled) -> Payload:
        return Payload(pack_network(executable.network))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        self.imports += 1
        assert set(payload.sections) == {"model", "weights"}
        return Scaled(unpack_network(payload.sections))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of entries. A file counts as settled at once: the tests change its content and set its times themselves."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_loads, "_SETTLED", -1_000_000_000)
    return tmp_path / "cache" / "hetero" / "loads"


def write_model(path: Path, factors: str = "2, 3") -> Path:
    onnx.save(onnx.parser.parse_model(MODEL.replace("FACTORS", factors)), path)
    return path


def load(
    model: Any, *, prepare: Callable[[Core], object] = lambda core: None, limits: Any = None, **config: Any
) -> tuple[list[float], int, int]:
    """Returns what the network answers to ones, and the loads and imports of the device, which is new."""
    device = ScalingDevice()
    with Core(read_limits=limits) as core:
        core.register_plugin("SCALING", device)
        prepare(core)
        network = core.load_network(model, "SCALING", config)
        return network.infer({"x": np.ones(2, np.float32)})["y"].tolist(), device.loads, device.imports


def test_second_load_of_a_file_is_an_import(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx")
    assert load(path) == ([2, 3], 1, 0)
    assert load(path) == ([2, 3], 0, 1)
    assert load(str(path)) == ([2, 3], 0, 1)


def test_network_that_is_imported_has_the_name_the_fingerprint_and_the_values_of_the_call(tmp_path: Path) -> None:
    path, device = write_model(tmp_path / "m.onnx"), ScalingDevice()
    descriptions = []
    for log in ("a", "b"):
        with Core() as core:
            core.register_plugin("SCALING", device)
            network = core.load_network(path, "SCALING", {"SCALING_LOG": log})
            descriptions.append((network.name, network.fingerprint, network.inputs, network.outputs))
            assert network.config["SCALING_LOG"] == log
    assert (device.loads, device.imports) == (1, 1)
    assert descriptions[0] == descriptions[1]


@pytest.mark.parametrize("keeps_time", [False, True])
def test_file_with_other_content_is_loaded_again(tmp_path: Path, keeps_time: bool) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)
    status = path.stat()
    write_model(path, "5, 7")
    if keeps_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert load(path) == ([5, 7], 1, 0)
    assert load(path) == ([5, 7], 0, 1)


def test_model_that_is_digested_beside_the_load_is_told_from_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_loads, "_LITTLE_BYTES", 0)
    closed: list[Any] = []
    monkeypatch.setattr(Scaled, "close", lambda self: closed.append(self.factors.tolist()))
    path = write_model(tmp_path / "m.onnx")
    assert [load(path), load(path)] == [([2, 3], 1, 0), ([2, 3], 0, 1)]
    write_model(path, "5, 7")
    closed.clear()
    assert load(path) == ([5, 7], 1, 1)
    assert closed == [[2, 3], [5, 7]]


def test_key_that_shapes_what_is_compiled_has_an_entry_of_its_own(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)
    assert load(path, SCALING_MODE="B")[1:] == (1, 0)
    assert load(path, SCALING_MODE="B")[1:] == (0, 1)


def test_code_that_changed_since_makes_the_load_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)
    stamp = kept_loads._stamp_package
    monkeypatch.setattr(kept_loads, "_stamp_package", lambda name: stamp(name) + "other")
    assert load(path)[1:] == (1, 0)
    assert load(path)[1:] == (0, 1)


@pytest.mark.parametrize("position", [0.02, 0.5, 0.9])
def test_damaged_entry_is_not_used(tmp_path: Path, folder: Path, position: float) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)
    (entry,) = folder.iterdir()
    content = bytearray(entry.read_bytes())
    begin = int(len(content) * position)
    content[begin : begin + 40] = bytes(255 - byte for byte in content[begin : begin + 40])
    entry.write_bytes(content)
    assert load(path) == ([2, 3], 1, 0)
    assert load(path) == ([2, 3], 0, 1)


def test_entry_that_others_may_write_is_said_and_not_used(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)
    (entry,) = folder.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    entry.chmod(0o666)
    assert load(path)[1:] == (1, 0)
    assert f"the kept load '{entry}' is not used: PermissionError" in caplog.text
    assert f"others may write to '{entry}' (mode 0666); run chmod go-w on it" in caplog.text


def read_bytes(path: Path) -> Any:
    return path.read_bytes()


UNKEPT: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "bytes": (read_bytes, {}),
    "read limits": (lambda path: path, {"limits": ReadLimits()}),
    "memory limit": (lambda path: path, {"MEMORY_LIMIT": 1 << 20}),
}


@pytest.mark.parametrize("name", UNKEPT)
def test_load_that_more_than_the_file_shapes_is_not_kept(tmp_path: Path, folder: Path, name: str) -> None:
    take, config = UNKEPT[name]
    path = write_model(tmp_path / "m.onnx")
    for _ in range(2):
        assert load(take(path), **config)[1:] == (1, 0)
    assert not folder.exists() or not list(folder.iterdir())


def test_load_in_a_core_with_an_extension_is_not_kept(tmp_path: Path) -> None:
    extension = Extension("com.acme", "Twist", 1, lambda x: x, lambda types, attributes: ())
    path = write_model(tmp_path / "m.onnx")
    for _ in range(2):
        assert load(path, prepare=lambda core: core.add_extension(extension, "CPU"))[1:] == (1, 0)


def test_load_with_a_cache_folder_is_kept_there_alone(tmp_path: Path, folder: Path) -> None:
    path = write_model(tmp_path / "m.onnx")
    assert load(path, CACHE_DIR=str(tmp_path / "own"))[1:] == (1, 0)
    assert load(path, CACHE_DIR=str(tmp_path / "own"))[1:] == (0, 1)
    assert not folder.exists()


def test_model_with_weights_in_another_file_is_not_kept(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL.replace("FACTORS", "2, 3"))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([2, 3], np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    for _ in range(2):
        assert load(tmp_path / "m.onnx") == ([2, 3], 1, 0)


def test_pins_are_not_kept(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL.replace("FACTORS", "2, 3"))
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "hetero.affinity", "SCALING"
    onnx.save(model, tmp_path / "m.onnx")
    for _ in range(2):
        assert load(tmp_path / "m.onnx") == ([2, 3], 1, 0)


def test_file_that_reading_warns_of_is_read_each_time(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL.replace("FACTORS", "2, 3"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    for _ in range(2):
        with pytest.warns(NetworkDeclarationWarning, match="^the constant 'w' is there twice with different values;"):
            assert load(tmp_path / "m.onnx") == ([5, 7], 1, 0)


def test_file_that_was_changed_a_moment_ago_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_loads, "_SETTLED", 3_600_000_000_000)
    path = write_model(tmp_path / "m.onnx")
    for _ in range(2):
        assert load(path)[1:] == (1, 0)


def test_device_that_does_not_say_so_has_nothing_kept(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaled, "keeps_loads", False)
    path = write_model(tmp_path / "m.onnx")
    for _ in range(2):
        assert load(path)[1:] == (1, 0)
    assert not list(folder.iterdir())


def test_import_that_fails_is_said_and_the_model_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(f"{__name__}.unpack_network", fail)
    assert load(path) == ([2, 3], 1, 1)
    assert "is not used" in caplog.text
    assert "no room" in caplog.text


def test_entry_whose_last_use_cannot_be_noted_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "m.onnx")
    load(path)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert load(path) == ([2, 3], 0, 1)


def test_entries_that_were_not_used_for_the_longest_time_go_first(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_model(tmp_path / f"{number}.onnx") for number in range(3)]
    for number, path in enumerate(paths[:2]):
        load(path)
        for entry in folder.iterdir():
            if entry.stat().st_mtime > 1000:
                os.utime(entry, (100 * number, 100 * number))
                size = entry.stat().st_size
    assert load(paths[0])[1:] == (0, 1)  # used: the second one is the older now
    monkeypatch.setattr(kept_loads, "MOST_BYTES_IN_ALL", 5 * size // 2)
    monkeypatch.setattr(kept_loads, "_SHARE", 1)
    load(paths[2])
    assert [load(path)[1:] for path in (paths[2], paths[0], paths[1])] == [(0, 1), (0, 1), (1, 0)]


def test_nothing_is_kept_without_a_private_folder(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(tmp_path)
    path = write_model(tmp_path / "m.onnx")
    for _ in range(2):
        assert load(path) == ([2, 3], 1, 0)
    assert f"the load of '{path}' is not kept: " in caplog.text
    assert f"'{folder}'" in caplog.text
