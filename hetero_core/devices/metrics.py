"""Metrics of devices: the core's standard ones, what a plugin adds, and the types that the standard ones have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, freeze_mapping
from hetero_core.devices.processors import count_processors
from hetero_core.errors import PluginError


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _is_range(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(item, int) for item in value)


def _is_stream_range(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int) for item in value)
    return is_pair and 1 <= value[0] <= value[1]


# Metric -> (what it must be, in words; the check).
_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "AVAILABLE_DEVICES": ("a tuple of ids, ('',) for one device without id", _is_texts),
    "FULL_DEVICE_NAME": ("a text", lambda value: isinstance(value, str)),
    "OPTIMIZATION_CAPABILITIES": ("a tuple of texts", _is_texts),
    "DEVICE_ARCHITECTURE": ("a text", lambda value: isinstance(value, str)),
    "CODE_FOLDER": ("a text", lambda value: isinstance(value, str)),
    "HOLDS_INTERPRETER_LOCK": ("a bool", lambda value: isinstance(value, bool)),
    "VALUE_DEVIATIONS": ("a tuple of texts", _is_texts),
    "RANGE_FOR_ASYNC_INFER_REQUESTS": ("a tuple (lowest, highest, step)", _is_range),
    "RANGE_FOR_STREAMS": ("a tuple (lowest, highest) with 1 <= lowest <= highest", _is_stream_range),
}
_DERIVED = ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "IMPORT_EXPORT_SUPPORT")


def collect_metrics(
    own: Mapping[str, Any], *, device: DeviceName, keys: Mapping[str, ConfigKey], can_export: bool, blame: str
) -> Mapping[str, Any]:
    """Returns all metrics by name: the standard ones, the plugin's over them, the derived ones over all.

    Raises: PluginError for a derived metric that the plugin gives itself; reading a standard one of a wrong type raises it, too.
    """
    given_derived = [name for name in _DERIVED if name in own]
    if given_derived:
        raise PluginError(f"{blame} returns the metric {given_derived[0]}, which the core derives; leave it out")
    metrics: dict[str, Any] = {
        "AVAILABLE_DEVICES": ("",),
        "FULL_DEVICE_NAME": device.name,
        "OPTIMIZATION_CAPABILITIES": ("FP32",),
        "DEVICE_ARCHITECTURE": device.name,
        "CODE_FOLDER": "",
        "HOLDS_INTERPRETER_LOCK": False,
        "VALUE_DEVIATIONS": (),
        "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda: (1, count_processors(), 1),
        **own,
    }
    # A device that says how many requests it works on has said how many streams it has.
    metrics.setdefault("RANGE_FOR_STREAMS", lambda: (1, max(metrics["RANGE_FOR_ASYNC_INFER_REQUESTS"]()[1], 1)))
    stated = metrics["OPTIMIZATION_CAPABILITIES"]
    metrics["OPTIMIZATION_CAPABILITIES"] = lambda: _add_export(stated() if callable(stated) else stated, can_export)
    for name, (wanted, is_right) in _TYPES.items():
        metrics[name] = _check_when_read(metrics[name], name, wanted, is_right, blame)
    metrics["IMPORT_EXPORT_SUPPORT"] = can_export
    metrics["SUPPORTED_CONFIG_KEYS"] = tuple(sorted(keys))
    metrics["SUPPORTED_METRICS"] = tuple(sorted((*metrics, "SUPPORTED_METRICS")))
    return freeze_mapping((name, metrics[name]) for name in sorted(metrics))


def _add_export(capabilities: Any, can_export: bool) -> Any:
    """Returns the capabilities with EXPORT_IMPORT where, and only where, the device exports and imports; what is no tuple as it is."""
    if not isinstance(capabilities, tuple):
        return capabilities
    others = tuple(capability for capability in capabilities if capability != "EXPORT_IMPORT")
    return (*others, "EXPORT_IMPORT") if can_export else others


def _check_when_read(value: Any, name: str, wanted: str, is_right: Callable[[Any], bool], blame: str) -> Callable[[], Any]:
    def read() -> Any:
        result = value() if callable(value) else value
        if not is_right(result):
            raise PluginError(f"{blame} returns {result!r} for the metric {name}; expected {wanted}")
        return result

    return read
