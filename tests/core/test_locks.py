from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hetero_core.blobs.cache import FileLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


def refuse() -> None:
    pytest.fail("waited")


def test_one_holder_at_a_time_and_the_file_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first, second = FileLock(path), FileLock(path)
    assert first.acquire(0, on_wait=refuse)
    waits: list[bool] = []
    assert not second.acquire(0, on_wait=lambda: waits.append(True))
    assert waits == [True]
    assert path.stat().st_mode & 0o777 == 0o600
    first.release()
    assert not path.exists()
    assert second.acquire(0, on_wait=refuse)
    second.release()


def test_threads_enter_one_after_the_other(tmp_path: Path) -> None:
    inside, most, count = [0], [0], [0]

    def enter() -> None:
        for _ in range(20):
            lock = FileLock(tmp_path / "x.lock")
            assert lock.acquire(60, on_wait=lambda: None)
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            count[0] += 1
            inside[0] -= 1
            lock.release()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most[0], count[0]) == (1, 160)
    assert list(tmp_path.iterdir()) == []


def test_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    program = (
        "import sys; from pathlib import Path; from hetero_core.blobs.cache import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); assert lock.acquire(0, on_wait=sys.exit)\n"
        "sys.stdout.write('held\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = FileLock(path)
        assert not lock.acquire(0, on_wait=lambda: None)
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    assert path.exists(), "a killed process removes nothing"
    assert lock.acquire(0, on_wait=refuse)
    lock.release()


def test_stale_lock_file_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text("process 1")
    lock = FileLock(path)
    assert lock.acquire(0, on_wait=refuse)
    lock.release()
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "no" / "x.lock").acquire(0, on_wait=refuse)
