"""House rules as tests: no prints, docstrings, consistent versions, the layout of a plugin's folder."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero_core import hookspecs

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
HOOKS = [name for name, member in vars(hookspecs).items() if hasattr(member, f"{hookspecs.PROJECT}_spec")]


def list_files() -> Iterator[Path]:
    """Yields the files of the repository, without files that tools generate."""
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if not is_left_by_tools(name)]
        yield from (Path(folder, name) for name in names if not is_left_by_tools(name))


def is_left_by_tools(part: str) -> bool:
    return part in ("__pycache__", "build", "dist") or (part.startswith(".") and part not in (".ci", ".gitignore"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def test_template_implements_every_hook_that_a_device_has() -> None:
    package = ROOT / "plugins" / "template" / "hetero_template"
    first, device = list_implementations(package / "__init__.py"), list_implementations(package / "device.py")
    assert first == ["create_device"]
    assert sorted([*device, "create_device", "infer"]) == sorted(HOOKS)


def list_implementations(path: Path) -> list[str]:
    return [
        node.name
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef) and any("hookimpl" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


def read_project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_versions_of_all_distributions_agree() -> None:
    version_of_folder = {name_of(folder): read_project(folder)["version"] for folder in PLUGINS}
    assert set(version_of_folder.values()) <= {read_project(ROOT)["version"]}, version_of_folder


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_folders_have_the_common_layout(folder: Path) -> None:
    package = f"hetero_{folder.name}"
    project = read_project(folder)
    assert project["name"] == f"hetero-{folder.name}"
    assert project["requires-python"] == ">=3.11"
    assert set(project["entry-points"]) <= {
        "hetero_core.devices",
        "hetero_core.hardware",
        "hetero_core.operator_types",
        "hetero_core.roles",
        "hetero_core.wrappers",
    }
    assert set(project["entry-points"]["hetero_core.devices"].values()) == {package}
    assert (folder / package / "__init__.py").is_file()
    assert len((folder / "README.md").read_text().splitlines()) > 5
    assert list(folder.glob("tests/**/test_*.py")) != []


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_depends_on_this_minor_version_of_the_core(folder: Path) -> None:
    major, minor = str(read_project(ROOT)["version"]).split(".")[:2]
    requirement = f"hetero-core>={major}.{minor},<{major}.{int(minor) + 1}"
    assert requirement in read_project(folder)["dependencies"]


def test_no_file_names_a_package_registry_or_a_working_folder() -> None:
    # Split, so that this file does not match its own rule.
    hosts = ("py" + "pi.", "python" + "hosted.", "anaconda" + ".org", "/work" + "/main", "/tmp" + "/venv")
    mentions = []
    for path in list_files():
        content = path.read_bytes()
        mentions += [f"{name_of(path)}: {host}" for host in hosts if host.encode() in content]
    assert mentions == []


def test_every_file_but_pictures_is_text() -> None:
    texts = (path for path in list_files() if path.suffix not in (".jpg", ".png"))
    assert [name_of(path) for path in texts if b"\0" in path.read_bytes()] == []
