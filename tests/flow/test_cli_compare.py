"""`hetero compare` and `hetero reduce`: find the wrong operator of a device by name, and as a model of a single node."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from hetero_core.cli import reduce
from hetero_core.cli.main import main

Run = Callable[..., tuple[int, dict[str, Any]]]

MODEL = """<ir_version: 8, opset_import: ["": 17]>
chain (float[n, 3] x) => (float[n, 3] y)
{ [first] a = Abs (x) [second] b = Sqrt (a) [third] c = Neg (b) [fourth] d = Exp (c) [last] y = Add (d, a) }"""

# CPU with an error of a tenth in a single operator.
WRONG = """
from hetero_core import Executable, QueryResult, hookimpl

class Device:
    def __init__(self, core): self.core = core
    @hookimpl
    def query_network(self, device, network): return QueryResult({node.name: str(device) for node in network.nodes})
    @hookimpl
    def load_network(self, device, network): return Wrong(self.core, network)

class Wrong(Executable):
    def __init__(self, core, network):
        from dataclasses import replace
        from types import MappingProxyType
        from hetero_core.network.initializers import Initializer
        import numpy
        self.inputs, self.outputs = network.inputs, network.outputs
        nodes, constants = [], dict(network.initializers)
        for node in network.nodes:
            if node.op_type == "Sqrt":
                nodes.append(replace(node, outputs=("exact",)))
                nodes.append(replace(node, name="spoil", op_type="Mul", inputs=("exact", "factor"), since_version=14))
                constants["factor"] = Initializer.of_array(numpy.float32(1.1)[...])
            else:
                nodes.append(node)
        self.inner = core.load_network(replace(network, nodes=tuple(nodes), initializers=MappingProxyType(constants)), "CPU")
    def run(self, inputs, context):
        return self.inner.run(inputs, context)

@hookimpl
def create_device(core): return Device(core)
"""

# CPU with a wrong Concat of an inner value from the second run on, as if memory were reused too early.
PLANNED = """
from dataclasses import replace
from hetero_core import ConfigKey, Executable, QueryResult, hookimpl

class Device:
    def __init__(self, core): self.core = core
    @hookimpl
    def config_keys(self): return {"PLANNED_KERNELS": ConfigKey(str, "FAST", "Whether a plan is made.", choices=("FAST", "NUMPY"))}
    @hookimpl
    def query_network(self, device, network): return QueryResult({node.name: str(device) for node in network.nodes})
    @hookimpl
    def load_network(self, device, network, config): return Planned(self.core, network, config["PLANNED_KERNELS"] == "FAST")

class Planned(Executable):
    def __init__(self, core, network, is_planned):
        self.inputs, self.outputs, self.runs = network.inputs, network.outputs, 0
        self.inner = core.load_network(network, "CPU", {"CPU_KERNELS": "NUMPY"})
        shown, index_of_producer = network.names_of_outputs, network.index_of_producer
        self.wrong = [
            index for index, spec in enumerate(network.outputs)
            if is_planned and spec.name in index_of_producer and network.nodes[index_of_producer[spec.name]].op_type == "Concat"
            and any(value in index_of_producer and value not in shown for value in network.nodes[index_of_producer[spec.name]].inputs[-1:])
        ]
    def run(self, inputs, context):
        self.runs += 1
        outputs = list(self.inner.infer({spec.name: value for spec, value in zip(self.inputs, inputs)}).values())
        for index in self.wrong if self.runs > 1 else ():
            outputs[index][-1] = 7
        return tuple(outputs)

@hookimpl
def create_device(core): return Device(core)
"""
JOINED = """<ir_version: 8, opset_import: ["": 17]>
joined (float[4] x, float[3] z) => (float[7] y, float[4] side)
{ [first] b = Abs (x) [second] y = Concat <axis = 0> (z, b) [last] side = Neg (b) }"""


@pytest.fixture
def joined(tmp_path: Path) -> str:
    path = tmp_path / "joined.onnx"
    onnx.save(onnx.parser.parse_model(JOINED), path)
    return str(path)


@pytest.fixture
def run_hetero(plant: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs the command with --json, with both faulty devices installed; it returns the code and the answer."""
    plant("WRONG", WRONG)
    plant("PLANNED", PLANNED)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_agreeing_devices_end_with_0_and_list_every_value(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", model, "-d", "TEMPLATE", "-d", "CPU", "--shape", "x=2,3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["value"] for each in answer["values"]] == ["a", "b", "c", "d", "y"]
    assert answer["agrees"] is True
    assert answer["first"] is None


def test_first_different_value_is_named_and_its_node_tried_alone(model: str, run_hetero: Run) -> None:
    code, answer = run_hetero("compare", model, "-d", "CPU", "-d", "WRONG", "--shape", "x=4,3")
    assert code == 1
    assert (answer["first"]["value"], answer["first"]["node"], answer["first"]["operator"]) == ("b", "second", "Sqrt-13")
    assert answer["first"]["max_relative_difference"] == pytest.approx(0.1, rel=1e-3)
    assert answer["alone"][0]["max_relative_difference"] == pytest.approx(0.1, rel=1e-3)
    assert [each["value"] for each in answer["values"] if each["mismatch"] is None] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "CPU"], "expected two devices, as in -d TEMPLATE -d CPU; got 1"),
        (["-d", "CPU", "-d", "TEMPLATE", "-c", "NO_SUCH=1"], "none of the devices CPU, TEMPLATE has such a configuration key"),
    ],
)
def test_wrong_options_of_a_comparison_are_an_error(
    model: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["compare", model, "--shape", "x=2,3", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_model_is_reduced_to_the_node_that_fails_the_check(model: str, run_hetero: Run, tmp_path: Path) -> None:
    check = [sys.executable, "-S", "-c", "import sys; sys.exit(b'Sqrt' in open(sys.argv[1], 'rb').read())", "{}"]
    onnx.save(onnx.parser.parse_model(MODEL.replace("[n, 3]", "[2, 3]")), model)
    arguments = ["reduce", model, "--check", shlex.join(check), "-o", str(tmp_path / "small.onnx")]
    code, answer = run_hetero(*arguments)
    assert (code, answer["nodes"], answer["exit_code_of_check"]) == (0, ["second"], 1)
    reduced = onnx.load(tmp_path / "small.onnx")
    assert [node.op_type for node in reduced.graph.node] == ["Sqrt"]
    assert [value.name for value in reduced.graph.input] == ["a"]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (f"{shlex.quote(sys.executable)} -c ''", "the check passes on"),
        ("no-such-command-anywhere", "--check: cannot start 'no-such-command-anywhere': No such file or directory"),
        ("", "--check is empty"),
    ],
)
def test_check_that_cannot_guide_a_reduction_is_an_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], check: str, message: str
) -> None:
    assert main(["reduce", model, "--check", check, "-o", str(tmp_path / "small.onnx")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "small.onnx").exists()


def test_output_wrong_without_inner_values_blames_the_plan(joined: str, run_hetero: Run) -> None:
    code, answer = run_hetero("compare", joined, "-d", "TEMPLATE", "-d", "PLANNED")
    assert (code, answer["agrees"], answer["is_of_plan"], answer["first"]) == (1, False, True, None)
    assert {each["value"]: each["mismatch"] is None for each in answer["outputs"]} == {"y": False, "side": True}
    assert all(each["mismatch"] is None for each in answer["values"])


@pytest.mark.usefixtures("run_hetero")
def test_text_about_a_plan_says_how_to_reduce_it(joined: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", joined, "-d", "TEMPLATE", "-d", "PLANNED", "--seed", "3"]) == 1
    text = capsys.readouterr().out
    assert "wrong output: y: expected" in text
    assert "the fault is no node's, but that of the plan by which PLANNED runs them together" in text
    assert f"hetero reduce {joined} -d TEMPLATE -d PLANNED --seed 3 -o small.onnx" in text
    assert main(["compare", joined, "-d", "TEMPLATE", "-d", "PLANNED", "-c", "PLANNED_KERNELS=NUMPY"]) == 0


@pytest.mark.parametrize(("runs", "code"), [("1", 0), ("2", 1)])
def test_comparison_finds_a_fault_of_a_later_run(joined: str, run_hetero: Run, runs: str, code: int) -> None:
    exit_code, answer = run_hetero("compare", joined, "-d", "TEMPLATE", "-d", "PLANNED", "--outputs", "--runs", runs)
    assert (exit_code, answer["values"]) == (code, [])


def test_fault_of_a_plan_is_reduced_by_its_outputs(joined: str, run_hetero: Run, tmp_path: Path) -> None:
    small = str(tmp_path / "small.onnx")
    code, answer = run_hetero("reduce", joined, "-d", "TEMPLATE", "-d", "PLANNED", "-o", small)
    assert (code, answer["nodes"], answer["exit_code_of_check"]) == (0, ["first", "second"], 1)
    assert [output.name for output in onnx.load(small).graph.output] == ["y"]
    assert run_hetero("compare", small, "-d", "TEMPLATE", "-d", "PLANNED")[1]["is_of_plan"] is True


# CPU, which ends the process if the network has a Sqrt, and counts its loads in a file.
ENDING = """
import os
from hetero_core import Executable, QueryResult, hookimpl

class Device:
    def __init__(self, core): self.core = core
    @hookimpl
    def query_network(self, device, network): return QueryResult({node.name: str(device) for node in network.nodes})
    @hookimpl
    def load_network(self, network):
        with open(FILE, "a") as file: file.write(f"{os.getpid()}\\n")
        if any(node.op_type == "Sqrt" for node in network.nodes): os._exit(42)
        return Plain(self.core.load_network(network, "CPU"))

class Plain(Executable):
    def __init__(self, inner): self.inner, self.inputs, self.outputs = inner, inner.inputs, inner.outputs
    def run(self, inputs, context): return self.inner.run(inputs, context)

@hookimpl
def create_device(core): return Device(core)
"""


def test_crash_of_the_checking_process_is_survived(
    model: str, plant: Callable[[str, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("ENDING", ENDING.replace("FILE", repr(str(tmp_path / "loads"))))
    small = str(tmp_path / "small.onnx")
    arguments = ["-d", "CPU", "-d", "ENDING", "--shape", "n=2", "-o", small, "--value", "d"]
    assert main(["reduce", model, *arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["nodes_before"], answer["nodes"], answer["exit_code_of_check"]) == (4, ["second"], 42)
    loads = (tmp_path / "loads").read_text().split()
    # A part that passes is checked by the same process as the next part.
    assert len(set(loads)) < len(loads)


def test_interrupt_leaves_the_smallest_model_that_fails(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def ask(checker: object, path: str) -> int:
        calls.append(len(onnx.load(path).graph.node))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 1

    monkeypatch.setattr(reduce.Checker, "__call__", ask)
    assert main(["reduce", model, "--check", "false", "-o", str(tmp_path / "small.onnx")]) == 130
    assert len(onnx.load(tmp_path / "small.onnx").graph.node) == min(calls[:2])
    assert f"interrupted after 2 checks; '{tmp_path / 'small.onnx'}' has {min(calls[:2])} node" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a check: --check COMMAND, or -d REFERENCE -d DEVICE"),
        (["--check", "false", "-d", "CPU"], "expected a check: --check COMMAND, or -d REFERENCE -d DEVICE"),
        (["-d", "CPU"], "expected two devices, as in -d TEMPLATE -d CPU; got 1"),
        (["--check", "false", "-c", "PERF_COUNT=YES"], "-c, -i and --shape have a meaning only with -d"),
        (["--check", "false", "--shape", "x=2,3"], "-c, -i and --shape have a meaning only with -d"),
    ],
)
def test_wrong_options_of_a_reduction_are_an_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["reduce", model, "-o", str(tmp_path / "small.onnx"), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "-d", "TEMPLATE", "-d", "CPU"],
        ["compare", "-d", "TEMPLATE", "-d", "CPU", "--outputs"],
        ["bench", "-d", "CPU", "--iterations", "2", "--warmup", "1", "--rounds", "1"],
    ],
    ids=["values", "outputs", "bench"],
)
def test_replaceable_constant_is_an_input(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {2, 3}> { a = Mul (x, w) y = Neg (a) }"""
    model = str(tmp_path / "model.onnx")
    onnx.save(onnx.parser.parse_model(text), model)
    assert main([*command, model, "-i", "x=1,2", "-i", "w=10,20"]) == 0, capsys.readouterr().err
    assert main([*command, model, "-i", "x=1,2", "-i", "v=10,20"]) == 2
    assert "w" in capsys.readouterr().err
