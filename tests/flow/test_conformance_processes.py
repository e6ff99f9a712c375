"""`hetero conformance` on devices that end, hang or litter their process: the report is whole, and names the check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from textwrap import indent

import pytest

from hetero_core.conformance import runner as processes_of_the_kit
from hetero_core.conformance.runner import CheckProcesses, Order
from hetero_core.testing.backend_cases import FOLDER_VARIABLE

HEAD = """
import ctypes, os, sys, tempfile, threading
from hetero_core import hookimpl
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


class Executable(PlainExecutable):
    def run(self, inputs, context):
        on_run(self)
        return super().run(inputs, context)

    def metrics(self):
        on_metrics()
        return {}


class Device(PlainDevice):
    def make_executable(self, network):
        return Executable(network)

    @hookimpl
    def close_device(self):
        on_close()
        return True


@hookimpl
def create_device():
    return Device()


def on_close():
    pass


def on_run(executable):
    pass


def on_metrics():
    pass
"""
FORK = "load.two_networks_do_not_mix"
"""A check that runs the network 'fork'."""
WAYS = {
    "os.abort()": "the device ended the process of the checks: signal SIGABRT",
    "ctypes.string_at(0)": "the device ended the process of the checks: signal SIGSEGV",
    "os._exit(3)": "the device ended the process of the checks: exit code 3",
    "ctypes.PyDLL(None).pause()": (
        "did not end within 3 seconds (--timeout); the device, or the core, hangs; the stacks of all threads follow"
    ),
    "sys.exit('enough')": "InferenceError: network 'fork' failed on BREAKING (plugin BREAKING (planted-breaking 1.5)): SystemExit: enough",
}
"""The end of a run -> the reason of the failed check. `pause` holds the interpreter's lock."""
SPOILING = """
os.write(1, b"a driver's banner")
tempfile.mkstemp()
tempfile.mkdtemp()
if executable.network.name == "fork":
    os.abort()
"""

Plant = Callable[[str, str], None]


def plant_code(plant: Plant, *, run: str = "pass", close: str = "pass", metrics: str = "pass") -> None:
    bodies = {"on_run(executable)": run, "on_close()": close, "on_metrics()": metrics}
    plant("BREAKING", HEAD + "".join(f"\n\ndef {name}:\n{indent(body, '    ')}\n" for name, body in bodies.items()))


def start_kit(*arguments: str, text: bool = False) -> subprocess.Popen[str]:
    """Starts the command; a shell's background job ignores Ctrl-C, so its signal is set back first."""
    words = ["conformance", "BREAKING", *arguments, *([] if text else ["--json"])]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{code}; from hetero_core.cli.main import main; sys.exit(main({words!r}))"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_each_end_of_the_process_fails_its_check(plant: Plant, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("\n".join(WAYS))
    take_one = f"""
plan = open({str(plan)!r}).read().splitlines() if executable.network.name == "fork" else []
if plan:
    open({str(plan)!r}, "w").write("\\n".join(plan[1:]))
    exec(plan[0])
"""
    plant_code(plant, run=take_one)
    with CheckProcesses(Order(device="BREAKING", patterns=(FORK, "cancel.cancel_of_one*"), limit=3)) as processes:
        fork, idle = processes.checks
        assert (fork.name, idle.level) == (FORK, "contract")
        outcomes = [processes.run_check(fork) for _ in WAYS]
        assert [outcome.status for outcome in outcomes] == ["failed"] * len(WAYS)
        for outcome, reason in zip(outcomes, WAYS.values(), strict=True):
            assert outcome.reason.startswith(reason)
            assert "in on_run" in outcome.trace
        assert [outcome.status for outcome in processes.run_checks()] == ["passed", "passed"]


def test_device_that_hangs_has_less_time_for_further_checks(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_of_the_kit, "HUNG_SECONDS", 1.0)
    monkeypatch.setattr(processes_of_the_kit, "SLOWER", 0)
    plant_code(plant, run="if executable.network.name != 'chain':\n    ctypes.PyDLL(None).pause()")
    with CheckProcesses(Order(device="BREAKING", patterns=(FORK, "load.input_may*"), limit=3)) as processes:
        outcomes = list(processes.run_checks())
    hangs = [outcome.reason for outcome in outcomes if "hangs" in outcome.reason]
    assert [reason.partition(";")[0] for reason in hangs[:2]] == [
        "did not end within 3 seconds (--timeout)",
        "did not end within 1 seconds (a shorter limit than --timeout)",
    ]


def test_more_and_more_checks_are_left_out_after_deaths_in_a_row(plant: Plant) -> None:
    plant_code(plant, run="if executable.network.name != 'chain':\n    os._exit(3)")
    with CheckProcesses(Order(device="BREAKING", patterns=("operators.test_[am]*",), limit=60)) as processes:
        outcomes = [outcome for outcome in processes.run_checks() if outcome.status != "skipped"]
    lengths = [(status, len(list(group))) for status, group in groupby(outcome.status for outcome in outcomes)]
    assert lengths[:4] == [("failed", 5), ("not run", 2), ("failed", 1), ("not run", 4)]
    assert {outcome.reason for outcome in outcomes if outcome.status == "not run"} == {
        "several checks before them, of the level operators, have ended the process or hung one after another"
    }


def test_node_cases_are_computed_once_for_all_children(plant: Plant) -> None:
    plant_code(plant, run="os._exit(3)")
    with CheckProcesses(Order(device="BREAKING", patterns=("operators.test_neg",), limit=60)) as processes:
        folder = Path(os.environ.get(FOLDER_VARIABLE, processes._folder.name))
        (cases,) = folder.glob("node-cases-*.pickle")
        computed = cases.stat().st_mtime_ns
        assert processes.run_check(processes.checks[0]).status == "failed"
        processes._obstacle = ""
        assert processes.run_check(processes.checks[0]).status == "failed"
        assert cases.stat().st_mtime_ns == computed


def test_report_of_a_device_that_spoils_everything_is_whole(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    plant_code(plant, run=SPOILING, close="raise OSError('the driver is gone')")
    badge = tmp_path / "badge.json"
    checks = ("load.*", "registry.device*", "models.residual")
    options = [word for name in checks for word in ("--check", name)]
    kit = start_kit("--level", "contract", "--level", "models", *options, "--badge", str(badge))
    printed, _ = kit.communicate(timeout=600)
    report = json.loads(printed)
    failures = {failure["name"]: failure["reason"] for failure in report["failures"]}
    traces = {failure["name"]: failure.get("trace", "") for failure in report["failures"]}
    assert kit.returncode == 1
    assert failures[FORK].endswith("signal SIGABRT")
    assert "in on_run" in traces[FORK]
    assert "the driver is gone" in failures["registry.device_is_listed_as_working"]
    assert "closing the device raised" in failures["lifetime.device_closes_after_all_checks"]
    assert "the driver is gone" in failures["lifetime.device_closes_after_all_checks"]
    assert report["checks"]["passed"] >= 1
    assert json.loads(badge.read_text())["message"].startswith(f"{len(failures)} failed")
    assert list(temporary.iterdir()) == []


def test_exitfirst_shows_the_failure_and_the_number_of_checks_left(plant: Plant) -> None:
    plant_code(plant, run="os.abort()")
    kit = start_kit("-x", "--check", "cancel.cancel_of_one*", "--check", "load.*", text=True)
    printed, shown = kit.communicate(timeout=600)
    assert kit.returncode == 1
    assert "FAILED load." in shown
    assert "Fatal Python error: Aborted" in shown
    assert "not run: the run was ended early." in printed
    assert printed.count("signal SIGABRT") == 1


def test_interrupt_reports_the_checks_that_were_run(plant: Plant, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reached = f"open({str(pipe)!r}, 'w').close()"
    plant_code(plant, run=f"if executable.network.name == 'fork':\n    {reached}\n    threading.Event().wait()")
    kit = start_kit("--check", "load.*")
    pipe.read_bytes()  # returns when the device has closed its end
    kit.send_signal(signal.SIGINT)
    printed, _ = kit.communicate(timeout=600)
    report = json.loads(printed)
    assert kit.returncode == 130
    assert report["checks"]["passed"] >= 1
    assert report["not_run"] >= 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.abort()", "the device ended the process of the checks: signal SIGABRT"),
        ("def create_device():\n    os.abort()", "the device ended the process of the checks: signal SIGABRT"),
        ("def create_device():\n    threading.Event().wait()", "hangs; the stacks of all threads follow"),
        ("def create_device():\n    raise OSError('no driver')", "failed in create_device with OSError: no driver"),
    ],
)
def test_device_that_does_not_open_has_a_whole_report(plant: Plant, tmp_path: Path, code: str, reason: str) -> None:
    marked = code.replace("def create_device", "@hookimpl\ndef create_device")
    plant("BREAKING", f"import os, threading\nfrom hetero_core import hookimpl\n{marked}\n")
    badge = tmp_path / "badge.json"
    kit = start_kit("--level", "contract", "--timeout", "3", "--badge", str(badge))
    printed, _ = kit.communicate(timeout=600)
    report = json.loads(printed)
    (failure,) = report["failures"]
    assert kit.returncode == 3
    assert failure["name"] == "lifetime.device_opens_before_all_checks"
    assert reason in failure["reason"]
    assert report["left_out"] == [{"checks": report["not_run"], "reason": "the device cannot be opened and closed again"}]
    assert report["not_run"] > 80
    assert json.loads(badge.read_text())["message"].startswith("1 failed, 0 passed")


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        (
            {"run": "os.abort()"},
            "the device ends its process in requests.asynchronous_run_gives_the_result, too, with a network of two nodes",
        ),
        (
            {"run": "threading.Event().wait()"},
            "the device hangs in requests.asynchronous_run_gives_the_result, too, with a network of two nodes",
        ),
        ({"close": "os.abort()"}, "the device cannot be opened and closed again"),
    ],
)
def test_no_check_is_run_if_the_device_dies_in_the_smallest_one(plant: Plant, bodies: dict[str, str], reason: str) -> None:
    plant_code(plant, **bodies)
    limit = "3" if "hangs" in reason else "60"
    kit = start_kit(
        "--level", "contract", "--level", "models", "--check", "load.*", "--check", "models.residual", "--timeout", limit
    )
    printed, _ = kit.communicate(timeout=600)
    report = json.loads(printed)
    (failure,) = report["failures"]
    assert kit.returncode == (3 if "close" in bodies else 1)
    assert f"in on_{'close' if 'close' in bodies else 'run'}" in failure["trace"]
    assert report["left_out"] == [{"checks": report["not_run"], "reason": reason}]
