"""Full, read-only, locked and vanished disks: a failed write is a clear error, keeps the old file, and leaves no partial file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="capabilities, limits and small disks are those of Linux")

PROGRAM = Path(__file__).with_name("disk_trouble.py")
NAMESPACE = ("unshare", "--map-root-user", "--mount")
"""Runs a command as root of a private mount namespace, which ends with the command; most systems allow it for every user."""
REASON_OF_TROUBLE = {
    "full": "No space left on device",
    "limit": "File too large",
    "read-only": "Read-only file system",
    "locked": "Permission denied",
    "protected": "Permission denied",
    "vanished": "No such file or directory",
}
FILE_OF_WAY = {
    "export": "export.blob",
    "write_inside": "inside.onnx",
    "write_outside": "outside.onnx",
    "compile": "compile.blob",
    "visualize": "plan.html",
    "save_archive": "y.npz",
    "save_folder": "outputs",
}
FOUND_BEFORE = ("compile", "visualize")
"""The command-line ways that check for the folder before they start."""
MESSAGE_OF_WAY = {
    "export": "BlobError: cannot write the exported network 'new' to '{path}': {reason}",
    "write_inside": r"(OS|Permission|FileNotFound)Error: \[Errno \d+\] {reason}: '{path}'",
    "write_outside": r"(OS|Permission|FileNotFound)Error: \[Errno \d+\] {reason}: '{path}(\.data)?'",
    "compile": "RuntimeError: 2: hetero: error: cannot write the exported network 'new' to '{path}': {reason}",
    "visualize": "RuntimeError: 2: hetero: error: cannot write '{path}': {reason}",
    "visualize_model": "RuntimeError: 2: hetero: error: cannot write '{path}': {reason}",
    "save_archive": "RuntimeError: 2: hetero: error: cannot save outputs to '{path}': {reason}",
    "save_folder": "RuntimeError: 2: hetero: error: cannot save outputs to '{path}': {reason}",
}


@cache
def is_mounting_possible() -> bool:
    try:
        tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False, timeout=900)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


@pytest.fixture(scope="module", params=REASON_OF_TROUBLE)
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[str, Any]]:
    """The trouble, the folder on the disk, and the report of the program."""
    trouble, folder = request.param, tmp_path_factory.mktemp("trouble") / "disk"
    needs_disk = trouble in ("full", "read-only")
    if needs_disk and not is_mounting_possible():
        pytest.skip("this system lets nobody mount a disk of their own")
    command = [*(NAMESPACE if needs_disk else ()), sys.executable, str(PROGRAM), trouble, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    # Restores the permissions, so that pytest can remove the folder.
    for path in (folder, *folder.rglob("*")) if folder.exists() else ():
        if path.is_dir():
            path.chmod(0o700)
    assert (ended.returncode, ended.stderr) == (0, "")
    report: dict[str, Any] = json.loads(ended.stdout)
    assert {way: answer for way, answer in report["first"].items() if answer not in ("None", "miss")} == {}
    return trouble, folder, report


def test_disk_trouble_is_a_clear_error_and_loses_no_file(reported: tuple[str, Path, dict[str, Any]]) -> None:
    trouble, folder, report = reported
    answers = report["answers"]
    # --save-outputs creates a missing folder with its parents.
    expected_ways = set(FILE_OF_WAY) - ({"save_folder"} if trouble == "vanished" else set())
    for way in sorted(expected_ways):
        path = re.escape(str(folder / FILE_OF_WAY[way]))
        message = MESSAGE_OF_WAY[way].format(path=path, reason=re.escape(REASON_OF_TROUBLE[trouble]))
        if trouble == "vanished" and way in FOUND_BEFORE:
            message = f"RuntimeError: 2: hetero: error: cannot write '{path}': there is no folder {re.escape(str(folder))}.*"
        assert re.fullmatch(message, answers[way]), f"{way}: {answers[way]}"
    assert report["left"] == []
    if trouble != "vanished":
        assert (report["lost"], report["changed"]) == ([], [])


def test_disk_trouble_in_the_cache_is_a_miss_with_a_warning(reported: tuple[str, Path, dict[str, Any]]) -> None:
    trouble, disk, report = reported
    assert report["answers"]["cache"] == "miss"
    if trouble != "vanished":
        assert report["old entry"] == "hit", "what can be read is used"
    folder, reason = disk / "cache", REASON_OF_TROUBLE[trouble]
    unusable = f"the cache folder '{folder}' cannot be used: {reason}; nothing is kept in it"
    lost = rf"nothing was kept in the cache folder '{re.escape(str(folder))}': \w+Error: \[Errno \d+\] {re.escape(reason)}.*"
    assert all(warning == unusable or re.fullmatch(lost, warning) for warning in report["warnings"])
    assert report["warnings"] != []


def test_full_disk_of_standard_output_is_exit_code_74() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "hetero_core", "devices", "--names"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=900,
        )
    assert ended.returncode == 74
    assert ended.stderr == "hetero: error: cannot write to the standard output: No space left on device\n"
