"""Prints when two stages of HETERO work for ten requests, on devices with `start` alone and a memory each; no thread of the core waits.

Each device stands for a card: it takes MILLISECONDS for a run, without the processor, one run after the other.
`python tests/bench/show_overlap.py`
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import onnx.parser

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.contract import DeviceName, Done
from hetero_core.devices.query import query_by_transform
from hetero_core.network.types import ValueSpec

REQUESTS, MILLISECONDS = 10, 20
MODEL = '<ir_version: 8, opset_import: ["": 17]> chain (float[2] x) => (float[2] y) { [ahead] a = Neg (x) [behind] y = Neg (a) }'


class CardArray:
    """An array in the memory of one card."""

    __array_ufunc__ = None

    def __init__(self, memory: str, elements: Any) -> None:
        self.memory, self.elements, self.nbytes = memory, elements, elements.nbytes


class CardDevice:
    """Runs Neg in a queue, and notes when it did: (name, request, begin, end)."""

    def __init__(self, name: str, spans: list[tuple[str, int, float, float]]) -> None:
        self._name, self._spans = name, spans

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        return query_by_transform(device, network, lambda same: same, lambda node, _: None if node.op_type == "Neg" else "runs Neg")

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        return CardExecutable(network, self._name, self._spans)

    @hookimpl
    def to_host(self, array: CardArray) -> Any:
        return array.elements.copy()

    @hookimpl
    def from_host(self, array: Any, spec: ValueSpec) -> CardArray:
        return CardArray(spec.memory, array.copy())


class CardExecutable(Executable):
    """Starts runs, and has no `run`."""

    pipeline_depth = 2

    def __init__(self, network: Network, memory: str, spans: list[tuple[str, int, float, float]]) -> None:
        self.memory, self._spans = memory, spans
        self.inputs = tuple(replace(spec, memory=memory) for spec in network.inputs)
        self.outputs = tuple(replace(spec, memory=memory) for spec in network.outputs)
        self._queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix=memory)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self._queue.submit(self._compute, inputs, context, done)

    def _compute(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        begin = perf_counter()
        threading.Event().wait(MILLISECONDS / 1000)
        self._spans.append((self.memory, abs(int(inputs[0].elements[0])), begin, perf_counter()))
        done((CardArray(self.memory, -inputs[0].elements),), None)

    def close(self) -> None:
        self._queue.shutdown(wait=False)


def main() -> None:
    spans: list[tuple[str, int, float, float]] = []
    with Core() as core:
        for name in ("AHEAD", "BEHIND"):
            core.register_plugin(name, CardDevice(name, spans))
        network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity({"ahead": "AHEAD", "behind": "BEHIND"})
        loaded = core.load_network(network, "HETERO:AHEAD,BEHIND")
        requests = [loaded.create_infer_request() for _ in range(REQUESTS)]
        for index, request in enumerate(requests):
            request.start_async({"x": np.full(2, index, np.float32)})
        waiting = [thread.name for thread in threading.enumerate() if thread.name.startswith("hetero-")]
        for request in requests:
            request.wait()
    first = min(begin for _, _, begin, _ in spans)
    for index in range(REQUESTS):
        stages = [(name, begin - first, end - first) for name, request, begin, end in spans if request == index]
        print(f"request {index}: {', '.join(f'{name} {begin * 1e3:3.0f} to {end * 1e3:3.0f} ms' for name, begin, end in stages)}")
    last = max(end for _, _, _, end in spans)
    print(f"together {(last - first) * 1e3:.0f} ms; one after the other {2 * REQUESTS * MILLISECONDS} ms")
    print(f"threads of the core while they ran: {len(waiting)}")


if __name__ == "__main__":
    main()
