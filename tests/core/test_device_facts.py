"""Facts about devices: type, identifier, memory and largest batch, of single devices and of composed devices."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
from hetero_cupy.device import GpuDevice
from hetero_template.device import TemplateDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Network, hookimpl
from hetero_core.devices.processors import describe_host_memory, read_host_memory, read_spare_memory
from hetero_core.errors import DeviceNameError, MetricNotFoundError

NEGATE = '<ir_version: 8, opset_import: ["": 17]> negate (float[4] x) => (float[4] y) { [one] a = Neg (x) [two] y = Relu (a) }'


class Stating(TemplateDevice):
    """TEMPLATE with metrics set by the test."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__("STATING")
        self._facts = facts

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("0",), **self._facts}


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("CPU", "integrated"),
        ("TEMPLATE.1", "discrete"),
        ("HETERO:CPU", "integrated"),
        ("HETERO:TEMPLATE,CPU", "discrete integrated"),
        ("MULTI:(HETERO:CPU,TEMPLATE),CPU", "discrete integrated"),
        ("BATCH:TEMPLATE", "discrete"),
    ],
)
def test_device_type_tells_discrete_from_integrated_devices(core: Core, device: str, kind: str) -> None:
    assert core.get_metric(device, "DEVICE_TYPE") == kind


def test_identifier_is_of_one_physical_device(core: Core) -> None:
    devices = ["CPU", "TEMPLATE.0", "TEMPLATE.1", "HETERO:CPU", "HETERO:TEMPLATE", "HETERO:TEMPLATE,CPU"]
    identifiers = [core.get_metric(device, "DEVICE_UUID") for device in devices]
    assert len({*identifiers}) == len(devices)
    assert core.get_metric("TEMPLATE", "DEVICE_UUID") == identifiers[1]
    with Core() as second_core:
        assert [second_core.get_metric(device, "DEVICE_UUID") for device in devices] == identifiers


def test_card_states_its_own_identifier_and_memory(core: Core) -> None:
    core.register_plugin("CARD", GpuDevice("CARD", FakeRuntime(cards=2, memory_bytes=60000)))
    assert core.get_metric("CARD.1", "DEVICE_UUID") == "0" * 31 + "1"
    assert core.get_metric("CARD.1", "DEVICE_TOTAL_MEM_SIZE") == 60000
    loaded = core.load_network(onnx.parser.parse_model(NEGATE.replace("float[4]", "float[1000]")), "CARD.1")
    loaded.infer([[1.0] * 1000])
    assert core.get_metric("CARD.1", "DEVICE_FREE_MEM_SIZE") <= 60000
    assert core.get_metric("CARD.1", "DEVICE_TYPE") == "discrete"


def test_memory_is_limited_by_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:   600 kB\n")
    assert read_host_memory(tmp_path) == (1024000, 614400)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("300000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert read_host_memory(tmp_path) == (1024000, 614400)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("500000\n")
    assert read_host_memory(tmp_path) == (500000, 200000)
    (tmp_path / "sys/fs/cgroup/memory.stat").write_text("file 120000\ninactive_file 100000\n")
    assert read_host_memory(tmp_path) == (500000, 300000)


def test_spare_memory_counts_swap_space_of_the_whole_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert read_spare_memory(tmp_path) is None
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 160 kB\nSwapFree: 50 kB\n")
    assert read_spare_memory(tmp_path) == 200 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("81920\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("0\n")
    assert read_spare_memory(tmp_path) == 75 * 1024
    assert describe_host_memory(tmp_path / "proc") == {}


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the platform does not tell its memory there")
def test_devices_in_the_memory_of_the_host_state_it(core: Core) -> None:
    for device in ("CPU", "TEMPLATE"):
        assert 0 <= core.get_metric(device, "DEVICE_FREE_MEM_SIZE") <= core.get_metric(device, "DEVICE_TOTAL_MEM_SIZE")
    with pytest.raises(MetricNotFoundError):
        core.get_metric("HETERO:CPU", "DEVICE_TOTAL_MEM_SIZE")


def test_largest_batch_of_a_list_is_the_smallest_of_its_devices(core: Core) -> None:
    core.register_plugin("FEW", Stating({"MAX_BATCH_SIZE": 4}))
    core.register_plugin("MANY", Stating({"MAX_BATCH_SIZE": 64}))
    assert core.get_metric("CPU", "MAX_BATCH_SIZE") == 0
    assert core.get_metric("HETERO:CPU,MANY,FEW", "MAX_BATCH_SIZE") == 4
    model = onnx.parser.parse_model(NEGATE.replace("float[4]", "float[1,4]"))
    assert core.load_network(model, "BATCH:FEW").get_metric("OPTIMAL_BATCH_SIZE") == 4
    assert core.load_network(model, "BATCH:MANY").get_metric("OPTIMAL_BATCH_SIZE") == 8
    with pytest.raises(DeviceNameError, match=r"device BATCH:FEW\(5\) asks for batches of 5 images; FEW takes 4 at most"):
        core.load_network(model, "BATCH:FEW(5)")


@pytest.mark.parametrize("device", ["MULTI:(HETERO:TEMPLATE,CPU)", "AUTO:(HETERO:TEMPLATE,CPU)", "HETERO:(MULTI:TEMPLATE,CPU)"])
def test_execution_devices_are_devices_of_the_innermost_lists(core: Core, device: str, read: Callable[[str], Network]) -> None:
    loaded = core.load_network(
        onnx.parser.parse_model(NEGATE), device, {"TEMPLATE_REFUSED_OPERATORS": "Relu"} if "HETERO:T" in device else None
    )
    assert loaded.get_metric("EXECUTION_DEVICES") == ("TEMPLATE", "CPU")
    stream = io.BytesIO()
    loaded.export_network(stream)
    assert core.import_network(stream.getvalue(), device).get_metric("EXECUTION_DEVICES") == ("TEMPLATE", "CPU")
