"""The constants of a network once they are on the card: the host lets go of them, and an export reads them back.

Imports no array library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer

SMALLEST_LEFT = 1 << 10
"""Bytes from which on a constant is left to the card alone; smaller ones stay on the host, where they stand in a blob's model."""


class Uploads:
    """Pairs of host memory and its copy on the card, while constants are written. Not for several threads."""

    def __init__(self) -> None:
        # The host's array is kept, too: an address is only its own while it lives.
        self._written: dict[tuple[int, int, str], tuple[Any, Any]] = {}

    def note(self, array: Any, written: Any) -> None:
        """Remembers that an array of the host was written to the card."""
        self._written[_identify(array)] = array, written

    def keep_on_card(self, network: Network, download: Callable[[Any], Any]) -> Network:
        """Returns the network with the large constants that were written as renewable ones, which `download` makes from the card's."""
        kept: dict[int, Initializer] = {}
        for constant in network.initializers.values():
            found = self._written.get(_identify(constant.array)) if constant.nbytes >= SMALLEST_LEFT else None
            kept[id(constant)] = constant if found is None else _leave_on_card(constant, found[1], download)
        initializers = {name: kept[id(constant)] for name, constant in network.initializers.items()}
        return replace(network, initializers=MappingProxyType(initializers))


def _identify(array: Any) -> tuple[int, int, str]:
    return array.__array_interface__["data"][0], array.nbytes, str(array.dtype)


def _leave_on_card(constant: Initializer, written: Any, download: Callable[[Any], Any]) -> Initializer:
    shape = constant.shape
    # A constant may have been written in another shape, as a bias that is spread.
    return Initializer(constant.dtype, shape, lambda: download(written).reshape(shape), is_renewable=True)
