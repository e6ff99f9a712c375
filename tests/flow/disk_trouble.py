"""A program for test_disk.py: writes every kind of file of hetero to a faulty disk, and prints the results as JSON.

    python disk_trouble.py TROUBLE FOLDER

Every file is written to a healthy disk first; then the trouble starts, and the program tries to overwrite the files.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser

from hetero_core import Core
from hetero_core.cli.main import main
from hetero_core.network.writer import write_network

TEXT = '<ir_version: 8, opset_import: ["": 17]> NAME (float[2048] x) => (float[2048] y) { a = Mul(x, w) y = Neg(a) }'
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def make_model(name: str, factor: float) -> onnx.ModelProto:
    """Returns y = -(factor * x), with a weight of 8 KiB."""
    model = onnx.parser.parse_model(TEXT.replace("NAME", name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(2048, factor, np.float32), "w"))
    return model


def drop_power_over_files() -> None:
    """Drops root's right to bypass file permissions; does nothing for a normal user."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, sets) == 0, os.strerror(ctypes.get_errno())
    for which in range(3):
        sets[which] &= ~((1 << CAP_DAC_OVERRIDE) | (1 << CAP_DAC_READ_SEARCH))
    assert libc.capset(head, sets) == 0, os.strerror(ctypes.get_errno())


def mount(folder: Path) -> None:
    """Mounts a small disk on the folder, in the mount namespace of this process."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def protect(folder: Path) -> None:
    drop_power_over_files()
    for path in folder.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)


def lock_up(folder: Path) -> None:
    drop_power_over_files()
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            path.chmod(0o500)


# Trouble -> (action before the first write, action before the second write).
TROUBLES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "full": (mount, fill),
    "limit": (lambda _: None, lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))),
    "read-only": (mount, lambda folder: subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)),
    "locked": (lambda _: None, lock_up),
    "protected": (lambda _: None, protect),
    "vanished": (lambda _: None, shutil.rmtree),
}


class Writer:
    """Writes a network into `folder` in every way: each public method except `run_command` is a way of writing."""

    def __init__(self, core: Core, folder: Path, model: onnx.ModelProto) -> None:
        self.core, self.folder, self.network = core, folder, core.read_network(model)
        self.model = str(folder.with_name(f"{folder.name}-{model.graph.name}.onnx"))
        self.x = folder.with_name(f"{folder.name}-x.npy")
        onnx.save(model, self.model)
        np.save(self.x, np.ones(2048, np.float32))

    def export(self) -> None:
        self.core.load_network(self.network, "CPU").export_network(self.folder / "export.blob")

    def write_inside(self) -> None:
        write_network(self.network, self.folder / "inside.onnx")

    def write_outside(self) -> None:
        write_network(self.network, self.folder / "outside.onnx", inline_limit=0)

    def cache(self) -> str:
        """Loads through the cache; returns hit or miss. The old and new weights differ, so that a stale entry gives a wrong output."""
        loaded = self.core.load_network(self.network, "CPU", {"CACHE_DIR": str(self.folder / "cache")})
        expected = -float(self.network.initializers["w"].array[0])
        assert (loaded.infer({"x": np.ones(2048, np.float32)})["y"] == expected).all()
        return "hit" if loaded.get_metric("LOADED_FROM_CACHE") else "miss"

    def run_command(self, *arguments: str) -> None:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = main([*arguments])
        if code:
            raise RuntimeError(f"{code}: {errors.getvalue().strip()}")

    def compile(self) -> None:
        self.run_command("compile", self.model, "-d", "CPU", "-o", str(self.folder / "compile.blob"))

    def visualize(self) -> None:
        self.run_command("visualize", self.model, "-d", "CPU", "-o", str(self.folder / "plan.html"))

    def save_archive(self) -> None:
        self.run_command("run", self.model, "-d", "CPU", "-i", str(self.x), "--save-outputs", str(self.folder / "y.npz"))

    def save_folder(self) -> None:
        self.run_command("run", self.model, "-d", "CPU", "-i", str(self.x), "--save-outputs", str(self.folder / "outputs"))


WAYS = [name for name in vars(Writer) if not name.startswith("_") and name != "run_command"]


def attempt(writer: Writer, way: str) -> str:
    """Returns the result of a way of writing as text, or its error."""
    try:
        return str(getattr(writer, way)())
    except BaseException as error:  # noqa: BLE001  # the test asserts the error
        return f"{type(error).__name__}: {error}"


def list_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def report(trouble: str, folder: Path) -> dict[str, object]:
    """Returns the results before and during the trouble and of a load of the old cache entry; lost, changed and left-over files."""
    begin, strike = TROUBLES[trouble]
    folder.mkdir()
    begin(folder)
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]  # a handler of three lines
    logging.getLogger("hetero_core").addHandler(handler)
    with Core() as core:
        old, new = (Writer(core, folder, make_model(name, factor)) for name, factor in (("old", 2), ("new", 3)))
        first = {way: attempt(old, way) for way in WAYS}
        before = list_contents(folder)
        strike(folder)
        answers = {way: attempt(new, way) for way in WAYS}
        after = list_contents(folder)
        after.pop("filler", None)
        return {
            "first": first,
            "answers": answers,
            "old entry": attempt(old, "cache"),
            "warnings": warnings,
            "lost": sorted(set(before) - set(after)),
            "changed": sorted(name for name in before if name in after and before[name] != after[name]),
            "left": sorted(set(after) - set(before)),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report(sys.argv[1], Path(sys.argv[2])), indent=2))
