"""Affinity: which device each node goes to, from pins and from the answers of the devices, in order of priority.

Each device is asked about the network of the nodes that are left. Then nodes move that would be better off on another device that
takes them: quantized units stay whole, shapes are computed on the device that reads them, small subgraphs are folded into a
neighbour. When the split is known, each device is asked once more about each part as it will be compiled; nodes that it refuses
then go to the next device, and the split is made anew. A device is never asked twice for a node that it has refused, so this ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hetero_core import Core
from hetero_core.contract import freeze_mapping
from hetero_core.devices.names import parse_device_name
from hetero_core.errors import AffinityError, ConfigValueError, InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.graph import Network
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.topology import predecessors_of_nodes
from hetero_core.plan import HeldMemory, Placement
from hetero_hetero.branches import cut_branches, is_branching
from hetero_hetero.moves import (
    Assignment,
    Move,
    find_quantized_units,
    find_shape_nodes,
    propose_folds,
    propose_shape_moves,
    propose_unit_moves,
)
from hetero_hetero.subgraphs import Selection, Subgraph, run_selection


def without_pins(network: Network) -> Network:
    """Returns the network with no node pinned."""
    return replace(network, affinity=freeze_mapping({})) if network.affinity else network


ROLES_KEY = "HETERO_ROLES"


@dataclass(frozen=True)
class SplitTask:
    """A network to split, its devices and their options. `configs` maps the devices, in order of priority, to their configuration.

    `itself` is the device string of this HETERO, which runs branches that no device takes whole, with `own_config`. `unavailable` maps
    the devices of the list that cannot work here, and that the user allows to pass over, to the reason. With `keeps_units` quantized
    units and shape arithmetic are moved together. `placement` or `memory` are the reasons of pins that the user has not set.
    """

    core: Core
    network: Network
    itself: str
    own_config: Mapping[str, Any]
    configs: Mapping[str, Mapping[str, Any]]
    policy: str
    smallest: int = 1
    keeps_units: bool = True
    unavailable: Mapping[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    memory: tuple[HeldMemory, ...] = ()
    _parts: dict[tuple[str, ...], Network] = field(default_factory=dict, init=False, repr=False)

    def cut(self, names: tuple[str, ...]) -> Network:
        """Returns the part of these nodes, cut once: a device loads the same network that it was asked about. It has no pins, which mean
        nothing to an inner HETERO, and no outputs that no node makes.

        Raises: InvalidNetworkError if a value at a border has no known element type.
        """
        if names not in self._parts:
            self._parts[names] = without_pins(cut_subnetwork(self.network, names))
        return self._parts[names]

    @cached_property
    def predecessors(self) -> list[tuple[int, ...]]:
        """The positions of the nodes that feed each node."""
        return predecessors_of_nodes(self.network)

    @cached_property
    def units(self) -> tuple[tuple[int, ...], ...]:
        """The quantized units; empty if nodes are assigned by priority alone."""
        return find_quantized_units(self.network) if self.keeps_units else ()

    @cached_property
    def shape_nodes(self) -> tuple[int, ...]:
        """The nodes of shape arithmetic; empty if nodes are assigned by priority alone."""
        return find_shape_nodes(self.network) if self.keeps_units else ()


_ROLE_OF_KIND = {"accelerator": "ACCELERATOR", "processor": "HOST", "interpreter": "HOST"}


def resolve_roles(core: Core, network: Network, devices: Sequence[str], lists: Mapping[str, Any] | None) -> Network:
    """Returns the network with a device in place of each role that it is pinned to: of `devices` the first that has the role.

    `lists` maps roles to the devices that may have them, in order of preference. The roles ACCELERATOR and HOST follow the kinds of
    the devices unless they are in it.

    Raises: AffinityError if none of the devices has the role; ConfigValueError for a list that holds no names of devices.
    """
    device_of_role: dict[str, str] = {}
    preferred = {role.strip().upper(): _read_list(role, names) for role, names in (lists or {}).items()}
    for pin in {str(parse_device_name(pin)): None for pin in network.affinity.values()}:
        if pin in devices or pin not in {*preferred, *_ROLE_OF_KIND.values()}:
            continue
        if pin in preferred:
            holders = [device for device in preferred[pin] if device in devices]
        else:
            holders = [device for device in devices if _find_role(core, device) == pin]
        if not holders:
            named = f" ({ROLES_KEY} names {', '.join(preferred[pin])})" if pin in preferred else ""
            raise AffinityError(
                f"network '{network.name}' has pins to the role {pin}, which no device of the list {', '.join(devices)} has{named}. Add a "
                f'device that has it, or name a device of the list: {ROLES_KEY}={{"{pin}": "{devices[-1]}"}}'
            )
        device_of_role[pin] = holders[0]
    if not device_of_role:
        return network
    pins = {node: device_of_role.get(str(parse_device_name(pin)), pin) for node, pin in network.affinity.items()}
    return replace(network, affinity=freeze_mapping(pins))


def _read_list(role: str, names: Any) -> tuple[str, ...]:
    if not isinstance(names, str):
        raise ConfigValueError(f"{ROLES_KEY}: the role {role} expects names of devices, as in 'GPU,CPU', got {names!r}")
    return tuple(str(parse_device_name(name)) for name in names.split(","))


def _find_role(core: Core, device: str) -> str:
    """Returns the role of a device by its kind, "" if it has none. An engine computes on the processor unless its id says otherwise."""
    kind = core.find_kind(device)
    if kind == "engine":
        kind = "processor" if parse_device_name(device).id in ("", "CPU") else "accelerator"
    return _ROLE_OF_KIND.get(kind, "")


def begin_assignment(task: SplitTask) -> Assignment:
    """Returns the assignment before any device was asked, with the network's pins under canonical device names.

    Every node is refused by the devices that cannot work here, for that reason.

    Raises: AffinityError for a pin to a device that is outside the list, or cannot work here.
    """
    priorities = tuple(task.configs)
    pins = {}
    for name, device in task.network.affinity.items():
        canonical = str(parse_device_name(device))
        if canonical in task.unavailable:
            raise AffinityError(
                f"node {task.network.node(name).label} is pinned to {device}, which cannot be used: {task.unavailable[canonical]}"
            )
        # A plan written as pins names HETERO for an If that HETERO runs itself.
        if canonical not in priorities and not (canonical == task.itself and is_branching(task.network.node(name))):
            hint = suggest(canonical, priorities) or ";"
            raise AffinityError(
                f"node {task.network.node(name).label} is pinned to {device}, which is not in the list{hint} the list is "
                f"{enumerate_choices(priorities)}"
            )
        pins[name] = canonical
    assignment = Assignment(priorities, pins)
    for device, reason in task.unavailable.items():
        for node in task.network.nodes:
            assignment.refuse(node.name, device, f"cannot be used: {reason}")
    return assignment


def complete_assignment(task: SplitTask, assignment: Assignment) -> None:
    """Assigns a device to every node and selects the subgraphs; `refused` holds the nodes that every device refuses.

    Raises: InvalidNetworkError for an invalid network.
    """
    while True:
        unassigned = [name for name in _ask_in_order(task, assignment) if not _take_branching(task, assignment, name)]
        assignment.sort(node.name for node in task.network.nodes)
        if unassigned:
            assignment.refused = tuple(unassigned)
            return
        _arrange(task, assignment)
        if not _ask_about_parts(task, assignment):
            return


def _ask_in_order(task: SplitTask, assignment: Assignment) -> list[str]:
    """Assigns the nodes without a device; returns the nodes that every device refuses."""
    unassigned = [node.name for node in task.network.nodes if node.name not in assignment.device_of_node]
    for device in task.configs:
        asked = [name for name in unassigned if assignment.may_take(name, device)]
        if not asked:
            continue
        for name, reason in _query(task, assignment, asked, device).items():
            if reason is None:
                assignment.device_of_node[name] = device
            else:
                assignment.refuse(name, device, reason)
        unassigned = [name for name in unassigned if name not in assignment.device_of_node]
    return unassigned


def _take_branching(task: SplitTask, assignment: Assignment, name: str) -> bool:
    """Assigns a refused node to HETERO itself if it is an If with branches that can be split; returns whether it was assigned."""
    node = task.network.node(name)
    if (
        not is_branching(node)
        or assignment.pins.get(name, task.itself) != task.itself
        or task.itself in assignment.denials.get(name, ())
    ):
        return False
    for branch in cut_branches(task.network, node):
        refused = task.core.query_network(branch, task.itself, task.own_config).refused
        if refused:
            inner = next(iter(refused))
            reason = (
                f"no device takes {len(refused)} of {len(branch.nodes)} nodes of {branch.name}, first {branch.node(inner).label}"
            )
            assignment.refuse(name, task.itself, reason)
            return False
    assignment.device_of_node[name] = task.itself
    return True


def _query(task: SplitTask, assignment: Assignment, names: Iterable[str], device: str) -> dict[str, str | None]:
    """Returns the reason of refusal for each node; None if the device takes the node.

    The device is asked about the network of these nodes, or about the whole network if a border value of unknown type prevents a cut: a
    plan that really has to cut there fails when its stages are cut, with the values listed.
    """
    part_names = tuple(names)
    part = without_pins(task.network)
    if len(part_names) < len(part.nodes):
        with suppress(InvalidNetworkError):
            part = task.cut(part_names)
    answer = task.core.query_network(part, device, task.configs[device])
    if not answer.refused:
        assignment.confirmed[device, part_names] = answer
    return {name: answer.refused.get(name) for name in part_names}


def _arrange(task: SplitTask, assignment: Assignment) -> None:
    """Moves nodes until no move is left, and selects the subgraphs."""
    while True:
        if len(set(assignment.device_of_node.values())) > 1:
            while moves := propose_unit_moves(task.network, task.units, assignment):
                _try_moves(task, assignment, moves)
            while moves := propose_shape_moves(task.network, task.shape_nodes, assignment):
                _try_moves(task, assignment, moves)
        assignment.subgraphs = _select(task, assignment)
        if task.smallest <= 1 or len(assignment.subgraphs) <= 1:
            return
        folds = propose_folds(task.network, assignment.subgraphs, task.predecessors, assignment, smallest=task.smallest)
        if not folds:
            return
        _try_moves(task, assignment, folds)


def _try_moves(task: SplitTask, assignment: Assignment, moves: Sequence[Move]) -> None:
    """Asks each device about the nodes that shall come to it, and makes the moves of which it takes all nodes.

    Nodes that are there already were asked for as company, and keep their place. After every call a node has moved, or was refused by a
    device, or will never move again: there are no endless rounds.
    """
    index_of_node = task.network.index_of_node
    for device in task.configs:
        device_moves = [move for move in moves if move.device == device]
        if not device_moves:
            continue
        names = sorted({name for move in device_moves for name in move.names}, key=index_of_node.__getitem__)
        answer = _query(task, assignment, names, device)
        for move in device_moves:
            coming = [name for name in move.names if assignment.device_of_node[name] != device]
            refused = {name: reason for name in coming if (reason := answer[name]) is not None}
            if all(answer[name] is None for name in move.names):
                assignment.move(coming, device, move.reason)
            elif not refused:
                assignment.settled.update(coming)
            for name, reason in refused.items():
                assignment.refuse(name, device, reason)


def _select(task: SplitTask, assignment: Assignment) -> tuple[Subgraph, ...]:
    """Returns the subgraphs; a quantized unit that is on one device counts as a single node, so that no cut goes through it."""
    devices, units, selection = _run_selection(task, assignment)
    procedures = Counter[str]()
    for head, procedure in selection.procedure_of_node.items():
        procedures[procedure] += len(units.get(head, (head,)))
    assignment.procedures = dict(procedures)
    return tuple(
        Subgraph(devices[part.nodes[0]], tuple(sorted(index for head in part.nodes for index in units.get(head, (head,)))))
        for part in selection.subgraphs
    )


def trace_assignment(task: SplitTask, assignment: Assignment) -> str:
    """Returns the text of the steps by which the subgraphs of a complete assignment were selected, under the policy that ran.

    A quantized unit is shown by the name of its first node.
    """
    return _run_selection(task, assignment, traces=True)[2].trace


def _run_selection(
    task: SplitTask, assignment: Assignment, *, traces: bool = False
) -> tuple[list[str], dict[int, tuple[int, ...]], Selection]:
    """Returns the device of each node, the quantized units by their first node, and the selection with each unit as a single node."""
    devices = [assignment.device_of_node[node.name] for node in task.network.nodes]
    is_split = len(set(devices)) > 1
    units = {unit[0]: unit for unit in task.units if len({devices[index] for index in unit}) == 1} if is_split else {}
    predecessors = _contract(task.predecessors, units)
    # A node that HETERO runs itself is a subgraph of its own: as if each were on a device of its own.
    device_of_head = {head: f"{task.itself} {head}" if devices[head] == task.itself else devices[head] for head in predecessors}
    alone = [device for device in device_of_head.values() if device not in assignment.priorities]
    names = [node.name for node in task.network.nodes]
    priorities = (*assignment.priorities, *alone)
    return devices, units, run_selection(predecessors, device_of_head, priorities, task.policy, names, traces=traces)


def _contract(predecessors: Sequence[tuple[int, ...]], units: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Returns the predecessors of every node with the first node of each unit standing for all of it."""
    if not units:
        return dict(enumerate(predecessors))
    head_of_node = {index: head for head, unit in units.items() for index in unit}
    sources: dict[int, dict[int, None]] = {}
    for index, before in enumerate(predecessors):
        head = head_of_node.get(index, index)
        heads = (head_of_node.get(source, source) for source in before)
        sources.setdefault(head, {}).update((source, None) for source in heads if source != head)
    return {head: tuple(before) for head, before in sources.items()}


def _ask_about_parts(task: SplitTask, assignment: Assignment) -> bool:
    """Takes their device from the nodes that it refuses as part of a subgraph; says whether there were any."""
    has_refusals = False
    for subgraph in assignment.subgraphs:
        names = tuple(task.network.nodes[index].name for index in subgraph.nodes)
        device = str(subgraph.device)
        if (device, names) in assignment.confirmed or device == task.itself:
            continue
        for name, reason in _query(task, assignment, names, device).items():
            if reason is not None:
                nodes = "1 node" if len(names) == 1 else f"{len(names)} nodes"
                assignment.refuse(name, device, f"{reason} (asked as part of a subgraph of {nodes})")
                has_refusals = True
    return has_refusals
