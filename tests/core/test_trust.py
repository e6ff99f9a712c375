"""Code in blobs is marked by the plugin, refused before the plugin reads it unless trusted, and never cached."""

from __future__ import annotations

import io
import json
import logging
import struct
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hetero_cpu.device import CpuDevice
from hetero_cpu.executable import CpuExecutable

from hetero_core import Core, DeviceName, Executable, Network, Payload, hookimpl
from hetero_core.blobs.container import find_code, read_blob, write_blob
from hetero_core.cli.main import main
from hetero_core.errors import BlobDamagedError, BlobError, UntrustedBlobError
from hetero_core.network.writer import network_to_bytes, pack_network, unpack_network

TEXT = "g (float[2] x) => (float[2] y) { [first] a = Neg(x) [second] y = Exp(a) }"
SPLIT = {"TEMPLATE_REFUSED_OPERATORS": "Exp"}
X = np.array([1, 2], np.float32)


class NativeDevice(CpuDevice):
    """CPU with a code section in its blobs; it records the code of each import."""

    def __init__(self) -> None:
        super().__init__("NATIVE")
        self.executed: list[bytes] = []
        self.imports = 0

    @hookimpl
    def export_network(self, executable: CpuExecutable) -> Payload:
        return Payload({**pack_network(executable.network), "kernels": b"\x7fELF"}, code=("kernels",))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        self.imports += 1
        self.executed.append(bytes(payload.read_code("kernels")))
        return self.load_network(device, unpack_network(payload.sections), config, None)


@pytest.fixture
def native(core: Core) -> NativeDevice:
    device = NativeDevice()
    core.register_plugin("NATIVE", device)
    return device


@pytest.fixture
def export(core: Core, native: NativeDevice, read: Callable[..., Network]) -> Callable[..., bytes]:
    def export_network(device: str, config: Mapping[str, Any] | None = None) -> bytes:
        stream = io.BytesIO()
        core.load_network(read(TEXT), device, config).export_network(stream)
        return stream.getvalue()

    return export_network


def change_header(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Returns a forged container: changed header, valid digest. The header must not grow."""
    size = struct.unpack_from("<Q", content, 16)[0]
    fields = json.loads(content[32 : 32 + size])
    change(fields)
    text = json.dumps(fields, sort_keys=True).encode().ljust(size)
    assert len(text) == size
    changed = content[:32] + text + content[32 + size : -32]
    return changed + sha256(changed[: -(-(32 + size) // 64) * 64]).digest()


def test_blob_with_code_is_refused_before_the_plugin_sees_it(
    core: Core, native: NativeDevice, export: Callable[..., bytes]
) -> None:
    content = export("NATIVE")
    with pytest.raises(
        UntrustedBlobError, match=r"'g' on NATIVE: the blob holds code, in the sections kernels.*trust=True.*--trust"
    ):
        core.import_network(content, "NATIVE")
    assert native.imports == 0


def test_trusted_blob_is_imported(core: Core, native: NativeDevice, export: Callable[..., bytes]) -> None:
    imported = core.import_network(export("NATIVE"), "NATIVE", trust=True)
    assert imported.infer({"x": X})["y"].tolist() == pytest.approx(np.exp(-X).tolist())
    assert native.executed == [b"\x7fELF"]


def test_code_in_a_stage_needs_trust_of_the_whole_blob(core: Core, native: NativeDevice, export: Callable[..., bytes]) -> None:
    content = export("HETERO:TEMPLATE,NATIVE", SPLIT)
    with pytest.raises(UntrustedBlobError, match="in the sections stage/1: kernels,"):
        core.import_network(content, "HETERO")
    assert native.imports == 0
    imported = core.import_network(content, "HETERO", trust=True)
    assert imported.infer({"x": X})["y"].tolist() == pytest.approx(np.exp(-X).tolist())
    assert native.imports == 1


def test_code_two_containers_deep_is_found(core: Core, native: NativeDevice, export: Callable[..., bytes]) -> None:
    content = export("HETERO:(HETERO:TEMPLATE,NATIVE),CPU", SPLIT)
    assert any(name.endswith("kernels") for name in find_code(read_blob(content)[1]))
    with pytest.raises(UntrustedBlobError):
        core.import_network(content, "HETERO")
    assert native.imports == 0


def test_trust_ends_with_the_import(core: Core, native: NativeDevice, export: Callable[..., bytes]) -> None:
    content = export("NATIVE")
    core.import_network(content, "NATIVE", trust=True)
    with pytest.raises(UntrustedBlobError):
        core.import_network(content, "NATIVE")


def test_removed_mark_does_not_bring_code_past_the_question(core: Core, native: NativeDevice, export: Callable[..., bytes]) -> None:
    def remove_marks(fields: dict[str, Any]) -> None:
        for row in fields["sections"]:
            row.pop("code", None)

    with pytest.raises(
        BlobError, match=r"section 'kernels' is to be executed, but the blob does not mark it as code; it marks \[\]"
    ):
        core.import_network(change_header(export("NATIVE"), remove_marks), "NATIVE")
    assert native.executed == []


@pytest.mark.parametrize("mark", [{"code": 1}, {"native": True}])
def test_unknown_mark_of_a_section_is_refused(
    core: Core, native: NativeDevice, export: Callable[..., bytes], mark: dict[str, Any]
) -> None:
    def set_mark(fields: dict[str, Any]) -> None:
        fields["core_version"] = ""
        fields["config"] = {}
        fields["sections"][-1].pop("code")
        fields["sections"][-1].update(mark)

    with pytest.raises(
        BlobDamagedError, match="its field 'code' has 1; expected <class 'bool'>|unexpected keyword argument 'native'"
    ):
        core.import_network(change_header(export("NATIVE"), set_mark), "NATIVE", trust=True)


def test_sections_that_share_bytes_are_refused(core: Core, export: Callable[..., bytes]) -> None:
    def move(fields: dict[str, Any]) -> None:
        fields["core_version"] = ""
        fields["sections"][2].update(offset=0, size=4)

    with pytest.raises(BlobDamagedError, match="section 'kernels' at 0 begins within the one before, which ends at"):
        core.import_network(change_header(export("NATIVE"), move), "NATIVE", trust=True)


def test_container_has_a_code_mark_only_with_code_and_keeps_it(export: Callable[..., bytes]) -> None:
    plain, native = export("CPU"), export("NATIVE")
    assert b'"code"' not in plain
    header, payload = read_blob(native)
    assert payload.code == ("kernels",)
    again = io.BytesIO()
    write_blob(header, payload, again)
    assert again.getvalue() == native


def test_marking_a_section_that_is_not_there_is_an_error() -> None:
    with pytest.raises(BlobError, match=r"marks 'kernels' as code and has no such section; it has \['model'\]"):
        Payload({"model": b""}, code=("kernels",))


@pytest.mark.parametrize(("device", "config"), [("NATIVE", {}), ("HETERO:TEMPLATE,NATIVE", SPLIT)])
def test_code_is_not_kept_in_the_cache(
    core: Core,
    native: NativeDevice,
    read: Callable[..., Network],
    folder: Path,
    device: str,
    config: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "hetero_core.blobs.cache"):
        for _ in range(2):
            loaded = core.load_network(read(TEXT), device, {**config, "CACHE_DIR": str(folder)})
            assert loaded.get_metric("LOADED_FROM_CACHE") is False
    assert list(folder.glob("*.blob")) == []
    assert "network 'g' is not kept in the cache: it holds code" in caplog.text
    assert native.imports == 0


def test_code_that_was_put_into_the_cache_is_not_taken(
    core: Core, native: NativeDevice, read: Callable[..., Network], folder: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before_there_were_marks:
        before_there_were_marks.setattr("hetero_core.blobs.cache.find_code", lambda payload: ())
        core.load_network(read(TEXT), "NATIVE", {"CACHE_DIR": str(folder)})
    assert len(list(folder.glob("*.blob"))) == 1
    loaded = core.load_network(read(TEXT), "NATIVE", {"CACHE_DIR": str(folder)})
    assert loaded.get_metric("LOADED_FROM_CACHE") is False
    assert native.imports == 0
    assert "holds code, in the sections ['kernels']; no cache entry may" in warned[0]


def test_trust_on_a_model_is_a_usage_error(
    read: Callable[..., Network], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(network_to_bytes(read(TEXT)))
    assert main(["run", str(path), "-d", "CPU", "--random", "--trust"]) == 2
    assert "--trust has a meaning only for an exported network" in capsys.readouterr().err


def test_inspect_marks_code_sections(export: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "native.blob"
    path.write_bytes(export("NATIVE"))
    assert main(["compile", "--inspect", str(path)]) == 0
    assert "section        kernels, 4 bytes, CODE: runs only where it is trusted" in capsys.readouterr().out
    assert main(["run", str(path), "-d", "NATIVE", "--random"]) != 0
