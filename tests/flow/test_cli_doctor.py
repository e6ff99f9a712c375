"""`hetero doctor`: finds faults in real processes, and prints the cure of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetero_core.cli.doctor import (
    FOLDER_CURE,
    Finding,
    check_code_folders,
)
from hetero_core.cli.main import main

RIVALS = [
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
    ("openvino", "openvino-dev", "openvino-nightly"),
]
"""Packages, each with two distributions that install it."""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The findings in an environment with a broken plugin, and with rival distributions of two packages."""
    site = tmp_path_factory.mktemp("site")
    plant_distribution(site, "hetero-broken", "entry_points.txt", "[hetero_core.devices]\nBROKEN = hetero_broken\n")
    (site / "hetero_broken.py").write_text("raise ImportError('libbroken.so: cannot open shared object file')")
    for package, *rivals in RIVALS:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
        for name in rivals:
            # The wheels list their files but no packages.
            plant_distribution(site, name, "RECORD", f"{package}/__init__.py,,\n")
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_core", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 1, ended.stderr
    rows: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    return rows


def plant_distribution(folder: Path, name: str, file: str, text: str) -> None:
    """Writes the metadata of an installed distribution: its name, its version, and another file."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / file).write_text(text)


def test_plugin_that_fails_is_found_with_its_reason(findings: list[dict[str, Any]]) -> None:
    (finding,) = [each for each in findings if each["text"].startswith("BROKEN")]
    assert "libbroken.so: cannot open shared object file" in finding["text"]
    assert finding["cure"] == (
        "do what the reason says, or remove the plugin: pip uninstall hetero-broken, or leave it out: HETERO_PLUGINS=-BROKEN"
    )


def test_switches_are_shown_with_value_and_origin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HETERO_DEVICE", "CPU")
    monkeypatch.setenv("HETERO_PLUGINS", "CPU")
    main(["doctor"])
    text = capsys.readouterr().out
    assert "environment\n  - HETERO_DEVICE: CPU, from the environment\n" in text
    assert "  - HETERO_CACHE_DIR: not set, default: no cache\n" in text


@pytest.mark.parametrize(("package", "first", "second"), RIVALS, ids=[package for package, _, _ in RIVALS])
def test_distributions_that_own_the_same_files_are_found(
    findings: list[dict[str, Any]], package: str, first: str, second: str
) -> None:
    (finding,) = [each for each in findings if each["topic"] == "packages" and f"the folder {package} " in each["text"]]
    owners = finding["text"].partition(" install the folder")[0].split(" and ")
    # A third distribution may really be installed in this environment.
    assert {first, second} <= set(owners) <= {first, second, package}
    assert finding["cure"] == f"pip uninstall {' '.join(owners)}, then install one of them"


def test_folder_of_compiled_code_is_made_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "hetero" / "some-kernels"
    assert check_code_folders({"ONE": "some-kernels"}) == [Finding("folders", f"ONE keeps its compiled code in '{folder}'")]
    assert folder.is_dir()
    assert check_code_folders({}) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links are made by nobody but an administrator")
def test_unusable_folder_of_compiled_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hetero").mkdir(mode=0o700)
    (tmp_path / "hetero" / "some-kernels").symlink_to(tmp_path)
    reason = f"cannot keep code in '{tmp_path / 'hetero' / 'some-kernels'}': it is a link; expected a folder of your own. Remove it"
    (finding,) = check_code_folders({"ONE": "some-kernels"})
    assert finding == Finding("folders", f"ONE does not keep its compiled code: {reason}", FOLDER_CURE)
