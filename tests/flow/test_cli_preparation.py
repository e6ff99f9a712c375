"""`hetero run` with options that adapt a model to its inputs, and `hetero inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core.cli.main import main

IMAGE = '<ir_version: 8, opset_import: ["": 18]> small (float[1,3,4,6] x) => (float[1,3,4,6] y) { inner = Neg(x) y = Relu(inner) }'
LINES = '<ir_version: 8, opset_import: ["": 17]> lines (float[n,3] x, float[n,3] w) => (float[n,3] y) { a = Add(x, w) y = Relu(a) }'
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(onnx.parser.parse_model(IMAGE), tmp_path / "image.onnx")
    return str(tmp_path / "image.onnx")


@pytest.fixture
def lines(tmp_path: Path) -> str:
    onnx.save(onnx.parser.parse_model(LINES), tmp_path / "lines.onnx")
    return str(tmp_path / "lines.onnx")


@pytest.fixture
def picture(tmp_path: Path) -> str:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(PIXELS).save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


def read_saved(path: Path) -> dict[str, Any]:
    with np.load(path) as saved:
        return dict(saved)


@pytest.mark.parametrize("device", ["CPU", "HETERO:TEMPLATE,CPU"])
def test_photograph_runs_through_the_requested_steps(device: str, model: str, picture: str, tmp_path: Path) -> None:
    target = tmp_path / "out.npz"
    steps = ["--resize", "area", "--mean", "200,190,180", "--scale", "2", "--color", "BGR->RGB", "--output", "inner"]
    assert main(["run", model, "-d", device, "-i", picture, *steps, "--save-outputs", str(target)]) == 0
    # The image is twice as large in both directions, so "area" is the mean of 2 x 2 pixels.
    means = PIXELS[..., ::-1].astype(np.float64).reshape(4, 2, 6, 2, 3).mean((1, 3)).transpose(2, 0, 1)
    expected = -(means - np.array([200, 190, 180]).reshape(3, 1, 1)) / 2
    saved = read_saved(target)
    assert list(saved) == ["inner"]
    np.testing.assert_allclose(saved["inner"][0], expected, rtol=0, atol=1e-4)


def test_refused_input_names_the_options_to_use(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", PIXELS[None].astype(np.float32))
    for more in ([], ["--json"]):
        assert main(["run", model, "-d", "CPU", "-i", str(tmp_path / "x.npy"), *more]) == 2
        shown = capsys.readouterr()
        assert "; --layout x=NHWC --resize x=bilinear would take it" in shown.out + shown.err
    assert main(["run", model, "-d", "CPU", "-i", str(tmp_path / "x.npy"), "--layout", "x=NHWC", "--resize", "x=bilinear"]) == 0


def test_array_in_another_layout_and_precision_is_accepted(model: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", PIXELS[None, :4, :6])
    target = tmp_path / "out.npz"
    arguments = ["-i", f"x={tmp_path / 'x.npy'}", "--layout", "x=NHWC", "--precision", "U8", "--output", "inner"]
    assert main(["run", model, "-d", "CPU", *arguments, "--save-outputs", str(target)]) == 0
    assert read_saved(target)["inner"].tolist() == (-PIXELS[None, :4, :6].transpose(0, 3, 1, 2).astype(np.float32)).tolist()


def test_shape_and_batch_options_hold_for_the_run(model: str, lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "-d", "CPU", "--random", "--shape", "x=1,3,9,5", "--batch", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [2, 3, 9, 5]
    assert main(["run", lines, "-d", "CPU", "--random", "--batch", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [7, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mean", "1"], "--mean 1: the network has 2 inputs; say which, as in --mean x=1"),
        (["--mean", "x=a"], "--mean a: expected a number, or one for each channel, as in 123.7,116.3,103.5"),
        (["--layout", "x=NC", "--layout", "x=CN"], "--layout x=CN: input 'x' has one already; leave one out"),
        (["--layout", "z=NC"], "network 'lines' has no input 'z'; its inputs are w, x"),
        (["--batch", "0"], "expected a whole number of 1 or more, got 0"),
        (["--output", "b"], "network 'lines' has no inner value 'b'; a value is what a node makes outside of bodies"),
        (["--precision", "w=FP31"], "input 'w' of network 'lines': there is no precision 'FP31', did you mean"),
    ],
)
def test_impossible_option_ends_with_2(arguments: list[str], message: str, lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", lines, "-d", "CPU", "--random", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_missing_image_is_an_error(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    assert main(["run", model, "-d", "CPU", "-i", str(tmp_path / "no.png"), "--resize", "nearest"]) == 2
    assert "no.png': No such file or directory" in capsys.readouterr().err


def test_options_that_change_an_exported_network_are_refused(
    lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blob = str(tmp_path / "blob")
    assert main(["compile", lines, "-d", "CPU", "-o", blob]) == 0
    for arguments, message in (
        (["--batch", "2", "--random"], "--batch needs the ONNX model"),
        (["--mean", "2", "--random"], "--mean needs the ONNX model"),
        (["--shape", "x=2,3"], "--shape has a meaning for an exported network only with --random; its shapes are compiled in"),
    ):
        assert main(["run", blob, "-d", "CPU", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", blob, "-d", "CPU", "--random", "--shape", "x=2,3", "--shape", "w=2,3"]) == 0


FUNCTION = """<ir_version: 10, opset_import: ["": 17, "own": 1]>
f (float[n,3] x, float[2] w) => (float[m,3] y) <float[2] w = {1, 2}, float[3] b = {1, 2, 3}> { a = own.twice(x) [sum] y = Add(a, b) }
<domain: "own", opset_import: ["": 17]> twice (x) => (y) { y = Add(x, x) }"""


def test_inspect_lists_the_contents_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "f.onnx")
    onnx.save(onnx.parser.parse_model(FUNCTION), path)
    assert main(["inspect", path, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["inputs"] == [{"name": "x", "type": "float32[n,3]", "precision": "FP32", "layout": "NC", "shape": ["n", 3]}]
    assert [each["name"] for each in fields["outputs"]] == ["y"]
    assert (fields["opsets"], fields["ir_version"]) == ({"ai.onnx": 17, "own": 1}, 10)
    assert (fields["operators"], fields["functions"], fields["nodes"]) == ({"Add-14": 2}, {"own:twice": 1}, 2)
    assert (fields["parameters"], fields["bytes"]) == (5, 20)
    assert (fields["dynamic_dimensions"], fields["replaceable"], fields["states"]) == (["n"], ["w"], {})
    assert {row["device"] for row in fields["devices"]} >= {"CPU", "TEMPLATE"}


def test_inspect_queries_each_named_device(lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = str(tmp_path / "odd.onnx")
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "odd": 1]> g (float[2] x) => (float[2] y) '
            "{ a = Neg(x) b = odd.Twist(a) y = odd.Twist(b) }"
        ),
        odd,
    )
    assert main(["inspect", odd, "-d", "CPU", "-d", "HETERO:TEMPLATE,CPU", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["devices"]
    assert [(row["device"], row["taken"], row["by_device"]) for row in rows] == [
        ("CPU", 1, {"CPU": 1}),
        ("HETERO:TEMPLATE,CPU", 1, {"TEMPLATE": 1}),
    ]
    assert {name: row["nodes"] for name, row in rows[0]["refused"].items()} == {"odd:Twist-1": 2}
    assert main(["inspect", odd, "-d", "CPU"]) == 0
    text = capsys.readouterr().out
    assert "CPU takes 1 of 3 nodes\n  refuses odd:Twist-1, 2 of them, as 'Twist_1': " in text
    assert main(["inspect", lines, "-d", "HETERO:TEMPLATE,CPU"]) == 0
    assert "HETERO:TEMPLATE,CPU takes 2 of 2 nodes" in capsys.readouterr().out
