"""CACHE_DIR: a load succeeds in spite of a bad folder or a damaged entry; size limits and locks."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.blobs import cache as cache_module
from hetero_core.blobs.cache import FileLock
from hetero_core.errors import ConfigKeyError, ConfigValueError, UnsupportedNodesError

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Neg(a) }"
X = np.array([3, 4], np.float32)
Y = [-3, -8]


def list_entries(folder: Path) -> list[Path]:
    assert [path.name for path in folder.iterdir() if path.suffix != ".blob"] == [], "no partial files and locks stay behind"
    return sorted(folder.iterdir())


def damage(entry: Path, kind: str) -> None:
    content = bytearray(entry.read_bytes())
    if kind == "flipped":
        content[len(content) // 2] ^= 1
    # Written in place, like the damage of a failing disk: the permissions stay.
    entry.write_bytes({"flipped": content, "cut": content[:-40], "empty": b"", "foreign": b"PK\x03\x04" * 100}[kind])


@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "foreign"])
@pytest.mark.parametrize("device", ["COUNT", "HETERO:TEMPLATE,COUNT"])
def test_damaged_entry_is_a_miss_with_a_warning_and_is_replaced(
    load: Callable[..., bool], folder: Path, warned: list[str], kind: str, device: str
) -> None:
    assert not load(device)
    (entry,) = list_entries(folder)
    damage(entry, kind)
    assert [load(device), load(device)] == [False, True]
    assert len(warned) == 1
    assert f"the cache entry '{entry}' cannot be used and is made anew: '{entry}' " in warned[0]


def test_entry_under_a_foreign_name_is_a_miss_with_a_warning(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    changed = TEXT.replace("{1, 2}", "{1, 3}")
    assert not load()
    (first,) = list_entries(folder)
    assert not load(text=changed, expected=[-3, -12])
    (second,) = set(list_entries(folder)) - {first}
    os.replace(second, first)
    assert [load(), load()] == [False, True]
    assert warned == [
        f"the cache entry '{first}' cannot be used and is made anew: '{first}' was made from something else than its name says"
    ]


def test_entry_refused_by_the_plugin_is_a_miss_with_a_warning(load: Callable[..., bool], count: Any, warned: list[str]) -> None:
    assert not load()
    count.failure = ArithmeticError("of the plugin")
    assert not load()
    assert "cannot be used and is made anew: BlobError: cannot import the blob on COUNT" in warned[0]
    count.failure = None
    assert load()


def test_failed_export_still_loads_the_network_with_a_warning(
    load: Callable[..., bool], count: Any, folder: Path, warned: list[str]
) -> None:
    count.failure = ArithmeticError("of the plugin")
    assert [load(), load()] == [False, False]
    assert warned == [f"nothing was kept in the cache folder '{folder}': ArithmeticError: of the plugin"] * 2
    assert list_entries(folder) == []


def test_device_without_export_has_no_such_key(core: Core, hand: Any, read: Callable[..., Network]) -> None:
    with pytest.raises(
        ConfigKeyError, match="device HAND has no configuration key 'CACHE_DIR'; its keys are DEADLINE, DEVICE_ID, EXCLUSIVE_ASYNC"
    ):
        core.load_network(read(TEXT), "HAND", {"CACHE_DIR": "x"})


def test_error_of_the_load_is_the_same_with_a_cache(core: Core, read: Callable[..., Network], folder: Path) -> None:
    network = read("g (float[1] x) => (float[1] y) { y = com.acme.Twist(x) }")
    with pytest.raises(UnsupportedNodesError, match="cannot load network 'g' on CPU: 1 of 1 nodes are refused"):
        core.load_network(network, "CPU", {"CACHE_DIR": str(folder)})
    assert list_entries(folder) == []


def test_missing_parent_or_a_file_as_cache_folder_is_a_warning(
    load: Callable[..., bool], tmp_path: Path, warned: list[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    for path, reason in ((tmp_path / "no" / "such", "No such file or directory"), (file, "Not a directory")):
        assert [load(CACHE_DIR=str(path)), load(CACHE_DIR=str(path))] == [False, False]
        assert warned == [f"the cache folder '{path}' cannot be used: {reason}; nothing is kept in it"] * 2
        warned.clear()
    assert file.read_bytes() == b"precious"


def test_load_waits_for_a_lock_only_for_a_limited_time(
    load: Callable[..., bool], folder: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load()
    (entry,) = list_entries(folder)
    entry.unlink()
    lock = FileLock(entry.with_suffix(".lock"))
    assert lock.acquire(0, on_wait=lambda: pytest.fail("waited"))
    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0)
    assert [load(), load()] == [False, False]
    assert warned == [f"another process has held '{entry.with_suffix('.lock')}' for 0 s; loading without the cache"] * 2
    lock.release()
    assert [load(), load()] == [False, True]


def test_limit_removes_the_least_recently_used_entries(load: Callable[..., bool], folder: Path) -> None:
    names = ["a", "b", "c"]
    text_of_name = {name: TEXT.replace("g (", f"{name} (") for name in names}
    entry_of_name: dict[str, Path] = {}
    for name in names:
        assert not load(text=text_of_name[name])
        (entry_of_name[name],) = set(list_entries(folder)) - set(entry_of_name.values())
    (folder / "notes.txt").write_text("not ours")
    (folder / "mine.blob").write_text("not ours, either")
    # All entries were last used in the past, in this order; then entry "a" is used now.
    for moment, name in enumerate(names):
        os.utime(entry_of_name[name], (moment, moment))
    assert load(text=text_of_name["a"])
    size = entry_of_name["a"].stat().st_size
    assert not load(text=TEXT.replace("g (", "d ("), CACHE_SIZE_LIMIT=2 * size + 100)
    assert [name for name in names if entry_of_name[name].exists()] == ["a"]
    assert {"notes.txt", "mine.blob"} <= {path.name for path in folder.iterdir()}
    assert load(text=text_of_name["a"], CACHE_SIZE_LIMIT=2 * size + 100)


def test_entry_above_the_limit_is_not_cached(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    assert not load()
    assert not load(text=TEXT.replace("g (", "h ("), CACHE_SIZE_LIMIT=10)
    assert len(list_entries(folder)) == 1, "and nothing is removed for it"
    assert "CACHE_SIZE_LIMIT is 10" in warned[0]


def test_limit_below_zero_is_refused(load: Callable[..., bool]) -> None:
    with pytest.raises(ConfigValueError, match="CACHE_SIZE_LIMIT of device COUNT: expected an int of 0 or more, got -1"):
        load(CACHE_SIZE_LIMIT=-1)


def test_full_disk_is_a_warning(
    load: Callable[..., bool], folder: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hetero_core.blobs.cache.os.fsync", fail)
    assert not load()
    assert warned == [f"nothing was kept in the cache folder '{folder}': OSError: [Errno 28] No space left on device"]
    assert list_entries(folder) == []


def test_malformed_folder_name_is_refused(load: Callable[..., bool]) -> None:
    with pytest.raises(ConfigValueError, match=r"CACHE_DIR: expected the path of a folder, got 'a\\x00b'"):
        load(CACHE_DIR="a\0b")


def test_folder_of_an_unknown_user_is_a_warning(load: Callable[..., bool], warned: list[str]) -> None:
    assert not load(CACHE_DIR="~nobody-of-this-name/cache")
    assert "'~nobody-of-this-name/cache' cannot be used: No such file or directory" in warned[0]


def test_folder_deleted_between_two_loads_is_made_again(load: Callable[..., bool], folder: Path, warned: list[str]) -> None:
    assert [load(), load()] == [False, True]
    shutil.rmtree(folder)
    assert [load(), load()] == [False, True]
    assert warned == []


def test_folder_deleted_during_a_write_is_a_warning(
    load: Callable[..., bool], folder: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_blob = cache_module.write_blob

    def write_nowhere(*arguments: Any) -> None:
        shutil.rmtree(folder)
        write_blob(*arguments)

    monkeypatch.setattr(cache_module, "write_blob", write_nowhere)
    assert not load()
    assert len(warned) == 1
    assert f"nothing was kept in the cache folder '{folder}': FileNotFoundError" in warned[0]
    assert not folder.exists()
    monkeypatch.undo()
    assert [load(), load()] == [False, True]


def test_next_store_removes_files_of_killed_writers(load: Callable[..., bool], folder: Path) -> None:
    assert not load()
    own = [folder / f"{'a' * 64}.ab12_x.partial", folder / f"{'b' * 64}.lock"]
    foreign = [folder / name for name in ("x.partial", "mine.lock", f"{'A' * 64}.a.partial", f"{'a' * 64}.tmp")]
    for path in (own[0], *foreign):
        path.write_bytes(b"half")
    own[1].write_bytes(b"process 1")
    assert not load(text=TEXT.replace("g (", "h ("))
    assert not any(path.exists() for path in own)
    assert all(path.exists() for path in foreign)


def test_new_entry_is_never_removed(load: Callable[..., bool], folder: Path) -> None:
    """The new entry stays even if older entries have later times because the clock was put back."""
    assert not load()
    (entry,) = folder.glob("*.blob")
    os.utime(entry, (time.time() + 1.5,) * 2)
    size = entry.stat().st_size
    assert not load(text=TEXT.replace("g (", "h ("), CACHE_SIZE_LIMIT=size + 64)
    assert not entry.exists()
    assert load(text=TEXT.replace("g (", "h ("))
