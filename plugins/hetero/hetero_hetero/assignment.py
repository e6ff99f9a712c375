"""The state of an affinity: each node's device, each device's refusals, and the moves against the order of priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hetero_core.contract import QueryResult
from hetero_hetero.subgraphs import Subgraph


@dataclass(slots=True)
class Assignment:
    """The device of each node that a device takes, in order of the nodes, and the subgraphs that follow from it.

    `refused` are the nodes that nobody takes. `denials` maps node -> device -> reason for every no that was heard. `moves` does the
    same for devices that a node has left for another one, though they take it; where that other one turns out to refuse the node, they
    are forgotten, and the node is `settled`: it is never moved again. So only what devices say can leave a node without any.
    `confirmed` holds the answer about each part, as (device, nodes), that was asked about and taken. `procedures` maps each procedure that
    selected subgraphs to the number of their nodes.
    """

    priorities: tuple[str, ...]
    pins: Mapping[str, str]
    device_of_node: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    procedures: dict[str, int] = field(default_factory=dict)
    denials: dict[str, dict[str, str]] = field(default_factory=dict)
    moves: dict[str, dict[str, str]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    confirmed: dict[tuple[str, tuple[str, ...]], QueryResult] = field(default_factory=dict)

    @property
    def refusals(self) -> dict[str, dict[str, str]]:
        """Node -> device -> reason, for every device that a node is not on although it was asked before the one that has it."""
        names = dict.fromkeys((*self.denials, *self.moves))
        return {name: {**self.denials.get(name, {}), **self.moves.get(name, {})} for name in names}

    def may_take(self, name: str, device: str) -> bool:
        """Says whether a device may be asked for a node: it is in the list, no pin and no reason speaks against it."""
        is_ruled_out = device not in self.priorities or device in self.denials.get(name, ()) or device in self.moves.get(name, ())
        return self.pins.get(name, device) == device and not is_ruled_out

    def may_move(self, name: str, device: str) -> bool:
        """Says whether a node that has a device may go to another one."""
        return name not in self.settled and self.may_take(name, device)

    def move(self, names: Iterable[str], device: str, reason: str) -> None:
        """Gives nodes another device; those that are there stay without a note."""
        for name in names:
            left = self.device_of_node[name]
            if left != device:
                self.moves.setdefault(name, {})[left] = reason
                self.device_of_node[name] = device

    def refuse(self, name: str, device: str, reason: str) -> None:
        """Records that a device does not take a node; takes the node from it, and undoes the moves that led there."""
        self.denials.setdefault(name, {})[device] = reason
        if self.device_of_node.get(name) == device:
            del self.device_of_node[name]
            if self.moves.pop(name, None) is not None:
                self.settled.add(name)

    def sort(self, names: Iterable[str]) -> None:
        """Brings all that is known of nodes into the order of `names`."""
        order = tuple(names)
        self.device_of_node = {name: self.device_of_node[name] for name in order if name in self.device_of_node}
        self.denials = {name: self.denials[name] for name in order if name in self.denials}
        self.moves = {name: self.moves[name] for name in order if name in self.moves}
