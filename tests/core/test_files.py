from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hetero_core.files import replace_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions, links and pipes of POSIX")


def list_contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_name_has_the_old_content_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replace_file(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
        assert len(list_contents(tmp_path)) == 2
    assert list_contents(tmp_path) == {"x": b"new"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("of the content")], ids=["interrupt", "error"])
def test_failed_block_changes_no_file_and_leaves_no_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def write_half() -> None:
        with replace_file(path) as stream:
            stream.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        write_half()
    assert caught.value is error
    assert list_contents(tmp_path) == {"x": b"old"}


def test_folder_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"Is a directory: '{tmp_path}'"), replace_file(tmp_path):
        pytest.fail("a folder was opened")


def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    old, new, usual = tmp_path / "old", tmp_path / "new", tmp_path / "usual"
    old.touch()
    old.chmod(0o640)
    usual.touch()
    for path in (old, new):
        with replace_file(path) as stream:
            stream.write(b"x")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == usual.stat().st_mode


def test_link_leads_to_the_same_file_as_before(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"first", b"second"):
        with replace_file(link) as stream:
            stream.write(content)
        assert link.is_symlink()
        assert list_contents(tmp_path / "folder") == {"target": content}


def test_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    with replace_file(path) as stream:
        stream.write(b"through")
    reader.join(60)
    assert read == [b"through"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_full_device_file_is_named_in_the_error_and_stays() -> None:
    with pytest.raises(OSError, match=re.escape("No space left on device: '/dev/full'")), replace_file("/dev/full") as stream:
        stream.write(b"x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_longest_possible_file_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127 + "x")
    with replace_file(path) as stream:
        stream.write(b"x")
    assert list_contents(tmp_path) == {path.name: b"x"}


def test_missing_folder_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / "no" / "x"
    with pytest.raises(FileNotFoundError) as caught, replace_file(path):
        pytest.fail("there is no folder")
    assert caught.value.filename == str(path)


def test_folder_removed_while_writing_is_an_error_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x"
    path.parent.mkdir()
    with pytest.raises(FileNotFoundError) as caught, replace_file(path) as stream:  # noqa: PT012  # the error comes at the end of the block
        shutil.rmtree(path.parent)
        stream.write(b"new")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    program = (
        "import os, signal, sys\nfrom hetero_core.files import replace_file\n"
        "with replace_file(sys.argv[1]) as stream:\n"
        "    stream.write(b'half'); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=900)
    assert ended.returncode == -9
    assert path.read_bytes() == b"old"
    (partial,) = set(tmp_path.iterdir()) - {path}
    assert re.fullmatch(r"x\.[0-9a-f]{16}\.partial", partial.name), "its name says whose it was"
