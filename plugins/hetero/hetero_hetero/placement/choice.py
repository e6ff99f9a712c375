"""The choice of a placement: none, a cached measurement, or a new measurement. Its outcome is pins, as a user gives them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_core.contract import freeze_mapping
from hetero_core.devices.processors import WEIGHTS_ONCE_KEY
from hetero_core.devices.threads import STREAMS_KEY
from hetero_core.errors import ConfigValueError
from hetero_core.plan import HeldMemory, Placement
from hetero_hetero.affinity import SplitTask

logger = logging.getLogger(__name__)

PLACEMENT_KEY = "HETERO_PLACEMENT"
BUDGET_KEY = "HETERO_PLACEMENT_BUDGET"
INPUTS_KEY = "HETERO_PLACEMENT_INPUTS"
OBJECTIVE_KEY = "HETERO_PLACEMENT_OBJECTIVE"
MEMORY_KEY = "HETERO_MEMORY"
DISTRIBUTION_KEY = "MODEL_DISTRIBUTION_POLICY"
PIPELINE = "PIPELINE_PARALLEL"
PLACING_KEYS = (PLACEMENT_KEY, BUDGET_KEY, INPUTS_KEY, OBJECTIVE_KEY, MEMORY_KEY, DISTRIBUTION_KEY)
"""Keys of placement, which the splits that are measured and the branches of an If do not get."""
PLACEMENTS = ("PRIORITY", "MEASURED", "MEASURED_ANEW")
OBJECTIVES = ("LATENCY", "THROUGHPUT")


@dataclass(frozen=True, slots=True)
class Decision:
    """The reason of a placement, for the plan: measurements or memory; neither where priority decides."""

    placement: Placement | None = None
    memory: tuple[HeldMemory, ...] = ()


NO_DECISION = Decision()


def place_nodes(task: SplitTask, config: Mapping[str, Any]) -> tuple[SplitTask, Decision]:
    """Returns the task with its nodes pinned where the configuration asks for a placement by memory or by measurement, and what decided.

    Raises: ConfigValueError if it asks for both; DeviceMemoryError if the network does not fit.
    """
    by_memory = config[MEMORY_KEY] is not None or config[DISTRIBUTION_KEY] == PIPELINE
    is_measured = config[PLACEMENT_KEY] != PLACEMENTS[0]
    if not task.network.nodes or not (by_memory or is_measured):
        return task, NO_DECISION
    if by_memory and is_measured:
        raise ConfigValueError(
            f"{PLACEMENT_KEY}={config[PLACEMENT_KEY]} places by time, {MEMORY_KEY} and {DISTRIBUTION_KEY} place by memory; leave one out"
        )
    if by_memory:
        from hetero_hetero.placement.memory import place_by_memory, read_limits

        limits = read_limits(config[MEMORY_KEY] or {}, tuple(task.configs))
        pins, memory = place_by_memory(task, limits, is_balanced=config[DISTRIBUTION_KEY] == PIPELINE)
        return _hold_once(_pin(task, pins | dict(task.network.affinity))), Decision(memory=memory)
    from hetero_hetero.placement.measured import pins_of_segments  # with all that measures, where something is measured

    placement = _find_placement(task, config)
    devices = [segment.device for segment in placement.segments]
    return _pin(task, pins_of_segments(task, [segment.nodes for segment in placement.segments], devices)), Decision(placement)


def _hold_once(task: SplitTask) -> SplitTask:
    """Returns the task with devices that hold each weight once, as the estimate has it, where they can and are not told otherwise."""
    core = task.core
    able = [device for device in task.configs if WEIGHTS_ONCE_KEY in core.config_keys(device)]
    open_to_it = {device for device in able if core.get_config(device, WEIGHTS_ONCE_KEY) is None}
    configs = {
        device: {WEIGHTS_ONCE_KEY: True, **config} if device in open_to_it else config for device, config in task.configs.items()
    }
    return replace(task, configs=configs)


def _pin(task: SplitTask, pins: Mapping[str, str]) -> SplitTask:
    return replace(task, network=replace(task.network, affinity=freeze_mapping(pins)))


def _find_placement(task: SplitTask, config: Mapping[str, Any]) -> Placement:
    """Returns the kept placement, or measures one; keeps it where the candidates were timed in turns."""
    from hetero_hetero.placement.inputs import find_inputs  # imported only when a placement is measured
    from hetero_hetero.placement.kept import identify_task, read_placement, write_placement
    from hetero_hetero.placement.measured import place_by_measurement

    # As many requests at once as the loaded network is to serve; of one at a time the time is what counts.
    streams = config[STREAMS_KEY] if config[OBJECTIVE_KEY] == OBJECTIVES[1] else 0
    key = identify_task(task, streams=streams)
    stored = None if config[PLACEMENT_KEY] == PLACEMENTS[2] else read_placement(key, task)
    if stored is not None:
        logger.info("the placement of network '%s' was measured before", task.network.name)
        return stored
    placement = place_by_measurement(task, find_inputs(task.network, config[INPUTS_KEY]), config[BUDGET_KEY], streams=streams)
    if placement.chosen is not None and placement.candidates[placement.chosen].rounds:
        write_placement(key, placement)
    return placement
