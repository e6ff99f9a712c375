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

from hetero_core.network.graph import Network
from hetero_core.network.writer import pack_network

VALUES = "values"
_SECTIONS = ("model", "weights")
_TYPES = "types.json"


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
    """Writes what a child needs: the network as its sections, and its inputs."""
    for name, section in pack_network(network).items():
        (folder / name).write_bytes(section)
    write_values(folder, inputs)


def write_values(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes tensors, each to a file of its own: texts as JSON, all others as plain bytes, with the element type beside their name."""
    import numpy as np  # not needed to start a child

    from hetero_core.dtypes import dtype_of_numpy

    path = folder / _TYPES
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for name, array in values.items():
        dtype, target = dtype_of_numpy(array.dtype), folder / f"{VALUES}{len(rows)}"
        if dtype == "string":
            target.write_text(json.dumps(array.reshape(-1).tolist()), encoding="utf-8")
        else:
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(target)
        rows.append([name, dtype, list(array.shape)])
    path.write_text(json.dumps(rows), encoding="utf-8")


def read_values(folder: Path) -> dict[str, Any]:
    """Returns the tensors that were written until now."""
    import numpy as np

    from hetero_core.dtypes import numpy_dtype

    def read(path: Path, dtype: str) -> Any:
        if dtype == "string":
            return np.array(json.loads(path.read_text(encoding="utf-8")), object)
        return np.fromfile(path, np.uint8).view(numpy_dtype(dtype))

    rows = json.loads((folder / _TYPES).read_text(encoding="utf-8"))
    return {name: read(folder / f"{VALUES}{index}", dtype).reshape(shape) for index, (name, dtype, shape) in enumerate(rows)}


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
    from hetero_core.network.writer import unpack_network
    from hetero_hetero.placement.stopwatch import Stopwatch

    network = unpack_network({name: _map(folder / name) for name in _SECTIONS})
    with Core() as core:
        watch = Stopwatch(core, network, read_values(folder))
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "sample":
                answer = watch.answer(command)
                if "error" not in answer:
                    write_values(folder, {name: watch.values[name] for name in command["names"]})
            else:
                if command["do"] in ("time_part", "load_plan"):
                    watch.values |= read_values(folder) if len(watch.values) < _count_values(folder) else {}
                answer = watch.answer(command)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        watch.close()


def _count_values(folder: Path) -> int:
    return len(json.loads((folder / _TYPES).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
