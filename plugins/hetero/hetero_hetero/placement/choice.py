"""The choice of a placement: none, by memory, a cached measurement, or a new measurement. Its outcome is pins, as a user gives them.

A measurement is an entry of the private store, named by the digest of all that shaped it: the network, its pins, the devices in their
order with versions, machine and configuration, threads and processors. The inputs and the budget do not count, so a load without
inputs uses the measurement of `hetero tune` with inputs.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero_core.blobs.store import STORE, name_entry
from hetero_core.contract import ConfigKey, freeze_mapping
from hetero_core.devices.processors import WEIGHTS_ONCE_KEY, count_processors
from hetero_core.devices.provenance import find_core_version
from hetero_core.devices.threads import AUTO, STREAMS_KEY
from hetero_core.dtypes import FLOAT_DTYPES, bits_of_dtype, numpy_dtype
from hetero_core.errors import ConfigValueError
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec, read_record
from hetero_core.plan import Placement
from hetero_core.reports.fields import record_to_json
from hetero_hetero.affinity import SplitTask

logger = logging.getLogger(__name__)

PLACEMENT_KEY = "HETERO_PLACEMENT"
BUDGET_KEY = "HETERO_PLACEMENT_BUDGET"
INPUTS_KEY = "HETERO_PLACEMENT_INPUTS"
OBJECTIVE_KEY = "HETERO_PLACEMENT_OBJECTIVE"
MEMORY_KEY = "HETERO_MEMORY"
SIZES_KEY = "HETERO_MEMORY_SIZES"
DISTRIBUTION_KEY = "MODEL_DISTRIBUTION_POLICY"
PIPELINE = "PIPELINE_PARALLEL"
PLACEMENTS = ("PRIORITY", "MEASURED", "MEASURED_ANEW")
"""Values of HETERO_PLACEMENT; the first is the default."""
OBJECTIVES = ("LATENCY", "THROUGHPUT")

PLACING_KEYS: Mapping[str, ConfigKey] = {
    PLACEMENT_KEY: ConfigKey(
        str,
        PLACEMENTS[0],
        "Which device runs a node that several take: the first in the list, or the one with which the whole was measured fastest; "
        "MEASURED uses an earlier measurement where one is kept.",
        choices=PLACEMENTS,
    ),
    BUDGET_KEY: ConfigKey(float, 30.0, "The seconds that MEASURED may measure, where no earlier measurement is kept.", least=0),
    OBJECTIVE_KEY: ConfigKey(
        str,
        OBJECTIVES[0],
        "Whether MEASURED seeks the least time of one run, or the least time for each of several requests that overlap.",
        choices=OBJECTIVES,
        added_later=True,
    ),
    INPUTS_KEY: ConfigKey(str, "", "An .npz file with the inputs for the runs of MEASURED; empty: they are drawn."),
    MEMORY_KEY: ConfigKey(
        dict,
        None,
        'What devices may hold, {"GPU.0": "8GB"}, or AUTO for what they have free; the network is cut into a pipeline of parts '
        "that fit.",
        words=(AUTO,),
    ),
    SIZES_KEY: ConfigKey(
        dict, None, f'The largest sizes of open inputs, {{"past": 2048}}, for the estimate of {MEMORY_KEY}.', added_later=True
    ),
    DISTRIBUTION_KEY: ConfigKey(
        str, "", f"{PIPELINE} balances the bytes of the network over all devices of the list.", choices=("", PIPELINE)
    ),
}
"""Keys of placement, which the splits that are measured and the branches of an If do not get."""


def place_nodes(task: SplitTask, config: Mapping[str, Any]) -> SplitTask:
    """Returns the task with its nodes pinned by the policy of placement that the configuration names, and the reasons; the network's own
    pins go before them.

    Raises: ConfigValueError if it asks for both; DeviceMemoryError if the network does not fit.
    """
    by_memory, policy = config[MEMORY_KEY] is not None or config[DISTRIBUTION_KEY] == PIPELINE, config[PLACEMENT_KEY]
    if not task.network.nodes or (policy == PLACEMENTS[0] and not by_memory):
        return task
    if policy == PLACEMENTS[0]:
        from hetero_hetero.placement.memory import place_by_memory

        pins, memory = place_by_memory(task, config)
        task = replace(task, memory=memory, configs={device: _hold_once(task, device) for device in task.configs})
    elif by_memory:
        raise ConfigValueError(
            f"{PLACEMENT_KEY}={policy} places by time, {MEMORY_KEY} and {DISTRIBUTION_KEY} place by memory; leave one out"
        )
    else:
        placement = _measure(task, config, is_anew=policy == PLACEMENTS[2])
        pins = {name: segment.device for segment in placement.segments if segment.device for name in segment.nodes}
        task = replace(task, placement=placement)
    return replace(task, network=replace(task.network, affinity=freeze_mapping({**pins, **task.network.affinity})))


def _hold_once(task: SplitTask, device: str) -> Mapping[str, Any]:
    """Returns the configuration of a device that holds each weight once, as the estimate has it, if it can and is not told otherwise."""
    is_open = WEIGHTS_ONCE_KEY in task.core.config_keys(device) and task.core.get_config(device, WEIGHTS_ONCE_KEY) is None
    return {WEIGHTS_ONCE_KEY: True, **task.configs[device]} if is_open else task.configs[device]


def _measure(task: SplitTask, config: Mapping[str, Any], *, is_anew: bool) -> Placement:
    """Returns the placement of an entry of the store, or a new one; stores it if candidates were timed in turns."""
    from hetero_hetero.placement.measured import place_by_measurement

    # As many requests at once as the loaded network is to serve; 0 if the time of a single request counts.
    streams = config[STREAMS_KEY] if config[OBJECTIVE_KEY] == OBJECTIVES[1] else 0
    key = _identify_task(task, streams=streams)
    placement = None if is_anew else _read_placement(key, task)
    if placement is not None:
        logger.info("the placement of network '%s' was measured before", task.network.name)
        return placement
    placement = place_by_measurement(task, _find_inputs(task.network, config[INPUTS_KEY]), config[BUDGET_KEY], streams=streams)
    if placement.chosen is not None and placement.candidates[placement.chosen].rounds:
        STORE.write(key, json.dumps(record_to_json(placement)).encode())
    return placement


_FORMAT = 3
"""The version of entries and of the way to choose a placement; an entry of another version is measured again."""


def _identify_task(task: SplitTask, *, streams: int) -> str:
    """Returns the name of a task's entry: equal for loads with the same measurements. `streams` is 0 if requests do not overlap."""
    core = task.core
    identity = {
        "format": _FORMAT,
        "core": find_core_version(),
        "network": task.network.fingerprint,
        "pins": dict(task.network.affinity),
        "own": task.own_config,
        "streams": streams,
        "processors": count_processors(),
        "devices": [
            {
                "name": device,
                "versions": core.get_versions(device),
                "machine": [core.get_metric(device, "DEVICE_ARCHITECTURE"), core.get_metric(device, "FULL_DEVICE_NAME")],
                "config": dict(core.resolve_config(device, config)),
            }
            for device, config in task.configs.items()
        ],
        "rules": [task.policy, task.smallest, task.keeps_units],
    }
    return name_entry("placement", json.dumps(identity, sort_keys=True, default=str))


def _read_placement(name: str, task: SplitTask) -> Placement | None:
    """Returns the placement of an entry; None if the entry is missing, or, with a warning, if it is of no use."""
    content = STORE.read(name)
    if content is None:
        return None
    try:
        placement: Placement = replace(read_record(Placement, json.loads(content)), is_kept=True)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("a kept placement cannot be read and is measured again: %s", error)
        return None
    names = {name for segment in placement.segments for name in segment.nodes}
    return placement if names == task.network.index_of_node.keys() else None


def _find_inputs(network: Network, path: str) -> dict[str, np.ndarray[Any, Any]]:
    """Returns an array for each input: that of the .npz file at `path`, else drawn; floats are normal, other numbers 0 or 1,
    texts single letters.

    Raises: ConfigValueError for a file that cannot be read, and for an input that is not in it and cannot be drawn.
    """
    arrays = {}
    try:
        if path:
            with np.load(Path(path), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigValueError(f"configuration key {INPUTS_KEY}: cannot read arrays from '{path}': {error}") from error
    return {
        spec.name: _fit(arrays[spec.name], spec) if spec.name in arrays else _draw(spec, index)
        for index, spec in enumerate(network.inputs)
    }


def _fit(array: np.ndarray[Any, Any], spec: ValueSpec) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "U":
        return array.astype(object)
    # Element types that NumPy does not know come back as plain bytes.
    return array.view(numpy_dtype(spec.dtype)) if array.dtype.kind == "V" and spec.dtype is not None else array


def _draw(spec: ValueSpec, index: int) -> np.ndarray[Any, Any]:
    shape = tuple(size for size in spec.shape or () if isinstance(size, int))
    is_drawable = spec.dtype == "string" or (spec.dtype is not None and bits_of_dtype(spec.dtype) is not None)
    if not is_drawable or spec.shape is None or len(shape) != len(spec.shape):
        raise ConfigValueError(
            f"HETERO_PLACEMENT=MEASURED runs the network, and input {spec} cannot be drawn: give arrays in an .npz file with "
            f"{INPUTS_KEY}, or fixed sizes"
        )
    generator = np.random.default_rng((0, index))
    assert spec.dtype is not None
    if spec.dtype == "string":
        return np.array(generator.choice(["a", "b", "c"], shape), object)
    if spec.dtype in FLOAT_DTYPES:
        return generator.standard_normal(shape, np.float32).astype(numpy_dtype(spec.dtype))
    return generator.integers(0, 256 if spec.dtype == "uint8" else 2, shape).astype(numpy_dtype(spec.dtype))
