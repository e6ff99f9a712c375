"""An absent, broken or old engine: ORT names the fault, and all other devices keep working. In real processes with real folders."""

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
            if not entry.name.lower().startswith("onnxruntime") and not (tmp_path / entry.name).exists():
                (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def test_absent_engine_is_named_with_the_cure(site_without_engine: Path) -> None:
    printed = list_devices(site_without_engine)
    assert "ONNX Runtime is not installed; pip install 'hetero-onnxruntime[cpu]'" in printed
    assert "CANNOT BE USED: ONNX Runtime is not installed" in find_row(printed, "ORT")
    assert "CPU | \n" in printed
    assert printed.endswith("[-1.]\n")


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
def test_broken_engine_is_listed_with_its_reason(tmp_path: Path, source: str, expected: str) -> None:
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    printed = list_devices(tmp_path)
    assert expected in printed
    row = find_row(printed, "ORT")
    assert "CANNOT BE USED: " in row
    assert expected in row
    assert "CANNOT BE USED" not in find_row(printed, "CPU")
    assert "CPU | \n" in printed
    assert printed.endswith("[-1.]\n")


def test_rival_distributions_of_one_folder_are_named(tmp_path: Path) -> None:
    rival = tmp_path / "onnxruntime_gpu-1.30.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.30.0\n")
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise ImportError('mixed up')")
    printed = list_devices(tmp_path)
    assert "Several distributions install the folder onnxruntime and overwrite each other: onnxruntime " in printed
    assert "onnxruntime-gpu 1.30.0; uninstall all, then install one" in printed
