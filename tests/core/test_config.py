from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from hetero_core.contract import ConfigKey
from hetero_core.devices.config import convert_config, convert_value, declare_keys, merge_config
from hetero_core.errors import ConfigKeyError, ConfigValueError, PluginError

KEYS = declare_keys(
    {
        "NUM_STREAMS": ConfigKey(int, 1, "streams"),
        "RATIO": ConfigKey(float, 0.5, "a share"),
        "POLICY": ConfigKey(str, "FAST", "how", choices=("FAST", "EXACT")),
        "OPERATORS": ConfigKey(tuple, (), "a list"),
        "LIMITS": ConfigKey(dict, None, "limits by name"),
    },
    blame="plugin X",
)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PERF_COUNT", "YES", True),
        ("PERF_COUNT", "off", False),
        ("PERF_COUNT", True, True),
        ("NUM_STREAMS", "4", 4),
        ("RATIO", "0.25", 0.25),
        ("RATIO", 1, 1.0),
        ("POLICY", "EXACT", "EXACT"),
        ("OPERATORS", "Conv, Relu", ("Conv", "Relu")),
        ("OPERATORS", ["Conv"], ("Conv",)),
        ("LIMITS", ' {"GPU": {"STREAMS": 2, "NAMES": ["a"]}} ', {"GPU": {"STREAMS": 2, "NAMES": ["a"]}}),
        ("LIMITS", {"GPU": MappingProxyType({"STREAMS": 2, "NAMES": ("a",)})}, {"GPU": {"STREAMS": 2, "NAMES": ["a"]}}),
        ("LIMITS", {}, {}),
    ],
)
def test_value_is_converted_to_the_declared_type(name: str, value: Any, expected: Any) -> None:
    converted = convert_config({name: value}, KEYS, device="X")[name]
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PERF_COUNT", "perhaps", "a bool"),
        ("PERF_COUNT", 1, "a bool"),
        ("NUM_STREAMS", "many", "an int"),
        ("NUM_STREAMS", True, "an int"),
        ("NUM_STREAMS", 1.5, "an int"),
        ("POLICY", "SLOW", "one of EXACT, FAST"),
        ("OPERATORS", [1], "texts"),
        ("RATIO", None, "a number"),
        ("LIMITS", "GPU", "a mapping of what JSON can hold, or a JSON object as text"),
        ("LIMITS", '["GPU"]', "a mapping"),
        ("LIMITS", '{"GPU": NaN}', "a mapping"),
        ("LIMITS", [("GPU", 1)], "a mapping"),
        ("LIMITS", {"GPU": {1, 2}}, "a mapping"),
        ("LIMITS", {("GPU", 1): 2}, "a mapping"),
    ],
)
def test_bad_value_names_key_device_expected_and_found(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        convert_config({name: value}, KEYS, device="X.1")
    assert f"configuration key {name} of device X.1: expected {expected}" in str(caught.value)
    assert str(caught.value).endswith(f"got {value!r}")


def test_unknown_key_lists_near_misses_and_all_keys() -> None:
    with pytest.raises(ConfigKeyError) as caught:
        convert_config({"NUM_STREAM": 1}, KEYS, device="X")
    assert "no configuration key 'NUM_STREAM', did you mean 'NUM_STREAMS'?" in str(caught.value)
    assert (
        "INFERENCE_NUM_THREADS, ISOLATE, LIMITS, LOG_LEVEL, MEMORY_LIMIT, MODEL_PRIORITY, NUM_STREAMS, OPERATORS, "
        "PERFORMANCE_HINT, PERFORMANCE_HINT_NUM_REQUESTS, PERF_COUNT, POLICY, RATIO" in str(caught.value)
    )


def test_old_name_of_a_key_is_accepted() -> None:
    assert convert_config({"cpu_throughput_streams": "2"}, KEYS, device="X") == {"NUM_STREAMS": 2}


def test_two_spellings_of_one_key_must_agree() -> None:
    assert convert_config({"NUM_STREAMS": 2, "CPU_THROUGHPUT_STREAMS": "2"}, KEYS, device="X") == {"NUM_STREAMS": 2}
    with pytest.raises(ConfigValueError, match="NUM_STREAMS of device X is given twice: 2 and 3"):
        convert_config({"NUM_STREAMS": 2, "CPU_THROUGHPUT_STREAMS": 3}, KEYS, device="X")


def test_later_layers_win_over_defaults() -> None:
    merged = merge_config(KEYS, {"NUM_STREAMS": 2, "RATIO": 0.1}, {"NUM_STREAMS": 3})
    assert (merged["NUM_STREAMS"], merged["RATIO"], merged["POLICY"]) == (3, 0.1, "FAST")
    with pytest.raises(TypeError):
        merged["RATIO"] = 1  # type: ignore[index]  # it is read-only


def test_impossible_declaration_blames_the_plugin() -> None:
    key = ConfigKey(list, [], "no such type")
    with pytest.raises(PluginError, match="plugin X declares"):
        declare_keys({"KEY": key}, blame="plugin X")


def test_default_that_breaks_its_own_key_is_an_error() -> None:
    with pytest.raises(PluginError, match="declares the configuration key 'KEY' with the default 'many' of str; its type is int"):
        declare_keys({"KEY": ConfigKey(int, "many", "")}, blame="plugin X")


def test_zero_and_empty_are_values() -> None:
    assert convert_value("NUM_STREAMS", KEYS["NUM_STREAMS"], 0, device="X") == 0
    assert convert_config({"OPERATORS": ""}, KEYS, device="X") == {"OPERATORS": ()}


def test_value_of_a_dict_is_a_copy() -> None:
    limits = {"GPU": {"STREAMS": 2}}
    converted = convert_config({"LIMITS": limits}, KEYS, device="X")
    limits["GPU"]["STREAMS"] = 3
    assert converted == {"LIMITS": {"GPU": {"STREAMS": 2}}}
