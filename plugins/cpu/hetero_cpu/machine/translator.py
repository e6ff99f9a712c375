"""A child process in which LLVM compiles, so that neither its code nor its garbage is in the memory of this process."""

from __future__ import annotations

import atexit
import logging
import pickle
import subprocess
import sys
import threading
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import Any

from hetero_core.runtime.executors import call_in_child
from hetero_cpu.machine import translation
from hetero_cpu.machine.translation import write_message

logger = logging.getLogger(__name__)

LONGEST_END = 10.0
"""Seconds that the process has to end by itself."""


class Translator:
    """Safe for threads. The process starts with the first module and goes with `rest`; if none can be started, LLVM is loaded here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: Any = None
        self._is_alone = False

    def prepare(self) -> None:
        """Starts the process if there is none, and waits neither for it nor for its current module."""
        if self._process is None:
            with self._lock:
                self._open()

    def _open(self) -> subprocess.Popen[bytes] | None:
        if self._process is None and not self._is_alone:
            try:
                self._process = _start_process()
                self._answers = BufferedReader(self._process.stdout)
            except OSError as error:
                self._go_alone(error)
        return self._process

    def _go_alone(self, error: Exception) -> None:
        self._is_alone = True
        logger.info("LLVM is loaded into this process, since no other can be had: %s", error)

    def translate(self, text: str, name: str) -> bytes:
        """Returns the object file of a module; `name` is that of its kernel.

        Raises: RuntimeError if LLVM refuses the module, or ends over it.
        """
        with self._lock:
            process = self._open()
            if process is None:
                return translation.translate(text)
            try:
                write_message(process.stdin, text)
                answer: bytes | RuntimeError = pickle.load(self._answers)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._end()
                if process.returncode < 0:
                    raise RuntimeError(f"LLVM ended with {process.returncode} while it compiled kernel {name}") from error
                self._go_alone(ChildProcessError(f"the process that was started ended with {process.returncode}"))
                return translation.translate(text)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def rest(self) -> None:
        """Ends the process; the next module starts it again."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            try:
                # Said, since a forked process may hold the pipe open.
                write_message(process.stdin, "")
                process.wait(LONGEST_END)
            except (OSError, subprocess.TimeoutExpired):
                process.kill()

    def forget_process(self) -> None:
        """Makes a forked child start a process of its own: this one belongs to the parent."""
        process, self._lock, self._process = self._process, threading.Lock(), None
        if process is not None:
            # The child does not wait for it.
            process.returncode = 0


def _start_process() -> subprocess.Popen[bytes]:
    module_spec = find_spec("llvmlite")
    if not sys.executable or module_spec is None or module_spec.origin is None:
        raise FileNotFoundError("there is no interpreter to start, or no folder of llvmlite")
    # Without site and environment: it starts faster, and imports nothing by itself.
    command = [sys.executable, "-I", "-S", translation.__file__, str(Path(module_spec.origin).parents[1])]
    # A session of its own: a key that interrupts this program is not meant for it. No buffers, which a forked process would have, too.
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


TRANSLATOR = Translator()
"""The process-wide translator; its child process starts with the first module."""

atexit.register(TRANSLATOR.rest)
call_in_child(TRANSLATOR.forget_process)
