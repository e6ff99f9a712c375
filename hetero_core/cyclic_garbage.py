"""Python's search for cyclic garbage, paused while many objects are made that live on. Imports nothing of the project."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_cycle_collection() -> Iterator[None]:
    """Keeps Python from searching for cyclic garbage, in the whole process; as a decorator, while a function runs.

    It is for work that makes many objects and no cycles of them, which would set off search after search through all that was made so
    far: a fifth of the time in which CPU loads 20,000 nodes, a third at 100,000. Pauses may be nested; in threads at the same time the
    first that ends ends all.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _age_young_objects()
            gc.enable()


_FEWEST_AGED = 4_000
"""Objects that a pause has to make for a search through them to be felt."""
_MOST_AGED = 1_000_000
"""Objects that may have aged without a search, before what is garbage among them is searched for."""


class _Ages:
    """The objects that pauses have made since the last search through all objects."""

    searches = 0
    objects = 0


def _age_young_objects() -> None:
    """Makes all objects that live old ones, so that the end of a pause sets off no search through what was made meanwhile.

    Cost: none, whatever their number. Garbage among them is found by the next search through all objects, which is begun here after
    `_MOST_AGED` of them. A program that has frozen objects keeps its frozen ones, and the search.
    """
    young = gc.get_count()[0]
    if young < _FEWEST_AGED or gc.get_freeze_count():
        return
    searches = gc.get_stats()[2]["collections"]
    if searches != _Ages.searches:
        _Ages.searches, _Ages.objects = searches, 0
    _Ages.objects += young
    if _Ages.objects > _MOST_AGED:
        gc.collect()
        return
    gc.freeze()
    gc.unfreeze()
