"""An absent, broken or old engine: ORT names the fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hetero_onnxruntime.engine import open_engine
from hetero_tests.missing_engines import install_metadata, replace_engine, require_named_fault

from hetero_core.errors import DeviceUnavailableError


def test_absent_engine_is_named_with_the_cure(tmp_path: Path) -> None:
    fault = "ONNX Runtime is not installed; pip install 'hetero-onnxruntime[cpu]'"
    require_named_fault("onnxruntime", tmp_path, device="ORT", fault=fault)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            "cannot be imported: ImportError: libcudart.so.12",
        ),
        ("", "is installed, but its folder has no InferenceSession; reinstall onnxruntime"),
        ("__version__ = '1.10.0'\nclass InferenceSession: pass", "ONNX Runtime 1.10.0 is too old: expected 1.23 or newer"),
    ],
    ids=["raises", "empty", "old"],
)
def test_broken_engine_is_named_with_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: str) -> None:
    install_metadata(tmp_path, "onnxruntime", "1.30.0")
    replace_engine(monkeypatch, "onnxruntime", tmp_path, source)
    with pytest.raises(DeviceUnavailableError, match=re.escape(expected)):
        open_engine()


def test_rival_distributions_of_one_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for distribution in ("onnxruntime", "onnxruntime-gpu"):
        install_metadata(tmp_path, distribution, "1.30.0")
    replace_engine(monkeypatch, "onnxruntime", tmp_path, "raise ImportError('mixed up')")
    with pytest.raises(DeviceUnavailableError) as caught:
        open_engine()
    assert "Several distributions install the folder onnxruntime and overwrite each other: onnxruntime " in str(caught.value)
    assert "onnxruntime-gpu 1.30.0; uninstall all, then install one" in str(caught.value)
