"""Candidates: the devices that take a network whole, in AUTO's order of preference; each is created and asked when it is its turn.

The order follows the kind of the devices and the network's precision.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf, prod
from time import perf_counter
from typing import Any

from hetero_auto.executable import Configure, MemberSource
from hetero_core import Core
from hetero_core.composing.properties import configure_children, describe_error
from hetero_core.contract import DeviceName
from hetero_core.errors import DeviceUnavailableError, HeteroError
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType, fixed_sizes

logger = logging.getLogger(__name__)

_PRECISIONS = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16"}
_QUANTIZED = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})
"""Element types of at most 8 bits."""
_RANKS = {"accelerator": 0, "engine": 0, "processor": 1, "interpreter": 2}
"""The kinds that a device's package may state; "composer" is for devices that are made of others or need a list."""


def list_installed(core: Core, *, itself: str) -> tuple[str, ...]:
    """Returns the devices that are installed and not made of others, for AUTO without a list; some may not work.

    Accelerators and engines come first, then devices on the host's processor, then devices that hold the interpreter's lock; by
    name. A device is created only if its package does not state its kind.
    """
    ranks: dict[str, tuple[int, str]] = {}
    for name in core.device_names:
        try:
            rank = None if name == itself else _rank(core, name)
        except HeteroError as error:
            logger.debug("AUTO goes without %s: %s", name, error)
            continue
        if rank is not None:
            ranks[name] = rank, name
    return tuple(sorted(ranks, key=lambda name: ranks[name]))


def _rank(core: Core, name: str) -> int | None:
    """Returns the place of a device's kind; None for a composite device. Raises: DeviceUnavailableError."""
    kind = core.find_kind(name)
    if kind in _RANKS or kind == "composer":
        return _RANKS.get(kind)
    if any(key.is_arguments for key in core.config_keys(name).values()):
        return None
    if core.get_metric(name, "HOLDS_INTERPRETER_LOCK"):
        return _RANKS["interpreter"]
    return _RANKS["processor" if core.get_metric(name, "DEVICE_ARCHITECTURE") == platform.machine() else "engine"]


def find_precision(network: Network) -> str:
    """Returns the capability that the network asks for: INT8 if it is quantized, else the type of most of its constants."""
    if any(
        "uantize" in node.op_type or node.op_type.startswith("QLinear") or node.op_type.endswith("Integer")
        for node in network.nodes
    ):
        return "INT8"
    nbytes: dict[str, int] = {}
    specs = [*(constant.type for constant in network.initializers.values()), *(spec.type for spec in network.inputs)]
    for value_type in specs:
        if isinstance(value_type, TensorType) and value_type.dtype in _PRECISIONS:
            nbytes[value_type.dtype] = nbytes.get(value_type.dtype, 0) + (value_type.nbytes or 1)
    return _PRECISIONS[max(nbytes, key=lambda dtype: nbytes[dtype])] if nbytes else "FP32"


def configure_lazily(core: Core, device: DeviceName, children: Sequence[str], config: Mapping[str, Any]) -> Configure:
    """Returns a function that works out the configuration of a device of the list once. It raises as `configure_children`."""

    @cache
    def configure(child: str) -> Mapping[str, Any]:
        others = [other for other in children if other != child]
        return configure_children(core, device, children, config, unavailable=others)[child]

    return configure


class Candidates:
    """A walk over the names that can be repeated. Devices of the network's precision go first. Safe for threads."""

    def __init__(self, source: MemberSource, names: tuple[str, ...], precision: str, *, is_listed: bool) -> None:
        """`names` are the devices of the list, in order; without `precision` they are walked in it. Only devices that are listed have a
        warning if they cannot work here.
        """
        self.source, self.names = source, names
        self._core, self._precision, self._is_listed = source.core, precision, is_listed
        self.answers = source.answers
        self.unavailable: dict[str, str] = {}
        """The reason of each device that was asked and cannot work here."""
        self.query_seconds: dict[str, float] = {}
        """The seconds until each device answered: the first query of a process may import an engine."""

    def __iter__(self) -> Iterator[str]:
        lacking = []
        for name in filter(self.takes_all, self.names):
            capabilities = self._core.get_metric(name, "OPTIMIZATION_CAPABILITIES") if self._precision else ()
            own = {"INT8", *_PRECISIONS.values()}.intersection(capabilities)
            # A device without named precisions, as a composite device, is assumed to compute in all.
            if own and self._precision not in own:
                lacking.append(name)
            else:
                yield name
        yield from lacking

    def takes_all(self, name: str) -> bool:
        """Says whether a device works and takes the whole network. Holds no lock while it asks: a device may hang."""
        if name not in self.answers and name not in self.unavailable:
            began = perf_counter()
            try:
                self._core.config_keys(name)
            except DeviceUnavailableError as error:
                self.unavailable[name] = reason = describe_error(error)
                if self._is_listed:
                    logger.warning("%s goes on without %s: %s", self.source.owner, name, reason)
            else:
                answer = self._core.query_network(self.source.network, name, self.source.configure(name))
                self.query_seconds[name] = perf_counter() - began
                self.answers[name] = answer
        return name in self.answers and not self.answers[name].refused

    def find_quick(self) -> str | None:
        """Returns the device that is taken to answer first: the last device of the list that does not hold the interpreter's lock; None
        if no device takes the network. If that device answers slowly at first by its package's own account, as the network has many
        quantized weights, a device whose package promises a quick answer comes first.
        """
        backwards = list(reversed(self.names))
        backwards.sort(key=self.holds_lock)
        types = (constant.type for constant in self.source.network.initializers.values())
        narrow = (own for own in types if isinstance(own, TensorType) and own.dtype in _QUANTIZED)
        # Weights that are packed into bytes count as these bytes.
        quantized = sum(prod(fixed_sizes(own.shape) or ()) for own in narrow)
        limits = {name: self._find_quick_weights(name) for name in backwards}
        if quantized > next((inf if limit is None else limit for limit in limits.values()), inf):
            prompt = [name for name, limit in limits.items() if limit is not None and limit >= quantized]
            backwards = [*prompt, *backwards]
        return next(filter(self.takes_all, backwards), None)

    def _find_quick_weights(self, name: str) -> float | None:
        with suppress(DeviceUnavailableError):
            return self._core.find_quick_weights(name)
        return None

    def holds_lock(self, name: str) -> bool:
        """Says whether a device holds the interpreter's lock while it computes, or cannot be used; creates it only if its package does not
        tell.
        """
        try:
            kind = self._core.find_kind(name)
            return kind == "interpreter" if kind in _RANKS else bool(self._core.get_metric(name, "HOLDS_INTERPRETER_LOCK"))
        except DeviceUnavailableError:
            return True
