"""The conformance class for pytest, in real runs of pytest: failures, expected failures, and checks that cannot be skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import numpy as np
from hetero_core.conformance.suite import DeviceConformance
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


class Timeless(PlainExecutable):
    def run(self, inputs, context):
        context.profile = None
        return super().run(inputs, context)


class TimelessDevice(PlainDevice):
    def make_executable(self, network):
        return Timeless(network)

"""
TIMES = "perf_counts.times_are_there_when_asked_for"


def run_pytest(folder: Path, *arguments: str, text: str = "") -> tuple[int, str]:
    """Returns the exit code and the output of pytest on a file of HEAD and `text`."""
    if text:
        (folder / "test_mine.py").write_text(HEAD + text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "hetero_core.conformance.options",
        "-p",
        "no:cacheprovider",
        "-q",
        "-W",
        "error",
    ]
    ended = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=900, env=dict(os.environ)
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_conformance_class_of_two_lines_passes(tmp_path: Path) -> None:
    text = "class TestMine(DeviceConformance):\n    device, plugin = 'MINE', PlainDevice()\n"
    code, output = run_pytest(tmp_path, "--hetero-check", "perf_counts.*", text=text)
    assert (code, "5 passed" in output) == (0, True), output


def test_failure_has_the_name_of_the_check_and_its_reason(tmp_path: Path) -> None:
    text = "class TestMine(DeviceConformance):\n    device, plugin = 'MINE', TimelessDevice()\n"
    code, output = run_pytest(tmp_path, "--hetero-check", "perf_counts.*", text=text)
    assert code == 1
    assert f"test_mine.py::TestMine::test_check[{TIMES}]" in output
    assert f"{TIMES}: PERF_COUNT is set and a synchronous run has no times" in output
    assert "4 passed" in output


@pytest.mark.parametrize(
    ("device", "xfail", "code", "shown"),
    [
        ("TimelessDevice()", {TIMES: "it has no clock"}, 0, "1 xfailed"),
        ("PlainDevice()", {TIMES: "it has no clock"}, 1, "is expected to fail (it has no clock) and passes; take it out of xfail"),
        ("PlainDevice()", {"perf_counts.times_are_there": "no"}, 2, f"did you mean '{TIMES}'"),
        ("PlainDevice()", {"perf_counts.*": ""}, 2, "xfail['perf_counts.*'] has no reason"),
    ],
)
def test_expected_failure_is_strict(tmp_path: Path, device: str, xfail: dict[str, str], code: int, shown: str) -> None:
    text = f"class TestMine(DeviceConformance):\n    device, plugin = 'MINE', {device}\n    xfail = {xfail!r}\n"
    exit_code, output = run_pytest(tmp_path, "--hetero-check", "perf_counts.*", "--hetero-level", "contract", text=text)
    assert (exit_code, shown in output) == (code, True), output


@pytest.mark.parametrize(
    "body",
    [
        "    def test_check(self): pass\n",
        "    pass\nclass Quiet:\n    test_check = None\nclass TestOther(Quiet, DeviceConformance):\n    device = 'MINE'\n",
    ],
)
def test_replaced_or_removed_check_fails_the_run(tmp_path: Path, body: str) -> None:
    text = f"class TestMine(DeviceConformance):\n    device, plugin = 'MINE', PlainDevice()\n{body}"
    code, output = run_pytest(tmp_path, text=text)
    assert code == 2, output
    assert "which runs the conformance checks; no check may be left out in silence" in output


def test_package_checks_the_device_of_the_command_line(tmp_path: Path) -> None:
    arguments = ("--pyargs", "hetero_core.conformance", "--hetero-check", "cancel.*")
    code, output = run_pytest(tmp_path, *arguments, "--hetero-device", "CPU", "--hetero-seed", "5")
    assert (code, "4 passed" in output) == (0, True), output
    code, output = run_pytest(tmp_path, *arguments)
    assert code == 2
    assert "TestDevice has no device; set device = 'NAME', or give --hetero-device NAME" in output
    code, output = run_pytest(tmp_path, *arguments, "--hetero-device", "CPU", "--hetero-level", "contrct")
    assert code == 2
    assert "no level 'contrct', did you mean 'contract'" in output


def test_options_alone_load_nothing_heavy() -> None:
    code = "import hetero_core.conformance.options, sys; print(sorted({'numpy', 'onnx', 'pluggy', 'pytest'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    assert ended.stdout.strip() == "[]"


def test_kit_needs_no_pytest() -> None:
    code = """
import sys
sys.modules["pytest"] = None
from hetero_core.cli.main import main
code = main(["conformance", "CPU", "--check", "cancel.*"])
assert not any(name.startswith("_pytest") for name in sys.modules)
sys.exit(code)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stderr
