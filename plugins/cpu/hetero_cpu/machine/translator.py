"""A child process in which LLVM compiles, so that neither its code nor its garbage is in the memory of this process."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from hetero_cpu.machine import translation
from hetero_cpu.machine.translation import read_answer, write_message

logger = logging.getLogger(__name__)

LONGEST_END = 10.0
"""Seconds that the process has to end by itself."""


class NoProcessError(Exception):
    """No other process can be had here."""


class Translator:
    """Safe for threads. The process starts with the first module and goes with `rest`; if none can be started, LLVM is loaded here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_awaited = self._is_alone = False

    def prepare(self) -> None:
        """Starts the process if there is none, and waits neither for it nor for its current module."""
        if self._process is not None:
            return
        with self._lock:
            if not self._is_alone:
                try:
                    self._open()
                except NoProcessError as error:
                    self._go_alone(error)

    def _open(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process, self._is_awaited = _start_process(), True
        return self._process

    def translate(self, text: str, name: str) -> bytes:
        """Returns the object file of a module; `name` is that of its kernel.

        Raises: RuntimeError if LLVM refuses the module, or ends over it.
        """
        with self._lock:
            if not self._is_alone:
                try:
                    return self._ask(text, name)
                except NoProcessError as error:
                    self._go_alone(error)
            return translation.translate(text)

    def _ask(self, text: str, name: str) -> bytes:
        process = self._open()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_message(process.stdin, text.encode())
            if self._is_awaited:
                read_answer(process.stdout)
                self._is_awaited = False
            return read_answer(process.stdout)
        except (OSError, EOFError) as error:
            self._end()
            if self._is_awaited:
                raise NoProcessError(f"the one that was started ended with {process.returncode}") from error
            raise RuntimeError(f"LLVM ended with {process.returncode} while it compiled kernel {name}") from error

    def _go_alone(self, error: NoProcessError) -> None:
        self._is_alone = True
        logger.info("LLVM is loaded into this process, since no other can be had: %s", error)

    def rest(self) -> None:
        """Ends the process; the next module starts it again."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # Said, since a forked process may hold the pipe open.
            write_message(process.stdin, b"")
            process.wait(LONGEST_END)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        process.stdin.close()
        process.stdout.close()

    def forget_process(self) -> None:
        """Makes a forked child start a process of its own: this one belongs to the parent."""
        process, self._lock, self._process = self._process, threading.Lock(), None
        if process is not None:
            # The child does not wait for it.
            process.returncode = 0


def _start_process() -> subprocess.Popen[bytes]:
    module_spec = find_spec("llvmlite")
    if not sys.executable or module_spec is None or module_spec.origin is None:
        raise NoProcessError("there is no interpreter to start, or no folder of llvmlite")
    # Without site and environment: it starts faster, and imports nothing by itself.
    command = [sys.executable, "-I", "-S", translation.__file__, str(Path(module_spec.origin).parents[1])]
    try:
        # A session of its own: a key that interrupts this program is not meant for it. No buffers, which a forked process would have, too.
        return subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise NoProcessError(f"{error.strerror}") from error


TRANSLATOR = Translator()
"""The process-wide translator; its child process starts with the first module."""

atexit.register(TRANSLATOR.rest)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TRANSLATOR.forget_process)
