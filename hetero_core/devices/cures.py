"""Cures of a load that was refused: strings of installed devices that take the network. Devices are asked, and nothing is loaded.

    load refused ──> other devices are asked, until one takes the whole network ──> sentence ──> UnsupportedNodesError.cure

Only the load that a user calls offers a cure: a device that is made of devices loads its parts within that call, and goes on with another
device where one refuses. Engines and cards are not asked: to open one takes seconds, and the network is one that a device has refused.
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

_SPLITTER, _COMPOSER = "HETERO", "composer"
_HEAVY_KINDS = ("accelerator", "engine")
_SECONDS = 5.0
"""After so long no further device is asked."""
_DISTRIBUTION_OF_DEVICE = {
    "CPU": "hetero-cpu",
    "HETERO": "hetero-hetero",
    "OPENVINO": "'hetero-openvino[engine]'",
    "ORT": "'hetero-onnxruntime[cpu]'",
}
"""The packages that pip installs, for devices that run anywhere."""
_KNOWN_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")

_is_within_load: ContextVar[bool] = ContextVar("is_within_load", default=False)


class Asked(Protocol):
    """The questions that a Core answers."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of all installed devices."""

    def find_kind(self, device: str) -> str:
        """Returns the kind of a device, "composer" for one that is made of devices."""

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
def offer_cure(core: Asked, network: Network, device: DeviceName) -> Iterator[None]:
    """Adds a cure to the UnsupportedNodesError of a load, unless another load has called for this one."""
    if _is_within_load.get():
        yield
        return
    with without_cures():
        try:
            yield
        except UnsupportedNodesError as error:
            error.cure = find_cure(core, network, str(device), list(error.refusals)) or error.cure
            raise


def find_cure(core: Asked, network: Network, device: str, refused: Sequence[str]) -> str:
    """Returns a sentence with device strings that take a network which `device` refused for these nodes, or on what no device takes.

    Empty where no other device could be asked. Takes a query of each device until one takes the network whole, at most some seconds.
    """
    named = {name for name in core.device_names if name in device.replace("(", ",").replace(")", ",").replace(":", ",").split(",")}
    remaining = [name for name in refused if name in network.index_of_node]
    partial: list[str] = []
    unasked: list[str] = []
    is_any_asked, end = False, monotonic() + _SECONDS
    for name in core.device_names:
        # What is wrong with another device is not what the user has asked for.
        with suppress(Exception):
            kind = core.find_kind(name)
            if name in named or kind == _COMPOSER or monotonic() > end:
                continue
            if kind in _HEAVY_KINDS:
                unasked.append(name)
                continue
            result = core.query_network(network, name)
            is_any_asked = True
            if not result.refused:
                return _name_cure(core, device, [name], is_whole=True)
            fewer = [node for node in remaining if node in result.refused]
            if len(fewer) < len(remaining):
                partial, remaining = [*partial, name], fewer
    if partial and not remaining and _can_extend(core, device):
        return _name_cure(core, device, partial, is_whole=False)
    if not is_any_asked or not remaining:
        return ""
    if unasked:
        node = network.node(remaining[0])
        return (
            f"No device that was asked takes '{node.name}' ({node.operator}). 'hetero inspect' asks {' and '.join(unasked)}, too."
        )
    untaken = describe_untaken(core.device_names, network, remaining)
    return f"{untaken[0].upper()}{untaken[1:]}."


def _name_cure(core: Asked, device: str, others: Sequence[str], *, is_whole: bool) -> str:
    strings = [f"'{_extend(device, others)}'"] if _can_extend(core, device) else []
    strings += [f"'{others[0]}'"] if is_whole else []
    return f"Load it with {' or with '.join(strings)}, which {'take' if len(strings) > 1 else 'takes'} it."


def _can_extend(core: Asked, device: str) -> bool:
    """Says whether a list of HETERO may be made of a device string and others behind it."""
    head = device.split(":")[0]
    return _SPLITTER in core.device_names and (head == _SPLITTER or core.find_kind(device) != _COMPOSER)


def _extend(device: str, others: Sequence[str]) -> str:
    begin = device if device.startswith(f"{_SPLITTER}:") else f"{_SPLITTER}:{device}"
    return ",".join((begin, *others))


def describe_untaken(installed: Sequence[str], network: Network, names: Sequence[str]) -> str:
    """Returns a sentence on nodes that no installed device takes, and what may help."""
    node = network.node(names[0])
    missing = [package for name, package in _DISTRIBUTION_OF_DEVICE.items() if name not in installed and name != _SPLITTER]
    if node.domain not in _KNOWN_DOMAINS:
        cure = "it is a custom operator: make it known with Core.add_extension"
    elif missing:
        cure = f"another device may: pip install {' '.join(missing)}"
    else:
        cure = "'hetero query' shows every reason"
    return f"no device takes '{names[0]}' ({node.operator}), {len(names)} of {len(network.nodes)} nodes; {cure}"


def name_distribution(device: str) -> str:
    """Returns what pip installs for one of the devices that run anywhere. Raises: KeyError."""
    return _DISTRIBUTION_OF_DEVICE[device]
