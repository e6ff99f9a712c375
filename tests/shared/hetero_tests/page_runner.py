"""Runs the Python blocks of a page in a process of its own.

The process is forked from a server that has imported the packages of most pages. Imports only the standard library.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import multiprocessing
import os
import re
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT: Any = multiprocessing.get_context(METHOD)
PRELOADED = (
    *("numpy", "onnx", "importlib_metadata", "hetero_core.core", "hetero_core.network.reader", "hetero_core.network.writer"),
    *("hetero_core.kernels.program", "hetero_cpu.device", "hetero_template.device"),
)
"""Modules that a program imports which loads a network."""
if METHOD == "forkserver":
    CONTEXT.set_forkserver_preload(list(PRELOADED))
LIMIT = 900
"""Seconds until a page that does not end is killed."""


def run_page(page: Path, blocks: Sequence[tuple[int, str]], folder: Path, output: Path) -> int | None:
    """Runs the blocks (line of the fence, code) in `folder`; returns the exit code. Everything printed goes to the file `output`."""
    process = CONTEXT.Process(target=_run_blocks, args=(str(page), page.read_text(), blocks, str(folder), str(output)))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        process.join()
    code: int | None = process.exitcode
    process.close()
    return code


def run_commands(lines: Sequence[str]) -> None:
    """Runs each `$ hetero ...` of a console block and compares its output with the lines below it, if there are any.

    Speeds may differ, `...` stands for any text, and `> FILE` at the end of a command takes the output.
    """
    from hetero_core.cli.main import main

    for text in "\n".join(lines).split("$ hetero ")[1:]:
        command, _, expected = text.partition("\n")
        words, _, file = command.partition(" > ")
        with contextlib.redirect_stdout(io.StringIO()) as stream, contextlib.redirect_stderr(stream):
            code = main(shlex.split(words))
        shown, printed = (
            re.sub(r"[\d.]+ files per second", "N files per second", each).strip() for each in (expected, stream.getvalue())
        )
        # Some files have no result: the page says so.
        assert code in (0, 4), f"hetero {command} ends with {code} and prints\n{printed}"
        if file:
            Path(file).write_text(printed, encoding="utf-8")
        if shown:
            assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", "(?s:.*)"), printed), f"hetero {command} prints\n{printed}"


def _run_blocks(page: str, text: str, blocks: Sequence[tuple[int, str]], folder: str, output: str) -> None:
    stream = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.chdir(folder)
    # For processes that the page starts. The page of the GPU device runs on the simulated card of the checkout.
    os.environ |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    warnings.simplefilter("error")
    # Compiled with the page's own name and line numbers, so that tracebacks point into the page.
    linecache.cache[page] = (0, None, text.splitlines(keepends=True), page)
    namespace = {"__name__": "__main__"}
    for line, code in blocks:
        exec(compile("\n" * line + code, page, "exec"), namespace)
