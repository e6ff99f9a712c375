"""Text tables: columns as wide as their widest cell, two spaces between them."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Returns the header and the rows as lines of left-aligned columns."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip() for line in lines
    )


def format_number(number: float | None) -> str:
    """Returns three digits of a number, or a dash where there is none."""
    return "-" if number is None else f"{number:.3g}"


def format_seconds(seconds: float) -> str:
    """Returns a time in milliseconds, with microseconds behind the point."""
    return f"{seconds * 1000:.3f} ms"
