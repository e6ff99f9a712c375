"""Placements that were measured before: an entry of the private store for each, named by the digest of all that shaped it.

What shapes one: the network, its pins, the devices in their order with versions, machine and configuration, threads and processors. The
inputs and the budget of the measurement do not count, so a load without inputs finds what `hetero tune` measured with some.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from hetero_core.blobs.store import STORE, name_entry
from hetero_core.devices.processors import count_processors
from hetero_core.devices.provenance import find_core_version
from hetero_core.plan import PlacedSegment, Placement, PlacementCandidate
from hetero_core.reports.fields import record_to_json
from hetero_hetero.affinity import SplitTask

logger = logging.getLogger(__name__)

_FORMAT = 2
"""Also of how a placement is chosen: what was chosen in another way is measured again."""


def identify_task(task: SplitTask, *, streams: int) -> str:
    """Returns the name of a task's entry: equal for loads whose measurements would be the same. `streams` is 0 if requests come one by
    one.
    """
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


def read_placement(name: str, task: SplitTask) -> Placement | None:
    """Returns the placement of an entry; None if there is none, or with a warning if it is of no use."""
    content = STORE.read(name)
    if content is None:
        return None
    try:
        placement = _placement_of_json(json.loads(content))
    except (ValueError, TypeError, KeyError) as error:
        logger.warning("a kept placement cannot be read and is measured again: %s", error)
        return None
    names = {name for segment in placement.segments for name in segment.nodes}
    return placement if names == task.network.index_of_node.keys() else None


def write_placement(name: str, placement: Placement) -> None:
    """Keeps a placement."""
    STORE.write(name, json.dumps(record_to_json(placement)).encode())


def _placement_of_json(document: Any) -> Placement:
    """Returns the placement of a document. Raises: TypeError, ValueError, KeyError."""
    segments = tuple(PlacedSegment(**{**row, "nodes": tuple(row["nodes"])}) for row in document["segments"])
    candidates = tuple(PlacementCandidate(**{**row, "devices": tuple(row["devices"])}) for row in document["candidates"])
    transfers = tuple((str(a), str(b), float(c), float(d)) for a, b, c, d in document["transfers"])
    placement = Placement(**{**document, "segments": segments, "candidates": candidates, "transfers": transfers})
    return replace(placement, is_kept=True)
