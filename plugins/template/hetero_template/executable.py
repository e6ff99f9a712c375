"""A network loaded on TEMPLATE: one evaluator for each node of the transformed network, run in order."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.contract import Executable, RunContext
from hetero_core.kernels.sizes import require_room
from hetero_core.network.graph import Network
from hetero_template.evaluator import ExtensionTable, build_evaluator


class TemplateExecutable(Executable):
    """Runs share nothing but constants, so one executable serves any number of threads without state of its own."""

    def __init__(self, network: Network, transformed: Network, extensions: ExtensionTable) -> None:
        self.network = network
        self.inputs = network.inputs
        self.outputs = network.outputs
        self._constants = {name: constant.array for name, constant in transformed.initializers.items()}
        self._steps = [(node, build_evaluator(node, transformed, extensions)) for node in transformed.nodes]
        self._dead_after = _find_last_readers(transformed)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a value is dropped after its last reader, so memory does not grow with depth."""
        values: dict[str, Any] = dict(self._constants)
        values.update((spec.name, value) for spec, value in zip(self.inputs, inputs, strict=True))
        profile, limits = context.profile, context.limits
        if limits is not None:
            limits.exempt(values.values())
        for index, (node, evaluate) in enumerate(self._steps):
            if context.cancelled():
                break
            if limits is not None:
                require_room(limits, node, [values.get(name) for name in node.inputs])
            began = perf_counter()
            try:
                # ONNX defines the results of overflow and of division by zero; NumPy would warn about them.
                with np.errstate(all="ignore"):
                    values.update(zip(node.writes, map(_as_array, evaluate(values)), strict=True))
            except Exception as error:
                error.add_note(f"in node {node.label}")
                raise
            if profile is not None:
                profile.add(node, perf_counter() - began)
            if limits is not None:
                limits.hold(values[name] for name in node.writes)
            for dead in self._dead_after[index]:
                del values[dead]
        return tuple(values.get(spec.name) for spec in self.outputs)

    def metrics(self) -> Mapping[str, Any]:
        """Every node runs through the reference evaluator; a device with kernels of its own lists the nodes that do."""
        return {"REFERENCE_NODES": tuple(node.name for node in self.network.nodes)}


def _as_array(value: Any) -> Any:
    """The evaluator returns NumPy scalars where a result has no dimensions, and texts of fixed width."""
    if isinstance(value, list):
        return [_as_array(item) for item in value]
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind == "U":
        return np.asarray(value, dtype=object)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _find_last_readers(network: Network) -> list[tuple[str, ...]]:
    """Returns for each node the values that nobody reads after it; outputs and constants of the network are kept."""
    kept = {spec.name for spec in network.outputs} | set(network.initializers)
    dead_after: list[list[str]] = [[] for _ in network.nodes]
    for index, node in enumerate(network.nodes):
        for value in node.writes:
            if value not in network.index_of_consumers and value not in kept:
                dead_after[index].append(value)
    for value, readers in network.index_of_consumers.items():
        if value not in kept:
            dead_after[readers[-1]].append(value)
    return [tuple(values) for values in dead_after]
