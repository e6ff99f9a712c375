"""The private store: its folder is private and refused if other users can write to it; its entries. Uses real file modes."""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest

from hetero_core.blobs import store
from hetero_core.blobs.store import FOLDER, STORE, name_entry, open_private_folder
from hetero_core.errors import PrivateFolderError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has access lists instead of modes")
NOBODY = 65534
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder to somebody else"
)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_folder_is_private_under_any_umask(base: Path, umask: int) -> None:
    base.mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        folder = open_private_folder("kernels")
    finally:
        os.umask(before)
    assert folder == base.resolve() / "hetero" / "kernels"
    assert (mode_of(folder), mode_of(folder.parent)) == (0o700, 0o700)


def test_existing_folder_is_opened_with_its_entries(base: Path) -> None:
    (open_private_folder("kernels") / "one.so").write_bytes(b"code")
    assert (open_private_folder("kernels") / "one.so").read_bytes() == b"code"


def test_readable_folder_of_ones_own_is_made_private(base: Path) -> None:
    open_private_folder("kernels").chmod(0o755)
    assert mode_of(open_private_folder("kernels")) == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("place", ["hetero/kernels", "hetero"])
def test_folder_writable_by_other_users_is_refused(base: Path, mode: int, place: str) -> None:
    open_private_folder("kernels")
    (base / place).chmod(mode)
    with pytest.raises(
        PrivateFolderError, match=rf"others may write to it \(mode {mode:04o}, expected 0700\), and may have; remove it"
    ):
        open_private_folder("kernels")


@pytest.mark.parametrize("place", ["hetero/kernels", "hetero"])
def test_link_to_any_target_is_refused(base: Path, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (base / place).parent.mkdir(mode=0o700, parents=True)
    (base / place).symlink_to(elsewhere)
    with pytest.raises(PrivateFolderError, match="it is a link; expected a folder of your own"):
        open_private_folder("kernels")
    assert list(elsewhere.iterdir()) == []


def test_file_in_the_place_of_the_folder_is_refused(base: Path) -> None:
    (base / "hetero").mkdir(mode=0o700, parents=True)
    (base / "hetero" / "kernels").write_bytes(b"")
    with pytest.raises(PrivateFolderError, match="it is a plain file"):
        open_private_folder("kernels")


@needs_root
@pytest.mark.parametrize("place", ["hetero/kernels", "hetero"])
def test_folder_of_another_user_is_refused(base: Path, place: str) -> None:
    open_private_folder("kernels")
    os.chown(base / place, NOBODY, NOBODY)
    with pytest.raises(PrivateFolderError, match=f"the folder belongs to user {NOBODY}, expected {os.geteuid()}"):
        open_private_folder("kernels")


@needs_root
def test_folder_below_a_folder_of_another_user_is_refused(base: Path) -> None:
    base.mkdir()
    os.chown(base, NOBODY, NOBODY)
    with pytest.raises(PrivateFolderError, match=f"cannot keep code below '.*cache': .* belongs to user {NOBODY}"):
        open_private_folder("kernels")


def test_folder_below_a_shared_writable_folder_is_refused(base: Path, tmp_path: Path) -> None:
    base.mkdir(mode=0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(
        PrivateFolderError, match=r"others may write to '.*' \(mode 0777\); run chmod go-w on it, or set XDG_CACHE_HOME"
    ):
        open_private_folder("kernels")


def test_relative_base_is_ignored_as_the_specification_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_private_folder("kernels") == tmp_path.resolve() / ".cache" / "hetero" / "kernels"


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "A", ".hidden", "a" * 101])
def test_name_that_could_lead_elsewhere_is_refused(base: Path, name: str) -> None:
    with pytest.raises(PrivateFolderError, match="cannot open a private folder named"):
        open_private_folder(name)
    assert not base.exists()


def test_threads_that_open_one_folder_at_once_all_get_it(base: Path) -> None:
    barrier, folders = threading.Barrier(8), []

    def open_at_once() -> None:
        barrier.wait(60)
        folders.append(open_private_folder("kernels"))

    threads = [threading.Thread(target=open_at_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert folders == [base.resolve() / "hetero" / "kernels"] * 8


def test_base_that_cannot_be_made_is_an_error_with_advice(base: Path) -> None:
    base.write_bytes(b"")
    with pytest.raises(PrivateFolderError, match=r"cannot make the folder .*set XDG_CACHE_HOME to a folder of your own"):
        open_private_folder("kernels")


def path_of(name: str) -> Path:
    return open_private_folder(FOLDER) / name


def test_entry_is_written_for_the_user_alone_and_read_back(base: Path) -> None:
    STORE.write("a", b"code")
    STORE.write("a", b"newer code")
    assert STORE.read("a") == b"newer code"
    assert mode_of(path_of("a")) == 0o600
    assert [each.name for each in path_of("a").parent.iterdir()] == ["a"]
    assert STORE.read("b") is None


@pytest.mark.parametrize(
    ("kind", "reason"), [("link", "is a link"), ("pipe", "is a pipe"), ("open", r"others may write to '.*' \(mode 0666\)")]
)
def test_entry_that_is_no_file_of_the_user_alone_is_a_miss(
    base: Path, kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    STORE.write("a", b"code")
    path = path_of("a")
    if kind == "open":
        path.chmod(0o666)
    else:
        path.rename(path.with_name("b"))
        path.symlink_to(path.with_name("b")) if kind == "link" else os.mkfifo(path)
    assert STORE.read("a") is None
    assert re.search(reason, caplog.text)
    STORE.write("a", b"compiled again")
    assert STORE.read("a") == b"compiled again"


@needs_root
def test_entry_of_another_user_is_a_miss(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    STORE.write("a", b"code")
    os.chown(path_of("a"), 4711, 4711)
    assert STORE.read("a") is None
    assert "belongs to user 4711, expected 0" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_entry_is_named_and_a_miss(base: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    STORE.write("a", b"code")
    stored = path_of("a").read_bytes()
    path_of("a").write_bytes({"cut": stored[:-1], "flipped": stored[:-1] + b"x", "empty": b""}[damage])
    assert STORE.read("a") is None
    assert f"'{path_of('a')}' is damaged" in caplog.text


def test_names_differ_by_kind_and_by_each_part() -> None:
    names = [name_entry("plan", "ab", "c"), name_entry("plan", "a", "bc"), name_entry("kernel", "ab", "c"), name_entry("plan")]
    assert len(set(names)) == len(names)
    assert name_entry("plan", "ab", "c") == name_entry("plan", b"ab", b"c")


def test_entries_that_were_not_used_for_longest_go_first(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 400)
    monkeypatch.setattr(store, "_SWEEP_BYTES", 1)
    for age, name in enumerate("abc"):
        STORE.write(name, bytes(100))
        os.utime(path_of(name), (1000 + age, 1000 + age))
    assert STORE.read("a") is not None
    STORE.write("d", bytes(100))
    assert [name for name in "abcd" if STORE.read(name) is not None] == ["a", "c", "d"]
    STORE.write("e", bytes(1000))
    assert [path.name for path in path_of("e").parent.iterdir()] == ["e"]


def test_failed_folder_is_logged_once_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    STORE.write("a", b"code")
    assert STORE.read("a") is None
    assert caplog.text.count("nothing is kept for later processes: cannot make the folder") == 1
