"""`hetero compile`, `hetero run` on its files, and --inspect."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hetero_core.cli.main import main

MODEL = """<ir_version: 8, opset_import: ["": 17]>
sandwich (float[2, 3] x) => (float[2, 3] y) { [twice] a = Add (x, x) [middle] b = Relu (a) [last] y = Add (b, x) }"""
SPLIT = ["-c", "TEMPLATE_REFUSED_OPERATORS=Relu"]


@pytest.fixture
def blob(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The model, compiled for TEMPLATE with the Relu on CPU."""
    path = str(tmp_path / "split.blob")
    assert main(["compile", model, "-d", "HETERO:TEMPLATE,CPU", *SPLIT, "-o", path]) == 0
    capsys.readouterr()
    return path


def test_compile_reports_the_written_file(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.blob"
    assert main(["compile", model, "-d", "CPU", "-o", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"network": "sandwich", "device": "CPU", "file": str(path), "bytes": path.stat().st_size}
    assert main(["compile", model, "-d", "CPU", "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote '{path}': network 'sandwich' compiled for CPU, {path.stat().st_size} bytes\n"


def test_blob_runs_as_it_was_split(blob: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", blob, "-d", "HETERO", "-i", str(tmp_path / "x.npy"), "-c", "PERF_COUNT=YES"]
    assert main([*arguments, "--save-outputs", str(tmp_path / "y.npz"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["device"] == "HETERO:TEMPLATE,CPU"
    assert [each["device"] for each in answer["subgraphs"] if each["steps"]] == ["TEMPLATE", "CPU", "TEMPLATE"]
    with np.load(tmp_path / "y.npz") as saved:
        # By hand: max(2x, 0) + x.
        np.testing.assert_array_equal(saved["y"], [[3, -2, 9], [-4, 15, -6]])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-d", "CPU", "--random"], 2, "the blob's device is HETERO, here it is CPU"),
        (["-d", "MISSING", "--random"], 3, "no plugin announces device 'MISSING'"),
        (["-d", "HETERO", "--random", "--pin", "last=CPU"], 2, "--pin needs the ONNX model"),
        (["-d", "HETERO", "--random", "--affinity", "pins.toml"], 2, "--affinity needs the ONNX model"),
        (["-d", "HETERO", "--random", "--compare", "CPU"], 2, "--compare needs the ONNX model"),
        (["-d", "HETERO", "-c", "HETERO_SUBGRAPH_POLICY=FEWEST", "--random"], 2, "it shaped what was compiled"),
        (["-d", "HETERO"], 2, "misses the inputs x: float32[2,3]"),
    ],
)
def test_blob_used_wrongly_is_an_error(
    arguments: list[str], code: int, message: str, blob: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", blob, *arguments]) == code
    assert message in capsys.readouterr().err


def test_damaged_blob_is_an_error(blob: str, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(Path(blob).read_bytes())
    content[len(content) // 2] ^= 1
    Path(blob).write_bytes(content)
    for arguments in (["run", blob, "-d", "HETERO", "--random"], ["compile", "--inspect", blob]):
        assert main(arguments) == 2
        assert "is damaged: the digest of its section 'stage/0' differs from its content" in capsys.readouterr().err


def test_inspect_shows_the_headers_of_blob_and_parts(blob: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--inspect", blob, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["device"], answer["distribution"], answer["network"]) == ("HETERO", "hetero-hetero", "sandwich")
    assert (answer["inputs"], answer["outputs"]) == (["x"], ["y"])
    assert answer["config"]["TARGET_FALLBACK"] == "TEMPLATE,CPU"
    parts = [section["blob"] for section in answer["sections"] if "blob" in section]
    assert [part["device"] for part in parts] == ["TEMPLATE", "CPU", "TEMPLATE"]
    assert main(["compile", "--inspect", blob]) == 0
    text = capsys.readouterr().out
    assert text.startswith("device         HETERO\n")
    assert "\n    device         CPU\n" in text


def test_inspect_loads_no_network(blob: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("hetero_core.devices.device.Device.import_network", None)
    monkeypatch.setattr("hetero_core.devices.device.Device.load_network", None)
    assert main(["compile", "--inspect", blob]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.endswith(
        "here, on HETERO:TEMPLATE,CPU: fits\n  stage/0 on TEMPLATE: fits\n  stage/1 on CPU: fits\n  stage/2 on TEMPLATE: fits\n"
    )


def test_inspect_says_why_a_file_does_not_fit(blob: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--inspect", blob, "-d", "MULTI:CPU"]) == 0
    assert "here, on MULTI:CPU: does not fit: cannot import network 'sandwich' on MULTI: " in capsys.readouterr().out
    assert main(["compile", "--inspect", blob, "-d", "CPU", "--json"]) == 0
    check = json.loads(capsys.readouterr().out)["check"]
    assert check["answer"] == "does not fit"


def test_pin_shapes_what_is_compiled(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "pinned.blob")
    assert main(["compile", model, "-d", "HETERO:TEMPLATE,CPU", "--pin", "m*=CPU", "-o", path]) == 0
    capsys.readouterr()
    assert main(["compile", "--inspect", path, "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)["sections"]
    assert [section["blob"]["device"] for section in sections if "blob" in section] == ["TEMPLATE", "CPU", "TEMPLATE"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: MODEL, -d/--device, -o/--output"),
        (["m.onnx", "-d", "CPU"], "the following arguments are required: -o/--output"),
        (["--inspect", "x.blob", "--shape", "x=1"], "--inspect reads one file and takes no shape"),
        (["--inspect", "missing.blob"], "cannot read the blob 'missing.blob': No such file or directory"),
        (["missing.onnx", "-d", "CPU", "-o", "x.blob"], "there is no such file"),
    ],
)
def test_wrong_arguments_end_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_file_that_cannot_be_written_ends_with_2(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", model, "-d", "CPU", "-o", f"{model}/inside.blob"]) == 2
    assert "cannot write " in capsys.readouterr().err


def test_inspect_of_a_file_that_is_no_blob(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--inspect", model]) == 2
    assert "is no exported network" in capsys.readouterr().err
