"""Object files in executable memory: stored code runs again, damaged code is recompiled, no page is both writable and executable."""

from __future__ import annotations

import ctypes
import logging
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.machine import compiler
from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Compiler, Kernel, find_width, load_image
from hetero_cpu.machine.translator import TRANSLATOR

from hetero_core.blobs.store import FOLDER
from hetero_core.cli.main import main

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

NAME = "halve_and_add_third"


def emit(name: str, width: int) -> Code:
    """Computes x[0] * 0.5 + 1/3, with its constants beside the code."""
    code = Code(name, 3, width)
    row = code.parameters[0]
    address = code.load_number(row)
    half, third = code.constant(0.5), code.constant(1 / 3)
    code.store(address, code.load(address) * half + third)
    code.finish()
    return code


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hetero" / FOLDER


def run_at(address: int) -> list[float]:
    x = np.full(find_width(), 3, np.float32)
    row = np.array([x.ctypes.data], np.int64)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)(row.ctypes.data, 0, 0)
    return list(x)


EXPECTED = [float(np.float32(1.5) + np.float32(1 / 3))]


def read_stored(folder: Path) -> tuple[Path, bytes]:
    (path,) = folder.glob("kernel-*")
    return path, path.read_bytes()[32:]


def test_kernel_of_another_process_is_loaded_from_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Compiler().compile(Kernel(NAME, emit))
    later = Compiler()
    monkeypatch.setattr(compiler, "_emit", lambda kernel: pytest.fail(f"{kernel.name} was emitted"))
    assert later.load_stored(Kernel(NAME, emit))
    assert run_at(later.compile(Kernel(NAME, emit))) == EXPECTED * find_width()


def test_changed_source_with_equal_output_is_not_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Compiler().compile(Kernel(NAME, emit))
    monkeypatch.setattr(compiler, "describe_environment", lambda: "other source files")
    monkeypatch.setattr(TRANSLATOR, "translate", lambda text, name: pytest.fail(f"{name} was compiled"))
    assert run_at(Compiler().compile(Kernel(NAME, emit))) == EXPECTED * find_width()


def test_kernel_that_is_not_stored_is_missing(folder: Path) -> None:
    assert not Compiler().load_stored(Kernel(NAME, emit))
    assert not list(folder.iterdir())


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_file_is_said_and_compiled_again(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    Compiler().compile(Kernel(NAME, emit))
    path, image = read_stored(folder)
    stored = bytearray(path.read_bytes())
    stored[-1] ^= 1
    path.write_bytes({"cut": path.read_bytes()[:-5], "flipped": bytes(stored), "empty": b""}[damage])
    with caplog.at_level(logging.WARNING, logger="hetero_core.blobs.store"):
        assert run_at(Compiler().compile(Kernel(NAME, emit))) == EXPECTED * find_width()
    assert f"'{path}' is damaged; it is made anew" in caplog.text
    assert read_stored(folder) == (path, image)


def test_code_is_not_writable(folder: Path) -> None:
    address = Compiler().compile(Kernel(NAME, emit))
    lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    rights = {}
    for line in lines:
        begin, end, right = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]  # every line is such
        rights[range(int(begin, 16), int(end, 16))] = right
    assert [right for span, right in rights.items() if address in span] == ["r-xp"]


def find_relocations(image: bytes) -> tuple[int, int]:
    """Returns the offset of the first relocation, and that of the header of its section."""
    (begin,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    for header in range(begin, begin + 64 * count, 64):
        if struct.unpack_from("<I", image, header + 4) == (4,):
            return struct.unpack_from("<Q", image, header + 24)[0], header
    pytest.fail("the kernel has no constants")


def test_unknown_kind_of_reference_is_refused_by_number(folder: Path) -> None:
    Compiler().compile(Kernel(NAME, emit))
    image = bytearray(read_stored(folder)[1])
    place, _ = find_relocations(bytes(image))
    struct.pack_into("<I", image, place + 8, 9)
    with pytest.raises(RuntimeError, match=r"a reference of kind 9; expected 1, 2 or 4"):
        load_image(bytes(image), NAME)


@pytest.mark.parametrize("kind", ["link", "open"])
def test_stored_code_writable_by_other_users_is_recompiled(folder: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    Compiler().compile(Kernel(NAME, emit))
    path, _ = read_stored(folder)
    if kind == "link":
        path.rename(folder.parent / "elsewhere")
        path.symlink_to(folder.parent / "elsewhere")
    else:
        path.chmod(0o666)
    with caplog.at_level(logging.WARNING, logger="hetero_core.blobs.store"):
        assert run_at(Compiler().compile(Kernel(NAME, emit))) == EXPECTED * find_width()
    assert f"{path.name}' is not used: " in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600
    assert not path.is_symlink()


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from test_jit_image import EXPECTED, NAME, Compiler, Kernel, emit, find_width, run_at
assert run_at(Compiler().compile(Kernel(NAME, emit))) == EXPECTED * find_width()
"""


def test_processes_may_compile_the_same_kernel_at_once(folder: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent)]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(child.communicate()[1], child.returncode) for child in children] == [("", 0)] * 2
    assert run_at(load_image(read_stored(folder)[1], NAME)) == EXPECTED * find_width()


def test_folder_writable_by_other_users_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, logger="hetero_core.blobs.store"):
        assert run_at(Compiler().compile(Kernel(NAME, emit))) == EXPECTED * find_width()
    assert "nothing is kept for later processes: " in caplog.text
    assert not list(folder.iterdir())


def test_doctor_shows_the_folder_and_its_content(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Compiler().compile(Kernel(NAME, emit))
    size = sum(path.stat().st_size for path in folder.iterdir())
    main(["doctor"])
    assert f"\n  - CPU keeps its compiled code in '{folder}': 2 files, {size / 1e6:.1f} MB\n" in capsys.readouterr().out
    folder.chmod(0o777)
    assert main(["doctor"]) == 1
    text = f"\n  ! CPU does not keep its compiled code: cannot keep code in '{folder}': others may write to it"
    assert text in capsys.readouterr().out
