"""`hetero predict`: every file of a folder through a model; results in three formats, an interrupted call, and bad files."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core.cli import predict
from hetero_core.cli.answer import UsageError
from hetero_core.cli.main import main
from hetero_core.cli.predict import Journal, list_values
from hetero_core.errors import DeviceCrashedError
from hetero_core.runtime.executable import ExecutableNetwork

ROWS = '<ir_version: 8, opset_import: ["": 17]> rows (float[n,3] x, float[1] f) => (float[n,3] y) { y = Mul (x, f) }'
TABLE = """<ir_version: 8, opset_import: ["": 17]> table (int64[n] i) => (float[n] y, float[n,k] z)
<float[4] t = {0, 10, 20, 30}, int64[2] s = {-1, 1}> { y = Gather (t, i) c = Reshape (y, s) z = Identity (c) }"""
IMAGE = '<ir_version: 8, opset_import: ["": 18]> means (float[n,3,4,3] x) => (float[n,3] y) { p = GlobalAveragePool (x) y = Flatten (p) }'
DRAW = np.random.default_rng(7)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("rows", ROWS), ("table", TABLE), ("image", IMAGE)):
        onnx.save(onnx.parser.parse_model(text), f"{name}.onnx")
    (tmp_path / "in" / "sub").mkdir(parents=True)
    return tmp_path


def save_rows(count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the samples by name, in the order of the results."""
    arrays = {f"{'sub/' if index % 3 == 0 else ''}{index:02}.npy": DRAW.standard_normal(3, np.float32) for index in range(count)}
    for name, array in arrays.items():
        np.save(f"in/{name}", array)
    return dict(sorted(arrays.items()))


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["predict", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


ROW_CALL = ("rows.onnx", "-i", "x=in", "-i", "f=2")


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("device", ["CPU", "MULTI:TEMPLATE,CPU", "HETERO:TEMPLATE,CPU"])
@pytest.mark.parametrize("suffix", ["npz", "jsonl", "parquet"])
def test_results_are_in_the_order_of_the_files(suffix: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    arrays = save_rows(20)
    code, answer = ask(capsys, *ROW_CALL, "-d", device, "-o", f"out.{suffix}")
    assert (code, answer["files"], answer["bad"], answer["done_before"]) == (0, 20, [], 0)
    assert sorted(os.listdir()) == sorted(["image.onnx", "in", "rows.onnx", "table.onnx", f"out.{suffix}"])
    files, values = read_results(suffix)
    assert files == list(arrays)
    assert values.dtype == np.float32
    assert (values == 2 * np.stack(list(arrays.values()))).all()


def read_results(suffix: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    if suffix == "npz":
        with np.load("out.npz") as archive:
            return archive["files"].tolist(), archive["y"]
    if suffix == "jsonl":
        rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
        return [row["file"] for row in rows], np.float32([row["outputs"]["y"] for row in rows])
    from pyarrow.parquet import read_table

    table = read_table("out.parquet")
    assert table.schema.names == ["file", "error", "y"]
    assert str(table.schema.field("y").type) == "list<element: float>"
    return table["file"].to_pylist(), np.stack(table["y"].to_numpy())


@pytest.mark.usefixtures("work")
def test_file_that_fails_is_named_and_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    for index, value in enumerate([0, 3, 99, 1]):
        np.save(f"in/{index}.npy", np.int64(value))
    Path("in/4.npy").write_bytes(b"no array")
    np.save("in/5.npy", np.float32(1))
    np.save("in/6.npy", np.int32(1))
    Path("in/notes.md").write_text("")
    code, answer = ask(capsys, "table.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz")
    assert (code, answer["files"], answer["not_read"]) == (4, 7, {".md": 1})
    reasons = {each["file"]: each["reason"] for each in answer["bad"]}
    assert list(reasons) == ["2.npy", "4.npy", "5.npy", "6.npy"]
    assert "99" in reasons["2.npy"]
    assert reasons["4.npy"].startswith("cannot read input 'i' from 'in/4.npy': it is damaged or of another kind")
    assert reasons["5.npy"].endswith("expected int64, got float32; convert it with array.astype('int64')")
    assert reasons["6.npy"].endswith("let the network take it: --precision i=I32")
    with np.load("out.npz") as archive:
        assert archive["files"].tolist() == ["0.npy", "1.npy", "3.npy"]
        assert archive["y"].tolist() == [0, 30, 10]
        assert archive["bad_files"].tolist() == list(reasons)
        assert archive["bad_reasons"].tolist() == list(reasons.values())
    assert main(["predict", "table.onnx", "-d", "CPU", "-i", "in", "-o", "out.jsonl"]) == 4
    shown = capsys.readouterr()
    assert "wrote 'out.jsonl': 3 of 7 files by network 'table' on " in shown.out
    assert f"\n  4.npy: {reasons['4.npy']}\n" in shown.out
    assert "hetero: files of other kinds were not read: 1 .md" in shown.err
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert rows[1:3] == [{"file": "1.npy", "outputs": {"y": 30.0, "z": [30.0]}}, {"file": "2.npy", "error": reasons["2.npy"]}]


@pytest.mark.usefixtures("work")
def test_interrupted_call_goes_on_with_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = save_rows(12)
    names = list(arrays)
    Path("in/bad.npy").write_bytes(b"")
    compute, asked = predict._Prediction.compute, []

    def stop(prediction: Any, file: str, slots: Any) -> Any:
        asked.append(file)
        if len(asked) == 9:
            raise KeyboardInterrupt
        return compute(prediction, file, slots)

    monkeypatch.setattr(predict._Prediction, "compute", stop)
    code, answer = ask(capsys, *ROW_CALL, "-d", "CPU", "-o", "out.npz", "--requests", "1")
    assert (code, answer["interrupted"], os.path.exists("out.npz")) == (130, True, False)
    with contextlib.closing(sqlite3.connect(answer["journal"])) as journal:
        done = {file for (file,) in journal.execute("SELECT file FROM files WHERE error IS NULL")}
    assert 1 <= len(done) < 12
    # Another call does not take the journal; a changed file is computed again.
    assert main(["predict", "rows.onnx", "-i", "x=in", "-i", "f=3", "-d", "CPU", "-o", "out.npz"]) == 2
    assert "'out.npz.journal' is of an interrupted call that differs in its inputs; repeat" in capsys.readouterr().err
    changed = min(done)
    arrays[changed] = np.float32([1, 2, 3])
    np.save(f"in/{changed}", arrays[changed])
    os.utime(f"in/{changed}", ns=(1, 1))
    os.unlink("in/bad.npy")
    asked.clear()
    asked += ["earlier"] * 9
    code, answer = ask(capsys, *ROW_CALL, "-d", "MULTI:TEMPLATE,CPU", "-o", "out.npz")
    assert (code, answer["done_before"], len(asked) - 9) == (0, len(done) - 1, 12 - (len(done) - 1))
    assert not os.path.exists("out.npz.journal")
    files, values = read_results("npz")
    assert files == names
    assert (values == 2 * np.stack(list(arrays.values()))).all()


@pytest.mark.usefixtures("work")
def test_images_are_prepared_and_run_in_batches(capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = DRAW.integers(0, 256, (5, 8, 9, 3), dtype=np.uint8)
    for index, picture in enumerate(pixels):
        image.fromarray(picture).save(f"in/{index}.png")
    steps = ["--resize", "area", "--mean", "1,2,3", "--scale", "2", "--color", "BGR->RGB"]
    expected = (pixels[..., ::-1].mean((1, 2), dtype=np.float64) - (1, 2, 3)) / 2
    for batch, more in ((8, []), (2, ["--batch", "2"]), (1, ["--batch", "1"])):
        code, answer = ask(capsys, "image.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz", *steps, *more)
        assert (code, answer["batch"]) == (0, batch)
        np.testing.assert_allclose(read_results("npz")[1], expected, rtol=0, atol=1e-4)
    # A gray image of another size: "area" is compiled for a single size, "bilinear" for any.
    image.fromarray(pixels[0, :4, :3, 0]).save("in/5.jpg", quality=100)
    code, answer = ask(capsys, "image.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz", "--resize", "area")
    assert (code, [each["file"] for each in answer["bad"]]) == (4, ["5.jpg"])
    assert "expected shape [n,8,9,3], got [1, 4, 3, 3]" in answer["bad"][0]["reason"]
    code, answer = ask(capsys, "image.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz", "--resize", "bilinear")
    assert (code, answer["batch"], answer["files"]) == (0, 8, 6)
    gray = read_results("npz")[1][-1]
    assert gray.tolist() == [gray[0]] * 3
    np.testing.assert_allclose(gray[0], pixels[0, :4, :3, 0].mean(), atol=3)


@pytest.mark.usefixtures("work")
def test_archives_name_their_inputs_and_shapes_may_differ(capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(2):
        np.savez(f"in/{index}.npz", x=np.ones((1 + index, 3), np.float32), f=np.float32([index + 2]))
    assert ask(capsys, "rows.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz", "--value", "y")[0] == 0
    with np.load("out.npz") as archive:
        assert archive["y/0.npz"].tolist() == [[2, 2, 2]]
        assert archive["y/1.npz"].tolist() == [[3, 3, 3]] * 2
    assert ask(capsys, "rows.onnx", "-d", "CPU", "-i", "in", "-o", "out.jsonl")[0] == 0
    assert Path("out.jsonl").read_text().splitlines()[0] == '{"file": "0.npz", "outputs": {"y": [[2.0, 2.0, 2.0]]}}'


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "in", "-o", "out.csv"], "-o out.csv: the results are written as .jsonl, .npz, .parquet"),
        (["-i", "f=1", "-o", "out.npz"], "expected one folder, as in -i images/ or -i NAME=images/; got f=1"),
        (["-i", "in", "-o", "out.npz"], "folder 'in' has no file that can be read; these are .jpeg, .jpg, .npy"),
        (["-i", "full", "-o", "out.npz"], "network 'rows' has 2 inputs; say which, as in -i x=full"),
        (["-i", "z=full", "-o", "out.npz"], "-i z=: network 'rows' has no input 'z'"),
        (
            ["-i", "x=full", "-i", "f=1", "-o", "out.npz", "--batch", "2"],
            "--batch 2: BATCH refuses 1 node of 'rows', as 'y_node': it",
        ),
        (["-i", "x=full", "-i", "f=1", "-o", "out.npz", "--value", "q"], "network 'rows' has no inner value 'q'"),
    ],
)
def test_wrong_call_ends_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    np.save("full/a.npy", np.zeros(3, np.float32))
    if "--batch" in arguments:
        mixing = ROWS.replace("y = Mul (x, f)", "c = Mul (x, f) [y_node] y = Softmax <axis = 0> (c)")
        onnx.save(onnx.parser.parse_model(mixing), "rows.onnx")
    assert main(["predict", "rows.onnx", "-d", "CPU", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not any(name.startswith("out") for name in os.listdir())


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("package", "file", "target", "extra"), [("pyarrow", "a.npy", "o.parquet", "parquet"), ("PIL", "a.png", "o.npz", "images")]
)
def test_missing_package_names_its_extra(
    package: str, file: str, target: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"in/{file}").touch()
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["predict", *ROW_CALL, "-d", "CPU", "-o", target]) == 2
    assert f"install it with: pip install 'hetero-core[{extra}]'" in capsys.readouterr().err


@pytest.mark.usefixtures("work")
def test_lost_device_ends_the_command_and_leaves_the_journal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in (0, 99):
        np.save(f"in/{index}.npy", np.int64(index))

    infer = ExecutableNetwork.infer

    def lose(network: Any, inputs: Any) -> Any:
        if inputs["i"].tolist() == [99]:
            raise DeviceCrashedError("the device is gone")
        return infer(network, inputs)

    with monkeypatch.context() as patch:
        patch.setattr(ExecutableNetwork, "infer", lose)
        assert main(["predict", "table.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz"]) == 2
    assert "the device is gone\n  the same command goes on from 'out.npz.journal'" in capsys.readouterr().err
    code, answer = ask(capsys, "table.onnx", "-d", "CPU", "-i", "in", "-o", "out.npz")
    assert (code, answer["done_before"], [each["file"] for each in answer["bad"]]) == (4, 1, ["99.npy"])


@pytest.mark.usefixtures("work")
def test_output_within_the_folder_is_no_input(capsys: pytest.CaptureFixture[str]) -> None:
    save_rows(2)
    for _ in range(2):
        assert ask(capsys, *ROW_CALL, "-d", "CPU", "-o", "in/out.npz")[1]["files"] == 2


def test_journal_keeps_every_element_type(tmp_path: Path) -> None:
    import ml_dtypes

    arrays = {
        "half": np.array([1.5, np.inf], ml_dtypes.bfloat16),
        "few": np.array([-3, 7], ml_dtypes.int4),
        "text": np.array(["ä", "bcd"], object),
        "nothing": np.zeros((0, 2), np.int64),
        "scalar": np.float32(np.nan),
    }
    with Journal(tmp_path / "journal", {"model": "m"}) as journal:
        journal.add("a", "1 2", arrays)
    with Journal(tmp_path / "journal", {"model": "m"}) as journal:
        ((file, error, read),) = journal.read()
    assert (file, error) == ("a", None)
    assert {name: (list_values(array), str(array.dtype)) for name, array in read.items()} == {
        "half": ([1.5, "inf"], "bfloat16"),
        "few": ([-3, 7], "int4"),
        "text": (["ä", "bcd"], "<U3"),
        "nothing": ([], "int64"),
        "scalar": ("nan", "float32"),
    }


def test_journal_in_use_or_damaged_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match="cannot use the journal '.*journal': file is not a database"):
        Journal(tmp_path / "journal", {})
