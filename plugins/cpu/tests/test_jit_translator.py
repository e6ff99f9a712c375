"""LLVM in a child process: refused modules, the end of the child, and the case that no child process can be started."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.machine import translator
from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Compiler, Kernel, find_width
from hetero_cpu.machine.translator import Translator

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

MODULE = "define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, 1\n  ret i64 %y\n}}\n"
PATIENCE = 60.0
ELF = b"\x7fELF"

CHILD = """
import json, sys
from hetero_core import Core
from hetero_core.testing.models import light_inputs, residual_model

model = residual_model()
inputs = light_inputs(model)
with Core() as core:
    expected = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"}).infer(inputs)
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    found = network.infer(inputs)
    error = max(float(abs(found[name] - expected[name]).max() / abs(expected[name]).max()) for name in expected)
    steps = network.get_metric("CPU_NATIVE_STEPS")
maps = open("/proc/self/maps").read()
print(json.dumps({"error": error, "steps": steps, "llvm": "libllvmlite" in maps, "binding": "llvmlite.binding" in sys.modules}))
"""


@pytest.fixture
def translate() -> Iterator[Translator]:
    translator = Translator()
    yield translator
    translator.rest()


def test_process_that_compiles_kernels_does_not_load_llvm(tmp_path: Path) -> None:
    cold = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    tmp_path.chmod(0o700)
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=900, env=cold)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert not report["llvm"]
    assert not report["binding"]
    assert report["steps"] > 0
    assert report["error"] < 1e-5


def test_refused_module_quotes_llvm_and_the_next_module_compiles(translate: Translator) -> None:
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        translate.translate("this is no module", "none")
    process = translate._process
    assert translate.translate(MODULE.format(name="next"), "next").startswith(ELF)
    assert translate._process is process


def test_ended_process_is_reported_and_replaced(translate: Translator) -> None:
    translate.translate(MODULE.format(name="first"), "first")
    process = translate._process
    assert process is not None
    process.kill()
    process.wait()
    with pytest.raises(RuntimeError, match=f"LLVM ended with {-signal.SIGKILL} while it compiled kernel second"):
        translate.translate(MODULE.format(name="second"), "second")
    assert translate.translate(MODULE.format(name="third"), "third").startswith(ELF)


def _emit_nothing(name: str, width: int) -> Code:
    code = Code(name, 3, width)
    code.finish()
    return code


class _Refused:
    def take_text(self) -> str:
        return "no module"


def test_kernels_before_a_refused_kernel_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, asked = Compiler(), list[str]()
    kernels = [
        Kernel("does_nothing", _emit_nothing),
        Kernel("is_refused", lambda name, width: _Refused()),
        Kernel("comes_too_late", _emit_nothing),
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        compiler.compile_all(kernels, lambda: asked.append("asked"))
    assert [kernel.name in compiler._addresses for kernel in kernels] == [True, False, False]
    assert len(asked) == 2
    compiler.compile_all(kernels[2:])
    assert kernels[2].name in compiler._addresses


def test_no_kernel_is_compiled_after_its_callback_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, kernels = Compiler(), [Kernel("before_it", _emit_nothing), Kernel("after_it", _emit_nothing)]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers = iter([False, True])

    def refuse_the_second() -> None:
        if next(answers):
            raise LookupError("nobody wants it")

    with pytest.raises(LookupError):
        compiler.compile_all(kernels, refuse_the_second)
    # The kernel before the error was still compiled.
    assert [kernel.name in compiler._addresses for kernel in kernels] == [True, False]


def test_process_ends_when_nothing_is_left_to_be_compiled(translate: Translator) -> None:
    translate.translate(MODULE.format(name="only"), "only")
    process = translate._process
    assert process is not None
    translate.rest()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("executable", "reason"),
    [
        ("", "there is no interpreter to start"),
        ("/nowhere/python", "No such file"),
        ("/bin/false", "the process that was started ended with 1"),
    ],
)
def test_llvm_is_loaded_here_if_no_child_can_start(
    translate: Translator, executable: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(translator.sys, "executable", executable)
    with caplog.at_level(logging.INFO, translator.__name__):
        assert translate.translate(MODULE.format(name="here"), "here").startswith(ELF)
    assert reason in caplog.text


def test_process_goes_when_the_program_was_killed() -> None:
    code = (
        "import os, signal\n"
        "from hetero_cpu.machine.translator import TRANSLATOR\n"
        f"TRANSLATOR.translate({MODULE.format(name='last')!r}, 'last')\n"
        "print(TRANSLATOR._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert ended.returncode == -signal.SIGKILL
    end = time.monotonic() + PATIENCE
    while is_running(int(ended.stdout)):
        assert time.monotonic() < end, "it is still there"


def is_running(process: int) -> bool:
    """Says whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
