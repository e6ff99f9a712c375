"""The dispatcher of the `hetero` command: parses, runs one command, prints its answer or its error.

Commands import what is heavy when they run, so `hetero --help` needs no plugin and no onnx.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from hetero_core.cli.answer import BROKEN_PIPE, BUG, INTERRUPTED, OUTPUT_LOST, Answer, error_to_json, exit_code_of_error, to_json
from hetero_core.cli.options import Parser
from hetero_core.errors import HeteroError

COMMANDS = (
    *("devices", "doctor", "inspect", "query", "visualize", "run", "bench", "tune", "compare", "reduce", "compile", "conformance"),
    *("new_plugin", "demo"),
)
"""The modules of the commands, in the order of the help; each has `add_parser`."""
_EPILOG = (
    "Exit codes: 0 ok, 1 the result is wrong or some node has no device, 2 wrong usage or input, "
    "3 a device is missing or cannot be used."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `arguments` are those of the process unless given.

    Raises: SystemExit after --help and --version.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _run_command(words)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has left; what is still buffered must not raise again when the interpreter ends.
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        print(f"hetero: error: cannot write to the standard output: {error.strerror or error}", file=sys.stderr)
        return OUTPUT_LOST


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> Parser:
    """Returns the parser of all commands."""
    parser = Parser(prog="hetero", description="Runs ONNX models over several devices.", epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version of hetero-core and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f"hetero_core.cli.{name}").add_parser(subparsers)
    return parser


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib_metadata import version  # reads the installed distributions

        print(f"hetero-core {version('hetero-core')}")
        parser.exit()


def _run_command(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        options = build_parser().parse_args(words)
        answer: Answer = options.answer(options)
    except HeteroError as error:
        code = exit_code_of_error(error)
        _print_error(error, code, as_json)
        return code
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # a bug, ours or a plugin's: its traceback is shown, and --json stays JSON
        traceback.print_exc()
        if as_json:
            _print_error(error, BUG, as_json)
        return BUG
    for remark in () if as_json else answer.remarks:
        print(f"hetero: {remark}", file=sys.stderr)
    print(json.dumps(to_json(answer.fields), indent=2, ensure_ascii=False) if as_json else answer.text)
    return answer.exit_code


def _print_error(error: Exception, exit_code: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps(to_json(error_to_json(error, exit_code)), indent=2, ensure_ascii=False))
        return
    print(f"hetero: error: {error}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(f"  {note}", file=sys.stderr)
