"""The wheels of the core, the plugins and the example, and a device that appears and vanishes with its wheel.

uv prepares the environment; pip installs and uninstalls the device, as a user does. Every file is below a temporary folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

uv = pytest.importorskip("uv", reason="the environment is made by uv, which the session flow installs")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "hetero_echo"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
DEVICE_PROJECTS = [*PLUGINS, EXAMPLE]

BUILD = """
import os, sys
from hatchling.build import build_wheel
for folder in sys.argv[2:]:
    os.chdir(folder)
    build_wheel(sys.argv[1])
"""

RUN_IDENTITY = """
import numpy as np, onnx.parser
from hetero_core import Core
text = '<ir_version: 8, opset_import: ["": 17]> copy (float[N] x) => (float[N] y) { y = Identity (x) }'
with Core() as core:
    network = core.load_network(onnx.parser.parse_model(text), "ECHO")
    print(network.infer({"x": np.array([1, 2, 3], np.float32)})["y"].tolist(), core.get_versions("ECHO"))
"""


def run(*command: str | Path, folder: Path) -> str:
    """Returns the output of a command, run outside the repository and without the paths of this interpreter."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    # Compiling the kernels takes minutes.
    environment["HETERO_CPU_KERNELS"] = "NO"
    ended = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert ended.returncode == 0, f"{' '.join(map(str, command))}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def read_project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Distribution name -> wheel of the core, the plugins and the example, built by the build backend itself."""
    target = tmp_path_factory.mktemp("wheels")
    folders = (ROOT, *DEVICE_PROJECTS)
    run(sys.executable, "-c", BUILD, target, *folders, folder=target)
    names = [str(read_project(folder)["name"]) for folder in folders]
    return {name: next(target.glob(f"{name.replace('-', '_')}-*.whl")) for name in names}


def list_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def read_metadata(wheel: Path, file: str) -> str:
    (name,) = [name for name in list_names(wheel) if name.endswith(f".dist-info/{file}")]
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def test_core_wheel_holds_type_marker_demo_and_licence(wheels: dict[str, Path]) -> None:
    names = list_names(wheels["hetero-core"])
    assert {"hetero_core/py.typed", "hetero_core/cli/demo.py", "hetero_core/testing/digits.py"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"hetero_core"}
    assert read_metadata(wheels["hetero-core"], "licenses/LICENSE").lstrip().startswith("Apache License")
    announced = read_metadata(wheels["hetero-core"], "entry_points.txt")
    assert "hetero = hetero_core.cli.main:main" in announced
    assert "hetero_core.conformance.options = hetero_core.conformance.options" in announced
    assert "hetero_core/conformance/test_device.py" in names


@pytest.mark.parametrize("folder", DEVICE_PROJECTS, ids=lambda path: path.name)
def test_plugin_wheel_announces_devices_and_holds_one_package(folder: Path, wheels: dict[str, Path]) -> None:
    project = read_project(folder)
    wheel = wheels[str(project["name"])]
    announced = read_metadata(wheel, "entry_points.txt")
    for name, package in project["entry-points"]["hetero_core.devices"].items():
        assert f"{name} = {package}" in announced
        assert {entry.partition("/")[0].partition("-")[0] for entry in list_names(wheel)} == {package}
    assert "Requires-Dist: hetero-core<0.3,>=0.2" in read_metadata(wheel, "METADATA")


def test_wheel_of_the_gpu_holds_no_simulated_card(wheels: dict[str, Path]) -> None:
    names = list_names(wheels["hetero-cupy"])
    assert "hetero_cupy/device.py" in names
    assert [name for name in names if "fake" in name] == []


def test_device_appears_runs_and_vanishes_with_its_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(uv.find_uv_bin(), "venv", "--quiet", "--seed", "--python", sys.executable, "venv", folder=tmp_path)
    python = scripts / "python"
    install = (uv.find_uv_bin(), "pip", "install", "--quiet", "--python", python)
    run(*install, wheels["hetero-core"], folder=tmp_path)
    run(scripts / "pip", "install", "--quiet", wheels["hetero-echo"], folder=tmp_path)

    assert run(scripts / "hetero", "devices", "--names", folder=tmp_path).split() == ["ECHO"]
    printed = run(python, "-I", "-c", RUN_IDENTITY, folder=tmp_path)
    assert printed.split("\n")[0] == "[1.0, 2.0, 3.0] {'ECHO': 'hetero-echo 0.1.0'}"

    run(scripts / "pip", "uninstall", "--quiet", "--yes", "hetero-echo", folder=tmp_path)
    assert run(scripts / "hetero", "devices", "--names", folder=tmp_path).split() == []
    run(scripts / "hetero", "new-plugin", "mine", folder=tmp_path)
    run(sys.executable, "-c", BUILD, tmp_path, tmp_path / "hetero-mine", folder=tmp_path)
    run(*install, "--no-deps", *tmp_path.glob("hetero_mine-*.whl"), folder=tmp_path)
    printed = run(python, "-I", "-c", RUN_IDENTITY.replace("ECHO", "MINE"), folder=tmp_path)
    assert printed.split("\n")[0] == "[1.0, 2.0, 3.0] {'MINE': 'hetero-mine 0.1.0'}"

    run(*install, wheels["hetero-cpu"], wheels["hetero-hetero"], folder=tmp_path)
    require_tutorial(scripts, install, tmp_path)


def require_tutorial(scripts: Path, install: tuple[str | Path, ...], folder: Path) -> None:
    """Follows the first tutorial in an empty folder: its files, its commands, and, with ECHO installed, all its Python blocks."""
    text = (ROOT / "docs" / "tutorial" / "first-device.md").read_text()
    blocks = re.findall(r"^```(\w+)( excerpt)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    python = [code for kind, excerpt, code in blocks if kind == "python" and not excerpt]
    start = folder / "tutorial"
    package, tests = start / "hetero-echo" / "hetero_echo", start / "hetero-echo" / "tests"
    for directory in (package, tests):
        directory.mkdir(parents=True)
    (package / "__init__.py").write_text(next(code for code in python if code.startswith('"""ECHO')))
    (start / "hetero-echo" / "pyproject.toml").write_text(next(code for kind, _, code in blocks if kind == "toml"))
    (tests / "test_conformance.py").write_text(next(code for _, excerpt, code in blocks if excerpt))
    (start / "all.py").write_text("".join(python))

    saved = next(index for index, code in enumerate(python) if "onnx.save(" in code)
    (start / "before.py").write_text("".join(python[: saved + 1]))
    run(scripts / "python", "before.py", folder=start)
    run(*install, "-e", "./hetero-echo", folder=start)
    assert "ECHO " in run(scripts / "hetero", "devices", folder=start)
    assert "ECHO" in run(scripts / "hetero", "query", "model.onnx", "-d", "HETERO:ECHO,CPU", folder=start)
    run(scripts / "python", "all.py", folder=start)
    run(scripts / "hetero", "conformance", "ECHO", "--check", "query.*", folder=start)
