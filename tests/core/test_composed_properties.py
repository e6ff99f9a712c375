"""Configuration of composed devices: keys for their device list, the effective values of each part, values restored by an import."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import ConfigKeyError, ConfigValueError

TEXT = "g (float[1, 2] x) => (float[1, 2] y) { a = Neg(x) y = Relu(a) }"
Read = Callable[..., Network]
PRIORITIES = "MULTI_DEVICE_PRIORITIES"


@pytest.mark.parametrize(
    ("device", "listed", "key"),
    [
        ("HETERO", "TEMPLATE,CPU", "TARGET_FALLBACK"),
        ("BATCH", "TEMPLATE", "AUTO_BATCH_DEVICE_CONFIG"),
        ("MULTI", "TEMPLATE,CPU", PRIORITIES),
        ("AUTO", "TEMPLATE,CPU", PRIORITIES),
    ],
)
def test_openvino_name_of_the_list_is_taken(core: Core, read: Read, device: str, listed: str, key: str) -> None:
    loaded = core.load_network(read(TEXT), device, {PRIORITIES.lower(): listed})
    assert str(loaded.device) == f"{device}:{listed}"
    assert loaded.get_config(key) == loaded.get_config(PRIORITIES) == listed
    core.set_config({PRIORITIES: listed}, device)
    assert core.get_config(device, PRIORITIES) == core.get_config(device, key) == listed
    core.set_config({PRIORITIES: None}, device)
    assert core.get_config(device, key) is None
    with pytest.raises(ConfigValueError, match=f"device {device}:ORT and {key}={listed} name two different lists"):
        core.resolve_config(f"{device}:ORT", {PRIORITIES: listed})


@pytest.mark.parametrize(
    ("device", "key"),
    [
        ("HETERO:TEMPLATE,CPU", "AUTO_BATCH_DEVICE_CONFIG"),
        ("BATCH:TEMPLATE", "TARGET_FALLBACK"),
        ("MULTI:TEMPLATE,CPU", "TARGET_FALLBACK"),
        ("AUTO:TEMPLATE,CPU", "TARGET_FALLBACK"),
        # A nested device has its own list in its name.
        ("MULTI:(HETERO:TEMPLATE,CPU),CPU", "TARGET_FALLBACK"),
        ("HETERO:(BATCH:TEMPLATE),CPU", "AUTO_BATCH_DEVICE_CONFIG"),
        ("TEMPLATE", PRIORITIES),
        ("PROCESS:TEMPLATE", PRIORITIES),
    ],
)
def test_list_key_of_another_device_is_unknown(core: Core, device: str, key: str) -> None:
    with pytest.raises(ConfigKeyError, match=f"has no configuration key '{key}'"):
        core.resolve_config(device, {key: "TEMPLATE"})


def test_list_given_by_two_names_must_be_one_list(core: Core) -> None:
    assert core.resolve_config("HETERO", {PRIORITIES: "CPU", "TARGET_FALLBACK": "CPU"})["TARGET_FALLBACK"] == "CPU"
    with pytest.raises(ConfigValueError, match="TARGET_FALLBACK of device HETERO:CPU is given twice: 'CPU' and 'TEMPLATE'"):
        core.resolve_config("HETERO", {PRIORITIES: "CPU", "TARGET_FALLBACK": "TEMPLATE"})


def test_every_device_takes_the_same_hints(core: Core, read: Read) -> None:
    for device in ("TEMPLATE", "CPU", "HETERO:TEMPLATE,CPU", "MULTI:TEMPLATE,CPU", "AUTO:TEMPLATE,CPU", "BATCH:TEMPLATE"):
        loaded = core.load_network(read(TEXT), device, {"PERFORMANCE_HINT": "UNDEFINED"})
        assert (loaded.get_config("PERFORMANCE_HINT"), loaded.get_config("NUM_STREAMS")) == ("UNDEFINED", 1)


@pytest.mark.parametrize("device", ["HETERO:TEMPLATE,CPU", "MULTI:TEMPLATE,CPU", "AUTO:TEMPLATE,CPU", "BATCH:TEMPLATE"])
@pytest.mark.parametrize("is_imported", [False, True])
def test_loaded_network_has_the_properties_of_its_devices(core: Core, read: Read, device: str, is_imported: bool) -> None:
    config = {"DEVICE_PROPERTIES": {"TEMPLATE": {"TEMPLATE_REFUSED_OPERATORS": "Relu" if "HETERO" in device else "Exp"}}}
    at_once = {"ENABLE_STARTUP_FALLBACK": False} if device.startswith("AUTO") else {}
    loaded = core.load_network(read(TEXT), device, {**config, **at_once, "PERF_COUNT": True})
    loaded = reimport(core, loaded) if is_imported else loaded
    properties = loaded.get_metric("DEVICE_PROPERTIES")
    devices = device.partition(":")[2].split(",")
    expected = devices[:1] if device.startswith("AUTO") else devices
    assert list(properties) == expected == [name.partition(":")[0] for name in loaded.get_metric("EXECUTION_DEVICES")]
    assert properties["TEMPLATE"]["TEMPLATE_REFUSED_OPERATORS"] == (("Relu",) if "HETERO" in device else ("Exp",))
    for name, values in properties.items():
        assert set(values) == set(core.config_keys(name))
        assert values["PERF_COUNT"] is True
        assert values["NUM_STREAMS"] >= 1


def test_properties_of_nested_devices_are_nested(core: Core, read: Read) -> None:
    loaded = core.load_network(read(TEXT), "MULTI:(HETERO:TEMPLATE,CPU),CPU", {"TEMPLATE_REFUSED_OPERATORS": "Relu"})
    properties = loaded.get_metric("DEVICE_PROPERTIES")
    assert list(properties) == ["HETERO:TEMPLATE,CPU", "CPU"]
    inner = properties["HETERO:TEMPLATE,CPU"]["DEVICE_PROPERTIES"]
    assert inner["TEMPLATE"]["TEMPLATE_REFUSED_OPERATORS"] == ("Relu",)
    assert list(inner) == ["TEMPLATE", "CPU"]


def test_plain_device_has_no_properties_of_devices(core: Core, read: Read) -> None:
    assert "DEVICE_PROPERTIES" not in core.load_network(read(TEXT), "CPU").get_metric("SUPPORTED_METRICS")


@pytest.mark.parametrize("device", ["HETERO:TEMPLATE,CPU", "MULTI:CPU,TEMPLATE", "AUTO:CPU,TEMPLATE", "BATCH:CPU"])
@pytest.mark.parametrize("way", ["call", "set"])
def test_import_passes_run_time_keys_to_the_devices(core: Core, read: Read, device: str, way: str) -> None:
    key = core.config_keys("CPU")["CPU_VERIFY"]
    assert key.runtime
    loaded = core.load_network(read(TEXT), device, {"TEMPLATE_REFUSED_OPERATORS": "Relu"} if "HETERO" in device else None)
    before = loaded.get_metric("DEVICE_PROPERTIES")["CPU"]["CPU_VERIFY"]
    value = next(choice for choice in key.choices if choice != before)
    if way == "set":
        core.set_config({"CPU_VERIFY": value}, "CPU")
    imported = reimport(core, loaded, {"CPU_VERIFY": value} if way == "call" else None)
    assert imported.get_metric("DEVICE_PROPERTIES")["CPU"]["CPU_VERIFY"] == value


def reimport(core: Core, loaded: ExecutableNetwork, config: dict[str, Any] | None = None) -> ExecutableNetwork:
    stream = io.BytesIO()
    loaded.export_network(stream)
    return core.import_network(stream.getvalue(), config=config)
