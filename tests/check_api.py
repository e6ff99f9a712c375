"""Compares the public names with those of the last release: a change that could break a plugin has to be named in a change note.

The names stand in docs/reference/public.md. The last release is the newest commit "Version X.Y.Z", so that a clone needs no tags. griffe
reads both versions without importing them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
SEARCH = ("git", "log", "-1", "--format=%H", "--extended-regexp", r"--grep=^Version [0-9]+\.[0-9]+\.[0-9]+")


def list_public_names() -> set[str]:
    rows = re.findall(
        r"^\| `(hetero_core[\w.]*)` \| (.*?) \|", (ROOT / "docs/reference/public.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {f"{module}.{name}" for module, cell in rows for name in re.findall(r"`(\w+)`", cell)}


def list_announced_names() -> set[str]:
    """Returns the last parts of all names in backticks in the notes of what breaks."""
    notes = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/changes").rglob("*.breaking.md"))
    return {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", notes)}


def main() -> int:
    release = subprocess.run(SEARCH, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    if not release:
        print("public names: not compared; the last release is not in this clone: git fetch --unshallow")
        return 0
    public, announced = list_public_names(), list_announced_names()
    breakages = griffe.find_breaking_changes(
        griffe.load_git("hetero_core", ref=release, repo=ROOT), griffe.load("hetero_core", search_paths=[ROOT])
    )
    unannounced = []
    for breakage in breakages:
        *owners, name = breakage.obj.path.split(".")
        name = owners[-1] if name == "__init__" else name
        is_public = any(f"{breakage.obj.path}.".startswith(f"{each}.") for each in public)
        if is_public and not name.startswith("_") and name not in announced:
            unannounced.append(f"{breakage.obj.path}: {breakage.explain(griffe.ExplanationStyle.ONE_LINE)}")
    for line in unannounced:
        print(line)
    print(f"public names: {len(public)} compared with {release[:10]}, {len(unannounced)} changes without a note")
    return bool(unannounced)


if __name__ == "__main__":
    sys.exit(main())
