"""Blobs of real devices through the Core: damaged, foreign and contradictory blobs raise an error with the reason."""

from __future__ import annotations

import dataclasses
import io
import logging
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network, Payload, hookimpl
from hetero_core.blobs.container import BlobHeader, read_blob, write_blob
from hetero_core.contract import DeviceName
from hetero_core.devices import registry
from hetero_core.errors import BlobDamagedError, BlobError, BlobMismatchError, ConfigKeyError, HeteroError
from hetero_core.network.border import InputInfo
from hetero_core.testing.plain_device import PlainDevice
from hetero_core.transforms.editing import edit

TEXT = "g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { a = Div(x, w) y = Relu(a) }"
X = np.array([[3, 4], [-1, 5]], np.float32)
DEVICES = ("TEMPLATE", "CPU", "HETERO:TEMPLATE,CPU")


def export(core: Core, network: Network, device: str) -> bytes:
    stream = io.BytesIO()
    core.load_network(network, device).export_network(stream)
    return stream.getvalue()


@pytest.mark.parametrize("device", DEVICES)
def test_blob_is_checked_before_it_is_used(core: Core, read: Callable[..., Network], device: str) -> None:
    network = read(TEXT).with_affinity({"op:Relu": "CPU"})
    blob = export(core, network, device)
    name = device.partition(":")[0]
    assert core.import_network(blob, name).infer({"x": X})["y"].tolist() == [[3, 2], [0, 2.5]]
    for size in (0, 10, len(blob) // 2, len(blob) - 1):
        with pytest.raises(BlobDamagedError):
            core.import_network(blob[:size], name)
    for position in range(0, len(blob), max(len(blob) // 200, 1)):
        changed = bytearray(blob)
        changed[position] ^= 1
        with pytest.raises((BlobDamagedError, BlobMismatchError)):
            core.import_network(bytes(changed), name)
    for device_name in {"TEMPLATE", "CPU", "HETERO"} - {name}:
        with pytest.raises(BlobMismatchError, match=f"the blob's device is {name}, here it is {device_name}"):
            core.import_network(blob, device_name)


@pytest.mark.parametrize("device", DEVICES)
def test_blob_of_another_plugin_version_is_read_by_its_payload(
    core: Core, read: Callable[..., Network], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = export(core, read(TEXT), device)
    real = registry.read_identity
    monkeypatch.setattr(registry, "read_identity", lambda installed: (real(installed)[0], "9.9"))
    with Core() as newer:
        imported = newer.import_network(blob, device.partition(":")[0])
        assert [spec.name for spec in imported.outputs] == [spec.name for spec in core.import_network(blob).outputs]


def test_blob_header_describes_the_blob(core: Core, read: Callable[..., Network]) -> None:
    network = read(TEXT)
    header, payload = read_blob(export(core, network, "HETERO:TEMPLATE,CPU"))
    assert (header.device, header.distribution, header.network) == ("HETERO", "hetero-hetero", "g")
    assert header.fingerprint == network.fingerprint
    assert (header.inputs, header.outputs) == (("x",), ("y",))
    assert header.config["TARGET_FALLBACK"] == "TEMPLATE,CPU"
    inner, _ = read_blob(payload.sections["stage/0"])
    assert inner.device == "TEMPLATE"


def test_import_takes_runtime_keys_and_refuses_unknown_ones(core: Core, read: Callable[..., Network], tmp_path: Path) -> None:
    blob = export(core, read(TEXT), "CPU")
    request = core.import_network(blob, "CPU", {"PERF_COUNT": "YES"}).create_infer_request()
    request.infer({"x": X})
    # NumPy's kernels have an entry for each node, machine code has an entry for the group of both.
    assert [node for entry in request.perf_counts for node in entry.node.split("+")] == ["Div_0", "Relu_1"]
    with pytest.raises(ConfigKeyError, match="no configuration key 'PERF_COUNTS', did you mean 'PERF_COUNT'"):
        core.import_network(blob, "CPU", {"PERF_COUNTS": "YES"})
    with pytest.raises(HeteroError, match=r"cannot write the exported network 'g' to '.*': No such file or directory"):
        core.load_network(read(TEXT), "CPU").export_network(tmp_path / "no" / "x.blob")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", ["all", "device"])
def test_run_time_keys_of_import_override_those_of_set_config(
    core: Core, read: Callable[..., Network], device: str, place: str, tmp_path: Path
) -> None:
    blob = export(core, read(TEXT), device)
    settings = {"PERF_COUNT": True, "STRICT_DECLARATIONS": True, "CACHE_DIR": str(tmp_path)}
    core.set_config(settings, None if place == "all" else device)
    imported = core.import_network(blob)
    assert {name: imported.get_config(name) for name in settings} == settings
    request = imported.create_infer_request()
    request.infer({"x": X})
    assert request.perf_counts
    called = core.import_network(blob, config={"PERF_COUNT": False})
    assert (called.get_config("PERF_COUNT"), called.get_config("STRICT_DECLARATIONS")) == (False, True)
    core.set_config(dict.fromkeys(settings), None if place == "all" else device)
    assert core.import_network(blob).get_config("PERF_COUNT") is False


def test_run_time_keys_of_an_id_hold_for_its_imports_only(core: Core, read: Callable[..., Network]) -> None:
    blob = export(core, read(TEXT), "TEMPLATE")
    core.set_config({"PERF_COUNT": True}, "TEMPLATE.1")
    assert core.import_network(blob, "TEMPLATE").get_config("PERF_COUNT") is False
    assert core.import_network(blob, "TEMPLATE.1").get_config("PERF_COUNT") is True
    assert core.import_network(blob, config={"DEVICE_ID": "1"}).get_config("PERF_COUNT") is True


def test_compile_time_key_of_the_blob_cannot_be_changed(core: Core, read: Callable[..., Network]) -> None:
    blob = export(core, read(TEXT), "TEMPLATE")
    core.set_config({"TEMPLATE_REFUSED_OPERATORS": "Relu"}, "TEMPLATE")
    assert core.import_network(blob, "TEMPLATE").get_config("TEMPLATE_REFUSED_OPERATORS") == ()
    with pytest.raises(BlobMismatchError, match="TEMPLATE_REFUSED_OPERATORS is Relu in the call and empty in the blob"):
        core.import_network(blob, "TEMPLATE", {"TEMPLATE_REFUSED_OPERATORS": "Relu"})


def test_log_level_of_an_import_is_used(core: Core, read: Callable[..., Network]) -> None:
    logger = logging.getLogger("hetero_template")
    before = logger.level
    stream = io.BytesIO()
    core.load_network(read(TEXT), "TEMPLATE", {"LOG_LEVEL": "LOG_ERROR"}).export_network(stream)
    with Core() as importing_core:
        # The log level of the exporting process is not stored.
        assert importing_core.import_network(stream.getvalue()).get_config("LOG_LEVEL") is None
        assert (
            importing_core.import_network(stream.getvalue(), config={"LOG_LEVEL": "LOG_DEBUG"}).get_config("LOG_LEVEL")
            == "LOG_DEBUG"
        )
        assert logger.level == logging.DEBUG
    core.close()
    assert logger.level == before


def test_export_to_the_name_of_a_folder_fails_and_keeps_it(core: Core, read: Callable[..., Network], tmp_path: Path) -> None:
    path = tmp_path / "x.blob"
    path.mkdir()
    with pytest.raises(HeteroError, match=f"cannot write the exported network 'g' to '{path}': Is a directory"):
        core.load_network(read(TEXT), "CPU").export_network(path)
    assert list(tmp_path.rglob("*")) == [path]


def repack(blob: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """Returns the blob with changed header fields and sections, written as a valid container."""
    header, payload = read_blob(blob)
    fields, sections = {**dataclasses.asdict(header), "config": dict(header.config)}, dict(payload.sections)
    change(fields, sections)
    stream = io.BytesIO()
    write_blob(BlobHeader(**fields), Payload(sections, payload.version), stream)
    return stream.getvalue()


@pytest.mark.parametrize("device", DEVICES)
def test_missing_section_of_a_blob_is_an_error_of_the_plugin(core: Core, read: Callable[..., Network], device: str) -> None:
    blob = export(core, read(TEXT), device)
    for name in read_blob(blob)[1].sections:
        broken = repack(blob, lambda _, sections, name=name: sections.pop(name))
        with pytest.raises(HeteroError) as caught:
            core.import_network(broken, device.partition(":")[0])
        text = "\n".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
        assert f"hetero-{device.partition(':')[0].lower()}" in text


def test_exception_of_a_plugin_for_a_blob_is_a_blob_error(
    core: Core, read: Callable[..., Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = export(core, read(TEXT), "CPU")
    monkeypatch.setattr("hetero_core.network.writer.unpack_network", lambda sections: sections["nothing"])
    with pytest.raises(
        BlobError, match=r"cannot import the blob on CPU: plugin CPU \(hetero-cpu .*\) failed with KeyError: 'nothing'"
    ) as caught:
        core.import_network(blob, "CPU")
    assert isinstance(caught.value.__cause__, KeyError)


def test_blob_may_lack_run_time_keys_but_no_compile_time_keys(core: Core, read: Callable[..., Network]) -> None:
    blob = export(core, read(TEXT), "TEMPLATE")
    old = repack(blob, lambda fields, _: fields["config"].pop("CACHE_DIR"))
    assert core.import_network(old, "TEMPLATE").get_config("CACHE_DIR") == ""
    broken = repack(blob, lambda fields, _: fields["config"].pop("TEMPLATE_REFUSED_OPERATORS"))
    with pytest.raises(BlobMismatchError, match="the blob does not say TEMPLATE_REFUSED_OPERATORS, which shape what is compiled"):
        core.import_network(broken, "TEMPLATE")


class Acme(PlainDevice):
    """A device with the architecture v1 for the ids 0 and 2, and v2 for the id 1."""

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1", "2"), "DEVICE_ARCHITECTURE": "v2" if device.id == "1" else "v1"}


CHAIN = "g (float[2] x) => (float[2] y) { a = Neg(x) y = Relu(a) }"


def test_blob_is_imported_only_on_ids_of_its_architecture(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("ACME", Acme())
    values = {"x": np.array([1, -2], np.float32)}
    blob = export(core, read(CHAIN), "ACME.0")
    header, _ = read_blob(blob)
    assert (header.device, header.device_id, header.architecture) == ("ACME", "0", "v1")
    for device in ("ACME.0", "ACME.2", "ACME", None):
        assert core.import_network(blob, device).infer(values)["y"].tolist() == [0, 2]
    message = (
        "cannot import network 'g' on ACME.1: the blob was compiled on ACME.0 for the architecture 'v1', and ACME.1 has 'v2'; name a "
        "device with the architecture of the blob, or load the model on ACME.1 and export it again"
    )
    with pytest.raises(BlobMismatchError, match=f"^{message}$"):
        core.import_network(blob, "ACME.1")
    with pytest.raises(BlobMismatchError, match="and ACME.1 has 'v2'"):
        core.import_network(blob, config={"DEVICE_ID": 1})
    core.set_config({"DEVICE_ID": "1"}, "ACME")
    with pytest.raises(BlobMismatchError, match="and ACME.1 has 'v2'"):
        core.import_network(blob)


@pytest.mark.parametrize("device", ["HETERO:ACME,TEMPLATE", "MULTI:ACME,TEMPLATE", "AUTO:ACME", "BATCH:ACME"])
def test_parts_of_a_blob_are_for_their_architectures(core: Core, read: Callable[..., Network], device: str) -> None:
    text = CHAIN.replace("[2]", "[1, 2]")
    acme = Acme()
    core.register_plugin("ACME", acme)
    blob = export(core, read(text), device)
    assert read_blob(blob)[0].architecture == ""
    core.import_network(blob)
    with Core() as newer_core:
        newer_core.register_plugin("ACME", Newer())
        with pytest.raises(BlobMismatchError, match="compiled on ACME for the architecture 'v1', and ACME has 'v3'"):
            newer_core.import_network(blob)


class Newer(Acme):
    """ACME on a machine with the architecture v3."""

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        return {"DEVICE_ARCHITECTURE": "v3"}


@pytest.mark.parametrize("device", DEVICES)
def test_blob_of_the_previous_format_is_refused(core: Core, read: Callable[..., Network], device: str) -> None:
    blob = export(core, read(TEXT), device)
    older = blob[:8] + struct.pack("<I", 2) + blob[12:]
    with pytest.raises(BlobMismatchError, match="has container format 2; this hetero-core reads format 3; load the model again"):
        core.import_network(older)


@pytest.mark.parametrize("device", [*DEVICES, "MULTI:CPU,TEMPLATE", "BATCH:CPU", "PROCESS:TEMPLATE"])
def test_payload_of_another_version_is_refused(core: Core, read: Callable[..., Network], device: str) -> None:
    header, payload = read_blob(export(core, read(TEXT), device))
    stream = io.BytesIO()
    write_blob(dataclasses.replace(header, payload_version=99), dataclasses.replace(payload, version=99), stream)
    with pytest.raises(BlobMismatchError, match="the blob's payload has version 99; the plugin reads 1") as caught:
        core.import_network(stream.getvalue())
    assert any(f"raised by plugin {header.device}" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_of_a_network_are_kept_by_load_export_and_cache(
    core: Core, read: Callable[..., Network], device: str, tmp_path: Path
) -> None:
    # The default layout of two axes is NC.
    network = edit(read(TEXT)).with_inputs({"x": InputInfo(model_layout="CN")})
    assert network.input_info["x"].layout == "CN"
    loaded = core.load_network(network, device)
    loaded.export_network(tmp_path / "net.blob")
    imported = core.import_network(tmp_path / "net.blob")
    cached = [core.load_network(network, device, {"CACHE_DIR": str(tmp_path / "cache")}) for _ in range(2)]
    for executable in (loaded, imported, *cached):
        assert executable.input_info == network.input_info
        assert executable.output_info == network.output_info
