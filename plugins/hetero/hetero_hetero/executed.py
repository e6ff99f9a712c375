"""The executed graph of a split network: the steps of its stages, and the copies between their memories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.plan import Plan
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.executed import list_executed
from hetero_hetero.routing import Route, Transfer


def list_steps(plan: Plan, stages: Sequence[ExecutableNetwork], route: Route) -> tuple[ExecutedNode, ...]:
    """Returns the steps in order of execution; a copy stands behind the stage that made the value, those of inputs stand first.

    A stage that reads a copy reads it under the name of the copy, "b@CPU".
    """
    copies: dict[int, str] = {}
    steps = list(_list_copies(route.first_transfers, (), copies))
    for index, stage in enumerate(stages):
        placed = plan.stages[index]
        slots = zip(stage.all_inputs, route.steps[index].inputs, strict=True)
        names = {spec.name: copies[slot] for spec, slot in slots if slot in copies}
        nodes = place_executed(list_executed(stage, placed.nodes), placed.device, index)
        steps += [replace(node, inputs=tuple(names.get(value, value) for value in node.inputs)) for node in nodes]
        steps += _list_copies(route.steps[index].transfers, (index,), copies)
    return tuple(steps)


def _list_copies(transfers: Iterable[Transfer], path: tuple[int, ...], copies: dict[int, str]) -> Iterable[ExecutedNode]:
    """Yields the copies as steps, and notes in `copies` the name of what lies in each slot."""
    for transfer in transfers:
        targets = ", ".join(transfer.readers)
        copies[transfer.target] = f"{transfer.value}@{targets}"
        name = f"{transfer.value} to {targets}"
        yield ExecutedNode(name, "transfer", (), (transfer.value,), (copies[transfer.target],), device=transfer.origin, path=path)
