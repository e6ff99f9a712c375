"""Every distribution and extra that an error message or a page recommends exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = re.compile(r"(?:(hetero)-|(plugins)/)([a-z]+)\[([a-z0-9]+(?:,[a-z0-9]+)*)\]")
PROJECTS = {path.parent.name: tomllib.loads(path.read_text("utf-8"))["project"] for path in ROOT.glob("plugins/*/pyproject.toml")}
PROJECTS["core"] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def find_advice() -> Iterator[tuple[str, str, str]]:
    """Yields the place, the plugin and the extra of each requirement with extras in the sources and pages."""
    folders = ("hetero_core", "plugins", "docs", "tests")
    paths = [path for folder in folders for pattern in ("*.py", "*.md") for path in (ROOT / folder).rglob(pattern)]
    for path in [ROOT / "README.md", *sorted(paths)]:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for match in EXTRAS.finditer(line):
                for extra in match[4].split(","):
                    yield f"{path.relative_to(ROOT)}:{number}", match[3], extra


def test_recommended_extras_exist() -> None:
    advice = list(find_advice())
    assert len(advice) > 20, "the expression finds what it should"
    wrong = [row for row in advice if row[2] not in PROJECTS[row[1]].get("optional-dependencies", {})]
    assert wrong == []
