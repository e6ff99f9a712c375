from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from hetero_core.contract import DeviceName
from hetero_core.core import Core
from hetero_core.devices.names import (
    ListedDevice,
    normalise_arguments,
    parse_device_list,
    parse_device_name,
    split_device_list,
)
from hetero_core.errors import DeviceNameError, DeviceNotFoundError
from hetero_core.hookspecs import hookimpl
from hetero_core.testing.plain_device import PlainDevice


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


def test_device_name_of_another_type_is_refused() -> None:
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU(2)", [ListedDevice(DeviceName("CPU"), 2)]),
        ("cpu.1 ( 2 ), ort", [ListedDevice(DeviceName("CPU", "1"), 2), ListedDevice(DeviceName("ORT"))]),
        ("-CPU", [ListedDevice(DeviceName("CPU"), is_excluded=True)]),
        ("-gpu.1,CPU", [ListedDevice(DeviceName("GPU", "1"), is_excluded=True), ListedDevice(DeviceName("CPU"))]),
        ("(MULTI:ORT,CPU(2))(3)", [ListedDevice(DeviceName("MULTI", "", "ORT,CPU(2)"), 3)]),
        ("BATCH:CPU(8),ORT", [ListedDevice(DeviceName("BATCH", "", "CPU(8)")), ListedDevice(DeviceName("ORT"))]),
        ("(BATCH:CPU(8))(2)", [ListedDevice(DeviceName("BATCH", "", "CPU(8)"), 2)]),
        ('ray."Node, (1)"(2)', [ListedDevice(DeviceName("RAY", "Node, (1)"), 2)]),
    ],
)
def test_entry_of_a_list_has_its_count_and_exclusion(text: str, expected: list[ListedDevice]) -> None:
    assert list(parse_device_list(text)) == expected


def test_devices_of_a_list_are_without_counts_and_exclusions() -> None:
    assert split_device_list("CPU(2),-ORT,(HETERO:A,B)(3)") == ("CPU", "HETERO:A,B")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("CPU(0)", "the count of 'CPU\\(0\\)' is 0; expected 1 or more"),
        ("-", "empty entry"),
        ("(2)", "empty entry"),
        ('GPU."a', "a quote does not end"),
        ('GPU.a"b"', "an id stands in quotes as a whole"),
    ],
)
def test_malformed_entry_is_refused(text: str, problem: str) -> None:
    with pytest.raises(DeviceNameError, match=problem):
        parse_device_list(text)


def test_count_outside_a_list_is_refused() -> None:
    with pytest.raises(DeviceNameError, match=r"'CPU\(2\)' has a count and stands in no list; .*'MULTI:CPU\(2\)'"):
        parse_device_name("CPU(2)")


def _draw_device(draw: random.Random, depth: int) -> DeviceName:
    device_id = draw.choice(["", "", "0", "1.2", "uuid-1f", "No de", "a,b", "(x)", "p:q"])
    if depth == 0 or draw.random() < 0.3:
        return DeviceName(draw.choice(["CPU", "ORT", "GPU"]), device_id)
    entries = [
        ListedDevice(_draw_device(draw, depth - 1), draw.choice([None, None, 1, 16]), draw.random() < 0.2)
        for _ in range(draw.randint(1, 3))
    ]
    return DeviceName(draw.choice(["HETERO", "MULTI", "AUTO", "BATCH"]), device_id, ",".join(map(str, entries)))


def test_every_nesting_comes_back_from_its_text() -> None:
    def check(device: DeviceName) -> None:
        assert parse_device_name(str(device)) == device
        entries = parse_device_list(device.arguments) if device.arguments else ()
        assert ",".join(map(str, entries)) == device.arguments
        for entry in entries:
            check(entry.device)

    for seed in range(300):
        check(_draw_device(random.Random(seed), 4))


@pytest.mark.parametrize("text", ['hetero:( multi:ort, cpu ),ray."My Node"', "AUTO:-cpu", "batch : cpu ( 8 )"])
def test_second_parse_changes_nothing(text: str) -> None:
    device = parse_device_name(text)
    assert parse_device_name(str(device)) == device


def test_text_in_quotes_stays_as_it_is() -> None:
    assert normalise_arguments('ray."My Node" , cpu') == 'RAY."My Node",CPU'


class _DeviceWithIds(PlainDevice):
    """PLAIN with two ids that differ only in case."""

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("venv", "0a", "0A")}


@pytest.mark.parametrize(
    ("text", "expected"), [("X.venv", "venv"), ("x.VENV", "venv"), ('X."venv"', "venv"), ('X."0a"', "0a"), ("X.0a", "0A")]
)
def test_id_is_found_in_any_case_unless_it_is_quoted(text: str, expected: str) -> None:
    with Core() as core:
        core.register_plugin("X", _DeviceWithIds())
        assert core.get_config(text, "DEVICE_ID") == expected


def test_quoted_id_of_another_case_is_refused() -> None:
    with Core() as core:
        core.register_plugin("X", _DeviceWithIds())
        with pytest.raises(DeviceNotFoundError, match="device X has no id 'Venv'; its ids are 0A, 0a, venv"):
            core.get_config('X."Venv"', "DEVICE_ID")


@pytest.mark.parametrize(
    "text", ["HETERO:" * 8 + "CPU", "HETERO:" + ",".join(["(BATCH:CPU(4))", 'GPU."a:b:c"'] * 20), "MULTI:" + "BATCH:A," * 20 + "C"]
)
def test_long_list_is_not_deep(text: str) -> None:
    assert parse_device_name(text).name == text.partition(":")[0]
