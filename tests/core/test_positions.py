"""Positional inputs, the network as a callable, and the latency of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import InputNameError

TEXT = "g (float[2] x, float[2] w) => (float[2] y) { y = Sub (x, w) }"
X, W = np.float32([5, 7]), np.float32([1, 2])


@pytest.mark.parametrize("inputs", [[X, W], (X, W), {0: X, 1: W}, {"x": X, 1: W}, {"x": X, "w": W}])
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
def test_positional_inputs_equal_named_inputs(core: Core, read: Callable[..., Network], device: str, inputs: Any) -> None:
    network = core.load_network(read(TEXT), device, {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.start_async(inputs)
    request.wait()
    assert request.get_tensor("y").tolist() == [4, 5]
    assert request.host_copied_bytes == 0
    assert [outputs["y"].tolist() for outputs in (network(inputs), network.infer(inputs), request.infer(inputs))] == [[4, 5]] * 3


def test_value_of_the_only_input_needs_no_name(core: Core, read: Callable[..., Network]) -> None:
    network = core.load_network(read("g (float[2] x) => (float[2] y) { y = Neg (x) }"), "CPU")
    assert network(X)["y"].tolist() == network([X])["y"].tolist() == [-5, -7]
    with pytest.raises(
        InputNameError, match="got 2 values by position; its inputs are x, in this order; a single input that is a list"
    ):
        network([5.0, 7.0])


def test_position_goes_over_a_tensor_that_was_set(core: Core, read: Callable[..., Network]) -> None:
    request = core.load_network(read(TEXT), "CPU").create_infer_request()
    request.set_tensor("x", W)
    request.set_tensor("w", W)
    assert request.infer({0: X})["y"].tolist() == [4, 5]
    assert request.infer()["y"].tolist() == [0, 0]


def test_latency_is_of_the_last_run_and_holds_its_nodes(core: Core, read: Callable[..., Network]) -> None:
    request = core.load_network(read(TEXT), "TEMPLATE", {"PERF_COUNT": True}).create_infer_request()
    assert request.latency is None
    request.infer([X, W])
    latency = request.latency
    assert latency is not None
    assert latency >= sum(entry.seconds for entry in request.perf_counts) > 0
    assert request.profile is not None
    assert latency >= request.profile.queue_seconds
    quiet = core.load_network(read(TEXT), "TEMPLATE").create_infer_request()
    quiet.infer([X, W])
    assert quiet.latency is None
