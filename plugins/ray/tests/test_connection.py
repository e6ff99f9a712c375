"""Without a cluster the device says so soon, with the cure, and starts no cluster."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

_SCRIPT = """
from hetero_core import Core
with Core() as core:
    print(next(status.reason for status in core.list_devices() if status.name == "RAY"))
"""


@pytest.mark.parametrize("is_stale", [False, True])
def test_program_without_a_cluster_gets_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stale: bool) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    if is_stale:
        # The address file of a killed cluster; the port is closed.
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
    reason = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True).stdout
    assert f"finds no Ray cluster{f' at {address}' if is_stale else ''}: " in reason
    assert "ray start --head" in reason
    assert "RAY_ADDRESS" in reason
