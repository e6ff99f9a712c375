"""Tests generated from an engine's table of known errors: each row refuses its example, and similar graphs are correct or refused.

An example is a pair of graphs as text, with an optional opset before each: a graph that the row refuses, and a neighbour that the engine
runs correctly. Further neighbours are both graphs with some open sizes. Outputs are compared with CPU's NumPy kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser

from hetero_core import Core, Network
from hetero_core.dtypes import numpy_dtype
from hetero_core.engines.known_errors import KnownError
from hetero_core.errors import HeteroError, InferenceError
from hetero_core.network.types import TensorType
from hetero_core.testing.compare import describe_mismatch
from hetero_core.transforms.constants import RANDOM_OPERATORS

Example = tuple[str, str]
"""The graph that a row refuses, and its supported neighbour."""
_LARGEST = 64
"""The largest size that becomes open; rows about sums of many elements check larger sizes."""


def read_graph(core: Core, text: str, rng: np.random.Generator | None = None) -> Network:
    """Returns the network of a graph; `rng` opens some sizes of its inputs."""
    opset, _, graph = text.partition(" ") if text[0].isdecimal() else ("17", "", text)
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3]> {graph}')
    for value in model.graph.input if rng is not None else ():
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if rng is not None and size.dim_value <= _LARGEST and rng.random() < 0.5:
                size.dim_param = f"{value.name}_{axis}"
    return core.read_network(model)


def check_row(core: Core, device: str, row: KnownError, example: Example, config: dict[str, Any]) -> None:
    """Asserts that a row refuses its example with its reason, and that the neighbour is supported and correct."""
    if row.probe is None or row.probe():
        reasons = core.query_network(read_graph(core, example[0]), device, config).refused.values()
        assert any(row.reason.partition("{")[0] in reason for reason in reasons), list(reasons)
    neighbour = read_graph(core, example[1])
    assert not core.query_network(neighbour, device, config).refused
    assert find_difference(core, device, neighbour, draw_arrays(neighbour, np.random.default_rng(0)), config) is None


def check_neighbours(core: Core, device: str, example: Example, config: dict[str, Any], *, count: int = 2) -> None:
    """Asserts that the graphs of an example with some open sizes are correct or refused by the query."""
    rng = np.random.default_rng(1)
    for text in example * count:
        arrays = draw_arrays(read_graph(core, text), rng)
        network = read_graph(core, text, rng)
        if not core.query_network(network, device, config).refused:
            assert find_difference(core, device, network, arrays, config) is None, text


def draw_arrays(network: Network, rng: np.random.Generator) -> dict[str, Any]:
    """Returns an array for each input, with 3 for open sizes and integers small enough for indices."""
    arrays: dict[str, Any] = {}
    for spec in network.inputs:
        assert isinstance(spec.type, TensorType)
        shape = [size if isinstance(size, int) else 3 for size in spec.type.shape or ()]
        drawn = rng.standard_normal(shape) if "float" in str(spec.dtype) else rng.integers(1, 3, shape)
        arrays[spec.name] = np.asarray(drawn).astype(numpy_dtype(str(spec.dtype)))
    return arrays


def find_difference(core: Core, device: str, network: Network, arrays: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Returns the first difference between a device and CPU; None if CPU or a run-time check refuses, or if outputs are random."""
    if any(node.op_type in RANDOM_OPERATORS for node in network.nodes):
        return None
    try:
        expected = core.load_network(network, "CPU", {"CPU_KERNELS": "NUMPY"}).infer(arrays)
    except HeteroError:
        return None
    try:
        answer = core.load_network(network, device, config).infer(arrays)
    except InferenceError as error:
        # The device checks open sizes and integers in each run.
        return None if "Run the nodes that read it on another device" in str(error) else str(error)
    return next((fault for name in expected if (fault := describe_mismatch(answer[name], expected[name]))), None)
