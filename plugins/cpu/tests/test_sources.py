"""The digest of source files: of what they hold, remembered by their sizes and times."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from hetero_cpu.machine import sources

HOUR = 3_600_000_000_000


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two files, written an hour ago; a file of another kind and a folder that is not asked for lie beside them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("machine/b.py", "machine/inner/a.py", "machine/notes.txt", "tests/c.py"):
        write(tmp_path / "package" / name, name)
    return tmp_path / "package"


def write(path: Path, text: str, age: int = HOUR) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    then = time.time_ns() - age
    os.utime(path, ns=(then, then))


def digest(package: Path) -> str:
    (of_machine,) = sources.digest_package(str(package), (("machine",),))
    return of_machine


def expect(*texts: str) -> str:
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def test_digest_is_of_the_sources_in_order_and_of_nothing_else(package: Path) -> None:
    for _ in range(2):
        assert digest(package) == expect("machine/b.py", "machine/inner/a.py")


def test_change_of_a_file_changes_the_digest(package: Path) -> None:
    digest(package)
    write(package / "machine/b.py", "machine/x.py", age=HOUR // 2)
    assert digest(package) == expect("machine/x.py", "machine/inner/a.py")


def test_digest_is_remembered_and_the_files_are_not_read_again(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest(package)
    monkeypatch.setattr(sources, "_digest_files", lambda paths: pytest.fail("the files were read again"))
    assert digest(package) == expected


def test_file_that_was_changed_a_moment_ago_is_read_each_time(package: Path) -> None:
    write(package / "machine/b.py", "first", age=0)
    status = (package / "machine/b.py").stat()
    digest(package)
    write(package / "machine/b.py", "later")
    os.utime(package / "machine/b.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest(package) == expect("later", "machine/inner/a.py")


def test_without_a_private_folder_the_files_are_read(package: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert digest(package) == expect("machine/b.py", "machine/inner/a.py")
