from __future__ import annotations

import pytest

from hetero_core.contract import DeviceName
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.errors import DeviceNameError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU", DeviceName("CPU")),
        (" cpu ", DeviceName("CPU")),
        ("gpu.1", DeviceName("GPU", "1")),
        ("HETERO:GPU.1, CPU", DeviceName("HETERO", "", "GPU.1,CPU")),
        ("HETERO:(HETERO:A,B),C", DeviceName("HETERO", "", "(HETERO:A,B),C")),
        ("BATCH.0:GPU.2", DeviceName("BATCH", "0", "GPU.2")),
    ],
)
def test_device_string_is_split_at_first_dot_and_colon(text: str, expected: DeviceName) -> None:
    assert parse_device_name(text) == expected


@pytest.mark.parametrize("text", ["", "  ", ".1", "GPU.", "HETERO:", ":CPU", "HETERO: "])
def test_incomplete_device_string_is_refused(text: str) -> None:
    with pytest.raises(DeviceNameError, match="is incomplete: expected NAME"):
        parse_device_name(text)


def test_device_that_is_no_text_is_refused() -> None:
    with pytest.raises(DeviceNameError, match="a device is a text like 'CPU'.*got 3"):
        parse_device_name(3)  # type: ignore[arg-type]  # the wrong type is the point


def test_str_of_a_device_parses_to_itself() -> None:
    for text in ("CPU", "GPU.1", "HETERO:GPU.1,CPU"):
        assert str(parse_device_name(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("A,B", ("A", "B")), ("(HETERO:A,B),C", ("HETERO:A,B", "C")), ("A", ("A",)), ("HETERO:(X,Y)", ("HETERO:(X,Y)",))],
)
def test_list_is_split_outside_parentheses(text: str, expected: tuple[str, ...]) -> None:
    assert split_device_list(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"), [("A,,B", "empty entry"), ("(A,B", "parentheses"), ("A),B", "parentheses"), ("A,", "empty entry")]
)
def test_malformed_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(DeviceNameError, match=problem):
        split_device_list(text)
