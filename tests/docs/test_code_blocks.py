"""Every Python block of README.md and docs/ runs: the blocks of a page in order, in the same namespace, in a process of their own.

A block is fenced with ```python and starts in the first column. The `console` blocks of some pages run, too, and print the lines below
each command, apart from speeds; other blocks are not run. The working folder is empty and temporary, warnings are errors, and a failure
shows its page and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from hetero_tests.page_runner import run_page

ROOT = Path(__file__).parents[2]
PAGES_WITH_COMMANDS = (
    *("export-and-import.md", "folders-of-data.md", "isolate-a-device.md", "model-larger-than-one-device.md", "pin-nodes.md"),
    "see-a-plan.md",
)


@dataclass(frozen=True)
class Block:
    """A Python block: the line number of its opening fence, and its code."""

    line: int
    code: str


def read_blocks(page: Path) -> Iterator[Block]:
    """Yields the Python blocks of a page. Raises: ValueError for an unclosed fence."""
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number, line[3:].strip()), []
        else:
            if opened[1] == "python":
                yield Block(opened[0], "\n".join(lines) + "\n")
            elif opened[1] == "console" and page.name in PAGES_WITH_COMMANDS and lines[0].startswith("$ hetero"):
                yield Block(opened[0], f"from hetero_tests.page_runner import run_commands; run_commands({lines!r})\n")
            opened = None
    if opened is not None:
        raise ValueError(f"{page}, line {opened[0]}: the block is never closed")


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES_WITH_CODE = [page for page in PAGES if any(read_blocks(page))]


# Packages that the default sessions do not install; `nox -s models` runs these pages.
PACKAGES = {"come-from-torch.md": ("torch", "onnxscript"), "come-from-scikit-learn.md": ("sklearn", "skl2onnx")}


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_of_page_run(page: Path, tmp_path: Path) -> None:
    missing = [package for package in PACKAGES.get(page.name, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed; nox -s models installs it")
    output = tmp_path / "output"
    folder = tmp_path / "folder"
    folder.mkdir()
    code = run_page(page, [(block.line, block.code) for block in read_blocks(page)], folder, output)
    assert code == 0, f"{page.relative_to(ROOT)}: a block fails\n{output.read_text()}"


def test_readme_and_first_tutorial_have_code() -> None:
    leading = {"README.md", "docs/tutorial/first-device.md"}
    assert leading <= {page.relative_to(ROOT).as_posix() for page in PAGES_WITH_CODE}


def test_python_blocks_are_marked_and_in_the_first_column() -> None:
    # A block with a different fence or an indentation would never run.
    wrong = [
        f"{page.relative_to(ROOT)}, line {number}: {line.strip()}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if line.strip().lower() in ("```py", "```python3", "```pycon", "```ipython")
        or (line.startswith(" ") and line.strip() == "```python")
    ]
    assert wrong == []
