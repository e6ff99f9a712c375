"""Sizes and values on the command line: named sizes, sizes bound by an array, inline values, and errors that name all inputs."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core.cli.answer import UsageError
from hetero_core.cli.inputs import collect_inputs
from hetero_core.cli.main import main
from hetero_core.cli.options import read_shapes
from hetero_core.network.types import TensorType, ValueSpec

# Both inputs share a named size, like the tokens and the mask of a language model.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
masked (float[batch, height] x, float[batch, height] mask, int64 rate) => (float[batch, height] y)
{ a = Mul (x, mask) b = Cast <to = 1> (rate) y = Mul (a, b) }"""
IMAGE = ValueSpec("image", TensorType("float32", (None, 3, None, None)))
X = ValueSpec("x", TensorType("float32", ("n", 2)))
Y = ValueSpec("y", TensorType("int64", (1, "n")))
RATE = ValueSpec("rate", TensorType("int64", ()))


def collect(texts: list[str], *specs: ValueSpec, seed: int | None = 0, **shapes: tuple[int, ...]) -> dict[str, Any]:
    named = [f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items()]
    return collect_inputs(Namespace(input=texts, shape=named, seed=seed), specs, network="net")


def test_open_inputs_are_named_with_options_that_work(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "-d", "CPU", "--random"]) == 2
    message = capsys.readouterr().err
    assert "2 inputs have open dimensions: x: float32[batch,height]; mask: float32[batch,height]" in message
    advice = message.strip().rpartition("as in ")[2].split()
    assert advice == ["--shape", "x=1,1", "--shape", "mask=1,1"]
    assert main(["run", model, "-d", "CPU", "--random", *advice]) == 0


@pytest.mark.parametrize(
    "shapes", [["x=2,5"], ["batch=2", "height=5"], ["batch=2,height=5"], ["x=2,5,mask=2,5"], ["mask=2,5"], ["x=2,5", "mask=2,5"]]
)
def test_size_of_one_input_holds_for_all_of_its_name(shapes: list[str], model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for shape in shapes for word in ("--shape", shape)]
    assert main(["run", model, "-d", "CPU", "--random", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [2, 5]


def test_name_with_signs_of_the_option_is_one_name() -> None:
    texts = ["a,b=1,2", "c=d=3", "e=", "f=1,2,g=3"]
    assert read_shapes(texts, []) == {"a,b": (1, 2), "c=d": (3,), "e": (), "f": (1, 2), "g": (3,)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (["batch=2,height=x"], "--shape batch=2,height=x: expected sizes separated by commas"),
        (["x=2,5", "mask=2,4"], "--shape mask=2,4: makes size 'height' 4, and --shape x=2,5 makes it 5; they must agree"),
        (["height=2,5"], "--shape height=2,5: 'height' is one size; expected one number"),
        (["hight=2"], "did you mean 'height'? the inputs are x: float32[batch,height]; mask"),
        (["x=2"], "--shape x=2: input x: float32[batch,height] has 2 axes, and 1 sizes were given"),
    ],
)
@pytest.mark.parametrize(
    "command", [["run", "--random", "-d", "CPU"], ["compare", "-d", "CPU", "-d", "TEMPLATE"], ["query", "-d", "CPU"]]
)
def test_wrong_size_is_an_error(
    command: list[str], shapes: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for shape in shapes for word in ("--shape", shape)]
    assert main([*command, model, *options]) == 2
    assert message in capsys.readouterr().err


def test_array_binds_the_names_of_its_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    assert collect([f"x={tmp_path / 'x.npy'}"], X, Y)["y"].shape == (1, 4)


def test_values_in_the_command_become_arrays_of_the_input() -> None:
    inputs = collect(["rate=16000", "y=5,6,7", "x=0.5"], X, Y, RATE)
    assert (inputs["rate"].shape, inputs["rate"].dtype, int(inputs["rate"])) == ((), np.int64, 16000)
    np.testing.assert_array_equal(inputs["y"], [[5, 6, 7]])
    # A single value fills the input; the array of y determines its open size.
    np.testing.assert_array_equal(inputs["x"], np.full((3, 2), 0.5, np.float32))


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [("bool", "true", True), ("string", "hello", "hello"), ("uint8", "255", 255), ("float16", "-1e-2", np.float16(-0.01))],
)
def test_value_has_the_element_type_of_the_input(dtype: str, text: str, value: object) -> None:
    (array,) = collect([f"v={text}"], ValueSpec("v", TensorType(dtype, (1,)))).values()
    assert array.shape == (1,)
    assert array[0] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate=1.5", "values of input rate: int64[] separated by commas, as in -i rate=1"),
        ("rate=9223372036854775808", "'9223372036854775808' is of no kind that can be read"),
        ("rate=x.wav", "these are .jpeg, .jpg, .npy"),
        ("rate=1,2", "2 values do not fit input rate: int64[]"),
        ("x=1,2,3", "3 values do not fit input x: float32[n,2]"),
        ("rate=", "is of no kind"),
    ],
)
def test_value_that_does_not_fit_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        collect([text], X, RATE)
    assert message in str(raised.value)


def test_value_that_fills_an_open_input_needs_its_size() -> None:
    with pytest.raises(UsageError, match=r"input x: float32\[n,2\] has open dimensions; choose their sizes, as in --shape x=1,2"):
        collect(["x=0"], X, seed=None)
    assert collect(["x=0"], X, seed=None, n=(3,))["x"].shape == (3, 2)


@pytest.mark.parametrize("command", ["query", "run", "compile"])
def test_second_device_is_refused_with_the_way_to_split(command: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, model, "-d", "TEMPLATE", "-d", "CPU"]) == 2
    message = capsys.readouterr().err
    assert "-d is given twice: TEMPLATE and CPU" in message
    assert "HETERO:TEMPLATE,CPU is a device over both" in message


def test_second_value_of_any_single_option_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "-d", "CPU", "--random", "--seed", "1", "--seed", "2"]) == 2
    assert "--seed is given twice: 1 and 2; leave one out" in capsys.readouterr().err


def test_pins_of_bench_need_a_device_that_splits(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--iterations", "1", "--rounds", "1", "--warmup", "0", "--shape", "x=1,2"]
    assert main(["bench", model, "-d", "CPU", "--pin", "op:Cast=CPU", *quick]) == 2
    assert "--pin and --affinity need a device that splits networks" in capsys.readouterr().err


def test_later_inferences_are_timed_apart_from_the_first(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", model, "-d", "TEMPLATE", "--random", "--shape", "x=1,2"]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["later_runs"] >= 1
    assert answer["later_seconds"] > 0
    assert main(arguments) == 0
    assert "first inference in " in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "-d", "CPU", "-o", "missing/x"],
        ["reduce", "-d", "CPU", "-d", "TEMPLATE", "-o", "missing/x"],
        ["visualize", "-d", "CPU", "-o", "missing/x.mmd"],
    ],
)
def test_unwritable_file_is_an_error_before_the_work(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([arguments[0], "no-model.onnx", *arguments[1:]]) == 2
    assert "there is no folder missing" in capsys.readouterr().err


def test_list_of_devices_is_taken_for_a_split(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, "-d", "TEMPLATE,CPU"]) == 3
    assert "did you mean 'HETERO:TEMPLATE,CPU'?" in capsys.readouterr().err


def test_size_with_the_name_of_an_input_is_not_lost_to_its_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [ValueSpec(name, TensorType("float32", shape)) for name, shape in (("n", ("m",)), ("x", ("n", 2)), ("y", ("n",)))]
    drawn = collect([], *specs, n=(3,), x=(5, 2))
    assert {name: array.shape for name, array in drawn.items()} == {"n": (3,), "x": (5, 2), "y": (5,)}
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[m] n, float[n, 2] x, float[n] y) => (float[m] a, float[n, 2] b, float[n] c) { a = Abs (n) b = Abs (x) c = Abs (y) }"""
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    assert main(["run", str(path), "-d", "CPU", "--random", "--shape", "n=3", "--shape", "x=5,2", "--json"]) == 0
    assert [output["shape"] for output in json.loads(capsys.readouterr().out)["outputs"]] == [[3], [5, 2], [5]]
