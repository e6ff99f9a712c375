"""Absent, broken and old PyTorch: TORCH names the fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hetero_tests.missing_engines import install_metadata, replace_engine, require_named_fault
from hetero_torch.installation import open_torch

from hetero_core.errors import DeviceUnavailableError


def test_absent_pytorch_is_named_with_the_cure(tmp_path: Path) -> None:
    require_named_fault("torch", tmp_path, device="TORCH", fault="PyTorch is not installed; pip install 'hetero-torch[torch]'")


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
def test_broken_pytorch_is_named_with_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: str
) -> None:
    install_metadata(tmp_path, "torch", "2.13.0")
    replace_engine(monkeypatch, "torch", tmp_path, source)
    with pytest.raises(DeviceUnavailableError, match=re.escape(expected)):
        open_torch()
