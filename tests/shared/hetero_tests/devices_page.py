"""Writes the table of known devices and the directory of devices, the page made from it.

`PYTHONPATH=tests/shared python -m hetero_tests.devices_page [PYPROJECT ...]` brings the rows of this repository up to date, and adds or
renews those of other packages, each given by its pyproject.toml. A test fails if the rows or the page are out of date.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "hetero_core" / "devices" / "known_devices.json"
PAGE = ROOT / "docs" / "reference" / "devices.md"
PROJECTS = sorted(ROOT.glob("plugins/*/pyproject.toml"))
_HEAD = "| device | package | runs on | hardware with advice | kit | version, for hetero-core |\n|---|---|---|---|---|---|\n"


def make_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of the devices that a package announces.

    Raises: KeyError without `[tool.hetero] runs_on`, and for hardware that the table does not have.
    """
    pyproject = tomllib.loads(path.read_text(encoding="utf-8"))
    project, about = pyproject["project"], pyproject["tool"]["hetero"]
    groups = project["entry-points"]
    (core,) = [text.removeprefix("hetero-core") for text in project["dependencies"] if text.startswith("hetero-core")]
    return [
        {
            "name": device,
            "package": project["name"],
            "version": project["version"],
            "core": core.strip(),
            "runs_on": about["runs_on"],
            "extras": about.get("extras", []),
            "hardware": sorted(name for name, user in groups.get("hetero_core.hardware", {}).items() if user == device),
            "badge": about.get("badge", ""),
        }
        for device in groups["hetero_core.devices"]
    ]


def update_table(table: dict[str, Any], projects: Iterable[Path]) -> dict[str, Any]:
    """Returns the table with the rows of these packages in place of their former rows, sorted by name."""
    rows = [row for path in projects for row in make_rows(path)]
    packages = {row["package"] for row in rows}
    rows += [row for row in table["devices"] if row["package"] not in packages]
    names = [row["name"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two packages announce {', '.join(twice)}")
    return {**table, "devices": sorted(rows, key=lambda row: str(row["name"]))}


def format_table(table: dict[str, Any]) -> str:
    """Returns the text of the table's file, with one line for each row."""
    sections = []
    for name, section in table.items():
        if isinstance(section, str):
            sections.append(f"  {json.dumps(name)}: {json.dumps(section)}")
            continue
        pairs = section.items() if isinstance(section, dict) else ((None, row) for row in section)
        lines = [f"    {json.dumps(key) + ': ' if key else ''}{json.dumps(row)}" for key, row in pairs]
        first, last = "{}" if isinstance(section, dict) else "[]"
        sections.append(f"  {json.dumps(name)}: {first}\n" + ",\n".join(lines) + f"\n  {last}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def format_directory(table: dict[str, Any]) -> str:
    """Returns the directory as a Markdown table."""
    return _HEAD + "".join(_format_row(row, table["hardware"]) for row in table["devices"])


def _format_row(row: dict[str, Any], hardware: dict[str, dict[str, str]]) -> str:
    requirement = f"{row['package']}[{','.join(row['extras'])}]" if row["extras"] else row["package"]
    kit = f"![kit]({row['badge']})" if row["badge"] else "-"
    texts = ", ".join(hardware[name]["text"] for name in row["hardware"]) or "-"
    return f"| `{row['name']}` | `{requirement}` | {row['runs_on']} | {texts} | {kit} | {row['version']}, `{row['core']}` |\n"


def replace_directory(page: str, directory: str) -> str:
    """Returns the page with this table of devices."""
    start, end = page.index(_HEAD[:20]), page.index("\n\n", page.index(_HEAD[:20])) + 1
    return page[:start] + directory + page[end:]


if __name__ == "__main__":
    known = update_table(json.loads(TABLE.read_text("utf-8")), [*PROJECTS, *map(Path, sys.argv[1:])])
    TABLE.write_text(format_table(known), encoding="utf-8")
    PAGE.write_text(replace_directory(PAGE.read_text("utf-8"), format_directory(known)), encoding="utf-8")
