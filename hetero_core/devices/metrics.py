"""Metrics of devices: the core's standard ones, what a plugin adds, and the types that the standard ones have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, freeze_mapping
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY, count_processors
from hetero_core.errors import MetricNotFoundError, PluginError, word_missing

DEVICE_TYPES = ("integrated", "discrete")


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _is_reasons(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, str) for pair in value.items() for item in pair)


def _is_range(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(item, int) for item in value)


def _is_stream_range(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int) for item in value)
    return is_pair and 1 <= value[0] <= value[1]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and value != "" and set(value.split(" ")) <= set(DEVICE_TYPES)


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef")


# Metric -> (what it must be, in words; the check). Those of memory are read where a device states them.
_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "AVAILABLE_DEVICES": ("a tuple of ids, ('',) for one device without id", _is_texts),
    "UNAVAILABLE_DEVICES": ("a mapping of ids to texts", _is_reasons),
    "FULL_DEVICE_NAME": ("a text", lambda value: isinstance(value, str)),
    "OPTIMIZATION_CAPABILITIES": ("a tuple of texts", _is_texts),
    "DEVICE_ARCHITECTURE": ("a text", lambda value: isinstance(value, str)),
    "DEVICE_TYPE": ("'integrated' or 'discrete'; of a list all that occur, with blanks between", _is_type),
    "DEVICE_UUID": ("32 hexadecimal digits in lower case", _is_uuid),
    "MAX_BATCH_SIZE": ("a number of images, 0 for no limit", _is_count),
    TOTAL_MEMORY: ("a number of bytes", _is_count),
    FREE_MEMORY: ("a number of bytes", _is_count),
    "CODE_FOLDER": ("a text", lambda value: isinstance(value, str)),
    "HOLDS_INTERPRETER_LOCK": ("a bool", lambda value: isinstance(value, bool)),
    "IS_LOCAL": ("a bool", lambda value: isinstance(value, bool)),
    "VALUE_DEVIATIONS": ("a tuple of texts", _is_texts),
    "RANGE_FOR_ASYNC_INFER_REQUESTS": ("a tuple (lowest, highest, step)", _is_range),
    "RANGE_FOR_STREAMS": ("a tuple (lowest, highest) with 1 <= lowest <= highest", _is_stream_range),
}
_DERIVED = ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "IMPORT_EXPORT_SUPPORT")


def collect_metrics(
    own: Mapping[str, Any],
    *,
    device: DeviceName,
    keys: Mapping[str, ConfigKey],
    can_export: bool,
    has_memory: bool,
    blame: str,
) -> Mapping[str, Any]:
    """Returns all metrics by name: the standard ones, the plugin's over them, the derived ones over all.

    `has_memory` says whether the device has a memory of its own.

    Raises: PluginError for a derived metric that the plugin gives itself; reading a standard one of a wrong type raises it, too.
    """
    lower = next((name for name in own if name != name.upper()), None)
    if lower is not None:
        raise PluginError(f"{blame} returns the metric '{lower}'; metrics are upper case, as '{lower.upper()}'")
    given_derived = [name for name in _DERIVED if name in own]
    if given_derived:
        raise PluginError(f"{blame} returns the metric {given_derived[0]}, which the core derives; leave it out")
    metrics: dict[str, Any] = {
        "AVAILABLE_DEVICES": ("",),
        "UNAVAILABLE_DEVICES": freeze_mapping(()),
        "FULL_DEVICE_NAME": device.name,
        "OPTIMIZATION_CAPABILITIES": ("FP32",),
        "DEVICE_ARCHITECTURE": device.name,
        "DEVICE_TYPE": "discrete" if has_memory else "integrated",
        "DEVICE_UUID": lambda: _make_uuid(device, metrics),
        "MAX_BATCH_SIZE": 0,
        "CODE_FOLDER": "",
        "HOLDS_INTERPRETER_LOCK": False,
        "IS_LOCAL": True,
        "VALUE_DEVIATIONS": (),
        "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda: (1, count_processors(), 1),
        **own,
    }
    # A device that says how many requests it works on has said how many streams it has.
    metrics.setdefault("RANGE_FOR_STREAMS", lambda: (1, max(metrics["RANGE_FOR_ASYNC_INFER_REQUESTS"]()[1], 1)))
    stated = metrics["OPTIMIZATION_CAPABILITIES"]
    metrics["OPTIMIZATION_CAPABILITIES"] = lambda: _add_export(stated() if callable(stated) else stated, can_export)
    for name, (expected, is_right) in _TYPES.items():
        if name in metrics:
            metrics[name] = _check_when_read(metrics[name], name, expected, is_right, blame)
    metrics["IMPORT_EXPORT_SUPPORT"] = can_export
    metrics["SUPPORTED_CONFIG_KEYS"] = tuple(sorted(keys))
    metrics["SUPPORTED_METRICS"] = tuple(sorted((*metrics, "SUPPORTED_METRICS")))
    return freeze_mapping((name, metrics[name]) for name in sorted(metrics))


def find_metric(name: str, metrics: Mapping[str, Any], owner: str) -> tuple[Any, str]:
    """Returns a metric by its name in any case, and what a call of it is named. Raises: MetricNotFoundError."""
    folded = name.strip().upper()
    if folded not in metrics:
        raise MetricNotFoundError(word_missing(owner, "metric", name, metrics))
    return metrics[folded], f"the metric {folded}"


def _make_uuid(device: DeviceName, metrics: Mapping[str, Any]) -> str:
    """Returns the identifier of a device that has none by itself: of its name, id, list and architecture."""
    from uuid import NAMESPACE_DNS, uuid5  # only this metric needs it

    ids, architecture = metrics["AVAILABLE_DEVICES"](), metrics["DEVICE_ARCHITECTURE"]()
    number = device.id or (ids[0] if ids else "")
    return uuid5(NAMESPACE_DNS, f"{DeviceName(device.name, number, device.arguments)} {architecture}").hex


def _add_export(capabilities: Any, can_export: bool) -> Any:
    """Returns the capabilities with EXPORT_IMPORT where, and only where, the device exports and imports; what is no tuple as it is."""
    if not isinstance(capabilities, tuple):
        return capabilities
    others = tuple(capability for capability in capabilities if capability != "EXPORT_IMPORT")
    return (*others, "EXPORT_IMPORT") if can_export else others


def _check_when_read(value: Any, name: str, expected: str, is_right: Callable[[Any], bool], blame: str) -> Callable[[], Any]:
    def read() -> Any:
        result = value() if callable(value) else value
        if not is_right(result):
            raise PluginError(f"{blame} returns {result!r} for the metric {name}; expected {expected}")
        return result

    return read
