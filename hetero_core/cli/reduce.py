"""`hetero reduce`: the smallest part of a model that still fails a check of the user's own."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import INTERRUPTED, Answer, UsageError, follow
from hetero_core.cli.inputs import choose_values
from hetero_core.cli.options import Parser, add_input_options, add_repeated, find_target, open_named_model, read_model
from hetero_core.core import Core
from hetero_core.reports.text import count

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hetero_core.network.graph import Network

PLACE = "{}"
_END_SECONDS = 5.0
"""How long the process of the checks has to end by itself."""


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file that fails the check, or a name as resnet50")
    text = "a command that exits with another code than 0 if the model fails; {} stands for the model's path, without {} it is appended"
    parser.add_argument("--check", metavar="COMMAND", help=text)
    text = "given twice in place of --check: the check fails if the outputs of the second device differ from those of the first"
    add_repeated(parser, "-d", "--device", metavar="DEVICE", help=text)
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="with -d: a configuration key of the devices that have it")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the reduced model")
    add_repeated(parser, "--value", metavar="NAME", help="only what this output, or this inner value, needs; may be repeated")
    text = "seconds after which a check counts as passed (600)"
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help=text)
    add_input_options(parser, "inputs of -d")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the reduced model's size. A part fails if its check ends with the same code as on the whole model.

    Each smaller part that fails is written at once, so that an interrupt leaves the smallest so far.

    Raises: UsageError when the check passes or cannot be started; errors of reading, devices and inputs.
    """
    from hetero_core.debugging.reduction import reduce_network
    from hetero_core.network.writer import write_network

    command, target = _choose_check(options), find_target(options.output)
    with Core() as core, tempfile.TemporaryDirectory(prefix="hetero-reduce-") as folder, Checker(command, options.timeout) as ask:
        network = choose_values(read_model(core, options.model), options.value)
        step, path = follow(options), Path(folder) / "model.onnx"
        with step(f"checking '{options.model}'"), open_named_model(options.model) as model:
            if options.value:
                write_network(network, path)
            check = ask(str(path) if options.value else model)
        if check == 0:
            raise UsageError(f"the check passes on '{options.model}': {shlex.join(command)}; expected one that fails")
        checks = 0
        smallest: Network = network

        def fails(part: Network) -> bool:
            nonlocal checks, smallest
            checks += 1
            write_network(part, path)
            with step(f"check {checks}, on {count(part.nodes, 'node')} of {len(network.nodes)}; {len(smallest.nodes)} fail"):
                is_failing = ask(str(path)) == check
            if is_failing:
                smallest = part
                write_network(part, target)
            return is_failing

        try:
            reduced = reduce_network(network, fails)
        except KeyboardInterrupt:
            if checks == 1:
                raise
            text = f"interrupted after {checks} checks; '{target}' has {count(smallest.nodes, 'node')} of {len(network.nodes)} and fails"
            return Answer(text, {"interrupted": True, "nodes_after": len(smallest.nodes), "checks": checks}, INTERRUPTED)
        except ValueError as error:
            reason = f"but not on the model as hetero writes it again: {error}"
            raise UsageError(f"the check fails on '{options.model}', {reason}") from error
    fields = {"network": network.name, "nodes_before": len(network.nodes), "nodes_after": len(reduced.nodes)}
    fields |= {"nodes": [node.name for node in reduced.nodes], "checks": checks}
    fields |= {"exit_code_of_check": check, "output": options.output}
    listed = "\n".join(f"  {node.label}" for node in reduced.nodes[:20]) + ("\n  ..." if len(reduced.nodes) > 20 else "")
    title = f"network '{network.name}': {len(network.nodes)} nodes reduced to {len(reduced.nodes)} in {checks} checks"
    return Answer(f"{title}\n{listed}\nwritten: {options.output}", fields)


def _choose_check(options: argparse.Namespace) -> list[str]:
    """Returns the command that checks a model: the user's own, or a comparison of the outputs as they are, run by run.

    Raises: UsageError for both, for neither, and for inputs that the check does not read.
    """
    if (options.check is None) == (not options.device):
        raise UsageError("expected a check: --check COMMAND, or -d REFERENCE -d DEVICE to compare the outputs of two devices")
    if options.check is not None:
        if options.input or options.shape or options.config:
            raise UsageError("-c, -i and --shape have a meaning only with -d")
        command = shlex.split(options.check)
        if not command:
            raise UsageError("--check is empty; expected a command, as in --check 'hetero run {} -d CPU --random'")
        return command
    if len(options.device) != 2:
        raise UsageError(f"expected two devices, as in -d TEMPLATE -d CPU; got {len(options.device)}")
    pairs = [("-d", device) for device in options.device] + [("-c", each) for each in options.config]
    pairs += [("-i", each) for each in options.input] + [("--shape", each) for each in options.shape]
    words = [word for pair in pairs for word in pair]
    return ["hetero", "compare", PLACE, "--outputs", *words, "--seed", str(options.seed)]


class Checker:
    """Runs the check on models. A check by `hetero` runs in a process that stays, and starts anew after a crash or the timeout."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        """`timeout` is in seconds; after it a check counts as passed."""
        self._command = command
        self._timeout = timeout
        self._link: Connection[Any, Any] | None = None

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._link is not None:
            self._link.close()
            self._process.join(_END_SECONDS)
            self._process.kill()
            self._link = None

    def __call__(self, path: str) -> int:
        """Returns the exit code of the check, or of its crash; 0 after the timeout. Raises: UsageError if it cannot be started."""
        command = self._command if any(PLACE in piece for piece in self._command) else [*self._command, PLACE]
        words = [piece.replace(PLACE, path) for piece in command]
        if words[0] == "hetero":
            return self._ask(words[1:])
        try:
            ended = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=self._timeout, check=False)
        except subprocess.TimeoutExpired:
            return 0
        except OSError as error:
            raise UsageError(f"--check: cannot start '{words[0]}': {error.strerror}") from error
        return ended.returncode

    def _ask(self, words: Sequence[str]) -> int:
        import multiprocessing  # slow to import

        if self._link is None:
            context = multiprocessing.get_context("spawn")
            self._link, other = context.Pipe()
            self._process = context.Process(target=_serve_checks, args=(other,))
            self._process.start()
            other.close()
        self._link.send(words)
        try:
            if self._link.poll(self._timeout):
                return int(self._link.recv())
            self._process.kill()
            code = 0
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode or 0
        self.__exit__()
        return code


def _serve_checks(link: Connection[Any, Any]) -> None:
    """Runs the commands that come over the link, in silence, and sends back their codes."""
    from hetero_core.cli.main import main

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    with contextlib.suppress(EOFError):
        while True:
            link.send(main(link.recv()))
