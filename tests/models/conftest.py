"""What the models of other tools are checked with: every way to run them, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hetero_cpu
import onnx
import pytest

from hetero_core import Core, Network
from hetero_core.testing.compare import max_relative_difference

Check = Callable[..., list[Any]]
# Some thousand terms in another order, a few layers deep.
RELATIVE = 1e-3


@pytest.fixture(scope="session")
def split_core() -> Iterator[Core]:
    """A Core with CPU under two more names, so that a model can be cut without leaving it."""
    with Core() as opened:
        opened.register_plugin("D0", hetero_cpu)
        opened.register_plugin("D1", hetero_cpu)
        yield opened


def pin_blocks(network: Network, devices: tuple[str, str]) -> Network:
    """Returns the network with five blocks of its nodes on alternating devices."""
    size = len(network.nodes) // 5 + 1
    return network.with_affinity({node.name: devices[index // size % 2] for index, node in enumerate(network.nodes)})


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the oracle's outputs, its optimisations off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def describe_difference(found: Any, expected: Any) -> str | None:
    """Returns where two results differ: numbers by more than RELATIVE, anything else at all."""
    if isinstance(expected, list):
        if len(found) != len(expected):
            return f"{len(found)} elements instead of {len(expected)}"
        return next((text for a, b in zip(found, expected, strict=True) if (text := describe_difference(a, b))), None)
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"keys {list(found)} instead of {list(expected)}"
        return describe_difference(list(found.values()), list(expected.values()))
    if getattr(found, "dtype", None) != getattr(expected, "dtype", None):
        return f"{found.dtype} instead of {expected.dtype}"
    difference = max_relative_difference(found, expected)
    return None if difference < RELATIVE else f"a relative difference of {difference:.2g}"


@pytest.fixture
def check_everywhere(split_core: Core) -> Check:
    """Runs a model on CPU, split between TEMPLATE and CPU, and cut in blocks between two CPUs; returns the oracle's outputs.

    The oracle is ONNX Runtime unless its outputs are given.
    """

    def check(model: onnx.ModelProto, inputs: Mapping[str, Any], expected: list[Any] | None = None) -> list[Any]:
        expected = run_onnxruntime(model, inputs) if expected is None else expected
        network = split_core.read_network(model)
        ways = [
            ("CPU", network),
            ("HETERO:TEMPLATE,CPU", network),
            ("HETERO:D0,D1", pin_blocks(network, ("D0", "D1")) if len(network.nodes) > 1 else network),
        ]
        for device, way in ways:
            with split_core.load_network(way, device) as loaded:
                found = loaded.infer(dict(inputs))
            for spec, value, wanted in zip(network.outputs, found.values(), expected, strict=True):
                difference = describe_difference(value, wanted)
                assert difference is None, f"output '{spec.name}' on {device} has {difference}"
        return expected

    return check
