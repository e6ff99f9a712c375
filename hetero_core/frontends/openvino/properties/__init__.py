"""OpenVINO's names of properties: texts that may be called with a value to make a pair; and the values of properties, which are texts.

Each group is a module, as `openvino.properties.hint`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from types import ModuleType
from typing import Any


class Property(str):
    """The name of a property; called with a value it gives the pair (name, value)."""

    __slots__ = ()

    def __call__(self, *values: Any) -> Any:
        """Returns the name, or the pair of name and value; several values are a list."""
        return (str(self), values[0] if len(values) == 1 else list(values)) if values else str(self)


# Group -> names of properties in lower case, as they are in OpenVINO, or name=KEY if the key is not the name in capitals.
_PROPERTIES = {
    "": "auto_batch_timeout available_devices cache_dir cache_mode compilation_num_threads enable_mmap enable_profiling=PERF_COUNT "
    "enable_weightless execution_devices force_tbb_terminate inference_num_threads key_cache_group_size key_cache_precision "
    "loaded_from_cache max_batch_size model_name=NETWORK_NAME num_streams optimal_batch_size optimal_number_of_infer_requests "
    "range_for_async_infer_requests range_for_streams supported_properties value_cache_group_size value_cache_precision workload_type",
    "device": "architecture=DEVICE_ARCHITECTURE capabilities=OPTIMIZATION_CAPABILITIES full_name=FULL_DEVICE_NAME id=DEVICE_ID "
    "priorities=MULTI_DEVICE_PRIORITIES properties=DEVICE_PROPERTIES type=DEVICE_TYPE uuid=DEVICE_UUID",
    "hint": "activations_scale_factor allow_auto_batching dynamic_quantization_group_size enable_cpu_pinning enable_cpu_reservation "
    "enable_hyper_threading execution_mode=EXECUTION_MODE_HINT inference_precision=INFERENCE_PRECISION_HINT kv_cache_precision "
    "model_distribution_policy model_priority num_requests=PERFORMANCE_HINT_NUM_REQUESTS performance_mode=PERFORMANCE_HINT "
    "scheduling_core_type",
    "intel_auto": "device_bind_buffer enable_runtime_fallback enable_startup_fallback schedule_policy",
    "intel_cpu": "denormals_optimization=CPU_DENORMALS_OPTIMIZATION tbb_partitioner "
    "sparse_weights_decompression_rate=CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE",
    "log": "level=LOG_LEVEL",
    "streams": "num=NUM_STREAMS",
}
# Group -> class of values -> its members, or member=VALUE if the value is not the member.
_VALUES = {
    "": {"CacheMode": "OPTIMIZE_SIZE OPTIMIZE_SPEED", "WorkloadType": "DEFAULT EFFICIENT"},
    "device": {"Type": "INTEGRATED DISCRETE", "Capability": "FP32 BF16 FP16 INT8 INT16 BIN WINOGRAD EXPORT_IMPORT"},
    "hint": {
        "ExecutionMode": "PERFORMANCE ACCURACY",
        "ModelDistributionPolicy": "TENSOR_PARALLEL PIPELINE_PARALLEL",
        "PerformanceMode": "LATENCY THROUGHPUT CUMULATIVE_THROUGHPUT",
        "Priority": "LOW MEDIUM HIGH DEFAULT",
        "SchedulingCoreType": "ANY_CORE PCORE_ONLY ECORE_ONLY",
    },
    "intel_auto": {"SchedulePolicy": "ROUND_ROBIN DEVICE_PRIORITY DEFAULT=DEVICE_PRIORITY"},
    "log": {"Level": "NO=LOG_NONE ERR=LOG_ERROR WARNING=LOG_WARNING INFO=LOG_INFO DEBUG=LOG_DEBUG TRACE=LOG_TRACE"},
    "streams": {"Num": "AUTO"},
}


def _read_pairs(text: str) -> list[tuple[str, str]]:
    return [(name, key or name) for name, _, key in (word.partition("=") for word in text.split())]


for _group, _names in _PROPERTIES.items():
    _module = sys.modules[__name__]
    if _group:
        _module = sys.modules[f"{__name__}.{_group}"] = ModuleType(f"{__name__}.{_group}", f"Names of the group {_group}.")
        globals()[_group] = _module
    for _name, _key in _read_pairs(_names):
        setattr(_module, _name, Property(_key.upper()))
    for _name, _members in _VALUES.get(_group, {}).items():
        setattr(_module, _name, StrEnum(_name, _read_pairs(_members), module=_module.__name__))
