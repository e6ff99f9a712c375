"""Configuration of devices: declared keys, aliases, conversion of texts, and the merge of defaults, `set_config` and call.

LOG_LEVEL sets the loggers of the core and of a device's package; handlers are the program's own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from hetero_core.contract import ConfigKey, freeze_mapping
from hetero_core.devices.threads import (
    AUTO,
    EXCLUSIVE_KEY,
    HINT_KEY,
    OLD_KEY,
    PRIORITY_KEY,
    REQUESTS_KEY,
    STREAMS_KEY,
    THREADS_KEY,
    THROUGHPUT,
    multiply_streams,
)
from hetero_core.errors import ConfigKeyError, ConfigValueError, PluginError, enumerate_choices, suggest

LOG_KEY = "LOG_LEVEL"
LEVELS = {
    "LOG_NONE": logging.CRITICAL + 10,
    "LOG_ERROR": logging.ERROR,
    "LOG_WARNING": logging.WARNING,
    "LOG_INFO": logging.INFO,
    "LOG_DEBUG": logging.DEBUG,
    "LOG_TRACE": logging.DEBUG,
}
"""OpenVINO's names -> levels of Python, which has no level below DEBUG."""


def set_log_level(name: str | None, *packages: str) -> None:
    """Sets the level of the loggers of these packages, for the process; None restores the program's own level."""
    for package in packages:
        logging.getLogger(package).setLevel(logging.NOTSET if name is None else LEVELS[name])


DEADLINE_KEY, MEMORY_LIMIT_KEY = "DEADLINE", "MEMORY_LIMIT"
LIMIT_KEYS = (DEADLINE_KEY, MEMORY_LIMIT_KEY)
STRICT_KEY = "STRICT_DECLARATIONS"
ISOLATE_KEY = "ISOLATE"

_of_runs = partial(ConfigKey, runtime=True)

STANDARD_KEYS: Mapping[str, ConfigKey] = freeze_mapping(
    {
        "PERF_COUNT": _of_runs(bool, False, "Record the time of every node in each run."),
        "DEVICE_ID": _of_runs(str, "", "The physical device; the same as NAME.id in the device string."),
        "CACHE_DIR": _of_runs(str, "", "The folder that keeps compiled networks between loads; empty: none."),
        "CACHE_SIZE_LIMIT": _of_runs(int, 0, "The bytes that CACHE_DIR may hold; 0: no limit.", least=0),
        DEADLINE_KEY: _of_runs(float, None, "The seconds that a query, a load, and each run may take.", least=0.001),
        MEMORY_LIMIT_KEY: _of_runs(int, None, "The bytes that constants, and the values of one run, may take.", least=1),
        STRICT_KEY: _of_runs(bool, False, "Declared shapes that contradict what is computed are errors, not warnings."),
        ISOLATE_KEY: _of_runs(bool, False, "The device runs in a process of its own, as behind PROCESS: in its name."),
        THREADS_KEY: _of_runs(
            int, None, "The processors that the runs of a network may use at once, in all; not set: all there are.", least=1
        ),
        STREAMS_KEY: _of_runs(
            int,
            None,
            "How many streams of threads the asynchronous runs of a network have; not set: as PERFORMANCE_HINT has it. Some devices share "
            "a stream among several runs.",
            least=1,
            words=(AUTO,),
        ),
        HINT_KEY: _of_runs(
            str,
            "LATENCY",
            "LATENCY, and UNDEFINED: one stream with all threads; THROUGHPUT: as many streams as there are threads for.",
            choices=("LATENCY", THROUGHPUT, "UNDEFINED"),
        ),
        REQUESTS_KEY: _of_runs(
            int,
            0,
            "How many requests there are at the same time, so that THROUGHPUT makes no more streams than these; 0: not known.",
            least=0,
        ),
        EXCLUSIVE_KEY: _of_runs(bool, False, "Asynchronous runs of all networks of the device that have this key take turns."),
        PRIORITY_KEY: _of_runs(
            str,
            "MEDIUM",
            "Whose asynchronous runs go first where networks take turns; DEFAULT is MEDIUM.",
            choices=("LOW", "MEDIUM", "HIGH"),
        ),
        LOG_KEY: _of_runs(
            str,
            None,
            "The level of hetero's loggers in this process, from when it is first heard of; not set: the program's own.",
            choices=tuple(LEVELS),
        ),
    }
)
"""The keys that the core itself handles for every device; the keys of the cache only for devices that export and import."""

COMMON_KEYS = freeze_mapping((name, key) for name, key in STANDARD_KEYS.items() if name != "DEVICE_ID")
"""The keys that can be set for all devices at once."""
CACHE_KEYS = ("CACHE_DIR", "CACHE_SIZE_LIMIT")

# Names of the Inference Engine 1.x API for today's keys.
ALIASES: Mapping[str, str] = freeze_mapping(
    {
        "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
        "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
        "GPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
        # For reading and removing a value; `multiply_streams` converts a value that is set.
        OLD_KEY: THREADS_KEY,
    }
)

# Old spellings of values: key -> spelling -> value.
VALUE_ALIASES: Mapping[str, Mapping[str, str]] = freeze_mapping(
    {
        STREAMS_KEY: freeze_mapping({"CPU_THROUGHPUT_AUTO": AUTO, "GPU_THROUGHPUT_AUTO": AUTO}),
        PRIORITY_KEY: freeze_mapping({"DEFAULT": "MEDIUM"}),
    }
)

_BOOLS = {**dict.fromkeys(("yes", "true", "on", "1"), True), **dict.fromkeys(("no", "false", "off", "0"), False)}
_WANTED = {
    bool: "a bool (True, False, YES, NO, ON, OFF)",
    int: "an int",
    float: "a number",
    str: "a text",
    tuple: "texts, or one text with commas",
    dict: "a mapping of what JSON can hold, or a JSON object as text",
}
"""The types of keys, in words."""


def declare_keys(declared: Mapping[str, ConfigKey], *, blame: str) -> Mapping[str, ConfigKey]:
    """Returns the device's keys merged over the core's standard keys.

    Raises: PluginError naming the plugin for a declaration that contradicts itself.
    """
    for name, key in declared.items():
        fault = ""
        if name != name.strip().upper():
            fault = f"; keys are upper case, as '{name.strip().upper()}'"
        elif not isinstance(key, ConfigKey) or key.type not in _WANTED:
            fault = f" as {key!r}; expected a ConfigKey of one of the types {', '.join(kind.__name__ for kind in _WANTED)}"
        elif isinstance(key.default, str) and key.type is not str and key.default not in key.words:
            fault = f" with the default {key.default!r} of str; its type is {key.type.__name__}"
        if fault:
            raise PluginError(f"{blame} declares the configuration key '{name}'{fault}")
        if key.default is not None:
            convert_value(name, key, key.default, device=blame)
    return freeze_mapping({**STANDARD_KEYS, **declared})


def resolve_key(name: str, keys: Mapping[str, ConfigKey], *, device: str, where: str = "") -> str:
    """Returns the declared name of a key. `name` may be the declared name in any case, an alias, or the old name.

    `where` replaces the device in messages: "network 'net' on CPU".

    Raises: ConfigKeyError with the near misses and all the keys.
    """
    folded = name.strip().upper() if isinstance(name, str) else str(name)
    if folded not in keys:
        is_own_streams = folded == f"{device.partition(':')[0].partition('.')[0]}_THROUGHPUT_STREAMS"
        renamed = STREAMS_KEY if is_own_streams else ALIASES.get(folded, folded)
        folded = next((known for known, key in keys.items() if folded in key.aliases), renamed)
    if folded in keys and isinstance(name, str):
        return folded
    owner = where or f"device {device}"
    raise ConfigKeyError(
        f"{owner} has no configuration key '{name}'{suggest(folded, keys) or ';'} its keys are {enumerate_choices(keys)}"
    )


def convert_value(name: str, key: ConfigKey, value: Any, *, device: str, where: str = "") -> Any:
    """Returns the value in the type of its key; a text is converted, anything else must already be of the type.

    Raises: ConfigValueError with the expected type and the value.
    """
    if isinstance(value, str):
        word = value.strip().upper()
        old = VALUE_ALIASES.get(name, {}).get(word)
        if old is not None and old in (*key.words, *key.choices):
            return old
        if word in key.words:
            return word
    elif name == "DEVICE_ID" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    converted = _convert(key.type, value)
    # Written so that NaN is below every number.
    is_large_enough = key.least is None or (converted is not None and converted >= key.least)
    if converted is not None and is_large_enough and (not key.choices or converted in key.choices):
        return converted
    near = suggest(value.strip(), [each for each in key.choices if isinstance(each, str)]) if isinstance(value, str) else ""
    least = "" if key.least is None else f" of {key.least} or more"
    choices = f"one of {enumerate_choices(map(str, key.choices))}" if key.choices else ""
    wanted = choices or " or ".join((f"{_WANTED[key.type]}{least}", *key.words))
    raise ConfigValueError(f"configuration key {name} of {where or f'device {device}'}: expected {wanted}, got {value!r}{near}")


def _convert(key_type: type, value: Any) -> Any:
    """Returns a value in the type of its key, or None."""
    if isinstance(value, str) and key_type is not str:
        text = value.strip()
        if key_type is bool:
            return _BOOLS.get(text.lower())
        if key_type is tuple:
            return tuple(piece.strip() for piece in text.split(",") if piece.strip())
        try:
            # Python's own conversions and JSON's errors are both ValueErrors.
            value = json.loads(text) if key_type is dict else key_type(text)
        except ValueError:
            return None
    if key_type is tuple:
        is_texts = isinstance(value, list | tuple) and all(isinstance(piece, str) for piece in value)
        return tuple(value) if is_texts else None
    if key_type is dict:
        return _copy_json(value) if isinstance(value, Mapping) else None
    is_of_type = isinstance(value, int | float if key_type is float else key_type) and isinstance(value, bool) == (key_type is bool)
    return key_type(value) if is_of_type else None


def _copy_json(value: Any) -> Any:
    """Returns a copy as JSON gives it back, so that a value is the same before and after a blob; None if JSON cannot hold it."""
    try:
        text = json.dumps(value, default=_list_items, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return json.loads(text)


def _list_items(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON cannot hold {type(value).__name__}")


def require_mapping(config: Any, owner: str) -> None:
    """Raises ConfigValueError for a configuration that is no mapping, such as a text."""
    if not isinstance(config, Mapping):
        raise ConfigValueError(
            f"configuration of {owner}: expected a mapping of keys to values, as {{'NUM_STREAMS': 2}}, got {config!r}"
        )


def convert_config(config: Mapping[str, Any], keys: Mapping[str, ConfigKey], *, device: str, where: str = "") -> dict[str, Any]:
    """Returns the given values under their declared names and in their types.

    Raises: ConfigKeyError, ConfigValueError; also for two values of two spellings of a key.
    """
    converted: dict[str, Any] = {}
    owner = where or f"device {device}"
    require_mapping(config, owner)
    for name, value in multiply_streams(config, device=device, where=where).items():
        known = resolve_key(name, keys, device=device, where=where)
        new = convert_value(known, keys[known], value, device=device, where=where)
        if known in converted and converted[known] != new:
            raise ConfigValueError(f"configuration key {known} of {owner} is given twice: {converted[known]!r} and {new!r}")
        converted[known] = new
    return converted


def convert_changes(
    config: Mapping[str, Any], keys: Mapping[str, ConfigKey], *, device: str, where: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Returns the values to set, as `convert_config`, and the declared names of the keys to reset: those with a value of None.

    Raises: ConfigKeyError; ConfigValueError also for any other type than a mapping.
    """
    require_mapping(config, where or f"device {device}")
    names = [resolve_key(name, keys, device=device, where=where) for name, value in config.items() if value is None]
    values = {name: value for name, value in config.items() if value is not None}
    return convert_config(values, keys, device=device, where=where), names


def merge_config(keys: Mapping[str, ConfigKey], *layers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the complete configuration: the defaults of all keys, overridden by the layers in order; read-only, sorted by name."""
    merged = {name: key.default for name, key in keys.items()}
    for layer in layers:
        merged.update(layer)
    return freeze_mapping((name, merged[name]) for name in sorted(merged))
