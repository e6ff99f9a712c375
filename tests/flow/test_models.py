"""Real topologies with random weights on every device and with two kinds of splits, compared with ONNX Runtime.

The conformance kit has the small models, squeezenet and shufflenet. `nox -s kit` adds the other topologies, and the random split, in
which nearly every node is a subgraph.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
import pytest
from hetero_tests.samples import IS_WHOLE

from hetero_core import Core, Network
from hetero_core.testing.compare import max_relative_difference
from hetero_core.testing.models import light_inputs, light_model
from hetero_core.testing.reference_session import open_reference_session

LIGHT = ("resnet50", *(("squeezenet", "shufflenet", "densenet121", "inception_v1", "vgg19") if IS_WHOLE else ()))
RELATIVE = 1e-4
Case = tuple[str, onnx.ModelProto, dict[str, Any], list[Any]]


def run_engine(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """Returns the outputs of the oracle, ONNX Runtime without optimisations."""
    return list(open_reference_session(model.SerializeToString()).run(None, inputs))


@pytest.fixture(scope="module", params=LIGHT)
def case(request: pytest.FixtureRequest) -> Case:
    """Name, model, inputs and expected outputs; a single model is in memory at a time."""
    name = request.param
    model = light_model(name)
    inputs = light_inputs(model)
    return name, model, inputs, run_engine(model, inputs)


def pin_alternately(network: Network) -> Network:
    return network.with_affinity({node.name: ("TEMPLATE", "CPU")[index % 2] for index, node in enumerate(network.nodes)})


def pin_randomly(network: Network) -> Network:
    draw = random.Random(20)
    return network.with_affinity({node.name: draw.choice(("TEMPLATE", "CPU")) for node in network.nodes})


@pytest.mark.parametrize(
    ("device", "pin"),
    [
        ("CPU", lambda network: network),
        ("TEMPLATE", lambda network: network),
        ("HETERO:TEMPLATE,CPU", pin_alternately),
        *([("HETERO:TEMPLATE,CPU", pin_randomly)] if IS_WHOLE else []),
    ],
)
def test_model_equals_the_engine(core: Core, case: Case, device: str, pin: Callable[[Network], Network]) -> None:
    name, model, inputs, expected = case
    network = pin(core.read_network(model))
    with core.load_network(network, device) as loaded:
        outputs = loaded.infer(inputs)
        if device.startswith("HETERO"):
            subgraphs = loaded.get_metric("HETERO_SUBGRAPHS")
            assert sorted(node for _, nodes in subgraphs for node in nodes) == sorted(node.name for node in network.nodes)
            assert all(network.affinity[node] == chosen for chosen, nodes in subgraphs for node in nodes)
            assert len(subgraphs) > 1
    for spec, value, reference in zip(network.outputs, outputs.values(), expected, strict=True):
        assert max_relative_difference(value, reference) < RELATIVE, (name, spec.name)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("name", ["squeezenet", *(["shufflenet"] if IS_WHOLE else [])])
def test_old_form_of_a_model_runs_unchanged(core: Core, name: str, device: str) -> None:
    """The form of the published models: opset 9, IR 3, initializers listed as inputs."""
    model = light_model(name, opset=None)
    inputs = light_inputs(model)
    outputs = core.load_network(core.read_network(model), device).infer(inputs)
    for value, reference in zip(outputs.values(), run_engine(model, inputs), strict=True):
        assert max_relative_difference(value, reference) < RELATIVE
