"""Links between pages have existing targets, and every page is reachable from docs/index.md."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for path in DOCS.rglob("*.md") if "changes" not in path.parts),
    *sorted(ROOT.glob("plugins/*/README.md")),
]


def read_links(page: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and target of each link outside code."""
    is_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code:
            yield from ((number, target) for target in LINK.findall(re.sub(r"`[^`]*`", "", line)))


def list_anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings: lower case, dashes for blanks, no punctuation."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_of_page_resolve(page: Path) -> None:
    dead = []
    for number, target in read_links(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or ROOT not in (file, *file.parents):
            dead.append(f"line {number}: {target}")
        elif anchor and file.suffix == ".md" and anchor not in list_anchors(file):
            dead.append(f"line {number}: {target} (no such heading)")
    assert dead == []


def test_index_links_every_page_of_the_docs() -> None:
    linked = {(DOCS / target.partition("#")[0]).resolve() for _, target in read_links(DOCS / "index.md")}
    orphans = [page for page in PAGES if DOCS in page.parents and page.name != "index.md" and page not in linked]
    assert [page.relative_to(ROOT).as_posix() for page in orphans] == []


def test_readme_links_the_index() -> None:
    assert "docs/index.md" in [target for _, target in read_links(ROOT / "README.md")]


@pytest.mark.parametrize(
    ("folder", "config"),
    [("changes", "pyproject.toml"), ("changes/authors", "docs/changes/authors.toml")],
    ids=["users", "authors"],
)
def test_change_notes_have_a_type_that_towncrier_knows(folder: str, config: str) -> None:
    types = "|".join(entry["directory"] for entry in tomllib.loads((ROOT / config).read_text())["tool"]["towncrier"]["type"])
    names = {path.name for path in (DOCS / folder).iterdir()} - {"README.md", "template.md.jinja", "authors", "authors.toml"}
    assert [name for name in sorted(names) if not re.fullmatch(rf"[a-z0-9-]+\.({types})\.md", name)] == []
