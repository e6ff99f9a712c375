"""Properties of OpenVINO to configuration of hetero, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import ConfigKeyError, MetricNotFoundError
from hetero_core.frontends.openvino.shapes import Type
from hetero_core.frontends.shared_core import limit_threads

logger = logging.getLogger(__name__)

_HINTS = """
ACTIVATIONS_SCALE_FACTOR ALLOW_AUTO_BATCHING CACHE_MODE COMPILATION_NUM_THREADS CPU_DENORMALS_OPTIMIZATION
CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE DEVICE_BIND_BUFFER DYNAMIC_QUANTIZATION_GROUP_SIZE ENABLE_CPU_PINNING
ENABLE_CPU_RESERVATION ENABLE_HYPER_THREADING ENABLE_MMAP ENABLE_WEIGHTLESS EXECUTION_MODE_HINT FORCE_TBB_TERMINATE
INFERENCE_PRECISION_HINT KEY_CACHE_GROUP_SIZE KEY_CACHE_PRECISION KV_CACHE_PRECISION MODEL_DISTRIBUTION_POLICY
SCHEDULING_CORE_TYPE TBB_PARTITIONER VALUE_CACHE_GROUP_SIZE VALUE_CACHE_PRECISION WORKLOAD_TYPE
"""
HINTS = frozenset(_HINTS.split())
"""Properties that change how fast a model runs or how much memory it takes. A device without such a key computes as it does, in the
types of the model."""
SUPPORTED_KEY = "SUPPORTED_PROPERTIES"
PRIORITIES_KEY = "MULTI_DEVICE_PRIORITIES"
_PRECISION = "INFERENCE_PRECISION_HINT"


def settle_properties(properties: Any, declared: Mapping[str, Any], *, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the configuration of hetero, and the hints that the device does not have, which a warning of the log names.

    `properties`: a mapping, or the pair of a property and its value. Unknown names stay in the configuration, which hetero refuses.
    A precision that the device does not have is a hint without effect, too.
    """
    pairs = [properties] if isinstance(properties, tuple) else (properties or {}).items()
    settings = {str(key).upper(): _read_value(value) for key, value in pairs}
    ineffective = {name: settings.pop(name) for name in sorted(HINTS & settings.keys()) if name not in declared}
    if ineffective:
        logger.warning("%s has no %s; it computes as it does without", where, ", ".join(ineffective))
    choices = getattr(declared.get(_PRECISION), "choices", ())
    if _PRECISION in settings and choices and settings[_PRECISION] not in choices:
        ineffective[_PRECISION] = settings.pop(_PRECISION)
        logger.warning("%s does not compute in %s; it computes as it does without", where, ineffective[_PRECISION])
    if str(settings.get("NUM_STREAMS")) == "-1":
        settings["NUM_STREAMS"] = "AUTO"
    threads = str(settings.get(THREADS_KEY))
    if threads == "0":  # OpenVINO's default
        del settings[THREADS_KEY]
    elif threads.isdecimal():
        settings[THREADS_KEY] = limit_threads(int(threads), where=where)
    return settings, ineffective


def _read_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _read_value(each) for key, each in value.items()}
    if isinstance(value, Type):
        return value.name
    return value.value if isinstance(value, Enum) else value


def read_property(
    name: str, get_metric: Callable[[str], Any], get_config: Callable[[str], Any], ineffective: Mapping[str, Any]
) -> Any:
    """Returns a metric or key, lists as lists, types as types; a hint without effect as it was set. Raises: ConfigKeyError."""
    name = str(name).upper()
    if name == SUPPORTED_KEY:
        return {**dict.fromkeys(get_metric("SUPPORTED_METRICS"), "RO"), **dict.fromkeys(get_metric("SUPPORTED_CONFIG_KEYS"), "RW")}
    try:
        value = ineffective[name] if name in ineffective else get_metric(name)
    except MetricNotFoundError:
        try:
            value = get_config(name)
        except ConfigKeyError as error:
            raise ConfigKeyError(f"there is no property '{name}': {error}") from None
    if name == _PRECISION and value in Type.__members__:
        return Type[value]
    return list(value) if isinstance(value, tuple) and not name.startswith("RANGE_") else value
