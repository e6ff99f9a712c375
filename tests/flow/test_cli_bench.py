"""`hetero bench`: real processes on small models; counts and comparisons are checked, times are not."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.cli import bench
from hetero_core.cli.answer import Answer
from hetero_core.cli.bench import BenchTask, measure
from hetero_core.cli.inputs import collect_inputs
from hetero_core.cli.main import build_parser, main
from hetero_core.testing.models import dynamic_batch_model

QUICK = ["--iterations", "3", "--rounds", "1", "--warmup", "1"]
TWICE = ["--iterations", "3", "--rounds", "2", "--warmup", "1"]
SPLIT = ["-d", "HETERO:TEMPLATE,CPU", "-c", "TEMPLATE_REFUSED_OPERATORS=Relu"]

# A device that delegates to CPU, and executes the statement that a test puts in the place of PLACE in each inference.
ODD = """
import os, signal
from pathlib import Path
from hetero_core import Executable, QueryResult, hookimpl
import numpy as np

class Device:
    def __init__(self, core): self.core = core
    @hookimpl
    def query_network(self, device, network): return QueryResult({node.name: str(device) for node in network.nodes})
    @hookimpl
    def load_network(self, device, network): return Odd(self.core.load_network(network, "CPU"))

class Odd(Executable):
    def __init__(self, inner): self.inner, self.inputs, self.outputs, self.count = inner, inner.inputs, inner.outputs, 0
    def run(self, inputs, context):
        self.count += 1
        PLACE
        return self.inner.run(inputs, context)

@hookimpl
def create_device(core):
    print("a banner that nobody asked for")
    return Device(core)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with an input of open batch size."""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(dynamic_batch_model(), path)
    return str(path)


@pytest.fixture(scope="module")
def shape(model: str) -> list[str]:
    (model_input,) = onnx.load(model).graph.input
    sizes = [str(axis.dim_value or 2) for axis in model_input.type.tensor_type.shape.dim]
    return ["--shape", f"{model_input.name}={','.join(sizes)}"]


@pytest.fixture
def odd(plant: Callable[[str, str], None]) -> Callable[..., None]:
    """Returns a function that installs a device with a statement to run in each inference."""

    def install(statement: str, device: str = "ODD") -> None:
        plant(device, ODD.replace("PLACE", statement))

    return install


def ask(*arguments: str) -> Answer:
    """Returns the answer of the command: its text, its JSON and its remarks."""
    words = ["bench", *arguments]
    return bench.answer(build_parser(words).parse_args(words))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.fixture(scope="module")
def side_by_side(model: str, shape: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    """The answer for CPU and a split with pins in two rounds, and the file of its trace."""
    target = tmp_path_factory.mktemp("trace") / "trace.json"
    return ask(model, "-d", "CPU", *SPLIT, "--pin", "op:Relu=CPU", *TWICE, *shape, "--trace", str(target)), target


def test_devices_stand_side_by_side(side_by_side: tuple[Answer, Path]) -> None:
    answer, target = side_by_side
    title, _, header, *rows, _, note = answer.text.splitlines()
    assert title.endswith(": 2 rounds of 3 runs for each device, one request after another")
    assert " ".join(header.split()) == "DEVICE LOAD FIRST MEDIAN P90 PER SECOND PEAK MEMORY LARGEST DIFFERENCE"
    cpu, split = [row.split() for row in rows]
    assert (cpu[0], cpu[2], cpu[4], cpu[-2:]) == ("CPU", "s", "ms", ["MiB", "-"])
    assert split[0] == "HETERO:TEMPLATE,CPU"
    assert float(split[-1]) < 1e-4
    assert note.startswith(f"wrote '{target}': a trace of a few more runs of each device with PERF_COUNT, which are not in")
    assert "CPU has no configuration key TEMPLATE_REFUSED_OPERATORS and ran without" in answer.remarks
    assert "CPU splits no networks and ran without pins" in answer.remarks


def test_json_has_every_round_and_all_counts(model: str, side_by_side: tuple[Answer, Path]) -> None:
    fields = side_by_side[0].fields
    assert (fields["model"], fields["api"], fields["warmup"], fields["interrupted"]) == (model, "sync", 1, False)
    cpu, split = fields["devices"]
    assert (cpu["device"], split["device"]) == ("CPU", "HETERO:TEMPLATE,CPU")
    for row in (cpu, split):
        assert (row["error"], row["runs"], row["requests"], len(row["rounds"])) == (None, 6, 1, 2)
        assert 0 < row["min_seconds"] <= row["median_seconds"] <= row["p90_seconds"] <= row["p99_seconds"] <= row["max_seconds"]
        assert row["per_second"] == pytest.approx(6 / row["seconds"])
        assert row["peak_bytes"] == max(each["peak_bytes"] for each in row["rounds"])
    assert cpu["difference"] is None
    assert split["difference"]["mismatches"] == []
    assert split["difference"]["max_absolute_difference"] < 1e-4


def test_trace_has_the_devices_beside_each_other(side_by_side: tuple[Answer, Path]) -> None:
    target = side_by_side[1]
    events = json.loads(target.read_text())["traceEvents"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"CPU: requests", "CPU: CPU", "HETERO:TEMPLATE,CPU: requests", "HETERO:TEMPLATE,CPU: TEMPLATE"} <= processes
    numbers = [event["pid"] for event in events if event["name"] == "process_name"]
    assert len(numbers) == len(set(numbers))
    assert len([event for event in events if event["ph"] == "X" and event["cat"] == "request"]) == 10
    assert list(target.parent.iterdir()) == [target]


def test_variables_that_choose_kernels_are_removed_and_named(
    model: str, shape: list[str], tmp_path: Path, odd: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd(f"Path({str(tmp_path / 'seen')!r}).write_text(repr(dict(os.environ)))")
    for name in list(os.environ):
        if name.startswith(("MKL_", "OPENBLAS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    answer = ask(model, "-d", "ODD", *QUICK, *shape)
    told = "not passed on, since they choose other kernels than this machine's: MKL_CBWR, OPENBLAS_CORETYPE"
    assert answer.remarks == (told,)
    assert answer.fields["cleared_environment"] == ["MKL_CBWR", "OPENBLAS_CORETYPE"]
    seen = (tmp_path / "seen").read_text()
    assert "OPENBLAS_CORETYPE" not in seen
    assert "MKL_NUM_THREADS" in seen


@pytest.mark.parametrize("how", [["--requests", "3"], ["--api", "async"]])
def test_queue_of_requests_counts_each_run(
    how: list[str], model: str, shape: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, model, "-d", "CPU", *how, "--iterations", "7", "--rounds", "1", *shape)
    (row,) = answer["devices"]
    assert answer["api"] == "async"
    assert row["runs"] == 7
    with Core() as core:
        optimal = core.load_network(model, "CPU").get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    assert row["requests"] == (3 if "--requests" in how else optimal)


def test_files_and_seed_choose_the_inputs(
    model: str, shape: list[str], tmp_path: Path, odd: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    # The device writes its inputs to a file.
    odd(f"np.save({str(tmp_path / 'seen.npy')!r}, inputs[0])")
    name, _, sizes = shape[1].partition("=")
    size = tuple(int(each) for each in sizes.split(","))
    mine = np.full(size, 0.25, np.float32)
    np.save(tmp_path / "x.npy", mine)
    run_json(capsys, model, "-d", "ODD", *QUICK, "-i", f"{name}={tmp_path / 'x.npy'}")
    np.testing.assert_array_equal(np.load(tmp_path / "seen.npy"), mine)
    run_json(capsys, model, "-d", "ODD", *QUICK, *shape, "--seed", "5")
    with Core() as core:
        inputs = collect_inputs(argparse.Namespace(input=[], shape=shape[1:], seed=5), core.read_network(model).inputs, network="")
    np.testing.assert_array_equal(np.load(tmp_path / "seen.npy"), inputs[name])


def test_exported_network_is_timed(tmp_path: Path, model: str, shape: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    blob = str(tmp_path / "split.blob")
    assert main(["compile", model, *SPLIT, "-o", blob]) == 0
    capsys.readouterr()
    (row,) = run_json(capsys, blob, "-d", "HETERO", *QUICK, *shape)["devices"]
    assert row["runs"] == 3


def test_failing_device_has_its_reason_in_its_row(model: str, shape: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refusing = ["-d", "TEMPLATE", "-c", "TEMPLATE_REFUSED_OPERATORS=Relu,Gemm,MatMul,Add,Conv"]
    assert main(["bench", model, "-d", "CPU", *refusing, "-d", "CPUU", *QUICK, *shape]) == 3
    _, _, header, cpu, template, missing = capsys.readouterr().out.splitlines()
    assert header.split()[-1] == "ERROR"
    assert cpu.split()[2] == "s"
    assert "is refused by TEMPLATE_REFUSED_OPERATORS" in template
    assert missing.split()[:7] == ["CPUU", "-", "-", "-", "-", "-", "-"]
    assert "no plugin announces device 'CPUU', did you mean 'CPU'?" in missing


def test_outputs_that_differ_are_named(
    model: str, shape: list[str], odd: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    odd("return tuple(value + value.dtype.type(1) for value in self.inner.run(inputs, context))")
    assert main(["bench", model, "-d", "CPU", "-d", "ODD", *QUICK, *shape]) == 0
    printed = capsys.readouterr()
    assert "ODD differs from CPU by more than its element types explain:" in printed.out
    (row,) = [line.split() for line in printed.out.splitlines() if line.startswith("ODD ") and "MiB" in line]
    assert float(row[-1]) == pytest.approx(1, rel=1e-3)
    # Output that a device prints does not reach the command's standard output.
    assert "banner" not in printed.out


def test_outputs_without_numbers_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["": 21]>
    g (float[3] x) => (bfloat16[3] y, string[2] z, float[3] "a/b") <string[2] w = {"one", "two"}>
    { y = Cast<to = 16>(x) z = Identity(w) "a/b" = Relu(x) }"""
    path = tmp_path / "kinds.onnx"
    model = onnx.parser.parse_model(text.replace('"a/b"', "ab"))
    model.graph.output[2].name = model.graph.node[2].output[0] = "a/b"
    onnx.save(model, path)
    _, row = run_json(capsys, str(path), "-d", "CPU", "-d", "TEMPLATE", *QUICK)["devices"]
    assert (row["difference"]["max_absolute_difference"], row["difference"]["mismatches"]) == (0, [])


def test_device_that_ends_its_process_costs_its_own_row(
    model: str, shape: list[str], odd: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    endings = {
        "ABORT": ("os.abort()", 70, "the process that ran ABORT ended by signal 6 (SIGABRT) and said nothing"),
        "EXIT": ("os._exit(7)", 70, "the process that ran EXIT ended with exit code 7 and said nothing"),
        "FULL": ("raise OverflowError('no room')", 2, "OverflowError: no room"),
    }
    for device, (statement, _, _) in endings.items():
        odd(statement, device)
    devices = [word for device in (*endings, "CPU") for word in ("-d", device)]
    *failed, cpu = run_json(capsys, model, *devices, *QUICK, *shape, code=70)["devices"]
    for row, (_, code, reason) in zip(failed, endings.values(), strict=True):
        assert (row["runs"], row["error"]["exit_code"]) == (0, code)
        assert reason in row["error"]["message"]
    assert (cpu["runs"], cpu["difference"]) == (3, None)


# Restores the default handling of interrupts, which background jobs of a shell ignore.
INTERRUPTIBLE = ["env", "--default-signal=INT", sys.executable, "-m", "hetero_core", "bench"]


def test_interrupt_prints_the_rounds_so_far(model: str, shape: list[str], tmp_path: Path, odd: Callable[..., None]) -> None:
    # The second process of the device interrupts the whole process group, as Ctrl-C does.
    flag = tmp_path / "flag"
    odd(f"flag = Path({str(flag)!r}); os.killpg(0, signal.SIGINT) if flag.exists() else (self.count == 5 and flag.touch())")
    command = [*INTERRUPTIBLE, model, "-d", "ODD", *TWICE, *shape, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, start_new_session=True)
    assert ended.returncode == 130, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["interrupted"] is True
    assert (answer["devices"][0]["runs"], len(answer["devices"][0]["rounds"])) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.onnx", "-d", "CPU", "-d", "TEMPLATE"], 2, "'missing.onnx': there is no such file"),
        (["MODEL", "-d", "CPUU"], 3, "no plugin announces device 'CPUU', did you mean 'CPU'?"),
        (["MODEL", "-d", "CPU"], 2, "has open dimensions; choose their sizes, as in --shape"),
        (
            ["MODEL", "-d", "CPU", "-d", "TEMPLATE", "-c", "PERF_COUNTS=1", "SHAPE"],
            2,
            "-c PERF_COUNTS: none of the devices CPU, TEMPLATE has such a configuration key, did you mean 'PERF_COUNT'?",
        ),
        (["MODEL", "-d", "CPU", "--api", "sync", "--requests", "2"], 2, "--requests has a meaning only with --api async"),
        (["MODEL", "-d", "CPU", "--seconds", "0"], 2, "argument --seconds/-t: expected seconds above 0, got 0"),
        (["MODEL", "-d", "CPU", "--seconds", "nan"], 2, "argument --seconds/-t: expected seconds above 0, got nan"),
        (["MODEL", "-d", "CPU", "--rounds", "0"], 2, "argument --rounds: expected a whole number of 1 or more, got 0"),
        (["MODEL", "-d", "CPU", "--warmup", "-1"], 2, "argument --warmup: expected a whole number of 0 or more, got -1"),
        (["MODEL", "-d", "CPU", "--seconds", "1", "--iterations", "1"], 2, "not allowed with argument --seconds"),
        (
            ["MODEL", "-d", "CPU", "--trace", "missing/trace.json"],
            2,
            "cannot write 'missing/trace.json': there is no folder missing",
        ),
        (["MODEL"], 2, "the following arguments are required: -d/--device"),
    ],
)
def test_wrong_call_is_an_error(
    arguments: list[str], code: int, message: str, model: str, shape: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    placed = [text for each in arguments for text in (shape if each == "SHAPE" else [model if each == "MODEL" else each])]
    quick = [] if {"--seconds", "--rounds", "--warmup"} & set(arguments) else QUICK
    assert main(["bench", *placed, *quick]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("hetero: error: ")
    assert message in printed.err


@pytest.mark.parametrize("option", [["-c", "PERF_COUNTS=1"], ["--pin", "op:Relu=CPU"]], ids=["key", "pin"])
def test_option_of_no_device_is_an_error_before_any_round(
    option: list[str], model: str, shape: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def record_step(title: str) -> contextlib.nullcontext[Callable[[str], None]]:
        steps.append(title)
        return contextlib.nullcontext(lambda _: None)

    monkeypatch.setattr("hetero_core.cli.bench.follow", lambda options: record_step)
    assert main(["bench", model, "-d", "CPU", "-d", "TEMPLATE", *option, *shape, *TWICE]) == 2
    assert steps == []


def test_names_of_benchmark_app_are_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> sums (float[n, k] x) => (float[n, k] y) { y = Add (x, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "sums.onnx")
    model = str(tmp_path / "sums.onnx")
    call = ["-hint", "tput", "-nthreads", "1", "-niter", "6", "-nireq", "2", "--rounds", "1"]
    answer = run_json(capsys, model, "-d", "CPU", *call, "-data_shape", "[2,3]")
    assert (answer["api"], answer["devices"][0]["runs"], answer["devices"][0]["requests"]) == ("async", 6, 2)
    assert answer["devices"][0]["config"] == {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": "1"}
    words = ["bench", model, "-d", "CPU", "-niter", "1", "-api", "sync", "-shape", "x[5,3]", "-b", "4"]
    answer = measure(BenchTask(build_parser(words).parse_args(words), "CPU", {}, {}, keeps_outputs=True))
    assert answer["outputs"]["y"].shape == (4, 3)
    assert main(["bench", model, "-d", "CPU", "-shape", "x[?,3]"]) == 2
    assert (
        "argument -shape: expected sizes in brackets, as in x[1,3,224,224] or [1,3,224,224]; got x[?,3]" in capsys.readouterr().err
    )
