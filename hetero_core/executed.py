"""The executed graph of a loaded network: the steps of its devices, as a list and as a Network.

A device tells its steps (`Executable.executed_nodes`); a device made of devices joins the steps of its parts. `join_executed` makes
a Network of them, with nodes of the domain "hetero.executed". It can be inspected, written to a file and drawn, but not loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import ValueSpec, ValueType
from hetero_core.profile import Profile

DOMAIN = "hetero.executed"


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """A step of a device. `origins` are the nodes of the network that it stands for; empty for a step that the device has added.

    `name` is its name in profiles, `operator` its kind, as "Conv" or "transfer". `layouts` has for each output its axes
    from the slowest to the fastest by letter ("acdb": channels last), "" if unknown. `path` leads to its subgraph, as in
    `NodeTime`.
    """

    name: str
    operator: str
    origins: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernel: str = ""
    layouts: tuple[str, ...] = ()
    types: tuple[ValueType | None, ...] = ()
    device: str = ""
    path: tuple[int, ...] = ()


def place_executed(nodes: Sequence[ExecutedNode], device: str, index: int) -> tuple[ExecutedNode, ...]:
    """Returns the nodes of a part as nodes of the whole network: below its index, and on its device unless they name a device."""
    return tuple(replace(node, device=node.device or device, path=(index, *node.path)) for node in nodes)


def list_nodes(nodes: Sequence[Node], types: Mapping[str, ValueType], *, kernel: str = "") -> tuple[ExecutedNode, ...]:
    """Returns nodes of a network that a device runs separately, in order."""
    return tuple(
        ExecutedNode(
            node.name, node.op_type, node.origins, node.reads, node.writes, kernel, types=tuple(map(types.get, node.writes))
        )
        for node in nodes
    )


def name_layout(order: Sequence[int]) -> str:
    """Returns the letters of axes that are given from the slowest to the fastest."""
    return "".join(chr(ord("a") + axis) for axis in order)


def join_executed(
    name: str, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], nodes: Sequence[ExecutedNode], profile: Profile | None
) -> Network:
    """Returns the executed graph as a network of nodes of the domain "hetero.executed"; times come from `profile`.

    Attributes of its nodes: `device`, `path`, `kernel`, `layouts`, `original_names`, and `microseconds` if measured.
    Constants are left out. An order of execution is an order of the graph; names that occur again get a number.
    """
    seconds: dict[tuple[tuple[int, ...], str], float] = defaultdict(float)
    for entry in () if profile is None else profile.entries:
        # A value that is copied may have the name of a node, and stands apart.
        is_copy = entry.operator == "transfer" and entry.targets
        seconds[entry.path, f"{entry.node} to {', '.join(entry.targets)}" if is_copy else entry.node] += entry.seconds
    known = {spec.name for spec in inputs}
    types: dict[str, ValueType] = {spec.name: spec.type for spec in (*inputs, *outputs)}
    executed: list[Node] = []
    names: dict[str, int] = {}
    for node in nodes:
        count = names[node.name] = names.get(node.name, 0) + 1
        written = tuple(value for value in node.outputs if value not in known)
        known.update(written)
        types.update((value, kind) for value, kind in zip(node.outputs, node.types, strict=False) if kind is not None)
        fields: dict[str, Any] = {
            "device": node.device,
            "path": "/".join(map(str, node.path)),
            "kernel": node.kernel,
            "layouts": node.layouts,
            "original_names": node.origins,
        }
        attributes = {name: value for name, value in fields.items() if value not in ("", ())}
        if (node.path, node.name) in seconds:
            attributes["microseconds"] = seconds[node.path, node.name] * 1e6
        executed.append(
            Node(
                node.name if count == 1 else f"{node.name}#{count}",
                node.operator,
                tuple(value for value in node.inputs if value in known and value not in written),
                written,
                domain=DOMAIN,
                attributes=attributes,
                origins=node.origins or (node.name,),
            )
        )
    returned = tuple(spec for spec in outputs if spec.name in known)
    return Network(name, inputs, returned, tuple(executed), {}, types, {"": 17, DOMAIN: 1})
