"""Every reason for which a device refuses a node is asserted by a test: a text that no test knows may say anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("hetero_core/**/*.py", "plugins/*/hetero_*/**/*.py")
APART = ("hetero_core/cli", "hetero_core/conformance", "hetero_core/testing")
"""Folders whose functions say what is wrong with something else than a node."""
TESTS = ("tests/**/*.py", "plugins/*/tests/**/*.py")
LENGTH = 14
"""So many characters in a row of a reason stand in a text of a test, or a whole part between two values that is shorter."""


def find_reasons() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields where a function returns a text or None, and the parts of that text between its values."""
    for path in sorted(path for pattern in PRODUCT for path in ROOT.glob(pattern)):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(APART):
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(function, ast.FunctionDef)
                and function.returns is not None
                and ast.unparse(function.returns) == "str | None"
            ):
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield from (
                            (f"{place}:{text.lineno}", parts) for text in split_choices(node.value) if (parts := list_parts(text))
                        )


def split_choices(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the expressions of which a conditional one is made."""
    if isinstance(node, ast.IfExp):
        yield from (*split_choices(node.body), *split_choices(node.orelse))
    else:
        yield node


def list_parts(node: ast.expr) -> tuple[str, ...]:
    """Returns the parts of a text with blanks in it; identifiers and the like have none."""
    values = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = (each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return tuple(text.strip() for text in texts if " " in text.strip())


def list_slices(part: str) -> Iterator[str]:
    return (part[first : first + LENGTH] for first in range(max(1, len(part) - LENGTH + 1)))


def find_asserted(slices: set[str]) -> set[str]:
    """Returns which of these texts stand in a text of a test; the backslashes of patterns are left out."""
    paths = sorted({path for pattern in TESTS for path in ROOT.glob(pattern)} - {Path(__file__)})
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    text = "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    text = text.replace("\\", "")
    lengths = {len(piece) for piece in slices}
    return {piece for length in lengths for first in range(len(text)) if (piece := text[first : first + length]) in slices}


def test_each_reason_stands_in_a_test() -> None:
    reasons = dict(find_reasons())
    asserted = find_asserted({piece for parts in reasons.values() for part in parts for piece in list_slices(part)})
    unknown = [
        f"{place}: {' ... '.join(parts)}"
        for place, parts in reasons.items()
        if not any(piece in asserted for part in parts for piece in list_slices(part))
    ]
    assert len(reasons) > 100
    assert not unknown, "no test knows these reasons; let one assert them:\n" + "\n".join(unknown)
