"""Every error about a model that is read ends with what to do: an imperative after the last full stop or semicolon."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ERRORS = ("InvalidNetworkError", "NetworkReadError", "NetworkNotFoundError")
CURES = frozenset(
    [
        "Add",
        "Check",
        "Connect",
        "Convert",
        "Copy",
        "Correct",
        "Declare",
        "Export",
        "Flatten",
        "Give",
        "Keep",
        "Label",
        "List",
        "Load",
        "Make",
        "Move",
        "Name",
        "Pass",
        "Put",
        "Read",
        "Remove",
        "Rename",
        "Run",
        "See",
        "State",
        "Store",
        "Upgrade",
        "Use",
        "Write",
    ]
)


def find_messages() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "hetero_core" / "network").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                yield f"{path.name}:{node.lineno}", word_message(node.args[0])


def word_message(node: ast.expr) -> str:
    """Returns the text of a message with its values as they are written, such as {name}."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{" + ast.unparse(part).strip("f'\"{}") + "}"
            for part in node.values
        )
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


@pytest.mark.parametrize(("place", "message"), [pytest.param(*found, id=found[0]) for found in find_messages()])
def test_message_says_what_to_do(place: str, message: str) -> None:
    # Messages that another function words are tested where they are worded.
    if message.endswith(("{_ADVICE}", "str(error)")):
        return
    parts = [part for part in re.split(r"[.;] |\{suggest.*?\} |or ';\} |else ", message) if part]
    words = {re.split(r"[ ,]", part)[0].capitalize() for part in parts[1:]}
    assert words & CURES, f"{place}: {message}"
