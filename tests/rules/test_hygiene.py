"""House rules that a reader would have to check by hand: prints, docstrings, versions, the shape of a plugin's folder."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero_core import hookspecs

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
HOOKS = [name for name, member in vars(hookspecs).items() if hasattr(member, f"{hookspecs.PROJECT}_spec")]
# Where printing is the purpose. The rest reports through results, errors and loggers.
PRINTERS = ("hetero_core/cli/", "docs/", "tests/authors/", "tests/bench/")


def list_files(folder: str, pattern: str) -> list[Path]:
    """Returns the files below a folder that are part of the repository, sorted; what tools leave behind is not."""
    return [
        path
        for path in sorted((ROOT / folder).rglob(pattern))
        if path.is_file() and not any(is_left_by_tools(part) for part in path.relative_to(ROOT).parts)
    ]


def is_left_by_tools(part: str) -> bool:
    return part in ("__pycache__", "build", "dist") or (part.startswith(".") and part not in (".ci", ".gitignore"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def test_only_the_command_line_prints() -> None:
    prints = [
        f"{name_of(path)}, line {node.lineno}"
        for path in list_files(".", "*.py")
        if not name_of(path).startswith(PRINTERS)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_says_what_it_returns(hook: str) -> None:
    # `infer` has no result of its own: it stands around the device's run.
    text = inspect.getdoc(getattr(hookspecs, hook)) or ""
    assert hook == "infer" or re.search(r"\breturns\b", text, re.IGNORECASE), f"{hook}: {text!r}"


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


def iterate_public(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yields public functions and classes, and the public methods of public classes; property setters repeat their getter."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not any(ast.unparse(decorator).endswith((".setter", "overload")) for decorator in node.decorator_list):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from iterate_public(node)


@pytest.mark.parametrize("folder", ["hetero_core", *(f"plugins/{path.name}/hetero_{path.name}" for path in PLUGINS)])
def test_everything_public_has_a_docstring(folder: str) -> None:
    bare = []
    for path in list_files(folder, "*.py"):
        tree = parse(path)
        bare += [] if ast.get_docstring(tree) else [f"{name_of(path)}: the file itself"]
        bare += [
            f"{name_of(path)}, line {node.lineno}: {node.name}" for node in iterate_public(tree) if not ast.get_docstring(node)
        ]
    assert bare == []


def read_project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_versions_of_all_distributions_agree() -> None:
    examples = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
    version_of_folder = {name_of(folder): read_project(folder)["version"] for folder in [*PLUGINS, *examples]}
    assert set(version_of_folder.values()) <= {read_project(ROOT)["version"]}, version_of_folder


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_folder_follows_the_one_shape(folder: Path) -> None:
    package = f"hetero_{folder.name}"
    project = read_project(folder)
    assert project["name"] == f"hetero-{folder.name}"
    assert project["requires-python"] == ">=3.11"
    assert set(project["entry-points"]) <= {"hetero_core.devices", "hetero_core.operator_types", "hetero_core.wrappers"}
    assert set(project["entry-points"]["hetero_core.devices"].values()) == {package}
    assert (folder / package / "__init__.py").is_file()
    assert len((folder / "README.md").read_text().splitlines()) > 5
    assert list(folder.glob("tests/**/test_*.py")) != []


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_depends_on_this_minor_version_of_the_core(folder: Path) -> None:
    major, minor = str(read_project(ROOT)["version"]).split(".")[:2]
    requirement = f"hetero-core>={major}.{minor},<{major}.{int(minor) + 1}"
    assert requirement in read_project(folder)["dependencies"]


def test_no_file_names_a_package_registry_host_or_a_working_folder() -> None:
    # In pieces, so that this file does not find itself.
    hosts = ("py" + "pi.", "python" + "hosted.", "anaconda" + ".org", "/work" + "/main", "/tmp" + "/venv")
    mentions = []
    for path in list_files(".", "*"):
        content = path.read_bytes()
        mentions += [f"{name_of(path)}: {host}" for host in hosts if host.encode() in content]
    assert mentions == []


def test_there_is_no_unfinished_mark() -> None:
    marks = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    marked = [
        f"{name_of(path)}, line {number}"
        for pattern in ("*.py", "*.md", "*.toml")
        for path in list_files(".", pattern)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert marked == []
