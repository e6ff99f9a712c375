"""A replacement for ONNX Runtime's session: a package runs its own pipeline with it, each run on a device and on ONNX Runtime.

The package gets the device's outputs; each run is compared with ONNX Runtime's outputs for the same inputs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.compare import describe_mismatch

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


class Session:
    """The part of `onnxruntime.InferenceSession` that the packages use; `faults` lists differences from ONNX Runtime."""

    def __init__(self, path: str, load: Callable[[Network], ExecutableNetwork], core: Core, *, package: str) -> None:
        self.original = OnnxRuntimeSession(str(path), providers=["CPUExecutionProvider"])
        self.network = core.read_network(str(path))
        self.loaded = load(self.network)
        self.faults: list[str] = []
        self._name = Path(path).name
        self._answers: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._package = package

    def get_inputs(self) -> Any:
        return self.original.get_inputs()

    def get_outputs(self) -> Any:
        return self.original.get_outputs()

    def get_providers(self) -> Any:
        return self.original.get_providers()

    def get_modelmeta(self) -> Any:
        return self.original.get_modelmeta()

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Returns the named outputs of the device, after the comparison."""
        inputs = {spec.name: np.asarray(feeds[spec.name], _numpy_type(spec.type)) for spec in self.original.get_inputs()}
        all_names = [spec.name for spec in self.original.get_outputs()]
        expected = dict(zip(all_names, self.original.run(None, inputs), strict=True))
        self._answers.append((inputs, expected))
        TALLY.models.add(self._name)
        TALLY.packages.add(self._package)
        outputs = self._compare(inputs, expected, f"run {len(self._answers)}")
        return [outputs[name] for name in names or all_names]

    def run_again_with_machine_code(self) -> None:
        """Waits until machine code is compiled for all earlier inputs, and compares all runs again."""
        deadline = time.monotonic() + SECONDS
        for inputs, _ in self._answers:
            while not self.loaded.get_metric("CPU_KERNELS_READY"):
                assert time.monotonic() < deadline, f"machine code of {self._name} takes more than {SECONDS:g} seconds"
                self.loaded.infer(inputs)
        for number, (inputs, expected) in enumerate(self._answers):
            self._compare(inputs, expected, f"run {number + 1} with machine code")
            TALLY.after_machine_code += len(expected)

    def _compare(self, inputs: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        outputs = self.loaded.infer(inputs)
        for name, value in expected.items():
            TALLY.comparisons += 1
            fault = describe_mismatch(outputs[name], value, rtol=TOLERANCE, name=name)
            if fault is not None:
                self.faults.append(f"{self._name}, {where}: {fault}")
        return outputs


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


def _numpy_type(text: str) -> Any:
    """Returns the NumPy type of a type text such as ONNX Runtime's `tensor(float)`."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return {"float": np.float32, "double": np.float64}.get(name, name)
