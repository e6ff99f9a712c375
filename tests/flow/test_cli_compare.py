"""`hetero compare` and `hetero reduce`: a device that is wrong about one operator is found, by name and by a model of one node."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from hetero_core.cli.main import main

MODEL = """<ir_version: 8, opset_import: ["": 17]>
chain (float[n, 3] x) => (float[n, 3] y)
{ [first] a = Abs (x) [second] b = Sqrt (a) [third] c = Neg (b) [fourth] d = Exp (c) [last] y = Add (d, a) }"""

# CPU, but wrong by a tenth about one operator.
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


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return str(path)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the wrong device, installed as pip would."""
    (tmp_path / "site" / "wrong-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "wrong.py").write_text(WRONG)
    (tmp_path / "site" / "wrong-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
    (tmp_path / "site" / "wrong-1.0.dist-info" / "entry_points.txt").write_text("[hetero_core.devices]\nWRONG = wrong\n")
    return tmp_path / "site"


def run_hetero(site: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from hetero_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"], capture_output=True, text=True, check=False, timeout=300
    )
    return ended.returncode, json.loads(ended.stdout)


def test_devices_that_agree_end_with_0_and_every_value_is_compared(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", model, "-d", "TEMPLATE", "-d", "CPU", "--shape", "x=2,3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["value"] for each in answer["values"]] == ["a", "b", "c", "d", "y"]
    assert answer["agrees"] is True
    assert answer["first"] is None


def test_first_value_that_differs_is_named_and_its_node_is_tried_alone(model: str, site: Path) -> None:
    code, answer = run_hetero(site, "compare", model, "-d", "CPU", "-d", "WRONG", "--shape", "x=4,3")
    assert code == 1
    assert (answer["first"]["value"], answer["first"]["node"], answer["first"]["operator"]) == ("b", "second", "Sqrt-13")
    assert answer["first"]["max_relative_difference"] == pytest.approx(0.1, rel=1e-3)
    assert answer["alone"][0]["max_relative_difference"] == pytest.approx(0.1, rel=1e-3)
    assert [each["value"] for each in answer["values"] if each["mismatch"] is None] == ["a"]


def test_text_of_a_comparison_names_the_node(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", model, "-d", "TEMPLATE", "-d", "CPU", "--shape", "x=2,3", "--rtol", "0"]) in (0, 1)
    assert "network 'chain': 5 values on CPU, compared with TEMPLATE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "CPU"], "expected two devices, as in -d TEMPLATE -d CPU; got 1"),
        (["-d", "CPU", "-d", "TEMPLATE", "-c", "NO_SUCH=1"], "neither CPU nor TEMPLATE has such a configuration key"),
    ],
)
def test_comparison_that_is_asked_for_wrongly_is_an_error(
    model: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["compare", model, "--shape", "x=2,3", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_model_is_reduced_to_the_node_that_is_wrong(model: str, site: Path, tmp_path: Path) -> None:
    inner = f"import sys; sys.path.insert(0, {str(site)!r}); from hetero_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    check = shlex.join([sys.executable, "-c", inner, "compare", "{}", "-d", "CPU", "-d", "WRONG"])
    onnx.save(onnx.parser.parse_model(MODEL.replace("[n, 3]", "[2, 3]")), model)
    code, answer = run_hetero(site, "reduce", model, "--check", check, "-o", str(tmp_path / "small.onnx"), "--record", "CPU")
    assert (code, answer["nodes"], answer["exit_code_of_check"]) == (0, ["second"], 1)
    reduced = onnx.load(tmp_path / "small.onnx")
    assert [node.op_type for node in reduced.graph.node] == ["Sqrt"]
    assert [initializer.name for initializer in reduced.graph.initializer] == ["a"]


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
