"""An If that no device takes whole: HETERO looks at the condition itself, and each branch is a split network of its own.

A branch is the network of its body; values that the body reads from outside become inputs. As ONNX has it, only the chosen branch
runs, with its side effects and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core import ExecutableNetwork, Plan
from hetero_core.composing.properties import PROPERTIES_KEY
from hetero_core.contract import Executable, RunContext, freeze_mapping
from hetero_core.executed import ExecutedNode
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.topology import find_free_values
from hetero_core.network.types import ValueSpec, has_known_element

BRANCHES = ("then_branch", "else_branch")


def is_branching(node: Node) -> bool:
    """Says whether a node is ONNX's If."""
    return node.op_type == "If" and not node.domain and all(name in node.bodies for name in BRANCHES)


def cut_branches(network: Network, node: Node) -> tuple[Network, ...]:
    """Returns the branches of an If as networks, first the branch of a true condition; weights are shared."""
    return tuple(_cut_branch(network, node, node.bodies[name]) for name in BRANCHES)


def _cut_branch(network: Network, node: Node, body: Graph) -> Network:
    read = find_free_values(body)
    outer = {value: network.initializers[value] for value in read if value in network.initializers}
    inputs = tuple(ValueSpec(value, network.types[value]) for value in read if value not in outer)
    # An output whose type the body does not know has the type that the If gives it.
    outer_types = [network.type_of(value) for value in (*node.outputs, *("" for _ in body.outputs[len(node.outputs) :]))]
    outputs = tuple(
        spec if outer_type is None or has_known_element(spec.type) else ValueSpec(spec.name, outer_type)
        for spec, outer_type in zip(body.outputs, outer_types, strict=False)
    )
    types = {**{value: network.types[value] for value in read if value in network.types}, **body.types}
    types.update((spec.name, spec.type) for spec in outputs)
    return Network(
        f"{network.name}/{node.name}/{body.name}",
        inputs,
        outputs,
        body.nodes,
        freeze_mapping({**body.initializers, **outer}),
        freeze_mapping(types),
        opsets=network.opsets,
        ir_version=network.ir_version,
    )


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Returns the metrics of a split network that its plan tells."""
    inner = [boundary for boundary in plan.boundaries if boundary.producer is not None]
    return {
        "HETERO_SUBGRAPHS": tuple((stage.device, stage.nodes) for stage in plan.stages),
        "HETERO_NUMBER_OF_SUBMODELS": len(plan.stages),
        "HETERO_PLAN": plan,
        "HETERO_BOUNDARY_TENSORS": len(inner),
        "HETERO_BOUNDARY_BYTES": sum(boundary.nbytes or 0 for boundary in inner),
    }


class BranchExecutable(Executable):
    """A network that consists of an If, with both branches loaded. The condition is an input, or a constant of the network."""

    def __init__(self, network: Network, plan: Plan, then_branch: ExecutableNetwork, else_branch: ExecutableNetwork) -> None:
        (node,) = network.nodes
        self.network = network
        self.plan = plan
        self.inputs = network.inputs
        self.outputs = network.outputs
        condition = node.inputs[0]
        self._fixed = network.initializers[condition].array if condition in network.initializers else None
        self._condition = network.index_of_input.get(condition, 0)
        # Each branch with the inputs of the If that it takes, and its own outputs that the If returns.
        self._branches = tuple(
            (
                loaded,
                tuple(network.index_of_input[spec.name] for spec in loaded.inputs),
                tuple(node.outputs.index(spec.name) for spec in self.outputs),
            )
            for loaded in (then_branch, else_branch)
        )

    def create_state(self) -> tuple[object, ...]:
        """Returns the working memory of both branches."""
        return tuple(loaded.create_state() for loaded, _, _ in self._branches)

    def create_spare(self, state: Any) -> tuple[object, ...]:
        """Returns the second working memory of both branches."""
        return tuple(loaded.create_state(beside) for (loaded, _, _), beside in zip(self._branches, state, strict=True))

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs of the branch that the condition chooses."""
        condition = inputs[self._condition] if self._fixed is None else self._fixed
        chosen = 0 if bool(np.asarray(condition).reshape(-1)[0]) else 1
        loaded, places_in, places_out = self._branches[chosen]
        states: Any = context.state
        inner = context.derive(states[chosen], outputs=None, tensors=None)
        results = loaded.run_device(tuple(inputs[place] for place in places_in), inner)
        return tuple(results[place] for place in places_out)

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of a split network; its devices are those of both branches."""
        devices = (device for loaded, _, _ in self._branches for device in loaded.get_metric("EXECUTION_DEVICES"))
        properties = [loaded.get_metric(PROPERTIES_KEY) for loaded, _, _ in self._branches]
        return {
            **describe_plan(self.plan),
            PROPERTIES_KEY: {**properties[1], **properties[0]},
            "EXECUTION_DEVICES": tuple(dict.fromkeys(devices)),
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of both branches, of which a run takes one."""
        return tuple(node for loaded, _, _ in self._branches for node in loaded.list_executed())

    def close(self) -> None:
        """Closes both branches."""
        for loaded, _, _ in self._branches:
            loaded.close()
