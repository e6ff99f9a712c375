"""Configuration for all devices at once, values reset to their defaults, DEVICE_ID, old spellings of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetero_core import Core, Network
from hetero_core.errors import ConfigKeyError, ConfigValueError, DeviceNotFoundError

TEXT = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def test_value_of_a_device_overrides_the_value_for_all_devices(read: Callable[..., Network]) -> None:
    with Core() as core:
        core.set_config({"PERF_COUNT": True, "DEADLINE": 30})
        core.set_config({"PERF_COUNT": False}, "CPU")
        assert [core.get_config(name, "PERF_COUNT") for name in ("TEMPLATE", "CPU")] == [True, False]
        assert core.load_network(read(TEXT), "TEMPLATE").config["DEADLINE"] == 30
        core.set_config({"PERF_COUNT": None}, "CPU")
        assert core.get_config("CPU", "PERF_COUNT") is True
        core.set_config({"PERF_COUNT": None, "DEADLINE": None})
        assert (core.get_config("CPU", "PERF_COUNT"), core.get_config("CPU", "DEADLINE")) == (False, None)


def test_setting_for_all_devices_creates_no_device() -> None:
    with Core() as core:
        core.set_config({"PERF_COUNT": True})
        assert not core._registry._devices


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"PERF_COUNT": True, "TEMPLATE_REFUSED_OPERATORS": "Relu"}, ConfigKeyError, "TEMPLATE_REFUSED_OPERATORS"),
        ({"DEVICE_ID": "1"}, ConfigKeyError, "DEVICE_ID"),
        ({"PERF_COUNTS": True}, ConfigKeyError, "did you mean 'PERF_COUNT'?"),
        ({"PERF_COUNT": True, "DEADLINE": "soon"}, ConfigValueError, "DEADLINE"),
    ],
)
def test_bad_setting_for_all_devices_is_an_error_without_effect(
    config: dict[str, object], error: type[Exception], message: str
) -> None:
    with Core() as core:
        with pytest.raises(error, match=message.replace("?", r"\?")):
            core.set_config(config)
        assert core.get_config("CPU", "PERF_COUNT") is False


def test_value_is_reset_in_the_scope_of_its_setting() -> None:
    with Core() as core:
        core.set_config({"TEMPLATE_REFUSED_OPERATORS": "Relu"}, "TEMPLATE")
        core.set_config({"TEMPLATE_REFUSED_OPERATORS": "Exp"}, "TEMPLATE.1")
        core.set_config({"template_refused_operators": None}, "TEMPLATE.1")
        assert core.get_config("TEMPLATE.1", "TEMPLATE_REFUSED_OPERATORS") == ("Relu",)
        with pytest.raises(ConfigKeyError, match="did you mean 'TEMPLATE_REFUSED_OPERATORS'"):
            core.set_config({"TEMPLATE_REFUSED_OPERATOR": None}, "TEMPLATE")


@pytest.mark.parametrize("device_id", ["1", 1])
def test_metric_is_of_the_device_that_is_set(device_id: object) -> None:
    with Core() as core:
        expected = core.get_metric("TEMPLATE.1", "FULL_DEVICE_NAME")
        assert expected != core.get_metric("TEMPLATE", "FULL_DEVICE_NAME")
        core.set_config({"DEVICE_ID": device_id}, "TEMPLATE")
        assert core.get_metric("TEMPLATE", "FULL_DEVICE_NAME") == expected
        core.set_config({"DEVICE_ID": None}, "TEMPLATE")
        assert core.get_metric("TEMPLATE", "FULL_DEVICE_NAME") != expected


def test_unknown_device_id_is_an_error(read: Callable[..., Network]) -> None:
    with Core() as core:
        assert str(core.load_network(read(TEXT), "TEMPLATE", {"DEVICE_ID": 1}).device) == "TEMPLATE.1"
        with pytest.raises(DeviceNotFoundError, match="has no id '7'; its ids are 0, 1"):
            core.query_network(read(TEXT), "TEMPLATE", {"DEVICE_ID": 7})


def test_old_names_and_values_are_taken_by_core_and_network(read: Callable[..., Network]) -> None:
    with Core() as core:
        loaded = core.load_network(read(TEXT), "CPU", {"CPU_THROUGHPUT_STREAMS": "CPU_THROUGHPUT_AUTO", "CPU_THREADS_NUM": 1})
        automatic = core.load_network(read(TEXT), "CPU", {"NUM_STREAMS": "AUTO", "INFERENCE_NUM_THREADS": 1})
        assert loaded.get_config("CPU_THROUGHPUT_STREAMS") == automatic.get_config("NUM_STREAMS")
        assert loaded.get_config("cpu_threads_num") == 1
        with pytest.raises(ConfigKeyError, match="has no configuration key 'CPU_THREADS'"):
            loaded.get_config("CPU_THREADS")


def test_old_name_of_threads_per_stream_is_set_read_and_reset(read: Callable[..., Network]) -> None:
    with Core() as core:
        loaded = core.load_network(read(TEXT), "CPU", {"CPU_THREADS_PER_STREAM": "1", "CPU_THROUGHPUT_STREAMS": 2})
        names = ("cpu_threads_per_stream", "INFERENCE_NUM_THREADS", "NUM_STREAMS")
        assert [loaded.get_config(name) for name in names] == [1, 2, 2]
        before = core.get_config("CPU", "INFERENCE_NUM_THREADS")
        core.set_config({"CPU_THREADS_PER_STREAM": 1}, "CPU")
        assert [core.get_config("CPU", name) for name in names] == [1, 1, 1]
        core.set_config({"CPU_THREADS_PER_STREAM": None}, "CPU")
        assert core.get_config("CPU", "INFERENCE_NUM_THREADS") == core.get_config("CPU", "CPU_THREADS_PER_STREAM") == before


def test_configuration_must_be_a_mapping(read: Callable[..., Network]) -> None:
    with Core() as core:
        loaded = core.load_network(read(TEXT), "CPU")
        calls: tuple[Callable[[Any], object], ...] = (
            core.set_config,
            lambda config: core.set_config(config, "CPU"),
            lambda config: core.load_network(read(TEXT), "CPU", config),
            lambda config: core.query_network(read(TEXT), "CPU", config),
            loaded.set_config,
        )
        for call in calls:
            with pytest.raises(
                ConfigValueError, match="expected a mapping of keys to values, as {'NUM_STREAMS': 2}, got 'PERF_COUNT=YES'"
            ):
                call("PERF_COUNT=YES")
        wrong: Any = ["PERF_COUNT"]
        for ask in (
            lambda: core.get_config("CPU", wrong),
            lambda: loaded.get_config(wrong),
            lambda: core.set_config({5: 6}, "CPU"),
        ):  # type: ignore[dict-item]  # the mistake
            with pytest.raises(ConfigKeyError, match="has no configuration key"):
                ask()


def test_undefined_hint_means_a_single_stream(read: Callable[..., Network]) -> None:
    with Core() as core:
        loaded = core.load_network(read(TEXT), "CPU", {"PERFORMANCE_HINT": "UNDEFINED"})
        assert (loaded.get_config("PERFORMANCE_HINT"), loaded.get_config("NUM_STREAMS")) == ("UNDEFINED", 1)


def test_cache_folder_of_all_devices_is_for_exporting_devices(read: Callable[..., Network], tmp_path: Path) -> None:
    with Core() as core:
        core.set_config({"CACHE_DIR": str(tmp_path)})
        core.load_network(read(TEXT), "CPU")
        assert core.load_network(read(TEXT), "CPU").get_metric("LOADED_FROM_CACHE")
