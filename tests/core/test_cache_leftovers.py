"""CACHE_DIR after accidents: what killed processes left is removed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero_core.blobs import cache as cache_module
from hetero_core.blobs.cache import FileLock

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Neg(a) }"
DAY = 86400.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


def name_network(name: str) -> str:
    return TEXT.replace("g (", f"{name} (")


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def find_entry(folder: Path, before: set[Path]) -> Path:
    (entry,) = set(folder.glob("*.blob")) - before
    return entry


def leave_behind(folder: Path, key: str, moment: float) -> list[Path]:
    """Makes what a process leaves that is killed while it writes, as if it were then."""
    left = [folder / f"{key}.lock", folder / f"{key}.ab12_x.partial"]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (moment, moment))
    return left


@pytest.mark.parametrize("age", [0.0, 2 * DAY, -2 * DAY], ids=["now", "long-ago", "ahead-of-the-clock"])
def test_next_entry_that_is_written_removes_what_killed_writers_left(load: Callable[..., bool], folder: Path, age: float) -> None:
    assert not load()
    kept = list_names(folder)
    leave_behind(folder, "a" * 64, time.time() - age)
    assert not load(text=name_network("h"))
    assert [path.suffix for path in folder.iterdir()] == [".blob"] * 2
    assert set(kept) < set(list_names(folder))


def test_next_process_removes_it_even_where_it_only_reads(
    load: Callable[..., bool], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load()
    kept = list_names(folder)
    leave_behind(folder, "a" * 64, time.time())
    monkeypatch.setattr(cache_module, "_tidied", set())
    assert load()
    assert list_names(folder) == kept
    # Once is enough for a process: a hit costs no look at the folder.
    leave_behind(folder, "b" * 64, time.time())
    assert load()
    assert len(list_names(folder)) == 3


def test_partial_file_of_a_writer_that_lives_is_left_however_old_it_looks(load: Callable[..., bool], folder: Path) -> None:
    assert not load()
    lock = FileLock(folder / f"{'a' * 64}.lock")
    assert lock.acquire(0, on_wait=lambda holder: pytest.fail(holder))
    left = leave_behind(folder, "a" * 64, time.time() - 1000 * DAY)
    assert not load(text=name_network("h"))
    assert all(path.exists() for path in left)
    lock.release()
    assert not load(text=name_network("i"))
    assert not any(path.exists() for path in left)


def test_files_that_are_not_the_caches_own_are_left(load: Callable[..., bool], folder: Path) -> None:
    assert not load()
    foreign = [folder / name for name in ("x.partial", "mine.lock", f"{'A' * 64}.lock", f"{'a' * 64}.tmp")]
    for path in foreign:
        path.touch()
    assert not load(text=name_network("h"))
    assert all(path.exists() for path in foreign)


def test_entry_that_was_just_written_is_never_the_one_to_go(load: Callable[..., bool], folder: Path) -> None:
    """Even if all others look fresher, after the clock was put back."""
    assert not load()
    entry = find_entry(folder, set())
    os.utime(entry, (time.time() + 1.5,) * 2)
    size = entry.stat().st_size
    assert not load(text=name_network("h"), CACHE_SIZE_LIMIT=size + 64)
    assert not entry.exists()
    assert load(text=name_network("h"))
