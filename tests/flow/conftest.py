"""The saved model of a test file, and a device that a test writes and installs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx.parser
import pytest


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the path of the saved model whose ONNX text is the constant MODEL of the test's file."""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(request.module.MODEL), path)
    return str(path)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Returns a function that installs a plugin for this process and its children: the name of its device, the code of its module.

    The distribution of the device NAME is planted-name 1.5, as if installed by pip.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    modules: list[str] = []

    def install(device: str, code: str) -> None:
        name = f"planted_{device.lower()}"
        modules.append(name)
        (folder / f"{name}.py").write_text(code)
        metadata = folder / f"{name}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.5\n")
        (metadata / "entry_points.txt").write_text(f"[hetero_core.devices]\n{device} = {name}\n")
        importlib.invalidate_caches()

    yield install
    for name in modules:
        sys.modules.pop(name, None)
