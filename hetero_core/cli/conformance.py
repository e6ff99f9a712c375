"""`hetero conformance`: runs the checks of the conformance kit on a device, without pytest."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import INTERRUPTED, NO_DEVICE, OK, WRONG_RESULT, Answer, UsageError, count_up, format_table
from hetero_core.cli.options import Parser, add_repeated, read_config, read_seconds, whole_number, write_target

if TYPE_CHECKING:
    from hetero_core.conformance.runner import CheckProcesses, Outcome

SHOWN_FAILURES = 40
SHOWN_REASONS = 10
SHOWN_OPERATORS = 8


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="for example CPU, GPU.1 or HETERO:GPU,CPU")
    add_repeated(parser, "--level", metavar="LEVEL", help="only checks of this level; may be repeated (default: all)")
    add_repeated(parser, "--check", metavar="GLOB", help="only checks whose names match, as 'cancel.*'; may be repeated")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of random inputs and cuts (default 0)")
    text = "how many graphs the level graphs draws, from --seed on (default 30)"
    parser.add_argument("--cases", type=whole_number(1), metavar="N", help=text)
    parser.add_argument("--reference", metavar="DEVICE", help="the other device in the level hetero (default TEMPLATE, or CPU)")
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the device; may be repeated")
    parser.add_argument("--html", metavar="FILE", help="write the report, with the support matrix, as an HTML page")
    parser.add_argument("--markdown", metavar="FILE", help="write it as Markdown")
    parser.add_argument("--matrix", metavar="FILE", help="write operators by versions and element types as one Markdown page")
    parser.add_argument("--badge", metavar="FILE", help="write the JSON of a badge, as shields.io reads it from an endpoint")
    parser.add_argument("--list", action="store_true", help="list the checks and run none")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="end the run after the first failure")
    text = "the time limit of a check (default 60); a device that hangs fails it, with the stacks of all threads"
    parser.add_argument("--timeout", type=read_seconds, default=60.0, metavar="SECONDS", help=text)
    text = f"show every failure, not only the first {SHOWN_FAILURES}, every skipped check and refused operator"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the report; exit code 1 if a check failed, 130 if the run was interrupted."""
    from hetero_core.conformance.report import report_to_json
    from hetero_core.conformance.runner import CheckProcesses, Order  # imports the checks, and onnx

    if options.list:
        return _list_checks(options)
    if options.device is None:
        raise UsageError("give the device that is to be checked, as in 'hetero conformance CPU'; --list names the checks")
    config = read_config(options)
    if config and ":" in options.device:
        raise UsageError(f"-c configures one device, and '{options.device}' is composed of several; check them one by one")
    chosen = {"levels": tuple(options.level), "patterns": tuple(options.check), "seed": options.seed, "cases": options.cases}
    order = Order(device=options.device, reference=options.reference, config=config, limit=options.timeout, **chosen)
    with CheckProcesses(order) as processes:
        if options.matrix is not None and all(check.level != "operators" for check in processes.checks):
            advice = "leave --level and --check out, or add '--level operators'"
            raise UsageError(f"--matrix needs checks of the level operators; {advice}")
        outcomes, is_interrupted = _run(processes, options)
    not_run = len({check.name for check in processes.checks} - {outcome.check.name for outcome in outcomes})
    report = report_to_json(processes.subject, outcomes, processes.versions, not_run=not_run)
    _write_pages(report, options)
    code = INTERRUPTED if is_interrupted else WRONG_RESULT if report["checks"]["failed"] else OK
    return Answer(_describe(report, options), report, code if processes.opening is None else NO_DEVICE)


def _run(processes: CheckProcesses, options: argparse.Namespace) -> tuple[list[Outcome], bool]:
    """Runs the checks and prints failures as they happen; returns the outcomes, and whether Ctrl-C ended the run."""
    outcomes: list[Outcome] = []
    with count_up(options, f"checking {options.device}", total=len(processes.checks), done=0) as advance:
        try:
            for outcome in processes.run_checks():
                outcomes.append(outcome)
                advance()
                if outcome.status == "failed" and not options.json:
                    lines = [f"    {line}" for line in (outcome.trace or "").splitlines()]
                    print("\n".join([f"FAILED {outcome.check.name}: {outcome.reason}", *lines]), file=sys.stderr, flush=True)
                if outcome.status == "failed" and options.exitfirst:
                    break
        except KeyboardInterrupt:
            return outcomes, True
    return outcomes, False


def _list_checks(options: argparse.Namespace) -> Answer:
    from hetero_core.conformance.catalogue import choose_checks  # imports the checks, and onnx

    checks = choose_checks(options.level, options.check, cases=options.cases)
    written = [check for check in checks if check.level not in ("operators", "contrib", "hetero") or check.summary]
    rows = [(check.name, check.level, check.summary) for check in written]
    fields = {"checks": [{"name": check.name, "level": check.level, "needs": check.needs} for check in checks]}
    return Answer(format_table(("CHECK", "LEVEL", "CLAIM"), rows), fields)


def _write_pages(report: dict[str, Any], options: argparse.Namespace) -> None:
    from hetero_core.conformance.report import describe_badge, format_matrix, report_to_html, report_to_markdown

    pages: tuple[tuple[str | None, Callable[[dict[str, Any]], str]], ...] = (
        (options.html, report_to_html),
        (options.markdown, report_to_markdown),
        (options.matrix, format_matrix),
        (options.badge, lambda report: json.dumps(describe_badge(report)) + "\n"),
    )
    for path, write in pages:
        if path is not None:
            write_target(Path(path), write(report).encode())


def _describe(report: Mapping[str, Any], options: argparse.Namespace) -> str:
    from hetero_core.conformance.report import describe_not_run, describe_operators, describe_refusals

    rows = [(level, *(str(count) for count in counts.values())) for level, counts in report["levels"].items()]
    parts = [f"{report['device']}, seed {report['seed']}", format_table(("LEVEL", "PASSED", "FAILED", "SKIPPED"), rows)]
    parts += [describe_not_run(report)] if report["not_run"] else []
    parts += [] if report["operators"] is None else [describe_operators(report["operators"])]
    refused = describe_refusals(report, len(report["matrix"]) if options.verbose else SHOWN_OPERATORS)
    parts += [f"{refused} --matrix FILE lists cases and reasons."] if refused else []
    failures = report["failures"]
    if failures:
        shown = failures if options.verbose else failures[:SHOWN_FAILURES]
        rest = f"\n... and {len(failures) - len(shown)} more; -v shows all" if len(failures) > len(shown) else ""
        parts.append(format_table(("FAILED", "REASON"), [(each["name"], _shorten(each["reason"])) for each in shown]) + rest)
    parts += [_list_skips(report["skips"], options)] if report["skips"] else []
    return "\n\n".join(parts)


def _list_skips(skips: Sequence[Mapping[str, str]], options: argparse.Namespace) -> str:
    """Returns the skipped checks with -v, else the number of skipped checks for each reason, the commonest first."""
    if options.verbose:
        return format_table(("SKIPPED", "REASON"), [(outcome["name"], outcome["reason"]) for outcome in skips])
    counts = Counter((outcome["level"], outcome["reason"]) for outcome in skips).most_common()
    rows = [(f"{count} of {level}", _shorten(reason)) for (level, reason), count in counts[:SHOWN_REASONS]]
    rest = f"\n... and {len(counts) - len(rows)} more reasons" if len(counts) > len(rows) else ""
    return format_table(("SKIPPED", "REASON"), rows) + f"{rest}\n-v lists each skipped check."


def _shorten(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= 400 else f"{line[:400]} ..."
