"""The conformance class for pytest, in real runs of pytest: failures, expected failures, and checks that cannot be skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

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


def run_pytest(folder: Path, *arguments: str, **bodies: str) -> tuple[int, str]:
    """Returns the exit code and the output of pytest on a file for each body: HEAD, and a class of the file's name with this body."""
    for name, body in bodies.items():
        (folder / f"test_{name}.py").write_text(f"{HEAD}class TestMine(DeviceConformance):\n{textwrap.indent(body, '    ')}\n")
    options = ("-p", "hetero_core.conformance.options", "-p", "no:cacheprovider", "-q", "-W", "error")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=dict(os.environ),
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_class_passes_fails_and_expects_failures_by_check(tmp_path: Path) -> None:
    """Four classes in a run: of a device that passes, of one that fails a check, and of both with the check in xfail."""
    code, output = run_pytest(
        tmp_path,
        *("--hetero-check", "perf_counts.*", "--hetero-level", "contract"),
        passes="device, plugin = 'MINE', PlainDevice()",
        fails="device, plugin = 'MINE', TimelessDevice()",
        expected=f"device, plugin = 'MINE', TimelessDevice()\nxfail = {{{TIMES!r}: 'it has no clock'}}",
        unexpected=f"device, plugin = 'MINE', PlainDevice()\nxfail = {{{TIMES!r}: 'it has no clock'}}",
    )
    assert code == 1
    assert re.findall(r"^FAILED (test_\w+\.py)::TestMine::test_check\[(.*?)\]", output, re.MULTILINE) == [
        ("test_fails.py", TIMES),
        ("test_unexpected.py", TIMES),
    ], output
    assert f"{TIMES}: PERF_COUNT is set and a synchronous run has no times" in output
    assert "is expected to fail (it has no clock) and passes; take it out of xfail" in output
    assert "2 failed, 9 passed, 1 xfailed" in output


def test_class_that_hides_a_check_ends_the_collection(tmp_path: Path) -> None:
    code, output = run_pytest(
        tmp_path,
        unknown="device, plugin = 'MINE', PlainDevice()\nxfail = {'perf_counts.times_are_there': 'no'}",
        unreasoned="device, plugin = 'MINE', PlainDevice()\nxfail = {'perf_counts.*': ''}",
        replaced="device, plugin = 'MINE', PlainDevice()\ndef test_check(self): pass",
        removed="pass\nclass Quiet:\n    test_check = None\nclass TestOther(Quiet, DeviceConformance):\n    device = 'MINE'",
    )
    assert code == 2, output
    assert f"did you mean '{TIMES}'" in output
    assert "xfail['perf_counts.*'] has no reason" in output
    for name in ("TestMine", "TestOther"):
        assert f"TypeError: {name} replaces or deletes test_check, which runs the conformance checks; no check may be" in output


def test_package_checks_the_device_of_the_command_line(tmp_path: Path) -> None:
    arguments = ("--pyargs", "hetero_core.conformance", "--hetero-check", "cancel.*")
    code, output = run_pytest(tmp_path, *arguments, "--hetero-device", "CPU", "--hetero-seed", "5")
    assert (code, "2 passed" in output) == (0, True), output
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
