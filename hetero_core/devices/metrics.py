"""Metrics of devices: the core's standard metrics, the plugin's, and the derived metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, freeze_mapping
from hetero_core.devices.processors import count_processors
from hetero_core.errors import MetricNotFoundError, PluginError, word_missing

_DERIVED = ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "IMPORT_EXPORT_SUPPORT")


def collect_metrics(
    own: Mapping[str, Any], *, device: DeviceName, keys: Mapping[str, ConfigKey], can_export: bool, has_memory: bool, blame: str
) -> Mapping[str, Any]:
    """Returns all metrics by name: the standard metrics, overridden by the plugin's, and the derived metrics.

    `has_memory` says whether the device has a memory of its own.

    Raises: PluginError for a derived metric that the plugin gives itself.
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
    # The number of requests that a device works on is also its number of streams.
    metrics.setdefault("RANGE_FOR_STREAMS", lambda: (1, max(_read(metrics["RANGE_FOR_ASYNC_INFER_REQUESTS"])[1], 1)))
    stated = metrics["OPTIMIZATION_CAPABILITIES"]
    exports = ("EXPORT_IMPORT",) if can_export else ()
    metrics["OPTIMIZATION_CAPABILITIES"] = lambda: (*(word for word in _read(stated) if word != "EXPORT_IMPORT"), *exports)
    metrics["IMPORT_EXPORT_SUPPORT"] = can_export
    metrics["SUPPORTED_CONFIG_KEYS"] = tuple(sorted(keys))
    metrics["SUPPORTED_METRICS"] = tuple(sorted((*metrics, "SUPPORTED_METRICS")))
    return freeze_mapping((name, metrics[name]) for name in sorted(metrics))


def find_metric(name: str, metrics: Mapping[str, Any], owner: str) -> tuple[Any, str]:
    """Returns a metric by its name in any case, and its title for error messages. Raises: MetricNotFoundError."""
    folded = name.strip().upper()
    if folded not in metrics:
        raise MetricNotFoundError(word_missing(owner, "metric", name, metrics))
    return metrics[folded], f"the metric {folded}"


def _make_uuid(device: DeviceName, metrics: Mapping[str, Any]) -> str:
    """Returns an identifier of a device, made of its name, id, list and architecture."""
    from uuid import NAMESPACE_DNS, uuid5  # only this metric needs it

    ids, architecture = _read(metrics["AVAILABLE_DEVICES"]), _read(metrics["DEVICE_ARCHITECTURE"])
    number = device.id or (ids[0] if ids else "")
    return uuid5(NAMESPACE_DNS, f"{DeviceName(device.name, number, device.arguments)} {architecture}").hex


def _read(value: Any) -> Any:
    return value() if callable(value) else value
