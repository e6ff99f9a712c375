"""What tests/bench/gpu.py needs of a machine: this checkout on the path, packages, and wheels from a folder where some are missing."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "numpy": "numpy",
    "onnx": "onnx",
    "ml_dtypes": "ml_dtypes",
    "pluggy": "pluggy",
    "importlib_metadata": "importlib-metadata",
    "threadpoolctl": "threadpoolctl",
}
"""Module -> distribution; without one of these nothing can be run."""
WANTED = {
    "cupy": "cupy-cuda12x or cupy-cuda13x",
    "torch": "torch",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""Module -> distribution; without one of these a part of the table is left out."""


def add_checkout() -> None:
    """Puts this checkout on the path, plugins included, so that nothing of it has to be installed."""
    for folder in (ROOT, ROOT / "tests" / "shared", *sorted(path for path in (ROOT / "plugins").iterdir() if path.is_dir())):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def announce_checkout() -> None:
    """Gives each distribution of this checkout that is not installed a version and its entry points, where only this process looks.

    Blobs carry versions, and a Core finds devices by entry points.
    """
    folder = Path(tempfile.mkdtemp(prefix="hetero-metadata-"))
    for project in (ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))):
        facts = tomllib.loads(project.read_text())["project"]
        try:
            version(facts["name"])
        except PackageNotFoundError:
            own = folder / f"{facts['name'].replace('-', '_')}-{facts['version']}.dist-info"
            own.mkdir()
            (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n")
            groups = facts.get("entry-points", {})
            lines = [line for group, entries in groups.items() for line in (f"[{group}]", *map(" = ".join, entries.items()))]
            (own / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.append(str(folder))
    importlib.invalidate_caches()


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
    found, missing = [f"python {sys.version.split()[0]}"], []
    for module, distribution in NEEDED.items():
        reason = _try_import(module)
        if reason is not None:
            missing.append(distribution if reason == module else reason.replace("_", "-"))
    for module, distribution in {**NEEDED, **WANTED}.items():
        if importlib.util.find_spec(module) is None:
            found.append(f"{distribution} missing")
            continue
        for name in distribution.split(" or "):
            try:
                found.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                continue
    return found, missing


def _try_import(module: str) -> str | None:
    """Returns the module that is not there: it, or one that it imports; None where all are."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return str(error.name).partition(".")[0]
    return None


def require_packages() -> list[str]:
    """Returns what is there. Ends the process with 3, and the command that helps, where something that is needed is not."""
    found, missing = describe_packages()
    if missing:
        names = " ".join(missing)
        print(f"gpu.py: nothing was measured: missing {names}; on a machine with a network: pip install {names}; else there")
        print(f"  pip download -d wheels {names}")
        print("and here --wheels wheels")
        raise SystemExit(3)
    return found
