"""The cache that a configuration names. Apart from what reads and writes blobs, which most loads need not import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero_core.blobs.cache import NetworkCache


def open_cache(config: Mapping[str, Any]) -> NetworkCache | None:
    """Returns the cache that a configuration names; None where it names none, and within a load that is cached as a whole.

    Raises: ConfigValueError for a folder that no path can name.
    """
    folder = config.get("CACHE_DIR", "")
    if not folder:
        return None
    from hetero_core.blobs.cache import make_cache  # hashes, locks, blobs

    return make_cache(folder, config.get("CACHE_SIZE_LIMIT", 0))
