"""The choice of a placement: none, one that was measured before, or one that is measured now. Its outcome is pins, as a user gives them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero_core.contract import freeze_mapping
from hetero_core.plan import Placement
from hetero_hetero.affinity import SplitTask

logger = logging.getLogger(__name__)

PLACEMENT_KEY = "HETERO_PLACEMENT"
BUDGET_KEY = "HETERO_PLACEMENT_BUDGET"
INPUTS_KEY = "HETERO_PLACEMENT_INPUTS"
MEASURING_KEYS = (PLACEMENT_KEY, BUDGET_KEY, INPUTS_KEY)
"""Keys of the measurement, which the splits that are measured and the branches of an If do not get."""
PLACEMENTS = ("PRIORITY", "MEASURED", "MEASURED_ANEW")


def place_nodes(task: SplitTask, config: Mapping[str, Any]) -> tuple[SplitTask, Placement | None]:
    """Returns the task with its nodes pinned where the configuration asks for a measured placement, and the measurements."""
    if config[PLACEMENT_KEY] == PLACEMENTS[0] or not task.network.nodes:
        return task, None
    placement = _find_placement(task, config)
    devices = [segment.device for segment in placement.segments]
    from hetero_hetero.placement.measured import pins_of_segments

    pins = pins_of_segments(task, [segment.nodes for segment in placement.segments], devices)
    return replace(task, network=replace(task.network, affinity=freeze_mapping(pins))), placement


def _find_placement(task: SplitTask, config: Mapping[str, Any]) -> Placement:
    """Returns the kept placement, or measures one and keeps it; what a search of no time has found is not kept."""
    from hetero_hetero.placement.inputs import find_inputs  # what measures is imported where something is measured
    from hetero_hetero.placement.kept import identify_task, read_placement, write_placement
    from hetero_hetero.placement.measured import place_by_measurement

    key = identify_task(task)
    kept = None if config[PLACEMENT_KEY] == PLACEMENTS[2] else read_placement(key, task)
    if kept is not None:
        logger.info("the placement of network '%s' was measured before", task.network.name)
        return kept
    placement = place_by_measurement(task, find_inputs(task.network, config[INPUTS_KEY]), config[BUDGET_KEY])
    if placement.chosen is not None:
        write_placement(key, placement)
    return placement
