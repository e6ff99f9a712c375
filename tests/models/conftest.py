"""Fixtures that check models of other tools: every way to run them, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hetero_cpu
import onnx
import pytest

from hetero_core import Core, Network
from hetero_core.testing.compare import describe_first_mismatch
from hetero_core.testing.reference_session import open_reference_session

Check = Callable[..., list[Any]]
# Allows for a different order of some thousand summands, over a few layers.
RELATIVE = 1e-3


@pytest.fixture(scope="session")
def split_core() -> Iterator[Core]:
    """A Core with CPU under two further names, so that a model can be split over CPU alone."""
    with Core() as opened:
        opened.register_plugin("D0", hetero_cpu)
        opened.register_plugin("D1", hetero_cpu)
        yield opened


def pin_blocks(network: Network, devices: tuple[str, str]) -> Network:
    """Returns the network with five blocks of its nodes on alternating devices."""
    size = len(network.nodes) // 5 + 1
    return network.with_affinity({node.name: devices[index // size % 2] for index, node in enumerate(network.nodes)})


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs of the oracle, ONNX Runtime without optimisations."""
    return list(open_reference_session(model.SerializeToString()).run(None, dict(inputs)))


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
                mismatch = describe_first_mismatch(loaded.infer(dict(inputs)), expected, rtol=RELATIVE)
            assert mismatch is None, f"on {device}: {mismatch}"
        return expected

    return check
