"""The assignment of nodes to devices, and moves of nodes that would be better off on another device than the first that takes them.

Moves are proposals: no device is asked here. A move leads only to devices that have not refused the node, and never back to a device
that it has left, so moves end. A unit is a set of nodes that belong on one device, read off the graph. A quantized unit is an operator
between DequantizeLinear and QuantizeLinear, which an engine fuses into one integer kernel. A shape node computes an input that other
nodes need on the host: the shape of a Reshape, the ends of a Slice, the count of a Tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hetero_core.contract import QueryResult
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_hetero.subgraphs import Subgraph


@dataclass(slots=True)
class Assignment:
    """The device of each node that a device takes, in order of the nodes, and the subgraphs that follow from it.

    `refused` are the nodes that no device takes. `denials` maps node -> device -> reason for every no that was heard. `moves` does
    the same for devices that a node has left, though they take it. If the node's new device refuses it later, its moves are
    forgotten, and the node is `settled`: it is never moved again. So only refusals can leave a node without a device. `confirmed`
    holds the answer about each part, as (device, nodes), that was asked about and taken. `procedures` maps each procedure that
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
        """Node -> device -> reason, for every device that was asked about a node before its own device."""
        names = dict.fromkeys((*self.denials, *self.moves))
        return {name: {**self.denials.get(name, {}), **self.moves.get(name, {})} for name in names}

    def may_take(self, name: str, device: str) -> bool:
        """Says whether a device may be asked for a node: it is in the list, no pin and no reason speaks against it."""
        is_ruled_out = device not in self.priorities or device in self.denials.get(name, ()) or device in self.moves.get(name, ())
        return self.pins.get(name, device) == device and not is_ruled_out

    def may_move(self, name: str, device: str) -> bool:
        """Says whether a node that has a device may go to another device."""
        return name not in self.settled and self.may_take(name, device)

    def move(self, names: Iterable[str], device: str, reason: str) -> None:
        """Gives nodes another device; nodes that are there already stay without a note."""
        for name in names:
            origin = self.device_of_node[name]
            if origin != device:
                self.moves.setdefault(name, {})[origin] = reason
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


@dataclass(frozen=True, slots=True)
class Move:
    """Nodes that go to a device together or not at all, and why."""

    names: tuple[str, ...]
    device: str
    reason: str


def propose_unit_moves(network: Network, units: Sequence[Sequence[int]], assignment: Assignment) -> list[Move]:
    """Returns moves that bring each unit that is on several devices to the first device that may take all of it."""
    moves: list[Move] = []
    for unit in units:
        names = tuple(network.nodes[index].name for index in unit)
        is_divided = len({assignment.device_of_node[name] for name in names}) > 1
        candidates = assignment.priorities if is_divided else ()
        moves += _propose(assignment, names, candidates, "moved", f"it takes all of the quantized unit {', '.join(names)}")
    return moves


def _propose(assignment: Assignment, names: tuple[str, ...], candidates: Iterable[str], verb: str, why: str) -> list[Move]:
    """Returns the move of the nodes to the first device where all of them are or may go; empty if there is none."""
    for device in candidates:
        if all(assignment.device_of_node[name] == device or assignment.may_move(name, device) for name in names):
            return [Move(names, device, f"{verb} to {device}: {why}")]
    return []


def propose_shape_moves(network: Network, shape_nodes: Sequence[int], assignment: Assignment) -> list[Move]:
    """Returns moves that bring shape nodes to the device of all that read their results.

    A node moves to a device only if all its inputs are there or move there, too; so a move removes boundary values and adds no
    other value.
    """
    device_of_index = [assignment.device_of_node[node.name] for node in network.nodes]
    staying: set[int] = set()
    goals: dict[int, str] = {}

    def is_at_hand(value: str, device: str) -> bool:
        # It is made on the device, moves there with its producer, or is read there by a node that stays.
        producer = network.index_of_producer.get(value)
        if producer is None or goals.get(producer, device_of_index[producer]) == device:
            return True
        return any(reader not in goals and device_of_index[reader] == device for reader in network.index_of_consumers[value])

    while True:
        goals.clear()
        for index in reversed(shape_nodes):
            node = network.nodes[index]
            readers = (reader for value in node.writes for reader in network.index_of_consumers[value])
            devices = {goals.get(reader, device_of_index[reader]) for reader in readers}
            device = devices.pop() if len(devices) == 1 and index not in staying else device_of_index[index]
            if device != device_of_index[index] and assignment.may_move(node.name, device):
                goals[index] = device
        going = sorted(goals)
        for index in going:
            if not all(is_at_hand(value, goals[index]) for value in network.nodes[index].reads):
                del goals[index]
                staying.add(index)
        if len(goals) == len(going):
            break
    moves = []
    for device in assignment.priorities:
        names = tuple(network.nodes[index].name for index in shape_nodes if goals.get(index) == device)
        if names:
            moves.append(Move(names, device, f"moved to {device}: only nodes there read the shape that is computed here"))
    return moves


def propose_folds(
    network: Network, subgraphs: Sequence[Subgraph], predecessors: Sequence[Sequence[int]], assignment: Assignment, *, smallest: int
) -> list[Move]:
    """Returns moves of subgraphs with fewer than `smallest` nodes to the device of a neighbour, the largest that may take them.

    A subgraph with a pinned node stays.
    """
    home = {index: number for number, subgraph in enumerate(subgraphs) for index in subgraph.nodes}
    neighbours: list[set[int]] = [set() for _ in subgraphs]
    for index, sources in enumerate(predecessors):
        for source in sources:
            if home[source] != home[index]:
                neighbours[home[source]].add(home[index])
                neighbours[home[index]].add(home[source])
    moves: list[Move] = []
    for number, subgraph in enumerate(subgraphs):
        names = tuple(network.nodes[index].name for index in subgraph.nodes)
        if len(names) >= smallest or any(name in assignment.pins for name in names):
            continue
        around = sorted(neighbours[number], key=lambda neighbour: (-len(subgraphs[neighbour].nodes), neighbour))
        devices = [str(subgraphs[neighbour].device) for neighbour in around if subgraphs[neighbour].device != subgraph.device]
        nodes = "1 node" if len(names) == 1 else f"{len(names)} nodes"
        why = f"subgraph of {nodes} is below HETERO_MIN_SUBGRAPH_SIZE={smallest}"
        moves += _propose(assignment, names, devices, "folded", why)
    return moves


_DOMAINS_OF_QUANTIZATION = ("", "com.microsoft")
_ACTIVATIONS = ("Clip", "Relu")
"""Operators that may stand between an operator and its QuantizeLinear: they become limits of the quantization."""

_OPERATORS_OF_INPUTS = {
    (0,): "ConstantOfShape If",
    (0, 1): "Loop",
    (0, 1, 2): "Range",
    (1,): "CenterCropPad Expand OneHot Reshape Split Squeeze Tile TopK Unsqueeze Upsample ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
    (1, 2): "Col2Im",
    (1, 2, 3): "Resize",
    (1, 2, 3, 4): "Slice",
    (1, 3): "Pad",
    (2,): "MaxUnpool",
}
_HOST_INPUTS = {op_type: places for places, op_types in _OPERATORS_OF_INPUTS.items() for op_type in op_types.split()}
"""Operator of ONNX's own domain -> the inputs that say how to compute, not what; a device reads them on the host."""
_DTYPES_OF_SHAPES = ("int64", "int32", "bool")
_LARGEST_SHAPE = 1024
"""Bytes up to which integers pass for a shape; a larger tensor is a computation of its own, whichever nodes read it."""


def find_quantized_units(network: Network) -> tuple[tuple[int, ...], ...]:
    """Returns the positions of the nodes of each unit, ascending; units share no node.

    A unit is an operator, the DequantizeLinear nodes that feed it alone, perhaps a Relu or Clip behind it, and the
    QuantizeLinear nodes that alone read the result. A path that leaves a unit leaves it through these and does not return, so
    units can be taken as single nodes, all of them together.
    """
    units = (_find_unit_around(network, index) for index in range(len(network.nodes)))
    return tuple(unit for unit in units if unit)


def _find_unit_around(network: Network, index: int) -> tuple[int, ...]:
    node = network.nodes[index]
    sources = sorted({network.index_of_producer[value] for value in node.inputs if value in network.index_of_producer})
    feeding = [source for source in sources if _is_quantizer(network.nodes[source], "DequantizeLinear")]
    if not feeding or _is_quantizer(node, "DequantizeLinear") or _is_quantizer(node, "QuantizeLinear"):
        return ()
    own = [source for source in feeding if _list_readers(network, network.nodes[source]) == (index,)]
    behind = _follow_to_quantizers(network, index)
    return tuple(sorted((*own, index, *behind))) if own and behind else ()


def _follow_to_quantizers(network: Network, index: int) -> tuple[int, ...]:
    """Returns the activations and QuantizeLinear nodes behind a node, () if another node reads its result."""
    passed: list[int] = []
    while True:
        node = network.nodes[index]
        readers = _list_readers(network, node)
        if readers and all(_quantizes(network, reader, node.outputs[0]) for reader in readers):
            return (*passed, *readers)
        if len(readers) != 1 or network.nodes[readers[0]].op_type not in _ACTIVATIONS:
            return ()
        (index,) = readers
        if network.nodes[index].inputs.count(node.outputs[0]) != 1 or network.nodes[index].inputs[0] != node.outputs[0]:
            return ()
        passed.append(index)


def _list_readers(network: Network, node: Node) -> tuple[int, ...]:
    """Returns the readers of a node's only output, () if it has several outputs or the network returns the output."""
    if len(node.writes) != 1 or node.outputs[0] in network.names_of_outputs:
        return ()
    return network.index_of_consumers.get(node.outputs[0], ())


def _quantizes(network: Network, index: int, value: str) -> bool:
    """Says whether a node quantizes this value, by scales that no node makes: with these it could not be entered from behind."""
    node = network.nodes[index]
    scales = node.inputs[1:]
    return (
        _is_quantizer(node, "QuantizeLinear")
        and node.inputs[0] == value
        and not any(scale in network.index_of_producer for scale in scales)
    )


def _is_quantizer(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _DOMAINS_OF_QUANTIZATION


def find_shape_nodes(network: Network) -> tuple[int, ...]:
    """Returns the ascending positions of shape nodes: small results that only control how other nodes compute."""
    shape_nodes: set[int] = set()
    for index in reversed(range(len(network.nodes))):
        values = network.nodes[index].writes
        if values and all(_is_shape(network, value) and _only_steers(network, value, shape_nodes) for value in values):
            shape_nodes.add(index)
    return tuple(sorted(shape_nodes))


def _is_shape(network: Network, value: str) -> bool:
    """Says whether a value may be a shape or a part of a shape: few integers, or a vector of factors as Resize takes."""
    known = network.type_of(value)
    if not isinstance(known, TensorType):
        return False
    if known.dtype in _DTYPES_OF_SHAPES:
        return known.nbytes is None or known.nbytes <= _LARGEST_SHAPE
    return known.shape is not None and len(known.shape) <= 1 and (known.nbytes or 0) <= _LARGEST_SHAPE


def _only_steers(network: Network, value: str, shape_nodes: set[int]) -> bool:
    """Says whether a value is read by shape nodes alone, and at inputs that control a computation."""
    readers = network.index_of_consumers.get(value, ())
    if not readers or value in network.names_of_outputs:
        return False
    for reader in readers:
        node = network.nodes[reader]
        host = _HOST_INPUTS.get(node.op_type, ()) if not node.domain else ()
        steers = value not in node.captures and all(place in host for place, name in enumerate(node.inputs) if name == value)
        if reader not in shape_nodes and not steers:
            return False
    return True
