"""An absent, broken or old engine: OPENVINO names the fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hetero_openvino.engine import open_engine
from hetero_tests.missing_engines import install_metadata, replace_engine, require_named_fault

from hetero_core.errors import DeviceUnavailableError


def test_absent_engine_is_named_with_the_cure(tmp_path: Path) -> None:
    fault = "OpenVINO is not installed; pip install 'hetero-openvino[engine]'"
    require_named_fault("openvino", tmp_path, device="OPENVINO", fault=fault)


@pytest.mark.parametrize(
    ("version", "source", "expected"),
    [
        (
            "2026.4.1",
            "raise ImportError('libtbb.so.12: cannot open shared object file')",
            "OpenVINO 2026.4.1 is installed and cannot be imported: ImportError: libtbb.so.12",
        ),
        ("2026.4.1", "", "OpenVINO 2026.4.1 is installed, but its folder has no Core; reinstall openvino"),
        ("2024.6.0", "class Core: pass", "OpenVINO 2024.6.0 is too old: expected 2025.0 or newer; pip install --upgrade openvino"),
        (
            "2026.4.1",
            "class Core:\n    def compile_model(self, *more): raise RuntimeError('no plugin CPU')\nclass opset13: parameter = None",
            "OpenVINO 2026.4.1 cannot run one node: TypeError:",
        ),
        (
            "2026.4.1",
            "class Core:\n"
            "    def compile_model(self, *more): return lambda inputs: [inputs[0]]\n"
            "class opset13:\n"
            "    parameter = staticmethod(lambda *more: None)\n"
            "    add = staticmethod(lambda *more: None)\n"
            "def Model(*more): pass\n",
            "OpenVINO 2026.4.1 cannot run one node: it computes 1 + 1 = [1.0, 1.0]; reinstall openvino",
        ),
    ],
    ids=["raises", "empty", "old", "fails", "wrong"],
)
def test_broken_engine_is_named_with_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, source: str, expected: str
) -> None:
    install_metadata(tmp_path, "openvino", version)
    replace_engine(monkeypatch, "openvino", tmp_path, source)
    with pytest.raises(DeviceUnavailableError, match=re.escape(expected)):
        open_engine()
