"""OPTIMIZATION_CAPABILITIES of composed devices: the union over the listed devices, and the intersection for MULTI."""

from __future__ import annotations

import pytest

from hetero_core import Core

TYPES = {
    "CPU": {"FP32", "FP64", "FP16", "BF16", "INT8"},
    "TEMPLATE": {"FP32", "FP64", "FP16", "BF16", "INT8", "HARDWARE_CONVOLUTION"},
}
"""What the two plugins state."""


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("HETERO:TEMPLATE,CPU", TYPES["CPU"] | TYPES["TEMPLATE"]),
        ("AUTO:TEMPLATE,CPU", TYPES["CPU"] | TYPES["TEMPLATE"]),
        ("MULTI:TEMPLATE,CPU", TYPES["CPU"] & TYPES["TEMPLATE"]),
        ("BATCH:CPU(4)", TYPES["CPU"]),
        ("AUTO:(MULTI:TEMPLATE,CPU),TEMPLATE", TYPES["TEMPLATE"]),
    ],
)
def test_composed_device_has_the_capabilities_of_its_devices(core: Core, device: str, expected: set[str]) -> None:
    names = core.get_metric(device, "OPTIMIZATION_CAPABILITIES")
    assert set(names) == {*expected, "EXPORT_IMPORT"}
    assert len(names) == len(set(names))
