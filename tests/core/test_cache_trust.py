"""CACHE_DIR in a folder prepared by another account: no file of the user changes, no load hangs, and the owner of an entry counts."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hetero_core.files import may_others_write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no owners and modes")

STRANGER = 4711
needs_root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture
def key(load: Callable[..., bool], folder: Path) -> str:
    """The name of the entry for the default load; the folder is empty again."""
    assert not load()
    (entry,) = folder.iterdir()
    entry.unlink()
    return entry.stem


def make_link(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "precious")


def make_dangling_link(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "nothing")


def make_pipe(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound, enter_folder(path.parent):
        bound.bind(path.name)  # a relative path: socket paths are limited to some hundred bytes


def make_folder(path: Path, tmp_path: Path) -> None:
    path.mkdir()


@contextmanager
def enter_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


OBSTACLES = {
    make_link: "is a link, expected a plain file",
    make_dangling_link: "is a link, expected a plain file",
    make_pipe: "is a pipe, expected a plain file",
    make_socket: "is a socket",
    make_folder: "Is a directory",
}


@pytest.mark.parametrize("make", OBSTACLES)
def test_foreign_lock_is_a_warning_and_changes_no_file(
    load: Callable[..., bool], folder: Path, key: str, warned: list[str], tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "precious").write_bytes(b"my thesis")
    make(folder / f"{key}.lock", tmp_path)
    assert not load()
    assert (tmp_path / "precious").read_bytes() == b"my thesis"
    assert not (tmp_path / "nothing").exists()
    assert warned[0].startswith(f"the cache folder '{folder}' cannot be used: ")
    assert OBSTACLES[make] in warned[0]
    assert not (folder / f"{key}.blob").exists()


@pytest.mark.parametrize("make", [make_link, make_dangling_link, make_pipe, make_socket])
def test_entry_that_is_not_a_file_is_replaced_with_a_warning(
    load: Callable[..., bool], folder: Path, key: str, warned: list[str], tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "precious").write_bytes(b"my thesis")
    make(folder / f"{key}.blob", tmp_path)
    assert [load(), load()] == [False, True]
    assert OBSTACLES[make] in warned[0]
    assert f"the cache entry '{folder / key}.blob' cannot be used and is made anew" in warned[0]
    assert (tmp_path / "precious").read_bytes() == b"my thesis"
    assert stat.S_ISREG((folder / f"{key}.blob").lstat().st_mode)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_folder_writable_by_other_users_is_refused(load: Callable[..., bool], tmp_path: Path, warned: list[str], mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    assert [load(CACHE_DIR=str(shared)), load(CACHE_DIR=str(shared))] == [False, False]
    assert list(shared.iterdir()) == []
    assert f"the cache folder '{shared}' cannot be used: others may write to '{shared}' (mode {mode:04o}); run chmod" in warned[0]


@needs_root
def test_shared_group_counts_as_other_users(load: Callable[..., bool], tmp_path: Path, warned: list[str]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, STRANGER)
    shared.chmod(0o770)
    assert not load(CACHE_DIR=str(shared))
    assert "others may write to" in warned[0]


def test_private_group_of_a_user_is_the_user(tmp_path: Path) -> None:
    import grp
    import pwd

    status = tmp_path.stat()
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    os.chown(tmp_path, -1, user.pw_gid)
    tmp_path.chmod(0o775)
    is_private = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    assert may_others_write(tmp_path.stat()) is not is_private
    tmp_path.chmod(status.st_mode)


@needs_root
def test_foreign_folder_below_a_world_writable_folder_is_refused(
    load: Callable[..., bool], tmp_path: Path, warned: list[str]
) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    prepared = tmp_path / "all" / "prepared"
    prepared.mkdir(mode=0o755)
    os.chown(prepared, STRANGER, STRANGER)
    assert not load(CACHE_DIR=str(prepared))
    assert list(prepared.iterdir()) == []
    assert "others may write to" in warned[0]
    assert "(mode 1777)" in warned[0]


@needs_root
def test_entry_of_another_user_is_not_used(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    assert not load()
    (entry,) = folder.iterdir()
    os.chown(entry, STRANGER, STRANGER)
    assert [load(), load()] == [False, True]
    assert f"'{entry}' belongs to user 4711, expected 0" in warned[0]


def test_entry_writable_by_other_users_is_not_used(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    assert not load()
    (entry,) = folder.iterdir()
    entry.chmod(0o666)
    assert [load(), load()] == [False, True]
    assert f"others may write to '{entry}' (mode 0666); run chmod go-w on it" in warned[0]


@needs_root
def test_foreign_folder_writable_only_by_its_owner_is_used(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    # A cache shared by a team: a single account fills it, all accounts read it.
    assert not load()
    (entry,) = folder.iterdir()
    for path in (folder, entry):
        os.chown(path, STRANGER, STRANGER)
    folder.chmod(0o755)
    assert load()
    assert warned == []


def test_read_only_folder_is_read(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    assert not load()
    folder.chmod(0o500)
    assert load()
    assert warned == []
