"""Prints the lines of product and tests by package, at the end of `nox -s lint`. The total counts, not the length of a file."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".js", ".css", ".html", ".txt")


def find_package(path: str) -> tuple[str, str]:
    """Returns "product" or "tests", and the package of a file."""
    folder, *inner = path.split("/")
    package = f"{folder}/{inner[0]}" if len(inner) > 1 else folder
    is_test = folder == "tests" or (folder == "plugins" and len(inner) > 1 and inner[1] == "tests")
    return "tests" if is_test else "product", package


def main() -> None:
    """Counts the files of the core, the plugins and the tests."""
    lines: dict[str, Counter[str]] = {"product": Counter(), "tests": Counter()}
    for file in (file for folder in ("hetero_core", "plugins", "tests") for file in sorted((ROOT / folder).rglob("*"))):
        path = file.relative_to(ROOT)
        if file.suffix in SUFFIXES and not any(part.startswith(".") or part in ("build", "dist") for part in path.parts):
            kind, package = find_package(path.as_posix())
            lines[kind][package] += file.read_bytes().count(b"\n")
    for kind, counts in lines.items():
        sys.stdout.write(f"{kind}: {counts.total():,} lines\n")
        sys.stdout.writelines(f"  {number:7,}  {package}\n" for package, number in counts.most_common())


if __name__ == "__main__":
    main()
