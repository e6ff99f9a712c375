"""Threads and streams of children that work side by side, each on whole requests: what each is loaded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.core import Core
from hetero_core.devices.host_memory import TOTAL_MEMORY, read_host_memory
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY


def computes_on_host(core: Core, child: str) -> bool:
    """Says whether a device computes on the processors of this machine: it is local and states the machine's memory as its own."""
    if not core.get_metric(child, "IS_LOCAL") or TOTAL_MEMORY not in core.get_metric(child, "SUPPORTED_METRICS"):
        return False
    return int(core.get_metric(child, TOTAL_MEMORY)) == (read_host_memory() or (0, 0))[0]


def share_processors(
    core: Core, child: str, config: Mapping[str, Any], own: Mapping[str, Any], *, sharers: int, requests: int | None
) -> dict[str, int]:
    """Returns the threads and streams of a child that runs beside `sharers` - 1 others, as configuration for its load.

    `config` is the whole's, as hooks see it, `own` the child's; `requests` is how many it is to run at once, None for what the
    whole's streams say. The processors are divided evenly, unless `own` says otherwise, and each stream has one at least.
    """
    processors = config[THREADS_KEY] * config[STREAMS_KEY]
    limit = core.get_config(child, THREADS_KEY)
    share = own[THREADS_KEY] if own.get(THREADS_KEY) else max(1, min(processors // sharers, limit))
    highest = int(core.get_metric(child, "RANGE_FOR_STREAMS")[1])
    streams = max(1, min(share, config[STREAMS_KEY], highest) if requests is None else min(requests, highest, processors))
    return {THREADS_KEY: max(share, streams), STREAMS_KEY: streams}
