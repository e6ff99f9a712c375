"""The Core: registration, metrics, configuration, extensions, lifetime."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hetero_cpu.device import CpuDevice
from hetero_template.device import TemplateDevice

from hetero_core import ConfigKey, Core, Executable, Extension, Network, Payload, QueryResult, hookimpl
from hetero_core.contract import DeviceName
from hetero_core.errors import (
    ClosedError,
    ConfigValueError,
    DeviceNameError,
    DeviceNotFoundError,
    ExtensionError,
    NotImplementedByDeviceError,
    PluginError,
)

ADD = "g (float[2] x) => (float[2] y) { y = Add(x, x) }"


class Doubler(Executable):
    def __init__(self, network: Network) -> None:
        self.inputs, self.outputs = network.inputs, network.outputs

    def run(self, inputs: tuple[Any, ...], context: Any) -> tuple[Any, ...]:
        return (inputs[0] * 2,)


class Device:
    """A device that accepts every node and doubles its first input."""

    config: Mapping[str, Any] = {}

    @hookimpl
    def query_network(self, device: Any, network: Network) -> QueryResult:
        return QueryResult({node.name: str(device) for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network, config: Mapping[str, Any]) -> Executable:
        self.config = config
        return Doubler(network)


def test_object_with_hooks_is_the_device_itself(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("mine", Device())
    result = core.load_network(read(ADD), "MINE").infer({"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(result["y"], np.array([2, 4], np.float32))


def test_module_with_create_device_is_a_factory_for_each_name(core: Core, read: Callable[..., Network]) -> None:
    created = []

    @hookimpl
    def create_device(core: Core, name: str) -> object:
        created.append((core, name))
        return Device()

    module = types.ModuleType("factory")
    module.create_device = create_device  # type: ignore[attr-defined]  # a module is open
    core.register_plugin("D0", module)
    core.register_plugin("D1", module)
    assert created == []
    for name in ("D1", "D0", "D1"):
        core.query_network(read(ADD), name)
    assert created == [(core, "D1"), (core, "D0")]


def test_unknown_device_lists_near_misses_and_installed_devices(core: Core) -> None:
    with pytest.raises(DeviceNotFoundError) as caught:
        core.get_metric("CPUS", "FULL_DEVICE_NAME")
    assert "no plugin announces device 'CPUS', did you mean 'CPU'?" in str(caught.value)
    assert {"CPU", "HETERO", "TEMPLATE"} <= set(core.device_names)
    assert f"installed are {', '.join(core.device_names)}" in str(caught.value)


def test_near_device_that_is_not_installed_is_offered(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(core._registry._announced, "GPU", raising=False)
    with pytest.raises(DeviceNotFoundError) as caught:
        core.get_metric("GUP", "FULL_DEVICE_NAME")
    assert "no plugin announces device 'GUP', did you mean 'GPU' ('pip install hetero-cupy')? installed are" in str(caught.value)


def test_unknown_id_lists_the_ids(core: Core) -> None:
    core.register_plugin("BARE", Device())
    with pytest.raises(DeviceNotFoundError, match="device TEMPLATE has no id '7'; its ids are 0, 1"):
        core.get_metric("TEMPLATE.7", "FULL_DEVICE_NAME")
    with pytest.raises(DeviceNotFoundError, match="device BARE has no id '0'; it has no ids"):
        core.get_metric("BARE.0", "FULL_DEVICE_NAME")


class Keyed(Device):
    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"LEVEL": ConfigKey(int, 1, "a level"), "SPEED": ConfigKey(str, "SLOW", "a speed", choices=("SLOW", "FAST"))}

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1")}


def test_call_wins_over_set_config_wins_over_default(core: Core, read: Callable[..., Network]) -> None:
    device = Keyed()
    core.register_plugin("KEYED", device)
    network = read(ADD)
    core.set_config({"LEVEL": "2", "SPEED": "FAST"}, "KEYED")
    core.load_network(network, "KEYED", {"LEVEL": 3})
    assert (device.config["LEVEL"], device.config["SPEED"], device.config["PERF_COUNT"]) == (3, "FAST", False)
    core.load_network(network, "KEYED")
    assert device.config["LEVEL"] == 2
    assert core.get_config("KEYED", "LEVEL") == 2


def test_value_set_for_an_id_does_not_reach_its_siblings(core: Core) -> None:
    core.register_plugin("KEYED", Keyed())
    core.set_config({"LEVEL": 5}, "KEYED.1")
    assert [core.get_config(device, "LEVEL") for device in ("KEYED", "KEYED.0", "KEYED.1")] == [1, 1, 5]
    core.set_config({"LEVEL": 4}, "KEYED")
    assert [core.get_config(device, "LEVEL") for device in ("KEYED", "KEYED.0", "KEYED.1")] == [4, 4, 5]


def test_device_id_and_id_in_the_name_must_agree(core: Core, read: Callable[..., Network]) -> None:
    device = Keyed()
    core.register_plugin("KEYED", device)
    loaded = core.load_network(read(ADD), "KEYED", {"DEVICE_ID": "1"})
    assert str(loaded.device) == "KEYED.1"
    assert device.config["DEVICE_ID"] == "1"
    with pytest.raises(ConfigValueError, match=r"device KEYED.0 and DEVICE_ID=1 name two different devices"):
        core.load_network(read(ADD), "KEYED.0", {"DEVICE_ID": "1"})
    with pytest.raises(DeviceNotFoundError, match="has no id '8'"):
        core.load_network(read(ADD), "KEYED", {"DEVICE_ID": "8"})


def test_missing_optional_hooks_are_named_in_the_error(core: Core, read: Callable[..., Network], tmp_path: Any) -> None:
    core.register_plugin("BARE", Device())
    loaded = core.load_network(read(ADD), "BARE")
    with pytest.raises(NotImplementedByDeviceError, match="device BARE does not implement export_network"):
        loaded.export_network(tmp_path / "x.blob")
    extension = Extension("com.acme", "Twist", 1, lambda x: x, lambda types, attributes: types)
    with pytest.raises(NotImplementedByDeviceError, match="device BARE does not implement add_extension"):
        core.add_extension(extension, "BARE")
    with pytest.raises(ExtensionError, match="expected an Extension"):
        core.add_extension("Twist", "CPU")  # type: ignore[arg-type]  # the wrong type is the point


class Exporting(Device):
    @hookimpl
    def export_network(self, executable: Any) -> Payload:
        return Payload({"bytes": b"0"}, 1)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        raise AssertionError


def test_missing_import_is_named_in_the_error(core: Core, read: Callable[..., Network], tmp_path: Any) -> None:
    core.register_plugin("BARE", Exporting())
    core.load_network(read(ADD), "BARE").export_network(tmp_path / "x.blob")
    core.unregister_plugin("BARE")
    core.register_plugin("BARE", Device())
    with pytest.raises(NotImplementedByDeviceError, match="device BARE does not implement import_network"):
        core.import_network(tmp_path / "x.blob", "BARE")


def test_duplicate_or_malformed_name_is_refused(core: Core) -> None:
    with pytest.raises(PluginError, match="device name 'CPU' is taken by plugin CPU"):
        core.register_plugin("cpu", Device())
    for name in ("A.B", "A:B", "A,B"):
        with pytest.raises(ValueError, match="expected a name without dot, colon and comma"):
            core.register_plugin(name, Device())


def test_unregistered_name_is_gone_and_its_networks_go_on(core: Core, read: Callable[..., Network]) -> None:
    class Closing(Device):
        is_closed = False

        @hookimpl
        def close_device(self) -> bool:
            self.is_closed = True
            return True

    device = Closing()
    core.register_plugin("MINE", device)
    loaded = core.load_network(read(ADD), "MINE")
    core.unregister_plugin("MINE")
    with pytest.raises(DeviceNotFoundError):
        core.load_network(read(ADD), "MINE")
    assert loaded.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]
    assert not device.is_closed
    core.close()
    assert device.is_closed
    with pytest.raises(DeviceNotFoundError):
        Core().unregister_plugin("MINE")


class ClosableDevice(Device):
    """A device that appends its name to `closed` when it is closed."""

    def __init__(self, closed: list[str]) -> None:
        self._closed = closed

    @hookimpl
    def close_device(self, device: DeviceName) -> bool:
        self._closed.append(device.name)
        return True


def test_device_object_is_registered_again_and_closed_once(core: Core, read: Callable[..., Network]) -> None:
    closed: list[str] = []
    device = ClosableDevice(closed)
    for _ in range(3):
        core.register_plugin("MINE", device)
        assert core.load_network(read(ADD), "MINE").infer({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]
        core.unregister_plugin("MINE")
    core.register_plugin("MINE", device)
    core.load_network(read(ADD), "MINE")
    assert closed == []
    core.close()
    assert closed == ["MINE"]


def test_closed_core_and_closed_network_refuse_work(read: Callable[..., Network]) -> None:
    core = Core()
    loaded = core.load_network(read(ADD), "CPU")
    loaded.close()
    with pytest.raises(ClosedError, match="is closed; load it again"):
        loaded.infer({"x": np.ones(2, np.float32)})
    core.close()
    core.close()
    with pytest.raises(ClosedError, match="this Core is closed"):
        core.load_network(read(ADD), "CPU")


def test_only_exporting_devices_have_the_export_capability(core: Core) -> None:
    class Boaster(Device):
        @hookimpl
        def metrics(self) -> dict[str, Any]:
            return {"OPTIMIZATION_CAPABILITIES": ("FP32", "EXPORT_IMPORT")}

    core.register_plugin("BOASTER", Boaster())
    for device, exports in (("TEMPLATE", True), ("CPU", True), ("HETERO", True), ("BOASTER", False)):
        assert core.get_metric(device, "IMPORT_EXPORT_SUPPORT") is exports
        assert ("EXPORT_IMPORT" in core.get_metric(device, "OPTIMIZATION_CAPABILITIES")) is exports


def test_imported_payload_reaches_the_device_as_it_was_written(core: Core, read: Callable[..., Network], tmp_path: Any) -> None:
    class Exporting(Device):
        payload: Payload | None = None

        @hookimpl
        def export_network(self) -> Payload:
            return Payload({"one": b"first", "two": b"second"}, version=7)

        @hookimpl
        def import_network(self, payload: Payload) -> Executable:
            self.payload = Payload({name: bytes(section) for name, section in payload.sections.items()}, payload.version)
            return Doubler(network)

    device, network = Exporting(), read(ADD)
    core.register_plugin("EXPORTING", device)
    core.load_network(network, "EXPORTING").export_network(tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "EXPORTING")
    assert device.payload == Payload({"one": b"first", "two": b"second"}, version=7)
    assert imported.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]
    assert imported.fingerprint == network.fingerprint


def test_arguments_of_a_device_that_takes_none_are_refused(core: Core, read: Callable[..., Network]) -> None:
    with pytest.raises(DeviceNameError, match="device CPU takes nothing behind a colon; got 'FOO'"):
        core.load_network(read(ADD), "CPU:foo")


def test_key_of_a_child_device_holds_for_its_list_only(core: Core, read: Callable[..., Network], tmp_path: Any) -> None:
    core.set_config({"TEMPLATE_REFUSED_OPERATORS": "Add"}, "HETERO:TEMPLATE,CPU")
    assert core.load_network(read(ADD), "HETERO:TEMPLATE,CPU").get_metric("EXECUTION_DEVICES") == ("CPU",)
    plain = core.load_network(read(ADD), "HETERO:CPU")
    assert "TEMPLATE_REFUSED_OPERATORS" not in plain.config
    core.set_config({"TARGET_FALLBACK": "TEMPLATE,CPU"}, "HETERO")
    assert core.load_network(read(ADD), "HETERO").get_metric("EXECUTION_DEVICES") == ("CPU",)
    plain.export_network(tmp_path / "x.blob")
    assert str(core.import_network(tmp_path / "x.blob", "HETERO").device) == "HETERO:CPU"


def test_closed_core_closes_its_networks_and_creates_no_device(read: Callable[..., Network]) -> None:
    closed = []

    class Closing(Doubler):
        def close(self) -> None:
            closed.append("network")

    class Watching(Device):
        @hookimpl
        def load_network(self, network: Network) -> Executable:
            return Closing(network)

        @hookimpl
        def close_device(self) -> bool:
            closed.append("device")
            return True

    core = Core()
    core.register_plugin("WATCHING", Watching())
    loaded = core.load_network(read(ADD), "WATCHING")
    core.close()
    assert closed == ["network", "device"]
    with pytest.raises(ClosedError, match="is closed; load it again"):
        loaded.infer({"x": np.ones(2, np.float32)})
    with pytest.raises(ClosedError, match="this Core is closed"):
        core.list_devices()


def test_missing_device_means_auto(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    loaded = core.load_network(network)
    assert str(loaded.device) == "AUTO"
    assert loaded([np.array([1, 2], np.float32)])["y"].tolist() == [-1, -2]
    assert set(core.query_network(network).supported.values()) == {"AUTO"}


def test_load_with_a_query_result_does_not_query_again(
    core: Core, read: Callable[..., Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = read(ADD)
    answers = {device: core.query_network(network, device) for device in ("CPU", "TEMPLATE", "PROCESS:TEMPLATE")}
    for device in (CpuDevice, TemplateDevice):
        monkeypatch.setattr(device, "query_network", lambda *_: pytest.fail("asked again"))
    for name, answer in answers.items():
        assert core.load_network(network, name, query=answer).infer({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]
