"""The configuration of each device of a list: flat keys for all devices that know them, DEVICE_PROPERTIES for a single device,
and its part of the threads and streams.

The metric DEVICE_PROPERTIES of a loaded network tells the configuration that each of its devices has in the end.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.contract import DeviceName
from hetero_core.core import Core
from hetero_core.devices.config import LIMIT_KEYS, LOG_KEY, STANDARD_KEYS, STRICT_KEY, convert_config
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.processors import TOTAL_MEMORY, read_host_memory
from hetero_core.devices.threads import STREAMS_KEY, THREAD_KEYS, THREADS_KEY
from hetero_core.errors import ConfigKeyError, ConfigValueError, DeviceUnavailableError, HeteroError, enumerate_choices, suggest

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

PROPERTIES_KEY = "DEVICE_PROPERTIES"
MEASURING_KEY = "PERF_COUNT"
_KEYS_OF_THE_WHOLE = {MEASURING_KEY, "DEVICE_ID", LOG_KEY, STRICT_KEY, *LIMIT_KEYS, *THREAD_KEYS} - {THREADS_KEY}


def configure_children(
    core: Core, device: DeviceName, children: Sequence[str], config: Mapping[str, Any], *, unavailable: Container[str] = ()
) -> dict[str, dict[str, Any]]:
    """Returns device -> configuration, in the order of `children`: the flat keys that it knows, its own properties over them.

    The `unavailable` children are left out, with their properties: their keys are unknown.

    Raises: ConfigValueError for properties of a device that is not in the list; ConfigKeyError, ConfigValueError for a key or value
    that the device does not take.
    """
    properties = _read_properties(core, device, children, config.get(PROPERTIES_KEY), unavailable)
    for child, values in properties.items():
        if values.get(THREADS_KEY, 0) > config[THREADS_KEY]:
            raise ConfigValueError(
                f"{PROPERTIES_KEY} of device {device} give {child} {THREADS_KEY}={values[THREADS_KEY]}; one run of the whole has "
                f"{config[THREADS_KEY]}, which is {THREADS_KEY} of {device} divided by its streams"
            )
    # Some devices compile differently if they measure.
    measured = {MEASURING_KEY: True} if config.get(MEASURING_KEY) else {}
    configs = {}
    for child in children:
        if child not in unavailable:
            keys = core.config_keys(child)
            # The flat values that it knows; an inner HETERO has properties of other devices.
            flat = {
                name: value
                for name, value in config.items()
                if value is not None
                and name in keys
                and (name not in STANDARD_KEYS or name in (STRICT_KEY, *LIMIT_KEYS))
                and name != PROPERTIES_KEY
                and not keys[name].is_arguments
            }
            configs[child] = {**measured, **flat, **properties.get(child, {})}
    return configs


def describe_parts(parts: Sequence[ExecutableNetwork]) -> dict[str, Any]:
    """Returns the metrics that a composed network has from its parts. Of several parts on one device the first tells its configuration,
    DEVICE_PROPERTIES, in which the entry of a composed part holds the properties of its own devices.
    """

    def describe(part: ExecutableNetwork) -> dict[str, Any]:
        is_composed = PROPERTIES_KEY in part.get_metric("SUPPORTED_METRICS")
        return {**part.config, **({PROPERTIES_KEY: part.get_metric(PROPERTIES_KEY)} if is_composed else {})}

    names = ("EXECUTION_DEVICES", "REFERENCE_NODES", "SLOW_NODES")
    joined = {name: tuple(dict.fromkeys(entry for part in parts for entry in part.get_metric(name))) for name in names}
    first_parts: dict[str, ExecutableNetwork] = {}
    for part in parts:
        first_parts.setdefault(str(part.device), part)
    return {**joined, PROPERTIES_KEY: lambda: {device: describe(part) for device, part in first_parts.items()}}


def _read_properties(
    core: Core, device: DeviceName, children: Sequence[str], nested: Mapping[str, Any] | None, unavailable: Container[str]
) -> dict[str, dict[str, Any]]:
    """Returns device -> properties in their types."""
    properties: dict[str, dict[str, Any]] = {}
    for name, values in (nested or {}).items():
        pieces = split_device_list(name)
        child = str(parse_device_name(pieces[0] if len(pieces) == 1 else name))
        if child not in children:
            hint = suggest(child, children) or ";"
            raise ConfigValueError(
                f"{PROPERTIES_KEY} of device {device} names '{name}', which is not in the list{hint} the list is "
                f"{enumerate_choices(children)}"
            )
        if child in unavailable:
            continue
        if child in properties:
            raise ConfigValueError(f"{PROPERTIES_KEY} of device {device} names {child} twice; write all of its keys in one entry")
        if not isinstance(values, Mapping):
            raise ConfigValueError(f"{PROPERTIES_KEY} of device {device}: expected keys and values for {child}, got {values!r}")
        keys = core.config_keys(child)
        try:
            properties[child] = convert_config(values, keys, device=child)
        except (ConfigKeyError, ConfigValueError) as error:
            error.add_note(f"in {PROPERTIES_KEY} of device {device}")
            raise
        for key in properties[child]:
            if key in _KEYS_OF_THE_WHOLE or keys[key].is_arguments:
                raise ConfigKeyError(
                    f"{PROPERTIES_KEY} of device {device} sets {key} for {child}; PERF_COUNT, streams and limits are for the whole "
                    f"network, an id or a list is a part of the device's name, as in 'HETERO:GPU.1,CPU'"
                )
    return properties


def find_unavailable(core: Core, children: Sequence[str]) -> dict[str, str]:
    """Returns device -> reason for installed devices that cannot work here, in order."""
    reasons: dict[str, str] = {}
    for child in children:
        try:
            core.config_keys(child)
        except DeviceUnavailableError as error:
            reasons[child] = describe_error(error)
    return reasons


def describe_error(error: Exception) -> str:
    """Returns an error as one line; a foreign error with its type, which often says more than its text."""
    text = " ".join(str(error).split())
    return text if isinstance(error, HeteroError) else f"{type(error).__name__}: {text}"


def computes_on_host(core: Core, child: str) -> bool:
    """Says whether a device computes on the processors of this machine: it is local and states the machine's memory as its own."""
    if not core.get_metric(child, "IS_LOCAL") or TOTAL_MEMORY not in core.get_metric(child, "SUPPORTED_METRICS"):
        return False
    return int(core.get_metric(child, TOTAL_MEMORY)) == (read_host_memory() or (0, 0))[0]


def share_processors(
    core: Core, child: str, config: Mapping[str, Any], own: Mapping[str, Any], *, sharers: int, requests: int | None
) -> dict[str, int]:
    """Returns the threads and streams of a child that runs beside `sharers` - 1 further children, as configuration for its load.

    `config` is the composer's configuration, as hooks see it, `own` the child's; `requests` is the number of its runs at once, None
    for the streams of the whole. The processors are divided evenly, unless `own` says otherwise, and each stream has at least a
    single processor.
    """
    processors = config[THREADS_KEY] * config[STREAMS_KEY]
    limit = core.get_config(child, THREADS_KEY)
    share = own[THREADS_KEY] if own.get(THREADS_KEY) else max(1, min(processors // sharers, limit))
    highest = int(core.get_metric(child, "RANGE_FOR_STREAMS")[1])
    streams = max(1, min(share, config[STREAMS_KEY], highest) if requests is None else min(requests, highest, processors))
    return {THREADS_KEY: max(share, streams), STREAMS_KEY: streams}
