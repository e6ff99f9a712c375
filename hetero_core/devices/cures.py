"""Cures of a load that was refused: strings of installed devices that take the network. Devices are asked, and nothing is loaded.

Only the load that a user calls offers a cure: a device that is made of devices loads its parts within that call. Engines and
accelerators are not asked, since they take seconds to open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import Protocol

from hetero_core.contract import DeviceName, QueryResult
from hetero_core.errors import UnsupportedNodesError
from hetero_core.network.graph import Network

_COMPOSER = "composer"
_HEAVY_KINDS = ("accelerator", "engine")
_SECONDS = 5.0
"""The time limit after which no further device is asked."""
_KNOWN_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")

_is_within_load: ContextVar[bool] = ContextVar("is_within_load", default=False)


class Asked(Protocol):
    """The questions that a Core answers."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of all installed devices."""

    def find_kind(self, device: str) -> str:
        """Returns the kind of a device, "composer" for a device that is made of other devices."""

    def query_network(self, network: Network, device: str) -> QueryResult:
        """Returns which nodes a device takes."""


@contextmanager
def without_cures() -> Iterator[None]:
    """Keeps loads in this context from asking other devices: the caller does that itself."""
    token = _is_within_load.set(True)
    try:
        yield
    finally:
        _is_within_load.reset(token)


@contextmanager
def offer_cure(core: Asked, network: Network, device: DeviceName, splitter: str) -> Iterator[None]:
    """Adds a cure to the UnsupportedNodesError of a load, unless this load runs within another load."""
    if _is_within_load.get():
        yield
        return
    with without_cures():
        try:
            yield
        except UnsupportedNodesError as error:
            error.cure = find_cure(core, network, str(device), list(error.refusals), splitter=splitter) or error.cure
            raise


def find_cure(core: Asked, network: Network, device: str, refused: Sequence[str], *, splitter: str) -> str:
    """Returns a sentence with device strings that take a network which `device` refused for these nodes; "" if no device was asked.

    `splitter` is the device that splits a network over a list, else "". Cost: a query of each device, at most some seconds.
    """
    names = set(device.replace("(", ",").replace(")", ",").replace(":", ",").split(","))
    can_split = splitter in core.device_names and (device.startswith(f"{splitter}:") or core.find_kind(device) != _COMPOSER)
    head = device if device.startswith(f"{splitter}:") else f"{splitter}:{device}"
    remaining = [name for name in refused if name in network.index_of_node]
    partial: list[str] = []
    unasked: list[str] = []
    is_any_asked, end = False, monotonic() + _SECONDS
    for name in core.device_names:
        # The user has not asked about faults of other devices.
        with suppress(Exception):
            kind = core.find_kind(name)
            if name in names or kind == _COMPOSER or monotonic() > end:
                continue
            if kind in _HEAVY_KINDS:
                unasked.append(name)
                continue
            result = core.query_network(network, name)
            is_any_asked = True
            if not result.refused:
                if can_split:
                    return f"Load it with '{head},{name}' or with '{name}', which take it."
                return f"Load it with '{name}', which takes it."
            fewer = [node for node in remaining if node in result.refused]
            if len(fewer) < len(remaining):
                partial, remaining = [*partial, name], fewer
    if partial and not remaining and can_split:
        return f"Load it with '{','.join((head, *partial))}', which takes it."
    if not is_any_asked or not remaining:
        return ""
    if unasked:
        label = f"'{remaining[0]}' ({network.node(remaining[0]).operator})"
        return f"No device that was asked takes {label}. 'hetero inspect' asks {' and '.join(unasked)}, too."
    untaken = describe_untaken(network, remaining)
    return f"{untaken[0].upper()}{untaken[1:]}."


def describe_untaken(network: Network, names: Sequence[str]) -> str:
    """Returns a sentence on nodes that no installed device takes, and a possible cure."""
    node = network.node(names[0])
    if node.domain in _KNOWN_DOMAINS:
        cure = "the plugin of another device may take it, and 'hetero query' shows every reason"
    else:
        cure = "it is a custom operator: make it known with Core.add_extension"
    return f"no device takes '{names[0]}' ({node.operator}), {len(names)} of {len(network.nodes)} nodes; {cure}"
