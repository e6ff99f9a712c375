"""The dispatcher of the `hetero` command: parses, runs one command, prints its answer or its error.

Only the command that runs is imported, so `hetero --help` needs no plugin and no onnx.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from importlib import import_module

from hetero_core.cli.answer import (
    BROKEN_PIPE,
    BUG,
    INTERRUPTED,
    OUTPUT_LOST,
    Answer,
    error_to_json,
    exit_code_of_error,
    to_json,
    word_options,
)
from hetero_core.cli.options import Parser
from hetero_core.devices.provenance import find_core_version
from hetero_core.devices.switches import read_switches
from hetero_core.errors import HeteroError

COMMANDS = {
    "devices": "list the installed devices",
    "doctor": "say what is wrong with the installation, and the cure",
    "inspect": "show what is in a model, and which devices run it",
    "query": "show which device would run each node of a model, and why",
    "fit": "cut a model by the memory that devices have free, and print the options",
    "visualize": "write the split of a model as a page or a text",
    "run": "run one inference and print the outputs",
    "serve": "answer requests for models over HTTP and gRPC",
    "predict": "run a model on every file of a folder",
    "bench": "time a model on one or several devices, side by side",
    "tune": "measure which device should run which part of a model",
    "compare": "compare every value of a model on two devices",
    "reduce": "find the smallest part of a model that still fails a check",
    "compile": "compile a model for a device and write it to a file",
    "verify": "run the samples in a compiled file and compare the outputs",
    "conformance": "check that a device keeps the contract of the hooks",
    "new-plugin": "write the package of a device of your own",
    "demo": "classify pictures of digits on HETERO:TEMPLATE,CPU and check the result",
}
"""The commands with their summaries, in the order of the help; the module of each has `answer`, and `add_options` unless it has none."""
_EPILOG = (
    "Exit codes: 0 ok, 1 the result is wrong or some node has no device, 2 wrong usage or input, "
    "3 a device is missing or cannot be used, 4 some files have no result."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code of a command, by default of the words of the process. Raises: SystemExit after --help and --version."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _run_command(words)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has left; the rest of the buffer must not raise again when the interpreter ends.
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        print(f"hetero: error: cannot write to the standard output: {error.strerror or error}", file=sys.stderr)
        return OUTPUT_LOST


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(words: Collection[str] = COMMANDS) -> Parser:
    """Returns the parser of all commands; only the commands that stand among the words are imported and have their options."""
    parser = Parser(prog="hetero", description="Runs ONNX models over several devices.", epilog=_EPILOG, allow_abbrev=False)
    version = f"hetero-core {find_core_version()}"
    parser.add_argument("--version", action="version", version=version, help="print the version of hetero-core and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        description = summary[0].upper() + summary[1:] + "."
        command = subparsers.add_parser(name, help=summary, description=description, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="print one JSON document, also for an error")
        if name in words:
            module = import_module(f"hetero_core.cli.{name.replace('-', '_')}")
            if hasattr(module, "add_options"):
                module.add_options(command)
            command.set_defaults(answer=module.answer)
    return parser


def _run_command(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        options, switches = build_parser(words).parse_args(words), read_switches()
        is_default = bool(switches.device) and getattr(options, "device", "") in (switches.device, [switches.device], None, [])
        with switches.name_device() if is_default else nullcontext():
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
    else:
        print("\n  ".join([f"hetero: error: {word_options(str(error))}", *getattr(error, "__notes__", ())]), file=sys.stderr)
