"""A pass that writes control flow out whose course is known when a network is loaded.

```text
If, constant condition              ──> the nodes of the branch
If, branches of a few single elements ──> the nodes of both ── Where
Loop, constant number of trips      ──> the nodes of its body for each trip; scan outputs: Unsqueeze of each trip ── Concat
Scan, constant length               ──> Gather of each row ── the nodes of its body; scan outputs as above
list of tensors ── ConcatFromSequence ──> Unsqueeze of each, or nothing ── Concat
```

What a body computes of constants alone, as a counter and a condition, is computed here. A node of a body that reads the same values in
each trip is written once. A Loop stays if a condition depends on a run, or if it has more trips or nodes than the limits below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.kernels.program import evaluate_node
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.hints import drop_shape
from hetero_core.network.inference import infer_types
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import rename_node
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import RANDOM_OPERATORS, drop_unread, fold_node
from hetero_core.transforms.copies import eliminate_copies
from hetero_cpu.transforms.writer import Writer

_MOST_TRIPS = 64
_MOST_NODES = 2000
"""Nodes that all bodies of a network may add."""
_LARGEST_NUMBERS = 1 << 10
"""Bytes of constants, and of their results, that are computed for each trip: counters, conditions and shapes."""


_MOST_SELECTED = 8
"""Nodes of two branches of which both are computed."""
_TOTAL = frozenset(
    {"Add", "And", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Mul", "Neg", "Not", "Or", "Sub", "Xor"}
)
"""Operators that work element by element and fail for no element."""


class _DependsOnRunError(Exception):
    """The course of a node is not known, or its bodies are too long to be written out."""


def unroll_loops(network: Network) -> Network:
    """Returns the network with If, Loop and Scan written out where their course is known, and its types inferred."""
    unroller = _Unroller(network)
    for node in network.nodes:
        unroller.add_node(node)
    return infer_types(drop_unread(eliminate_copies(unroller.write_network()))) if unroller.is_changed else network


class _Unroller(Writer):
    """The network as far as it is written out."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._lists: dict[str, tuple[str, ...]] = {}
        """The tensors of sequences whose length is known."""
        self._count = 0
        self.is_changed = False

    def add_node(self, node: Node) -> None:
        """Adds a node: the nodes of its bodies, its results if they are small constants, or the node."""
        if not node.domain and (self._write_out(node) or self._join_list(node)):
            self.is_changed = True
            return
        numbers = self._compute(node)
        if numbers is None:
            self.nodes.append(node)
            return
        self.constants.update(numbers)
        self.types.update((value, constant.type) for value, constant in numbers.items())

    def _compute(self, node: Node) -> dict[str, Initializer] | None:
        """Returns the results of a node that reads nothing but small constants."""
        constants = [self.constants.get(value) for value in node.reads]
        if node.op_type not in ("Shape", "Size") and (
            not constants or sum(_LARGEST_NUMBERS if own is None else own.nbytes for own in constants) >= _LARGEST_NUMBERS
        ):
            return None
        return fold_node(node, self.network, self.constants, evaluate_node, type_of=self.types.get, room=_LARGEST_NUMBERS)

    def _write_out(self, node: Node) -> bool:
        """Adds the nodes of the bodies of a node if its course is known, and says whether it is."""
        write = {"If": self._write_branch, "Loop": self._write_loop, "Scan": self._write_scan}.get(node.op_type)
        if write is None:
            return False
        length, count, self.label, self.origins = len(self.nodes), self._count, node.name, node.origins
        try:
            write(node)
        except _DependsOnRunError:
            del self.nodes[length:]
            self._count = count
            return False
        return True

    def _write_branch(self, node: Node) -> None:
        if node.inputs[0] not in self.constants and self._can_select(node):
            branches = [_Trips(self, node, node.bodies[name]).write(()) for name in ("then_branch", "else_branch")]
            for output, *values in zip(node.outputs, *branches, strict=True):
                if output:
                    self.write("Where", node.inputs[0], *values, output=output)
            return
        condition = self._read(node.inputs[0])
        body = node.bodies["then_branch" if condition.reshape(-1)[0] else "else_branch"]
        self._name_outputs(node.outputs, _Trips(self, node, body).write(()))

    def _can_select(self, node: Node) -> bool:
        """Says whether the branches compute a few single elements of one shape, as a condition of two parts that torch exports."""
        bodies, outer = tuple(node.bodies.values()), {node.inputs[0], *node.captures}
        inner = [constant for body in bodies for constant in body.initializers.values()]
        shapes = {self.shape(value) for value in outer} | {constant.shape for constant in inner}
        nodes = [own for body in bodies for own in body.nodes]
        are_tensors = all(isinstance(self.types.get(value), TensorType) for value in outer)
        are_plain = len(nodes) <= _MOST_SELECTED and all(own.op_type in _TOTAL and not own.domain for own in nodes)
        return are_tensors and are_plain and len(shapes) == 1 and shapes <= {(), (1,)}

    def _write_loop(self, node: Node) -> None:
        limit_name, condition, *carried = (*node.inputs, "", "")[: max(len(node.inputs), 2)]
        limit = int(self._read(limit_name).reshape(-1)[0]) if limit_name else None
        goes_on = bool(self._read(condition).reshape(-1)[0]) if condition else True
        trips, columns = _Trips(self, node, node.bodies["body"]), list[tuple[str, ...]]()
        while goes_on and (limit is None or len(columns) < limit):
            if len(columns) == _MOST_TRIPS:
                raise _DependsOnRunError
            numbers = (self.add_constant(np.int64(len(columns))), self.add_constant(np.bool_(True)))
            next_condition, *results = trips.write((*numbers, *carried))
            goes_on = bool(self._read(next_condition).reshape(-1)[0])
            columns.append(tuple(results[len(carried) :]))
            carried = results[: len(carried)]
        self._name_outputs(node.outputs, carried)
        for index, output in enumerate(node.outputs[len(carried) :]):
            self._stack(output, [column[index] for column in columns], 0)

    def _write_scan(self, node: Node) -> None:
        if node.since_version < 9:
            raise _DependsOnRunError
        count = node.attributes["num_scan_inputs"]
        states, scanned = list(node.inputs[:-count]), node.inputs[-count:]
        shapes = [self.shape(value) for value in scanned]
        axes = node.attributes.get("scan_input_axes") or (0,) * count
        lengths = {None if shape is None else shape[axis] for shape, axis in zip(shapes, axes, strict=True)}
        length = lengths.pop()
        if lengths or not isinstance(length, int) or not 0 < length <= _MOST_TRIPS:
            raise _DependsOnRunError
        backward = node.attributes.get("scan_input_directions") or (0,) * count
        trips, columns = _Trips(self, node, node.bodies["body"]), list[tuple[str, ...]]()
        for trip in range(length):
            rows = [
                self.write("Gather", value, self.add_constant(np.int64(length - 1 - trip if turns else trip)), axis=axis)
                for value, axis, turns in zip(scanned, axes, backward, strict=True)
            ]
            results = trips.write((*states, *rows))
            columns.append(results[len(states) :])
            states = list(results[: len(states)])
        self._name_outputs(node.outputs, states)
        outputs = node.outputs[len(states) :]
        axes = node.attributes.get("scan_output_axes") or (0,) * len(outputs)
        turned = node.attributes.get("scan_output_directions") or (0,) * len(outputs)
        for index, output in enumerate(outputs):
            column = [values[index] for values in columns]
            self._stack(output, column[::-1] if turned[index] else column, axes[index])

    def _read(self, value: str) -> Any:
        """Returns the elements of a constant."""
        constant = self.constants.get(value)
        if constant is None or constant.nbytes == 0:
            raise _DependsOnRunError
        return constant.array

    def _name_outputs(self, outputs: Sequence[str], values: Sequence[str]) -> None:
        for output, value in zip(outputs, values, strict=False):
            if output:
                self.write("Identity", value, output=output)

    def _stack(self, output: str, values: Sequence[str], axis: int) -> None:
        """Adds the values stacked along a new axis."""
        if not output:
            return
        if not values or any(not isinstance(self.types.get(value), TensorType) for value in values):
            raise _DependsOnRunError
        axes = self.add_constant(np.array([axis]))
        self.write("Concat", *[self.write("Unsqueeze", value, axes) for value in values], output=output, axis=axis)

    def add_copy(self, node: Node, body: Graph, label: str, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Adds a node of a body under new names, and returns its outputs. Raises: _DependsOnRunError after too many nodes."""
        self._count += 1
        if self._count > _MOST_NODES:
            raise _DependsOnRunError
        outputs = tuple([value and self.names.value(f"{label}/{value}") for value in node.outputs])
        # Sizes may change from trip to trip.
        types = [(value, body.type_of(inner)) for value, inner in zip(outputs, node.outputs, strict=True) if value]
        self.types.update((value, drop_shape(own)) for value, own in types if own is not None)
        self.add_node(replace(node, name=self.names.node(f"{label}/{node.name}"), outputs=outputs, origins=origins))
        return outputs

    def _join_list(self, node: Node) -> bool:
        """Follows a sequence whose length is known, and says whether nodes were added in place of the node that reads it."""
        if node.op_type == "SequenceEmpty":
            self._lists[node.outputs[0]] = ()
        elif node.op_type == "SequenceConstruct":
            self._lists[node.outputs[0]] = node.inputs
        tensors = self._lists.get(node.inputs[0]) if node.inputs else None
        if tensors is None:
            return False
        if node.op_type == "Identity":
            self._lists[node.outputs[0]] = tensors
        elif node.op_type == "SequenceInsert" and not any(node.inputs[2:]):
            self._lists[node.outputs[0]] = (*tensors, node.inputs[1])
        elif node.op_type == "ConcatFromSequence" and tensors:
            axis, (output,), self.origins = node.attributes["axis"], node.outputs, node.origins
            if node.attributes.get("new_axis", 0):
                self._stack(output, tensors, axis)
            else:
                self.write("Concat", *tensors, output=output, axis=axis)
            return True
        return False


class _Trips:
    """The trips through a body. A node that reads the same values in each trip is added once."""

    def __init__(self, unroller: _Unroller, owner: Node, body: Graph) -> None:
        self._unroller, self._owner, self._body, self._trip = unroller, owner, body, 0
        self._added: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        self._renamed = {name: unroller.hold(constant, unroller.name(name)) for name, constant in body.initializers.items()}

    def write(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """Adds the nodes of a trip, and returns the values that the body returns."""
        renamed = {**self._renamed, **dict(zip([spec.name for spec in self._body.inputs], inputs, strict=True))}
        for node in self._body.nodes:
            key = node.name, tuple([renamed.get(value, value) for value in node.reads])
            outputs = self._added.get(key)
            if outputs is None:
                label = f"{self._owner.name}/{self._trip}"
                outputs = self._unroller.add_copy(rename_node(node, renamed), self._body, label, self._owner.origins)
                if node.op_type not in RANDOM_OPERATORS and not node.bodies:
                    self._added[key] = outputs
            renamed.update(zip(node.outputs, outputs, strict=True))
        self._trip += 1
        return tuple([renamed.get(spec.name, spec.name) for spec in self._body.outputs])
