"""The nodes that the engine takes: a single query about a model of all distinct nodes, side by side.

A query takes more than 10 ms even for a small model. Unconnected nodes are answered as if each were alone; nodes that the frontend cannot
convert are found by bisection. Within its network, with known shapes and constants, the engine may take a node that it refuses alone; so
a network is compiled as a whole before some of its nodes are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hetero_core.engines.probing import NodeProber, join_networks
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_openvino.conversion import TYPE_NAMES, find_type_fault, read_model
from hetero_openvino.engine import EXACT_PRECISION, OpenvinoEngine


class EngineRefusal(str):
    """The engine's refusal of a node alone; the engine may take the node in its network."""

    __slots__ = ()


class OpenvinoProber:
    """Answers for a device of the engine. Safe for threads."""

    def __init__(self, engine: OpenvinoEngine, device: str) -> None:
        self._engine = engine
        self._device = device
        self._nodes = NodeProber(self._ask, find_type_fault, keeps_weights=True)

    def find_refusals(self, nodes: Iterable[Node], network: Network) -> dict[str, str]:
        """Returns why the engine does not take nodes of a stamped network, by name; nodes that it takes are not in it."""
        asked = list(nodes)
        refusals = self._nodes.find_refusals(asked, network)
        may_be_lifted = len(asked) == len(network.nodes) and all(isinstance(reason, EngineRefusal) for reason in refusals.values())
        return {} if refusals and may_be_lifted and not self._try_whole(network) else refusals

    def _ask(self, networks: Sequence[Network]) -> list[str]:
        if networks[0].nodes[0].bodies:
            return [self._try_whole(networks[0])]
        try:
            model = self._engine.core.read_model(join_networks(networks))
            supported = set(self._engine.core.query_model(model, self._device))
        except Exception as error:
            if len(networks) > 1:
                raise
            return [EngineRefusal(f"OpenVINO {self._engine.version}: {shorten_message(str(error))}")]
        results = _group_results(model)
        return [self._judge(network, results.get(index, {}), supported) for index, network in enumerate(networks)]

    def _judge(self, network: Network, results: dict[str, Any], supported: set[str]) -> str:
        fault = self._find_result_fault(network, [results.get(spec.name) for spec in network.outputs])
        if fault:
            return fault
        # A query lists nodes without a rank, which do not compile. It leaves out nodes that its passes remove and nodes that it cannot run;
        # only compiling tells them apart.
        has_ranks = all(isinstance(spec.type, TensorType) and spec.type.shape is not None for spec in network.inputs)
        if has_ranks and all(op.get_friendly_name() in supported for op in _walk_up(results.values())):
            return ""
        return self._try_whole(network)

    def _try_whole(self, network: Network) -> str:
        """Returns the engine's reason for not compiling a network, or an empty text."""
        try:
            model = read_model(self._engine.core, network)
            fault = self._find_result_fault(network, list(model.outputs))
            if fault:
                return fault
            self._engine.core.compile_model(model, self._device, EXACT_PRECISION)
        except Exception as error:  # noqa: BLE001  # any error of the engine is its answer
            return EngineRefusal(f"OpenVINO {self._engine.version} on {self._device}: {shorten_message(str(error))}")
        return ""

    def _find_result_fault(self, network: Network, results: Sequence[Any]) -> str:
        if len(results) != len(network.outputs):
            return f"OpenVINO {self._engine.version} makes {len(results)} outputs; the model has {len(network.outputs)}"
        for spec, result in zip(network.outputs, results, strict=True):
            if result is None:
                return f"OpenVINO {self._engine.version} loses its output '{spec.name}'"
            made_type, declared_type = result.get_element_type().get_type_name(), TYPE_NAMES.get(str(spec.dtype))
            if made_type != declared_type:
                return f"OpenVINO {self._engine.version} makes '{spec.name}' {made_type}; the model says {declared_type}"
        return ""


def _group_results(model: Any) -> dict[int, dict[str, Any]]:
    grouped: dict[int, dict[str, Any]] = {}
    for output in model.outputs:
        for name in output.get_names():
            index, _, own = name.partition("/")
            if index.isdecimal():
                grouped.setdefault(int(index), {})[own] = output
    return grouped


def _walk_up(outputs: Iterable[Any]) -> Iterable[Any]:
    """Yields the operations that some outputs need, constants and parameters aside."""
    waiting = [output.get_node() for output in outputs]
    seen = set()
    while waiting:
        operation = waiting.pop()
        if operation.get_friendly_name() in seen:
            continue
        seen.add(operation.get_friendly_name())
        waiting += [operation.input_value(index).get_node() for index in range(operation.get_input_size())]
        if operation.get_type_name() not in ("Parameter", "Constant", "Result"):
            yield operation


def shorten_message(text: str) -> str:
    """Returns an engine's message without the places in its source, on a single line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("Exception from", "Check '"))]
    line = " ".join(" ".join(lines if lines else [text]).split())
    line = re.sub(r"(?:Exception from )?src/\S+:\d+:?\s*", "", line)
    return line if len(line) <= 300 else line[:297] + "..."
