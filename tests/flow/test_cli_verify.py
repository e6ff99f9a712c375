"""`hetero compile --samples` and `hetero verify`; samples of all kinds of values in blobs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.blobs.container import read_blob
from hetero_core.blobs.samples import pack_samples, unpack_samples
from hetero_core.cli.main import main
from hetero_core.errors import BlobDamagedError, InputShapeError
from hetero_core.testing.compare import assert_same

HEAD = '<ir_version: 8, opset_import: ["": 17]> '
MODEL = HEAD + "double (float[N, 3] x) => (float[N, 3] y) { [one] a = Add (x, x) [two] y = Relu (a) }"
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "model.onnx")
    np.savez("in.npz", x=X)
    np.savez("more.npz", x=X[:1], y=np.maximum(2 * X[:1], 0))
    np.savez("other.npz", x=-X)
    return "model.onnx"


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE,CPU"])
def test_samples_are_written_and_verified(model: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", model, "-d", device, "--samples", "in.npz", "--samples", "more.npz", "-o", "m.blob"]) == 0
    assert "samples: 2; 'hetero verify m.blob' runs them" in capsys.readouterr().out
    assert main(["verify", "m.blob", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["device"], fields["samples"], fields["agrees"]) == (device, 2, True)
    assert [(row["name"], row["sample"], row["max_absolute_difference"]) for row in fields["outputs"]] == [("y", 1, 0), ("y", 2, 0)]
    assert main(["run", "m.blob", "-i", "in.npz"]) == 0
    assert main(["compile", model, "-d", device, "--samples", "in.npz", "--samples", "other.npz", "-o", "m.blob"]) == 0
    outputs = [outputs["y"].tolist() for _, outputs in unpack_samples(read_blob("m.blob")[1].sections)]
    assert outputs == [np.maximum(2 * x, 0).tolist() for x in (X, -X)]  # by hand


def test_wrong_answer_of_a_device_is_found(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", model, "-d", "TEMPLATE", "--samples", "in.npz", "-o", "m.blob"]) == 0
    from hetero_template.device import TemplateExecutable

    true_run, runs = TemplateExecutable.run, []

    def run(self: Any, inputs: Any, context: Any) -> Any:
        runs.append(1)
        outputs = true_run(self, inputs, context)
        if len(runs) < 2:  # the fault shows in the second run
            return outputs
        return tuple(type(output)(output.memory, output.read(output.memory) * np.float32(1.01)) for output in outputs)

    monkeypatch.setattr(TemplateExecutable, "run", run)
    assert main(["verify", "m.blob", "--runs", "1"]) == 0
    runs.clear()
    capsys.readouterr()
    assert main(["verify", "m.blob"]) == 1
    assert "  y: " in capsys.readouterr().out
    assert main(["verify", "m.blob", "--rtol", "0.1"]) == 0


def test_wrong_expected_output_is_found(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("wrong.npz", x=X, y=X)
    assert main(["compile", model, "-d", "CPU", "--samples", "wrong.npz", "-o", "m.blob"]) == 0
    assert main(["verify", "m.blob"]) == 1
    assert "DIFFERS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["verify", "plain.blob"],
            "'plain.blob' holds no samples; write it again with: hetero compile MODEL -d DEVICE --samples inputs.npz",
        ),
        (["verify", "model.onnx"], "'model.onnx' is no exported network"),
        (["compile", "model.onnx", "-d", "CPU", "-o", "m.blob", "--samples", "x.npy"], "--samples x.npy: expected a .npz archive"),
        (
            ["compile", "model.onnx", "-d", "CPU", "-o", "m.blob", "--samples", "unknown.npz"],
            "--samples unknown.npz: network 'double' has no input 'z'",
        ),
        (
            ["compile", "model.onnx", "-d", "CPU", "-o", "m.blob", "--samples", "empty.npz"],
            "Add an array of its name for each to empty.npz",
        ),
    ],
)
def test_wrong_use_is_refused(model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("unknown.npz", z=X)
    np.savez("empty.npz", y=X)
    assert main(["compile", model, "-d", "TEMPLATE", "-o", "plain.blob"]) == 0
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_states_carry_over_from_sample_to_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "sum (float[2] x, float[2] old) => (float[2] y, float[2] new) { y = Add (x, old) new = Identity (y) }"
    with Core() as core:
        network = core.read_network(onnx.parser.parse_model(HEAD + text)).with_state({"new": "old"})
        loaded = core.load_network(network, "CPU")
        x = np.array([1, 2], np.float32)
        samples: list[Any] = [({"x": x}, {"y": x}), ({"x": x}, {"y": 2 * x})]
        loaded.export_network("sum.blob", samples=samples)
        assert main(["verify", "sum.blob"]) == 0
        loaded.export_network("sum.blob", samples=samples[::-1])
    assert main(["verify", "sum.blob"]) == 1


VALUES = {
    "bfloat16": np.array([[0, -0.0, np.nan, np.inf]]).astype(ml_dtypes.bfloat16),
    "float8": np.arange(3).astype(ml_dtypes.float8_e4m3fn),
    "int4": np.array([-8, 7, 1]).astype(ml_dtypes.int4),
    "texts": np.array([["", "ä"], ["b\nc", "𝄞"]], object),
    "bool": np.array(True),
    "empty": np.zeros((0, 3), np.float64),
    "complex": np.array([1 + 2j]),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "large": np.arange(5000, dtype=np.float32),
    "sequence": [np.arange(2), [], [np.array(["x"], object)]],
    "maps": [{"a": np.float32(1), "b": np.float32(2)}, {3: np.array(["x"], object)}],
    "absent": None,
}


def test_values_of_all_kinds_come_back(tmp_path: Path) -> None:
    (inputs, outputs), (empty, _) = unpack_samples(pack_samples([(VALUES, VALUES), ({}, {})]))
    for side in (inputs, outputs):
        assert list(side) == list(VALUES)
        for name, value in VALUES.items():
            assert_same(side[name], value, name=name)
            assert getattr(side[name], "dtype", None) == getattr(value, "dtype", None)
    assert empty == {}
    assert unpack_samples({"model": b""}) == []


def test_sequence_network_is_verified(tmp_path: Path) -> None:
    text = "g (seq(bfloat16[N]) s, string[N] t) => (seq(bfloat16[N]) z, string[N] u) { z = Identity (s) u = Identity (t) }"
    inputs = {"s": [VALUES["bfloat16"][0], VALUES["bfloat16"][0, :0]], "t": np.array(["a", "b"], object)}
    path = tmp_path / "s.blob"
    with Core() as core:
        loaded = core.load_network(onnx.parser.parse_model(HEAD + text), "TEMPLATE")
        loaded.export_network(path, samples=[(inputs, loaded.infer(inputs))])
    assert main(["verify", str(path)]) == 0


def test_damaged_samples_and_wrong_inputs_are_errors(model: str) -> None:
    sections = pack_samples([({"x": X}, {"y": X})])
    for index in (b"", b"[1]", b'[[{"x": "value9"}, {}]]', b'[[{"x": {"keys": 1}}, {}]]', b"[[{}, {}, {}]]"):
        with pytest.raises(BlobDamagedError, match="the blob has samples that cannot be read"):
            unpack_samples({**sections, "hetero/samples/index": index})
    with pytest.raises(BlobDamagedError):
        unpack_samples({"hetero/samples/index": b"[]"})
    with Core() as core:
        loaded = core.load_network(model, "TEMPLATE")
        with pytest.raises(InputShapeError):
            loaded.export_network(io.BytesIO(), samples=[({"x": X[0]}, {})])


def test_samples_change_nothing_but_their_sections(model: str) -> None:
    with Core() as core:
        loaded = core.load_network(model, "TEMPLATE")
        plain, sampled = io.BytesIO(), io.BytesIO()
        loaded.export_network(plain)
        loaded.export_network(sampled, samples=[({"x": X}, {"y": np.maximum(2 * X, 0)})])
        header, payload = read_blob(sampled.getvalue())
        expected, without = read_blob(plain.getvalue())
        assert header == expected
        own = {name: bytes(section) for name, section in payload.sections.items() if not name.startswith("hetero/samples/")}
        assert own == {name: bytes(section) for name, section in without.sections.items()}
        again = io.BytesIO()
        core.import_network(sampled.getvalue()).export_network(again)
        assert again.getvalue() == plain.getvalue()
