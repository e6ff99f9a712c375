"""What tests/bench/gpu.py needs of a machine: this checkout on the path, packages, and wheels from a folder where some are missing."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "numpy": "numpy",
    "onnx": "onnx",
    "ml_dtypes": "ml_dtypes",
    "pluggy": "pluggy",
    "importlib_metadata": "importlib-metadata",
    "zipp": "zipp",
}
"""Module -> distribution; without one of these nothing can be run."""
WANTED = {
    "cupy": "cupy-cuda12x or cupy-cuda13x",
    "torch": "torch",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "cudnn": "nvidia-cudnn-frontend",
}
"""Module -> distribution; without one of these a part of the table is left out."""


def add_checkout() -> None:
    """Puts this checkout on the path, plugins included, so that nothing of it has to be installed."""
    for folder in (ROOT, *sorted(path for path in (ROOT / "plugins").iterdir() if path.is_dir())):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def install_wheels(folder: Path) -> None:
    """Installs every wheel of a folder, without a network, where only this process looks."""
    wheels = sorted(map(str, folder.glob("*.whl")))
    if not wheels:
        raise SystemExit(f"there is no wheel in {folder}")
    target = tempfile.mkdtemp(prefix="hetero-wheels-")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", target, *wheels]
    subprocess.run(command, check=True)
    sys.path.insert(0, target)
    importlib.invalidate_caches()


def describe_packages() -> tuple[list[str], list[str]]:
    """Returns "module version" for what is there, and the distributions that are missing and needed."""
    from importlib.metadata import PackageNotFoundError, version

    found, missing = [f"python {sys.version.split()[0]}"], []
    for module, distribution in {**NEEDED, **WANTED}.items():
        if importlib.util.find_spec(module) is None:
            found.append(f"{distribution} missing")
            missing += [distribution] if module in NEEDED else []
            continue
        for name in distribution.split(" or "):
            try:
                found.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                continue
    return found, missing


def require_packages() -> list[str]:
    """Returns what is there. Ends the process with 3, and the command that helps, where something that is needed is not."""
    found, missing = describe_packages()
    if missing:
        names = " ".join(missing)
        print(f"gpu.py: nothing was measured: missing {names}; on a machine with a network: pip install {names}; else there")
        print(f"  pip download --no-deps -d wheels {names}")
        print("and here --wheels wheels")
        raise SystemExit(3)
    return found
