"""The executed graph: steps of each device with their original nodes, layouts and times, as a network and as a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Executable, Network, RunContext
from hetero_core.errors import ClosedError, PluginError
from hetero_core.executed import DOMAIN
from hetero_core.network.writer import network_to_bytes
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
picture (float[1, 3, 16, 16] x, float[8, 3, 3, 3] w) => (float[1, 8, 16, 16] y) {
    [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
    [relu] b = Relu (a)
    [exp] y = Exp (b)
}
""")
INPUTS = {"x": np.zeros((1, 3, 16, 16), np.float32), "w": np.zeros((8, 3, 3, 3), np.float32)}
DEVICES = [
    "CPU",
    "TEMPLATE",
    "ORT",
    "HETERO:TEMPLATE,CPU",
    "MULTI:CPU",
    "AUTO:CPU,TEMPLATE",
    "BATCH:CPU",
    "PROCESS:CPU",
]


def describe(node: Any) -> tuple[Any, ...]:
    """Returns the fields of a step except its time and its device."""
    attributes = {name: value for name, value in node.attributes.items() if name not in ("microseconds", "device")}
    return node.name, node.op_type, node.inputs, node.outputs, attributes


def run(core: Core, device: str, **config: Any) -> Network:
    request = core.load_network(MODEL, device, {"PERF_COUNT": True, **config}).create_infer_request()
    request.infer(INPUTS)
    return request._network.get_runtime_model(request.profile)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "ORT"])
def test_steps_of_a_device_in_a_process_equal_its_own_steps(core: Core, device: str) -> None:
    here, there = run(core, device), run(core, f"PROCESS:{device}")
    assert list(map(describe, there.nodes)) == list(map(describe, here.nodes))
    assert [str(there.type_of(name)) for node in there.nodes for name in node.outputs] == [
        str(here.type_of(name)) for node in here.nodes for name in node.outputs
    ]
    assert {node.attributes["device"] for node in there.nodes} == {f"PROCESS:{device}"}
    assert [node.name for node in there.nodes if "microseconds" in node.attributes] == [
        node.name for node in here.nodes if "microseconds" in node.attributes
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_steps_cover_the_nodes_from_inputs_to_outputs(core: Core, device: str) -> None:
    executed = run(core, device)
    known = {spec.name for spec in executed.inputs}
    for node in executed.nodes:
        assert node.domain == DOMAIN
        assert set(node.inputs) <= known
        known.update(node.outputs)
    assert [spec.name for spec in executed.inputs] == ["x", "w"]
    assert [spec.name for spec in executed.outputs] == ["y"]
    origins = [name for node in executed.nodes for name in node.attributes.get("original_names", ())]
    assert origins == ["conv", "relu", "exp"]
    # The executed graph can be written, and onnx itself can read the file.
    assert [node.name for node in onnx.load_from_string(network_to_bytes(executed)).graph.node] == [
        node.name for node in executed.nodes
    ]


@pytest.mark.parametrize("device", DEVICES[:-1])
def test_times_equal_the_times_of_the_profile(core: Core, device: str) -> None:
    request = core.load_network(MODEL, device, {"PERF_COUNT": True}).create_infer_request()
    request.infer(INPUTS)
    executed = request._network.get_runtime_model(request.profile)
    total = sum(node.attributes.get("microseconds", 0) for node in executed.nodes if node.op_type != "transfer")
    assert total == pytest.approx(sum(entry.seconds for entry in request.perf_counts if entry.operator != "transfer") * 1e6)
    assert all("microseconds" not in node.attributes for node in request._network.get_runtime_model().nodes)


def test_engine_reports_fused_nodes(core: Core) -> None:
    assert next(node.op_type for node in run(core, "ORT").nodes if "conv" in node.origins) == "FusedConv"


def test_cpu_reports_the_layout_in_its_arena(core: Core) -> None:
    compiler = pytest.importorskip("hetero_cpu.machine.compiler")
    if not compiler.find_width():
        pytest.skip("no machine code is made for this processor")
    weights = onnx.numpy_helper.from_array(np.zeros((8, 3, 3, 3), np.float32), "w")
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    del model.graph.input[1]
    model.graph.initializer.append(weights)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    layouts = {node.name: node.attributes["layouts"] for node in loaded.get_runtime_model().nodes}
    assert layouts == {"conv+relu": ("acdb",), "exp": ("acdb",)}


def test_split_network_joins_its_parts_and_shows_copies(core: Core) -> None:
    executed = run(core, "HETERO:TEMPLATE,CPU", TEMPLATE_REFUSED_OPERATORS="Exp")
    assert [(node.name, node.attributes["device"], node.attributes.get("path")) for node in executed.nodes] == [
        ("x to TEMPLATE", "host", None),
        ("w to TEMPLATE", "host", None),
        ("conv", "TEMPLATE", "0"),
        ("relu", "TEMPLATE", "0"),
        ("b to CPU", "TEMPLATE", "0"),
        ("exp", "CPU", "1"),
    ]
    assert executed.nodes[2].inputs == ("x@TEMPLATE", "w@TEMPLATE")
    assert executed.nodes[-1].inputs == ("b@CPU",)


def test_closed_network_and_wrong_steps_are_errors(core: Core) -> None:
    loaded = core.load_network(MODEL, "CPU")
    loaded.close()
    with pytest.raises(ClosedError):
        loaded.get_runtime_model()

    class Mumbling(PlainExecutable):
        def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
            return inputs

        def executed_nodes(self) -> Any:
            return ["conv"]

    class MumblingDevice(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            return Mumbling(network)

    core.register_plugin("MUMBLING", MumblingDevice())
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs (x) }')
    with pytest.raises(PluginError, match="device MUMBLING returned list from executed_nodes; expected a tuple of ExecutedNode"):
        core.load_network(model, "MUMBLING").get_runtime_model()


def test_card_reports_the_kernels_of_its_program(core: Core) -> None:
    core.register_plugin("CARD", GpuDevice("CARD", FakeRuntime()))
    executed = run(core, "HETERO:CARD,CPU")
    assert [name for node in executed.nodes for name in node.attributes.get("original_names", ())] == ["conv", "relu", "exp"]
