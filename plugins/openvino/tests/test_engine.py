"""An absent, broken or old engine: OPENVINO names the fault, and all other devices keep working. In real processes with real folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIST = (
    "from hetero_core import Core\n"
    "core = Core()\n"
    "for status in core.list_devices(): print(status.name, '|', status.reason)\n"
    "import numpy, onnx.parser\n"
    "model = onnx.parser.parse_model('<ir_version: 8, opset_import: [\"\": 17]> g (float[1] x) => (float[1] y) { y = Neg(x) }')\n"
    "from hetero_core.cli.main import main\n"
    "print('exit status', main(['devices']))\n"
    "print(core.load_network(model, 'CPU').infer({'x': numpy.ones(1, numpy.float32)})['y'])\n"
)


def list_devices(folder: Path) -> str:
    """Returns the output of a program that imports from this folder first, or only from this folder if it holds the site's packages."""
    code = f"import site, sys\nsys.path.insert(0, {str(folder)!r})\nsite.addsitedir({str(folder)!r})\n" + LIST
    arguments = [sys.executable, "-S", "-c", code] if (folder / "numpy").exists() else [sys.executable, "-c", code]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=900).stdout


def find_row(printed: str, device: str) -> str:
    """Returns a device's row of `hetero devices`."""
    assert "exit status 0\n" in printed
    (row,) = [line for line in printed.splitlines() if line.startswith(f"{device} ") and " | " not in line]
    return row


@pytest.fixture
def site_without_engine(tmp_path: Path) -> Path:
    """A folder with links to all installed packages but the engine."""
    for folder in [Path(entry) for entry in sys.path if entry.endswith("site-packages")]:
        for entry in folder.iterdir():
            if not entry.name.lower().startswith("openvino") and not (tmp_path / entry.name).exists():
                (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def install_engine(folder: Path, version: str, source: str) -> None:
    """Writes a distribution of the engine with this source into a folder."""
    described = folder / f"openvino-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: openvino\nVersion: {version}\n")
    (folder / "openvino").mkdir()
    (folder / "openvino" / "__init__.py").write_text(source)


def test_absent_engine_is_named_with_the_cure(site_without_engine: Path) -> None:
    printed = list_devices(site_without_engine)
    assert "OPENVINO | " in printed
    assert "OpenVINO is not installed; pip install 'hetero-openvino[engine]'" in printed
    assert "CANNOT BE USED: OpenVINO is not installed" in find_row(printed, "OPENVINO")
    assert "CPU | \n" in printed
    assert printed.endswith("[-1.]\n")


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
def test_broken_engine_is_listed_with_its_reason(site_without_engine: Path, version: str, source: str, expected: str) -> None:
    install_engine(site_without_engine, version, source)
    printed = list_devices(site_without_engine)
    assert expected in printed
    row = find_row(printed, "OPENVINO")
    assert "CANNOT BE USED: " in row
    assert expected in row
    assert "CANNOT BE USED" not in find_row(printed, "CPU")
    assert "CPU | \n" in printed
    assert printed.endswith("[-1.]\n")
