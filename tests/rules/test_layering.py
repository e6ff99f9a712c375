"""Imports follow an ordered list of layers: a file imports only from layers above its own.

Rules:
- At the head of a file, only modules above it in LAYERS are imported. Files of the same folder may import one another, but never in a
  cycle.
- Imports inside functions obey the same order: they postpone heavy modules (onnx, drivers), they do not reverse layers.
- The few imports from a lower layer are listed in BELOW with their reason, and stand under TYPE_CHECKING, for annotations only.
- `kernels`, `engines`, `testing`, `debugging`, `frontends`, `serving`, `conformance` and `cli` use the core. The core never imports
  them, not even inside a function; `engines` is for plugins, `kernels` is for plugins, the conformance kit and the command line.
- No file of hetero_core imports a plugin; a plugin imports only itself and the public modules of the core.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "hetero_core"

# From the top layer to the bottom; a folder stands for all its modules without an entry of their own.
LAYERS = (
    "errors",
    "dtypes",
    "files",
    "limits",
    "network.types",
    "network.affinity",
    "network.arrays",
    "network.initializers",
    "network.border",
    "network.graph",
    "network",
    "transforms",
    "plan",
    "profile",
    "executed",
    "contract",
    "hookspecs",
    "devices",
    "blobs",
    "runtime",
    "core",
    "remote",
    "composing",
    "reports",
    "kernels",
    "engines",
    "testing",
    "debugging",
    "frontends",
    "serving",
    "conformance",
    "cli",
    "__main__",
)

# (module, imported module of a lower layer) -> reason.
BELOW = {
    ("network.fingerprint", "network.graph"): "graphs ask for their fingerprint; the names are for annotations only",
    ("hookspecs", "core"): "create_device is given the Core; the name is for annotations only",
    ("devices.registry", "core"): "the registry hands the Core to create_device; the name is for annotations only",
}


# Modules and folders that use the core -> their allowed importers besides themselves.
USERS = {
    "kernels": ("testing", "conformance", "cli"),
    "engines": (),
    "testing": ("debugging", "conformance", "cli"),
    "debugging": ("conformance", "cli"),
    "frontends": ("serving", "cli"),
    "serving": ("cli",),
    "conformance": ("cli",),
    "cli": ("__main__",),
    "__main__": (),
}


PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/hetero_*/__init__.py"))


@dataclass(frozen=True)
class Import:
    """An import: importer, imported module, line, whether it stands in a function, and whether only under TYPE_CHECKING."""

    importer: str
    imported: str
    line: int
    is_late: bool
    is_for_types: bool = False


def list_modules(folder: Path) -> dict[str, Path]:
    """Returns dotted module name below the folder -> file; a package has the name of its folder."""
    files = sorted(folder.rglob("*.py"))
    return {".".join(file.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip("."): file for file in files}


@cache
def read_imports(file: Path, importer: str) -> tuple[Import, ...]:
    tree = ast.parse(file.read_text(), filename=str(file))
    return tuple(_walk(tree, importer))


def _walk(node: ast.AST, importer: str, *, is_late: bool = False, is_for_types: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # an expression holds no import
        types = is_for_types or _is_type_checking(child)
        late = is_late or types or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.Import):
            yield from (Import(importer, alias.name, child.lineno, late, types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer}, line {child.lineno}: write imports in full, not relative"
            # `from a import b` imports the module a.b if it exists, and a otherwise; resolve_module decides.
            yield from (Import(importer, f"{child.module}.{alias.name}", child.lineno, late, types) for alias in child.names)
        yield from _walk(child, importer, is_late=late, is_for_types=types)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


MODULES = list_modules(CORE)


def resolve_module(name: str) -> str | None:
    """Returns the core module of an imported name, "" for the package itself, None for foreign names."""
    if name != "hetero_core" and not name.startswith("hetero_core."):
        return None
    inner = name.removeprefix("hetero_core").lstrip(".")
    while inner and inner not in MODULES:
        inner = inner.rpartition(".")[0]
    return inner


def find_layer(module: str) -> int:
    """Returns the index of the longest entry of LAYERS that names the module or a folder around it."""
    around = [layer for layer in LAYERS if module == layer or module.startswith(layer + ".")]
    assert around, f"hetero_core/{module.replace('.', '/')}.py stands in no layer; give it a place in LAYERS"
    return LAYERS.index(max(around, key=len))


def imports_within_core() -> Iterator[tuple[Import, str]]:
    for module, file in MODULES.items():
        for statement in read_imports(file, module):
            target = resolve_module(statement.imported)
            if target is not None and target != module:
                yield statement, target


def describe(statement: Import, target: str) -> str:
    return f"hetero_core/{statement.importer.replace('.', '/')}.py, line {statement.line}: imports {target or 'the package itself'}"


def test_every_module_of_the_core_has_a_layer() -> None:
    for module in MODULES:
        if module:
            find_layer(module)
    unused = [layer for layer in LAYERS if not any(module == layer or module.startswith(layer + ".") for module in MODULES)]
    assert unused == []


def test_modules_import_only_from_above() -> None:
    wrong = []
    for statement, target in imports_within_core():
        if not statement.importer:
            continue  # the package's own __init__ exports public names of all layers
        if (statement.importer, target) in BELOW and statement.is_for_types:
            continue
        if not target or find_layer(target) > find_layer(statement.importer):
            wrong.append(f"{describe(statement, target)}, which stands below it")
    assert wrong == []


def test_modules_of_a_folder_import_one_another_without_a_cycle() -> None:
    needed: dict[str, set[str]] = {}
    for statement, target in imports_within_core():
        if statement.importer and not statement.is_late:
            needed.setdefault(statement.importer, set()).add(target)
    try:
        tuple(TopologicalSorter(needed).static_order())
    except CycleError as error:
        pytest.fail("modules import one another in a circle: " + " -> ".join(error.args[1]))


def test_core_imports_none_of_its_users() -> None:
    wrong = []
    for statement, target in imports_within_core():
        user, importer = target.partition(".")[0], statement.importer.partition(".")[0]
        if user in USERS and importer != user and importer not in USERS[user]:
            wrong.append(describe(statement, target))
    assert wrong == []


def test_core_imports_no_plugin() -> None:
    foreign = [
        each for module, file in MODULES.items() for each in read_imports(file, module) if each.imported.startswith("hetero_")
    ]
    assert [describe(each, each.imported) for each in foreign if resolve_module(each.imported) is None] == []


def test_package_re_exports_nothing_of_its_users() -> None:
    exported = [resolve_module(statement.imported) or "" for statement in read_imports(MODULES[""], "")]
    inner = [module for module in exported if module.startswith("transforms.") and module != "transforms.editing"]
    assert [module for module in exported if module.partition(".")[0] in USERS] + inner == []


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugin_imports_the_core_and_itself_and_no_other_plugin(package: Path) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}, line {statement.line}: imports {statement.imported}"
        for module, file in list_modules(package).items()
        for statement in read_imports(file, module)
        if statement.imported.startswith("hetero_") and statement.imported.partition(".")[0] not in ("hetero_core", package.name)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugin_imports_neither_command_line_nor_test_kit(package: Path) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}, line {statement.line}: imports {statement.imported}"
        for module, file in list_modules(package).items()
        for statement in read_imports(file, module)
        if statement.imported.startswith(("hetero_core.cli", "hetero_core.testing", "hetero_core.debugging"))
        # The comparison of two results is also for user programs.
        and not statement.imported.startswith("hetero_core.testing.compare")
    ]
    assert wrong == []


def list_public_modules() -> set[str]:
    """Returns the modules in the tables of the page of public names."""
    page = (ROOT / "docs" / "reference" / "public.md").read_text()
    return set(re.findall(r"`(hetero_core\.[\w.]*)`", "\n".join(re.findall(r"^\|.*", page, re.MULTILINE))))


def test_public_modules_exist() -> None:
    assert [name for name in sorted(list_public_modules()) if f"hetero_core.{resolve_module(name)}" != name] == []


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugin_imports_only_public_modules(package: Path) -> None:
    public = {"hetero_core.", *list_public_modules()}
    private = [
        f"{file.relative_to(ROOT)}, line {statement.line}: imports {statement.imported}"
        for module, file in list_modules(package).items()
        for statement in read_imports(file, module)
        if (inner := resolve_module(statement.imported)) is not None and f"hetero_core.{inner}" not in public
    ]
    assert private == [], "import a public name, or add the module to docs/reference/public.md"
