"""`hetero run`: outputs as text, JSON and files, times, comparison with a second device, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core.cli.main import main

MODEL = """<ir_version: 8, opset_import: ["": 17]>
lines (float[n, 3] x) => (float[n, 3] y, int64[n] best)
{ [twice] a = Add (x, x) [positive] y = Relu (a) [largest] best = ArgMax <axis = 1, keepdims = 0> (y) }"""
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
# By hand: y = max(2x, 0), best = the index of its maximum.
Y = np.array([[2, 0, 6], [0, 10, 0]], np.float32)

# A device that delegates to CPU and adds 1 to every floating-point output.
OFF_BY_ONE = """
from hetero_core import Executable, QueryResult, hookimpl
import numpy as np

class Device:
    def __init__(self, core): self.core = core
    @hookimpl
    def query_network(self, device, network): return QueryResult({node.name: str(device) for node in network.nodes})
    @hookimpl
    def load_network(self, device, network): return OffByOne(self.core.load_network(network, "CPU"))

class OffByOne(Executable):
    def __init__(self, inner): self.inner, self.inputs, self.outputs = inner, inner.inputs, inner.outputs
    def run(self, inputs, context):
        return tuple(value + value.dtype.type(value.dtype.kind == "f") for value in self.inner.run(inputs, context))

@hookimpl
def create_device(core): return Device(core)
"""


@pytest.fixture
def input_options(tmp_path: Path) -> list[str]:
    np.save(tmp_path / "x.npy", X)
    return ["-i", f"x={tmp_path / 'x.npy'}"]


def read_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_outputs_are_printed_with_type_range_and_first_values(
    model: str, input_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "-d", "CPU", *input_options]) == 0
    text = capsys.readouterr().out
    assert text.startswith("network 'lines' on CPU: first inference in ")
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows[1] == ["y", "float32[2,3]", "0", "10", "3", "2", "0", "6", "0", "..."]
    assert rows[2] == ["best", "int64[2]", "1", "2", "1.5", "2", "1"]


def test_outputs_in_json(model: str, input_options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "-d", "CPU", *input_options, "--json"]) == 0
    answer = read_json(capsys)
    assert (answer["network"], answer["device"]) == ("lines", "CPU")
    assert answer["seconds"] > 0
    y, best = answer["outputs"]
    assert y == {"name": "y", "dtype": "float32", "shape": [2, 3], "min": 0, "max": 10, "mean": 3, "values": Y.ravel().tolist()}
    assert best["values"] == [2, 1]
    assert "subgraphs" not in answer


def test_perf_count_adds_the_time_of_each_subgraph(
    model: str, input_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    split = ["-d", "HETERO:TEMPLATE,CPU", "-c", "TEMPLATE_REFUSED_OPERATORS=Relu", "-c", "PERF_COUNT=YES"]
    assert main(["run", model, *split, *input_options, "--json"]) == 0
    # A row without steps holds the copies at the border of the whole network.
    times = [each for each in read_json(capsys)["subgraphs"] if each["steps"]]
    assert [(each["subgraph"], each["device"], each["steps"]) for each in times] == [
        (0, "TEMPLATE", 1),
        (1, "CPU", 1),
        (2, "TEMPLATE", 1),
    ]
    assert all(each["seconds"] > 0 for each in times)
    assert main(["run", model, *split, *input_options]) == 0
    assert ["SUBGRAPH", "DEVICE", "STEPS", "TIME"] in [line.split()[:4] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("target", ["outputs.npz", "outputs"])
def test_outputs_are_saved_and_can_be_read_back(
    target: str, model: str, input_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "-d", "CPU", *input_options, "--save-outputs", str(tmp_path / target), "--json"]) == 0
    saved = read_json(capsys)["saved"]
    if target.endswith(".npz"):
        assert saved == [str(tmp_path / target)]
        with np.load(saved[0]) as archive:
            read = {name: archive[name] for name in archive.files}
    else:
        read = {Path(path).stem: np.load(path) for path in saved}
    assert list(read) == ["y", "best"]
    np.testing.assert_array_equal(read["y"], Y)
    np.testing.assert_array_equal(read["best"], [2, 1])


def test_names_and_texts_that_files_cannot_hold_are_saved(tmp_path: Path) -> None:
    from hetero_core.cli.outputs import save_outputs

    outputs = {"file": np.array(["a", "bc"], object), "a/b:0": [X, None], "absent": None}
    (archive,) = save_outputs(outputs, str(tmp_path / "all.npz"))
    with np.load(archive) as read:
        assert read.files == ["file", "a/b:0[0]"]
        assert read["file"].tolist() == ["a", "bc"]
    assert [Path(path).name for path in save_outputs(outputs, str(tmp_path / "all"))] == ["file.npy", "a%2Fb%3A0%5B0%5D.npy"]


def test_target_that_cannot_be_written_ends_with_2(
    model: str, input_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "-d", "CPU", *input_options, "--save-outputs", f"{model}/inside"]) == 2
    assert "cannot save outputs to" in capsys.readouterr().err


def test_compare_with_a_device_that_agrees(model: str, input_options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "-d", "CPU", *input_options, "--compare", "TEMPLATE"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[-2:]] == [
        ["y", "0", "0", "same"],
        ["best", "0", "0", "same"],
    ]


def test_compare_with_a_device_that_is_wrong_ends_with_1(
    model: str, input_options: list[str], plant: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plant("OFF", OFF_BY_ONE)
    command = ["run", model, "-d", "CPU", *input_options, "--compare", "OFF"]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    # Expected 1, 3, 1, ... 11, and got each less 1: a difference of 1 relative to the maximum of 11.
    assert "y       1                   0.0909    DIFFERS" in printed.out
    assert "y: expected 3.0, got 2.0 at [0, 0]" in printed.out
    assert main([*command, "--json"]) == 1
    comparison = read_json(capsys)["comparison"]
    assert (comparison["device"], comparison["agrees"]) == ("OFF", False)
    y, best = comparison["outputs"]
    assert y["max_absolute_difference"] == 1
    assert (best["max_absolute_difference"], best["mismatch"]) == (0, None)
    assert main([*command, "--atol", "1"]) == 0
    assert main([*command, "--rtol", "0.1"]) == 0
    assert main([*command, "--rtol", "0.05", "--atol", "0.5"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "misses the inputs x: float32[n,3]. Give each with -i NAME=FILE or -i NAME=VALUE, or ask for random ones with --random",
        ),
        (["--random"], "input x: float32[n,3] has open dimensions; choose their sizes, as in --shape x=1,3"),
        (
            ["--random", "--shape", "x=2,4,5"],
            "--shape x=2,4,5: input x: float32[n,3] has 2 axes, and 3 sizes were given",
        ),
        (["--random", "--shape", "x=2,x"], "--shape x=2,x: expected sizes separated by commas"),
        (["--random", "--shape", "2,3"], "--shape 2,3: expected NAME=SIZE,SIZE,..."),
        (["--random", "--seed", "-1"], "expected a whole number of 0 or more, got -1"),
        (["--random", "--shape", "xx=2,3"], "there is no such input or named size, did you mean 'x'? the inputs are x"),
        (["--seed", "0"], "--seed has a meaning only with --random"),
        (["--rtol", "0"], "--rtol has a meaning only with --compare"),
        (["--compare", "CPU", "--atol", "nan"], "expected a number of 0 or more, got nan"),
        (["--compare", "CPU", "--atol", "x"], "argument --atol: expected a number of 0 or more, got"),
        (["-i", "z=x.npy"], "network 'lines' has no input 'z'"),
    ],
)
def test_wrong_input_option_ends_with_2(arguments: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "-d", "CPU", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-d", "CPUU"], 3, "no plugin announces device 'CPUU', did you mean 'CPU'?"),
        (["-d", "HETERO:TEMPLATE,CPUU"], 3, "no plugin announces device 'CPUU'"),
        (["-d", "CPU", "-c", "CPU_VERIFYY=YES"], 2, "no configuration key 'CPU_VERIFYY', did you mean 'CPU_VERIFY'"),
        (["-d", "CPU", "-c", "PERF_COUNT=maybe"], 2, "PERF_COUNT of device CPU: expected a bool"),
    ],
)
@pytest.mark.parametrize("command", [["run", "--random"], ["query"], ["visualize", "-o", "plan.mmd"], ["compile", "-o", "x.blob"]])
def test_wrong_device_and_key_are_reported_before_wrong_inputs(
    command: list[str], arguments: list[str], code: int, message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong_shape = ["--shape", "nn=1"]
    assert main([*command, model, *arguments, *wrong_shape]) == code
    assert message in capsys.readouterr().err


def test_refused_nodes_end_with_2_and_list_their_reasons(
    model: str, input_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", model, "-d", "TEMPLATE", "-c", "TEMPLATE_REFUSED_OPERATORS=Relu,ArgMax", *input_options]
    assert main(arguments) == 2
    assert "'positive' (Relu-14), TEMPLATE: operator Relu is refused" in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    assert list(read_json(capsys)["error"]["refusals"]) == ["positive", "largest"]


@pytest.mark.parametrize("is_exported", [False, True])
def test_replaceable_constant_may_be_an_input(tmp_path: Path, is_exported: bool) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {2, 3}> { y = Mul (x, w) }"""
    model = str(tmp_path / "model.onnx")
    onnx.save(onnx.parser.parse_model(text), model)
    if is_exported:
        assert main(["compile", model, "-d", "CPU", "-o", str(tmp_path / "model.blob")]) == 0
        model = str(tmp_path / "model.blob")
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    np.save(tmp_path / "w.npy", np.array([10, 20], np.float32))
    for more, expected in (([], [2, 6]), (["-i", f"w={tmp_path / 'w.npy'}"], [10, 40])):
        saved = tmp_path / "y.npz"
        assert main(["run", model, "-d", "CPU", "-i", f"x={tmp_path / 'x.npy'}", *more, "--save-outputs", str(saved)]) == 0
        assert np.load(saved)["y"].tolist() == expected


def test_executed_graph_is_written_on_request(
    model: str, input_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "steps.onnx")
    assert main(["run", model, "-d", "HETERO:CPU", *input_options, "-c", "PERF_COUNT=YES", "--executed", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["executed"] == target
    assert {attribute.name for attribute in onnx.load(target).graph.node[0].attribute} >= {"device", "microseconds"}
