"""Each file of CPU imports only from its own layer and the layers below it, at its head and inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hetero_cpu
import pytest

PACKAGE = Path(hetero_cpu.__file__).parent
FLOORS = ("transforms", "machine", "symbols", "operators", "plan", "run", "executable", "device", "__init__")
FILES = sorted(PACKAGE.rglob("*.py"))


def find_floor(parts: tuple[str, ...]) -> int:
    return FLOORS.index(parts[0] if parts else "__init__")


def list_imports(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the line of each import from this package, and the imported name below the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hetero_cpu":
            parts = tuple(node.module.split(".")[1:])
            for alias in node.names:
                yield node.lineno, parts or (alias.name,)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "hetero_cpu":
                    yield node.lineno, tuple(alias.name.split(".")[1:])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_imports_from_its_floor_or_before(path: Path) -> None:
    floor = find_floor(path.relative_to(PACKAGE).with_suffix("").parts)
    upward = [f"line {line}: {'.'.join(parts)}" for line, parts in list_imports(path) if find_floor(parts) > floor]
    assert not upward, f"{path.relative_to(PACKAGE)} of floor '{FLOORS[floor]}' imports from a floor behind it: {upward}"
