"""Every test and check that the page of clauses names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "clauses.md").read_text()


def test_every_test_of_the_page_exists() -> None:
    named = re.findall(r"`?((?:tests|plugins)/[\w/]+\.py)::(test_\w+)", PAGE)
    assert len(named) > 25
    assert [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_every_check_of_the_page_is_in_the_kit() -> None:
    named = re.findall(r"\| `([a-z_]+\.[a-z_]+)` \|$", PAGE, re.MULTILINE)
    kit = (ROOT / "docs" / "reference" / "conformance.md").read_text()
    assert len(named) >= 3
    assert [name for name in named if f"`{name}`" not in kit] == []


def test_every_clause_has_a_state_and_a_test() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| clause")]
    assert len(rows) > 30
    assert [row[0] for row in rows if len(row) != 5 or not row[3].strip()] == []
    assert [row[0].strip() for row in rows if not row[4].strip()] == ["M9"]
