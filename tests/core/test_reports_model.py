"""A plan exported as an ONNX model is valid, has equal results in ONNX Runtime, and keeps its affinity when it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero_core import Core, Network
from hetero_core.network.reader import read_network
from hetero_core.network.writer import write_network
from hetero_core.reports.model import annotate_model, write_planned_network
from hetero_core.reports.single import plan_single_device
from hetero_core.testing.models import light_inputs, light_model


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return light_model("squeezenet")


def split(core: Core, network: Network) -> tuple[Network, object]:
    plan = core.query_network(network, "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Concat,MaxPool"}).plan
    assert plan is not None
    return network, plan


def test_model_is_valid_and_says_device_and_stage_of_each_node(core: Core, model: onnx.ModelProto, tmp_path: Path) -> None:
    network, plan = split(core, core.read_network(model))
    write_planned_network(network, plan, tmp_path / "plan.onnx")
    written = onnx.load(tmp_path / "plan.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert written.ir_version == 11
    (configuration,) = written.configuration
    assert (configuration.name, configuration.num_devices, list(configuration.device)) == ("hetero", 2, ["TEMPLATE", "CPU"])
    assert len(written.graph.node) == len(network.nodes)
    for node in written.graph.node:
        (own,) = node.device_configurations
        stage = plan.stages[own.pipeline_stage]
        assert node.name in stage.nodes
        assert {configuration.device[each.device[0]] for each in own.sharding_spec} == {stage.device}
        assert [each.tensor_name for each in own.sharding_spec] == list(node.output)
        assert own.configuration_id == "hetero"


def test_model_gives_the_same_results_in_onnxruntime(core: Core, model: onnx.ModelProto, tmp_path: Path) -> None:
    write_planned_network(*split(core, core.read_network(model)), tmp_path / "plan.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    inputs = light_inputs(model)
    plain, planned = (
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, inputs)
        for source in (model.SerializeToString(), tmp_path / "plan.onnx")
    )
    for expected, result in zip(plain, planned, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_model_read_again_has_the_affinity_of_the_plan(core: Core, model: onnx.ModelProto, tmp_path: Path) -> None:
    network, plan = split(core, core.read_network(model))
    write_planned_network(network, plan, tmp_path / "plan.onnx")
    again = read_network(tmp_path / "plan.onnx")
    assert dict(again.affinity) == dict(plan.device_of_node)
    again_plan = core.query_network(again, "HETERO:TEMPLATE,CPU").plan
    assert again_plan is not None
    assert again_plan.stages == plan.stages


def test_node_without_a_device_gets_no_note(core: Core, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [a] b = Relu (x) [c] y = Exp (b) }'
    network = core.read_network(onnx.parser.parse_model(text))
    result = core.query_network(network, "TEMPLATE", {"TEMPLATE_REFUSED_OPERATORS": "Exp"})
    write_planned_network(network, plan_single_device(network, "TEMPLATE", result), tmp_path / "plan.onnx")
    first, second = onnx.load(tmp_path / "plan.onnx").graph.node
    assert len(first.device_configurations) == 1
    assert (len(second.device_configurations), len(second.metadata_props)) == (0, 0)


def test_annotations_reach_a_model_whose_weights_stand_outside(core: Core, model: onnx.ModelProto, tmp_path: Path) -> None:
    network, plan = split(core, core.read_network(model))
    write_network(network, tmp_path / "plan.onnx", inline_limit=0, annotate=lambda proto: annotate_model(proto, plan))
    assert (tmp_path / "plan.onnx.data").stat().st_size > 1_000_000
    onnx.checker.check_model(tmp_path / "plan.onnx", full_check=True)
    assert all(node.device_configurations for node in onnx.load(tmp_path / "plan.onnx", load_external_data=False).graph.node)
