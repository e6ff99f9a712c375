"""A stopwatch in a process of its own: one command a line on standard input, one answer a line on standard output, both JSON.

`python -m hetero_hetero.placement.child FOLDER` reads the network and the values from the folder. One process serves one device, so that
no engine's threads spin while another engine is timed; its parent gives commands to one process at a time. What engines print goes to
standard error.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from hetero_core.network.graph import Network
from hetero_core.network.writer import pack_network, unpack_network
from hetero_hetero.parts import hold_constants

_MODEL, _INPUTS, _SAMPLE = "model", "inputs", "sample"
"""Folders of the network, of its inputs, and of the values between segments, which the first child that runs the whole writes."""


class StopwatchProcess:
    """A process with a stopwatch. `ask` has a time limit, after which the process is ended and every later answer is an error."""

    def __init__(self, folder: Path) -> None:
        flags = [] if "" in sys.path or str(Path.cwd()) in sys.path else ["-P"]
        # In a session of its own: Ctrl-C is for the parent, which then takes the best so far.
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-m", __name__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._answers: SimpleQueue[str] = SimpleQueue()
        self._reader = Thread(target=self._read, name="hetero-placement", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, command: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Returns the answer of the process, or {"error": text} where it ended or took longer than `timeout` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout)
        except (BrokenPipeError, ValueError):  # ended by itself, or by `close`
            line = ""
        except Empty:
            self.close()
            return {"error": f"no answer within {timeout:.0f} s"}
        if not line:
            return {"error": f"the measuring process ended with {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def write_task(folder: Path, network: Network, inputs: Mapping[str, Any]) -> None:
    """Writes what a child needs: the network, and its inputs."""
    _write(folder / _MODEL, network)
    write_values(folder / _INPUTS, inputs)


def write_values(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes tensors to a folder, as constants of a network."""
    _write(folder, hold_constants(values))


def read_values(folder: Path) -> dict[str, Any]:
    """Returns the tensors of a folder, in arrays of their own."""
    # Copies: engines are told anew in each run where an array lies that is read-only.
    return {name: np.array(constant.array) for name, constant in _read(folder).initializers.items()}


def _write(folder: Path, network: Network) -> None:
    folder.mkdir()
    for name, section in pack_network(network).items():
        (folder / name).write_bytes(section)


def _read(folder: Path) -> Network:
    return unpack_network({path.name: _map(path) for path in folder.iterdir()})


def _map(path: Path) -> Any:
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def main(folder: Path) -> None:
    """Answers commands until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from hetero_core.core import Core  # reads the installed distributions
    from hetero_hetero.placement.stopwatch import Stopwatch

    with Core() as core:
        watch = Stopwatch(core, _read(folder / _MODEL), read_values(folder / _INPUTS))
        has_sample = False
        for line in sys.stdin:
            command = json.loads(line)
            if not has_sample and command["do"] != "sample" and (folder / _SAMPLE).exists():
                watch.values |= read_values(folder / _SAMPLE)
                has_sample = True
            answer = watch.answer(command)
            if command["do"] == "sample" and "error" not in answer:
                write_values(folder / _SAMPLE, {name: watch.values[name] for name in command["names"]})
                has_sample = True
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        watch.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
