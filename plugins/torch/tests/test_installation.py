"""Absent, broken and old PyTorch in real processes: TORCH names the cure, and further devices stay listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIST = "from hetero_core import Core\nfor status in Core().list_devices(): print(status.name, '|', status.reason)\n"


def list_devices(folder: Path, *, is_whole_site: bool = False) -> str:
    """Returns the list of devices in a process that imports from this folder first, or, as a whole site, from it alone."""
    code = f"import site, sys\nsys.path.insert(0, {str(folder)!r})\nsite.addsitedir({str(folder)!r})\n" + LIST
    arguments = [sys.executable, *(["-S"] if is_whole_site else []), "-c", code]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=900).stdout


def test_absent_pytorch_is_named_with_the_cure(tmp_path: Path) -> None:
    for folder in [Path(entry) for entry in sys.path if entry.endswith("site-packages")]:
        for entry in folder.iterdir():
            if not entry.name.startswith("torch") and not (tmp_path / entry.name).exists():
                (tmp_path / entry.name).symlink_to(entry)
    printed = list_devices(tmp_path, is_whole_site=True)
    assert "TORCH | PyTorch is not installed; pip install 'hetero-torch[torch]'" in printed
    assert "CPU | \n" in printed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            "cannot be imported: ImportError: libcudart.so.12",
        ),
        ("", "is installed, but its folder has no inference_mode"),
        ("__version__ = '1.10.0+cpu'\ndef inference_mode(): pass", "PyTorch 1.10.0+cpu is too old: expected 2.6 or newer"),
        (
            "__version__ = '2.13.0'\ndef inference_mode(): pass\ndevice = str\nclass ones:\n"
            "    def __init__(self, size, device): pass\n    def add(self, other): return self\n    def sum(self): return 3.0",
            "PyTorch 2.13.0 cannot compute on the processor: 2 + 2 is 3.0",
        ),
    ],
    ids=["raises", "empty", "old", "wrong"],
)
def test_broken_pytorch_is_listed_with_its_reason(tmp_path: Path, source: str, expected: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(source)
    printed = list_devices(tmp_path)
    (row,) = [line for line in printed.splitlines() if line.startswith("TORCH |")]
    assert expected in row
    assert "CPU | \n" in printed
