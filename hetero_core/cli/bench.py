"""`hetero bench`: times a model on one or several devices, side by side; each device in a process of its own."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import INTERRUPTED, OK, Answer, UsageError
from hetero_core.cli.named_models import open_named_model
from hetero_core.cli.options import (
    Parser,
    add_command,
    add_input_options,
    add_pin_options,
    add_repeated,
    find_target,
    read_config,
    read_pins,
    read_shapes,
    whole_number,
    write_target,
)
from hetero_core.cli.progress import follow
from hetero_core.errors import suggest

if TYPE_CHECKING:
    from hetero_core.cli.bench_rounds import Bench
    from hetero_core.cli.measurement import BenchTask

_SECONDS = 1.0
_ROUNDS = 3
_WARMUP = 5


def add_parser(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    parser = add_command(subparsers, "bench", "time a model on one or several devices, side by side", answer_bench)
    parser.add_argument("model", metavar="MODEL_OR_BLOB", help="an .onnx file, what 'hetero compile' wrote, or a name as resnet50")
    parser.add_argument(
        "-d",
        "--device",
        required=True,
        action="append",
        metavar="DEVICE",
        help="for example CPU, GPU.1 or HETERO:GPU,CPU; may be repeated, the outputs of the others are compared with those of the first",
    )
    add_repeated(
        parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key, for those devices that have it; may be repeated"
    )
    add_pin_options(parser)
    _add_timing_options(parser)
    add_input_options(parser)


def _add_timing_options(parser: Parser) -> None:
    timing = parser.add_argument_group("timing")
    length = timing.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=_read_seconds, metavar="S", help=f"how long each device is timed in each round ({_SECONDS:g})"
    )
    length.add_argument("--iterations", type=whole_number(1), metavar="N", help="how often each device runs in each round")
    timing.add_argument(
        "--rounds", type=whole_number(1), default=_ROUNDS, metavar="N", help=f"how often the devices take turns ({_ROUNDS})"
    )
    timing.add_argument(
        "--warmup", type=whole_number(0), default=_WARMUP, metavar="N", help=f"runs of each request that are not timed ({_WARMUP})"
    )
    timing.add_argument(
        "--api", choices=("sync", "async"), help="one request that runs again and again, or a queue of requests (sync)"
    )
    timing.add_argument(
        "--requests",
        type=whole_number(1),
        metavar="N",
        help="the number of requests in the queue, for --api async (what the device recommends)",
    )
    timing.add_argument(
        "--trace", metavar="FILE", help="write a trace of a few more runs with PERF_COUNT, which are not timed, for ui.perfetto.dev"
    )


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return seconds


def answer_bench(options: argparse.Namespace) -> Answer:
    """Returns a row for each device; the exit code is that of the worst error, 130 after an interrupt.

    Raises: UsageError; the error of the devices where all fail with the same words.
    """
    from hetero_core.cli.bench_rounds import Bench, clear_environment, count_processors
    from hetero_core.cli.bench_summary import find_common_error, format_rows, summarize
    from hetero_core.reports.trace import format_events

    target = None if options.trace is None else find_target(options.trace)
    environment, cleared = clear_environment(os.environ)
    with open_named_model(options.model) as path:
        bench = Bench(_list_tasks(options, path), environment, follow(options))
        bench.run_rounds(options.rounds, _require_useful_options)
        events = None if target is None or bench.is_interrupted else bench.trace()
    rows = summarize(bench, options.device)
    error = find_common_error(rows)
    if error is not None:
        raise error
    if bench.is_interrupted and not any(row["runs"] for row in rows):
        raise KeyboardInterrupt
    fields: dict[str, Any] = {
        "model": options.model,
        "network": next((outcome["network"] for rounds in bench.rounds for outcome in rounds), None),
        "api": _find_api(options),
        "warmup": options.warmup,
        "processors": count_processors(),
        "interrupted": bench.is_interrupted,
        "cleared_environment": cleared,
        "devices": rows,
    }
    text = f"{_describe(options, fields)}\n\n{format_rows(rows)}"
    if target is not None and events is not None:
        write_target(target, format_events(events).encode())
        fields["trace"] = str(target)
        text += f"\n\nwrote '{target}': a trace of a few more runs of each device with PERF_COUNT, which are not in the times above"
    remarks = _list_remarks(rows, cleared, is_interrupted=bench.is_interrupted)
    return Answer(text, fields, _find_exit_code(rows, bench), remarks)


def _find_api(options: argparse.Namespace) -> str:
    """Raises: UsageError for requests without a queue."""
    if options.requests is not None and options.api == "sync":
        raise UsageError("--requests has a meaning only with --api async; leave one of them out")
    return "async" if options.requests is not None else options.api or "sync"


def _list_tasks(options: argparse.Namespace, path: str) -> list[BenchTask]:
    from hetero_core.cli.measurement import BenchTask

    is_async = _find_api(options) == "async"
    config, shapes, pins = read_config(options), read_shapes(options.shape), read_pins(options)
    return [
        BenchTask(
            model=path,
            device=device,
            config=config,
            pins=pins,
            is_shared=len(options.device) > 1,
            inputs=tuple(options.input),
            shapes=shapes,
            seed=options.seed,
            warmup=options.warmup,
            requests=(options.requests or 0) if is_async else None,
            seconds=_SECONDS if options.seconds is None and options.iterations is None else options.seconds,
            iterations=options.iterations,
        )
        for device in options.device
    ]


def _require_useful_options(bench: Bench) -> None:
    _require_known_keys(bench)
    _require_useful_pins(bench)


def _require_known_keys(bench: Bench) -> None:
    """Raises: UsageError for a key that none of the devices has; one device alone says so itself."""
    answers = [rounds[0] for rounds in bench.rounds if rounds]
    if not answers or bench.errors:
        return
    known = {key for answer in answers for key in answer["config_keys"]}
    for name in answers[0]["left_out"]:
        if all(name in answer["left_out"] for answer in answers):
            devices = ", ".join(answer["device"] for answer in answers)
            raise UsageError(
                f"-c {name}: none of the devices {devices} has such a configuration key{suggest(name.upper(), known) or ';'} "
                "'hetero devices --verbose' lists them"
            )


def _require_useful_pins(bench: Bench) -> None:
    """Raises: UsageError for pins where none of several devices splits networks; one device alone says so itself."""
    answers = [rounds[0] for rounds in bench.rounds if rounds]
    if answers and all(answer["ignores_pins"] for answer in answers):
        devices = ", ".join(answer["device"] for answer in answers)
        raise UsageError(f"--pin and --affinity need a device that splits networks, as HETERO:GPU,CPU does; none of {devices} does")


def _describe(options: argparse.Namespace, fields: Mapping[str, Any]) -> str:
    seconds = _SECONDS if options.seconds is None else options.seconds
    length = f"{seconds:g} s" if options.iterations is None else f"{options.iterations} runs"
    how = "one request after another" if fields["api"] == "sync" else _describe_queues(fields["devices"])
    return f"network '{fields['network']}': {options.rounds} round{'s' if options.rounds > 1 else ''} of {length} for each device, {how}"


def _describe_queues(rows: Sequence[Mapping[str, Any]]) -> str:
    sizes = list(dict.fromkeys(row["requests"] for row in rows if row["runs"]))
    if len(sizes) == 1:
        return f"a queue of {sizes[0]} request{'s' if sizes[0] > 1 else ''}"
    return "queues of " + ", ".join(f"{row['requests']} on {row['device']}" for row in rows if row["runs"]) + " requests"


def _list_remarks(rows: Sequence[Mapping[str, Any]], cleared: Sequence[str], *, is_interrupted: bool) -> tuple[str, ...]:
    remarks = []
    if cleared:
        remarks.append(f"not passed on, since they choose other kernels than this machine's: {', '.join(cleared)}")
    remarks += [
        f"{row['device']} has no configuration key {name} and ran without" for row in rows for name in row.get("left_out", ())
    ]
    remarks += [f"{row['device']} splits no networks and ran without pins" for row in rows if row.get("ignores_pins")]
    if is_interrupted:
        remarks.append("interrupted; the table has what was measured until then")
    return tuple(remarks)


def _find_exit_code(rows: Sequence[Mapping[str, Any]], bench: Bench) -> int:
    if bench.is_interrupted:
        return INTERRUPTED
    return max((row["error"]["exit_code"] for row in rows if row["error"] is not None), default=OK)
