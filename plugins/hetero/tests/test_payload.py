"""A forged plan with correct digests in a blob of HETERO is an error at the import, not a failure in a later run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network, Payload, hookimpl
from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.contract import DeviceName, Executable
from hetero_core.errors import BlobError, BlobMismatchError, DeviceUnavailableError
from hetero_core.network.writer import unpack_network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

Change = Callable[[dict[str, Any]], object]


def set_boundary(field: int, value: Any) -> Change:
    return lambda plan: plan["boundaries"][1].__setitem__(field, value)


@pytest.mark.parametrize(
    "change",
    [
        set_boundary(2, "16"),
        set_boundary(2, -1),
        set_boundary(3, 99),
        set_boundary(4, [True]),
        set_boundary(0, 7),
        lambda plan: plan.__setitem__("unexplained", None),
        lambda plan: plan.__setitem__("procedures", {"LITERAL": "2"}),
        lambda plan: plan.__setitem__("priorities", "CPU"),
        lambda plan: plan["device_of_node"].__setitem__("Relu_0", 3),
        lambda plan: plan["stages"][0].__setitem__(1, [1]),
        lambda plan: plan["refusals"].__setitem__("Relu_0", {"CPU": 1}),
        lambda plan: plan.pop("pins"),
    ],
)
def test_forged_plan_is_refused(core: Core, read: Callable[..., Network], change: Change) -> None:
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }").with_affinity({"op:Neg": "TEMPLATE"})
    stream = io.BytesIO()
    core.load_network(network, "HETERO:CPU,TEMPLATE").export_network(stream)
    header, payload = read_blob(stream.getvalue())
    index = json.loads(bytes(payload.sections["index"]))
    change(index["plan"])
    forged = io.BytesIO()
    write_blob(header, Payload({**payload.sections, "index": json.dumps(index).encode()}, payload.version), forged)
    with pytest.raises(BlobError, match="index that cannot be read"):
        core.import_network(forged.getvalue(), "HETERO")


def export_without_units_key(core: Core, network: Network) -> bytes:
    """Returns a blob in the format from before the key HETERO_KEEP_UNITS."""
    stream = io.BytesIO()
    core.load_network(network, "HETERO:CPU,TEMPLATE").export_network(stream)
    header, payload = read_blob(stream.getvalue())
    config = {name: value for name, value in header.config.items() if name != "HETERO_KEEP_UNITS"}
    older = io.BytesIO()
    write_blob(replace(header, config=config), Payload(payload.sections, payload.version), older)
    return older.getvalue()


def test_blob_without_the_units_key_is_imported_with_its_default(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }").with_affinity({"op:Neg": "TEMPLATE"})
    blob = export_without_units_key(core, network)
    imported = core.import_network(blob, "HETERO")
    assert imported.get_config("HETERO_KEEP_UNITS") is True
    np.testing.assert_array_equal(imported.infer({"x": np.array([-1, 2, -3, 4], np.float32)})["y"], [-0.0, -2, -0.0, -4])


def test_blob_without_the_key_of_units_has_its_default(core: Core, read: Callable[..., Network]) -> None:
    blob = export_without_units_key(core, read("g (float[4] x) => (float[4] y) { y = Relu(x) }"))
    with pytest.raises(BlobMismatchError, match="HETERO_KEEP_UNITS is False in the call and True in the blob"):
        core.import_network(blob, "HETERO", {"HETERO_KEEP_UNITS": "NO"})


class AbsentDevice(PlainDevice):
    """Cannot be created."""

    @hookimpl
    def create_device(self) -> None:
        raise OSError("no driver")


def test_import_with_an_unavailable_device_names_the_device(core: Core, read: Callable[..., Network]) -> None:
    """The keys that the blob has of this device are not the subject of the error."""
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }").with_affinity({"op:Neg": "TEMPLATE"})
    stream = io.BytesIO()
    core.load_network(network, "HETERO:CPU,TEMPLATE").export_network(stream)
    core.unregister_plugin("TEMPLATE")
    core.register_plugin("TEMPLATE", AbsentDevice())
    with pytest.raises(DeviceUnavailableError, match="TEMPLATE.*no driver"):
        core.import_network(stream.getvalue(), "HETERO")


class NotedExecutable(PlainExecutable):
    """Tells its device when it is closed."""

    def __init__(self, network: Network, closed: list[str]) -> None:
        super().__init__(network)
        self._closed = closed

    def close(self) -> None:
        self._closed += [node.op_type for node in self.network.nodes]


class BrokenImport(PlainDevice):
    """Fails to import the parts with a given operator; `closed` has the operators of the parts that were closed, in order."""

    def __init__(self, op_type: str) -> None:
        self._op_type = op_type
        self.closed: list[str] = []

    def make_executable(self, network: Network) -> Executable:
        return NotedExecutable(network, self.closed)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        network = unpack_network(payload.sections)
        if any(node.op_type == self._op_type for node in network.nodes):
            raise ArithmeticError("this part is not taken")
        return self.make_executable(network)


def test_import_that_fails_closes_the_parts_before_it(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Abs(b) }").with_affinity({"op:Neg": "CPU"})
    stream = io.BytesIO()
    with Core() as exporter:
        exporter.register_plugin("NOTED", BrokenImport("none"))
        exporter.load_network(network, "HETERO:NOTED,CPU").export_network(stream)
    device = BrokenImport("Abs")
    core.register_plugin("NOTED", device)
    with pytest.raises(BlobError, match="ArithmeticError: this part is not taken"):
        core.import_network(stream.getvalue(), "HETERO")
    assert device.closed == ["Relu"]


def test_part_of_another_network_than_the_index_says_is_closed(core: Core, read: Callable[..., Network]) -> None:
    device = BrokenImport("none")
    core.register_plugin("NOTED", device)
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }").with_affinity({"op:Neg": "CPU"})
    stream = io.BytesIO()
    core.load_network(network, "HETERO:NOTED,CPU").export_network(stream)
    header, payload = read_blob(stream.getvalue())
    index = json.loads(bytes(payload.sections["index"]))
    index["stages"][0]["fingerprint"] = "0" * 64
    forged = io.BytesIO()
    write_blob(header, Payload({**payload.sections, "index": json.dumps(index).encode()}, payload.version), forged)
    with pytest.raises(BlobMismatchError, match="its index says 000000000000"):
        core.import_network(forged.getvalue(), "HETERO")
    assert device.closed == ["Relu"]
