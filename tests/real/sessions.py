"""The front end's session with a comparison: a package runs its own pipeline with it, each run on a device and on ONNX Runtime.

The package gets the device's outputs.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.frontends.onnxruntime import InferenceSession
from hetero_core.frontends.shared_core import find_core
from hetero_core.testing.compare import describe_mismatch

PLACES: dict[str, tuple[str, dict[str, str]]] = {
    "numpy": ("CPU", {"CPU_KERNELS": "NUMPY"}),
    "jit": ("CPU", {"CPU_KERNELS": "JIT"}),
    "auto": ("CPU", {"CPU_KERNELS": "AUTO"}),
    "ort-cpu": ("HETERO:ORT,CPU", {}),
    "divided": ("HETERO:ORT,CPU", {}),
}
"""Device and configuration of a session; `divided` gets random pins as well."""
DIVIDED = ("OPENVINO", "ORT", "CPU")
LONGEST_PIECE = 20
"""The largest number of consecutive nodes on the same device in a random division."""
SECONDS = 300.0
"""The longest wait for machine code, in seconds."""
TOLERANCE = 1e-3
OnnxRuntimeSession = onnxruntime.InferenceSession


@dataclass
class Tally:
    """The totals of all tests: models, packages, compared outputs."""

    packages: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    comparisons: int = 0
    after_machine_code: int = 0


TALLY = Tally()
TIMES: list[str] = []
"""A line for each application and device."""


class ComparedSession(InferenceSession):
    """The front end's session, which compares each run with ONNX Runtime; `faults` lists the differences."""

    def __init__(self, path: str, place: str, *, package: str) -> None:
        device, config = PLACES[place]
        super().__init__(path, providers=[("HeteroExecutionProvider", {"device": device, **config})])
        self.original = OnnxRuntimeSession(str(path), providers=["CPUExecutionProvider"])
        self.faults: list[str] = []
        self._name = Path(path).name
        self._answers: list[tuple[dict[str, Any], list[Any]]] = []
        if place == "divided":
            core = find_core()
            network = core.read_network(str(path))
            self.network = load_divided(core, network, len(network.nodes))
        TALLY.models.add(self._name)
        TALLY.packages.add(package)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[Any]:
        """Returns the named outputs of the device, after the comparison of all outputs."""
        expected = self.original.run(None, dict(input_feed))
        self._answers.append((input_feed, expected))
        self._compare(input_feed, expected, f"run {len(self._answers)}")
        return super().run(output_names, input_feed, run_options)

    def run_again_with_machine_code(self) -> None:
        """Waits until machine code is compiled for all earlier inputs, and compares all runs again."""
        deadline = time.monotonic() + SECONDS
        for inputs, _ in self._answers:
            while not self.network.get_metric("CPU_KERNELS_READY"):
                assert time.monotonic() < deadline, f"machine code of {self._name} takes more than {SECONDS:g} seconds"
                super().run(None, inputs)
        for number, (inputs, expected) in enumerate(self._answers):
            self._compare(inputs, expected, f"run {number + 1} with machine code")
            TALLY.after_machine_code += len(expected)

    def _compare(self, inputs: Any, expected: list[Any], where: str) -> None:
        names = [spec.name for spec in self.get_outputs()]
        for name, output, value in zip(names, super().run(None, inputs), expected, strict=True):
            TALLY.comparisons += 1
            fault = describe_mismatch(output, value, rtol=TOLERANCE, name=name)
            if fault is not None:
                self.faults.append(f"{self._name}, {where}: {fault}")


def load_divided(core: Core, network: Network, seed: int) -> ExecutableNetwork:
    """Returns the network in pieces of 1 to `LONGEST_PIECE` nodes, each on a random device that supports it.

    A pin to OPENVINO is removed if OPENVINO refuses the node in the subnetwork that the pins cut.
    """
    draw = random.Random(seed)
    accepted = {device: set(core.query_network(network, device).supported) for device in DIVIDED}
    pins: dict[str, str] = {}
    device, count = "", 0
    for node in network.nodes:
        if count == 0 or node.name not in accepted[device]:
            device = draw.choice([each for each in DIVIDED if node.name in accepted[each]])
            count = draw.randint(1, LONGEST_PIECE)
        pins[node.name] = device
        count -= 1
    while True:
        try:
            return core.load_network(network.with_affinity(pins), "HETERO:" + ",".join(DIVIDED))
        except UnsupportedNodesError as error:
            for name in error.refusals:
                if pins.pop(name) != "OPENVINO":
                    raise
