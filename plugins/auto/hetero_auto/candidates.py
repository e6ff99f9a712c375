"""Candidates: the devices that take a network whole, in AUTO's order of preference; each is created and asked when it is its turn."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hetero_auto.choosing import holds_lock, lacks_precision
from hetero_core.composing.properties import configure_children
from hetero_core.contract import DeviceName, QueryResult
from hetero_core.core import Core
from hetero_core.errors import DeviceUnavailableError
from hetero_core.network.graph import Network

logger = logging.getLogger(__name__)


class ChildConfigs(Mapping[str, Mapping[str, Any]]):
    """The configuration of each device of a list, worked out when it is first read. Raises: as `configure_children`."""

    def __init__(self, core: Core, device: DeviceName, children: Sequence[str], config: Mapping[str, Any]) -> None:
        self._children = tuple(children)
        self._configure = partial(configure_children, core, device, self._children, config)
        self._known: dict[str, Mapping[str, Any]] = {}

    def __getitem__(self, child: str) -> Mapping[str, Any]:
        if child not in self._known:
            if child not in self._children:
                raise KeyError(child)
            self._known[child] = self._configure(unavailable=[other for other in self._children if other != child])[child]
        return self._known[child]

    def __iter__(self) -> Iterator[str]:
        return iter(self._children)

    def __contains__(self, child: object) -> bool:
        return child in self._children

    def __len__(self) -> int:
        return len(self._children)


class Candidates:
    """A walk over the names that can be repeated. Devices of the network's precision go before the others. Safe for threads."""

    def __init__(
        self, core: Core, network: Network, configs: Mapping[str, Mapping[str, Any]], precision: str, *, title: str
    ) -> None:
        """`configs` has every device of the list, in order; `title` is the list for warnings, if a list was given."""
        self._core, self._network, self._configs, self._precision = core, network, configs, precision
        self._title = title
        self._lock = threading.RLock()
        self.answers: dict[str, QueryResult] = {}
        self.unavailable: dict[str, str] = {}
        """The reason of each device that was asked and cannot work here."""
        self._found: list[str] = []
        self._rest = self._walk()

    @property
    def names(self) -> tuple[str, ...]:
        """All devices of the list, in order."""
        return tuple(self._configs)

    def __iter__(self) -> Iterator[str]:
        place = 0
        while True:
            with self._lock:
                if place == len(self._found):
                    candidate = next(self._rest, None)
                    if candidate is None:
                        return
                    self._found.append(candidate)
                name = self._found[place]
            yield name
            place += 1

    def _walk(self) -> Iterator[str]:
        lacking = []
        for name in self._configs:
            if not self.takes_all(name):
                continue
            if lacks_precision(self._core, name, self._precision):
                lacking.append(name)
            else:
                yield name
        yield from lacking

    def takes_all(self, name: str) -> bool:
        """Says whether a device works and takes the whole network."""
        with self._lock:
            if name not in self.answers and name not in self.unavailable:
                try:
                    self._core.config_keys(name)
                except DeviceUnavailableError as error:
                    self.unavailable[name] = reason = " ".join(str(error).split())
                    if self._title:
                        logger.warning("%s goes on without %s: %s", self._title, name, reason)
                else:
                    self.answers[name] = self._core.query_network(self._network, name, self._configs[name])
            return name in self.answers and not self.answers[name].refused

    def find_quick(self, seconds: Mapping[str, float]) -> str | None:
        """Returns the device that is taken to load fastest: by the `seconds` of earlier loads where there are some of it, else the last of
        the list, before those that hold the interpreter's lock; None if no device takes the network.
        """
        backwards = list(reversed(self.names))
        backwards.sort(key=self._is_slow)
        quick = next((name for name in backwards if self.takes_all(name)), None)
        if quick is None or quick not in seconds:
            return quick
        timed = sorted((name for name in self.names if name in seconds), key=lambda name: seconds[name])
        return next(name for name in timed if self.takes_all(name))

    def _is_slow(self, name: str) -> bool:
        try:
            return holds_lock(self._core, name)
        except DeviceUnavailableError:
            return True
