"""Blobs of devices that wrap an engine: the same numbers after an import, and a new compilation by another version of the engine."""

from __future__ import annotations

from pathlib import Path

from hetero_core import Core
from hetero_core.contract import BlobCheck
from hetero_core.testing.compare import assert_same
from hetero_core.testing.models import light_inputs, lstm_model


def check_engine_blob(core: Core, device_name: str, engine: str, folder: Path) -> None:
    """Asserts both for an LSTM on a device; `engine` is the engine's name in messages."""
    model = lstm_model()
    inputs = light_inputs(model)
    loaded = core.load_network(model, device_name)
    loaded.export_network(folder / "engine.blob")
    with Core() as fresh_core:
        for name, value in fresh_core.import_network(folder / "engine.blob", device_name).infer(inputs).items():
            assert_same(value, loaded.infer(inputs)[name])
        device = fresh_core._find(device_name)[1]  # no other way to an engine of another version
        payload = device.call("export_network", loaded.device, executable=loaded.executable)
        installed = bytes(payload.sections["engine"]).decode()
        other = type(payload)({**payload.sections, "engine": b"1.2.3"})
        config = device.resolve(loaded.device, None)[1]
        assert device.call("check_payload", loaded.device, payload=other, config=config) == BlobCheck(
            str(loaded.device),
            "works after recompiling",
            f"the network was compiled by {engine} 1.2.3, and {installed} is installed",
        )
        imported = device.call("import_network", loaded.device, payload=other, config=config)
        assert [spec.name for spec in imported.outputs] == [spec.name for spec in loaded.outputs]
