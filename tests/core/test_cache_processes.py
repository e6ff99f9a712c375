"""CACHE_DIR shared by processes: only a single process compiles, and a process killed at any step leaves a usable cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are neither such locks nor fork and kill")

PROGRAM = """
import logging, os, signal, sys
from pathlib import Path
import numpy as np, onnx.parser
from hetero_core import Core, hookimpl
from hetero_core.blobs import cache, container
from hetero_core.network.writer import unpack_network
from hetero_template.device import TemplateDevice

MODEL = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add(x, w) }')
MODEL.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
FOLDER, LOG = sys.argv[1:3]


class CountingDevice(TemplateDevice):
    @hookimpl
    def load_network(self, device, network, config, query):
        with open(LOG, "a") as log:
            log.write("compiled\\n")
        wait_in_compilation()
        return super().load_network(device, network, config, query)

    @hookimpl
    def import_network(self, device, payload, config):
        return super().load_network(device, unpack_network(payload.sections), config, None)


def wait_in_compilation():
    pass


def load():
    with Core() as core:
        core.register_plugin("COUNT", CountingDevice("COUNT"))
        loaded = core.load_network(MODEL, "COUNT", {"CACHE_DIR": FOLDER})
        assert loaded.infer({"x": np.array([3, 4], np.float32)})["y"].tolist() == [4, 6]
        return loaded.get_metric("LOADED_FROM_CACHE")
"""


def start(body: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PROGRAM + body, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_two_processes_at_once_compile_once(tmp_path: Path) -> None:
    arguments = (str(tmp_path / "cache"), str(tmp_path / "log"))
    first = start(
        """
def wait_in_compilation():
    print("compiling", flush=True)
    sys.stdin.readline()


print(load())
""",
        *arguments,
    )
    with first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "compiling\n"
        second = start("logging.basicConfig(level=logging.INFO)\nprint(load())\n", *arguments)
        with second:
            assert second.stdout is not None
            assert second.stderr is not None
            # The first process continues only after the second process has said that it waits.
            assert any("waiting for another load of the same network" in line for line in second.stderr)
            first.stdin.write("go on\n")
            first.stdin.flush()
            assert first.stdout.readline() == "False\n"
            assert second.stdout.readline() == "True\n"
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".blob"]


# A child process is killed at its k-th step. Steps are each written piece, the sync, the renaming, and the calls after the renaming.
KILLED = """
steps = -1


def step(function):
    def count(*arguments, **keywords):
        global steps
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    return count


class Stream:
    def __init__(self, stream):
        self._stream = stream
    def write(self, piece):
        third = len(piece) // 3
        for part in (piece[:third], piece[third : 2 * third], piece[2 * third :]):
            step(self._stream.write)(part)
            self._stream.flush()


real = cache.write_blob
cache.write_blob = lambda header, payload, stream: real(header, payload, Stream(stream))
for name in ("fsync", "replace"):
    setattr(cache.os, name, step(getattr(os, name)))
cache.FileLock.release = step(cache.FileLock.release)
cache.FileLock.acquire = step(cache.FileLock.acquire)


def in_child(step_of_death):
    global steps
    child = os.fork()
    if child == 0:
        steps = step_of_death
        load()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# The modules that a load needs are imported once, for all children.
with Core() as core:
    core.register_plugin("COUNT", CountingDevice("COUNT"))
    core.load_network(MODEL, "COUNT").infer({"x": np.zeros(2, np.float32)})

killed, seen = 0, set()
for death in range(1, 200):
    code = in_child(death)
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    killed += 1
    for path in Path(FOLDER).glob("*"):
        seen.add(path.suffix)
        if path.suffix == ".blob":
            container.read_blob(path)
            path.unlink()
assert [load(), load()] == [False if killed and not list(Path(FOLDER).glob("*.blob")) else True, True]
left = sorted({path.suffix for path in Path(FOLDER).iterdir()})
print(killed, sorted(seen), left)
"""


def test_process_killed_at_any_step_leaves_a_valid_cache(tmp_path: Path) -> None:
    ended = start(KILLED, str(tmp_path / "cache"), str(tmp_path / "log"))
    printed, errors = ended.communicate(timeout=900)
    assert (ended.returncode, errors) == (0, "")
    killed, _, rest = printed.partition(" ")
    assert int(killed) >= 20
    assert rest == "['.blob', '.lock', '.partial'] ['.blob']\n"


def test_file_size_limit_of_the_system_is_a_warning(tmp_path: Path) -> None:
    body = """
import resource

# What a full disk does, as far as a process can have it without a disk of its own.
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
print(load(), load(), sorted(Path(FOLDER).iterdir()))
"""
    ended = start(body, str(tmp_path / "cache"), str(tmp_path / "log"))
    printed, errors = ended.communicate(timeout=900)
    assert (ended.returncode, printed) == (0, "False False []\n")
    assert errors.count("nothing was kept in the cache folder") == 2
    assert "File too large" in errors
