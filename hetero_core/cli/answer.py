"""The answer that a command returns to `main`: exit codes, JSON, tables; and the steps and errors shown on standard error.

Tables, colours and progress are those of `rich`, which is imported when something is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core import errors
from hetero_core.errors import HeteroError

OK, WRONG_RESULT, BAD_USAGE, NO_DEVICE, BAD_FILES = range(5)
BUG, OUTPUT_LOST, INTERRUPTED, BROKEN_PIPE = 70, 74, 130, 141


class UsageError(HeteroError, ValueError):
    """The command line asks for something impossible: an option, a pair or an input file is wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one command: `fields` are printed with --json, `text` without it, `remarks` on standard error."""

    text: str
    fields: Mapping[str, Any]
    exit_code: int = OK
    remarks: tuple[str, ...] = ()


def exit_code_of_error(error: HeteroError) -> int:
    """Returns 3 if a device is missing or cannot be used, 2 for every other mistake in the call."""
    kinds = (errors.DeviceNotFoundError, errors.DeviceUnavailableError, errors.LoadError, errors.PluginError)
    return NO_DEVICE if isinstance(error, kinds) else BAD_USAGE


def error_to_json(error: Exception, exit_code: int) -> dict[str, Any]:
    """Returns an error as the fields that --json prints."""
    fields: dict[str, Any] = {"type": type(error).__name__, "message": word_options(str(error)), "exit_code": exit_code}
    refusals = {"refusals": error.refusals} if isinstance(error, errors.UnsupportedNodesError) else {}
    return {"error": {**fields, "notes": list(getattr(error, "__notes__", ())), **refusals}}


def to_json(value: Any) -> Any:
    """Returns a value as JSON can hold it: tuples as lists, NaN and infinities as texts, anything unknown as its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return str(value)


_DESCRIPTION = re.compile(r"network\.with_inputs\(\{'([^']*)': InputInfo\((.*?)\)\}\)")


def word_options(text: str) -> str:
    """Returns a text with the options of a command in the place of a call of Python that describes an input."""

    def word(call: re.Match[str]) -> str:
        return " ".join(f"--{option} {call[1]}={value}" for option, value in re.findall(r"(\w+)='([^']*)'", call[2]))

    return _DESCRIPTION.sub(word, text)


Announcer = Callable[[str], contextlib.AbstractContextManager[Callable[[str], None]]]
"""Shows a step while its context lasts; the context yields a function that replaces the text."""


def follow(options: argparse.Namespace) -> Announcer:
    """Returns the announcer of a command: silent with --json, and if standard error is no terminal."""
    is_silent = options.json or not sys.stderr.isatty()
    return (lambda _: contextlib.nullcontext(lambda _: None)) if is_silent else _show_step


@contextlib.contextmanager
def _show_step(step: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with console.status(f"{step} ...") as status:
        yield lambda text: status.update(f"{text} ...")


@contextlib.contextmanager
def count_up(options: argparse.Namespace, title: str, *, total: int, done: int) -> Iterator[Callable[[], None]]:
    """Yields a function that counts one more of `total`; on a terminal a line shows the count and the time that remains."""
    if options.json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda: progress.advance(task)


_PIPE_WIDTH = 1_000_000
_STYLE_OF_CELL = {"DIFFERS": "bold red", "failed": "red", "same": "green", "chosen": "green"}


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Returns a table in the width and colours of the terminal; as plain text, a line for each row, if the output is a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    console = Console(force_terminal=is_terminal, width=None if is_terminal else _PIPE_WIDTH)
    console.width -= len(indent)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(Text(title))
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLE_OF_CELL.get(cell, "")) for cell in row))
    with console.capture() as capture:
        console.print(table)
    return "\n".join(f"{indent}{line}".rstrip() for line in capture.get().rstrip("\n").split("\n"))


def format_number(number: float | None) -> str:
    """Returns three digits of a number, or a dash for None."""
    return "-" if number is None else f"{number:.3g}"


def format_seconds(seconds: float) -> str:
    """Returns a time in milliseconds with three decimals."""
    return f"{seconds * 1000:.3f} ms"
