"""Processes beside this one in which LLVM compiles, so that neither its code nor what it leaves behind is in the memory of this one."""

from __future__ import annotations

import atexit
import logging
import os
import queue
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
_MOST_PROCESSES = 2
"""Each takes some 150 MB. One more has kernels ready earlier, also where NumPy answers meanwhile and there are two processors."""


class NoProcessError(Exception):
    """No other process can be had here."""


class Translator:
    """Safe for threads. The process starts with the first module and goes with `rest`; where none can be had, LLVM is loaded here."""

    def __init__(self, alone: threading.Lock | None = None) -> None:
        """`alone` is held while LLVM compiles in this process: it is not safe for threads."""
        self._lock, self._alone = threading.Lock(), alone or threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_awaited = self._is_alone = False

    def prepare(self) -> None:
        """Starts the process where there is none, and waits neither for it nor for a module that it is at."""
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

        Raises: RuntimeError where LLVM refuses the module, or ends over it.
        """
        with self._lock:
            if not self._is_alone:
                try:
                    return self._ask(text, name)
                except NoProcessError as error:
                    self._go_alone(error)
            with self._alone:
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
        """Ends the process; the next module starts another one."""
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

    def forget_process(self, alone: threading.Lock) -> None:
        """Makes a forked child start a process of its own: this one belongs to the parent."""
        process, self._lock, self._process = self._process, threading.Lock(), None
        self._alone = alone
        if process is not None:
            # Nobody waits for it here.
            process.returncode = 0


class Translators:
    """Translators that work side by side. Safe for threads: a module goes to one that is free, if possible to one that has a process."""

    def __init__(self, count: int) -> None:
        self.count, alone = count, threading.Lock()
        self._all = [Translator(alone) for _ in range(count)]
        self._free = self._list_free()

    def _list_free(self) -> queue.LifoQueue[Translator]:
        free: queue.LifoQueue[Translator] = queue.LifoQueue()
        for translator in reversed(self._all):
            free.put(translator)
        return free

    def prepare(self, count: int = 1) -> None:
        """Starts the first `count` processes where there are none, and waits for none of them."""
        for translator in self._all[:count]:
            translator.prepare()

    def translate(self, text: str, name: str) -> bytes:
        """Returns the object file of a module, as `Translator.translate` does."""
        translator = self._free.get()
        try:
            return translator.translate(text, name)
        finally:
            self._free.put(translator)

    def rest(self) -> None:
        """Ends the processes; the next module starts another one."""
        for translator in self._all:
            translator.rest()

    def forget_processes(self) -> None:
        """Makes a forked child start processes of its own."""
        alone = threading.Lock()
        for translator in self._all:
            translator.forget_process(alone)
        self._free = self._list_free()


def _start_process() -> subprocess.Popen[bytes]:
    module_spec = find_spec("llvmlite")
    if not sys.executable or module_spec is None or module_spec.origin is None:
        raise NoProcessError("there is no interpreter to start, or no folder of llvmlite")
    # Without site and environment: it starts faster, and imports nothing but what it is told to.
    command = [sys.executable, "-I", "-S", translation.__file__, str(Path(module_spec.origin).parents[1])]
    try:
        # A session of its own: a key that interrupts this program is not meant for it. No buffers, which a forked process would have, too.
        return subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise NoProcessError(f"{error.strerror}") from error


TRANSLATORS = Translators(min(_MOST_PROCESSES, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 1)
"""The translators of this process; their child processes start with the first modules."""

atexit.register(TRANSLATORS.rest)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TRANSLATORS.forget_processes)
