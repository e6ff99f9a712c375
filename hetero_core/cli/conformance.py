"""`hetero conformance`: runs the checks of the conformance kit on a device, without pytest."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError, follow, format_table
from hetero_core.cli.options import Parser, add_repeated, read_config, whole_number, write_target

if TYPE_CHECKING:
    from hetero_core.conformance.check import Check
    from hetero_core.conformance.runner import Outcome, Target

SHOWN_FAILURES = 40


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="for example CPU, GPU.1 or HETERO:GPU,CPU")
    add_repeated(parser, "--level", metavar="LEVEL", help="only checks of this level; may be repeated (default: all)")
    add_repeated(parser, "--check", metavar="GLOB", help="only checks whose names match, as 'cancel.*'; may be repeated")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of random inputs and cuts (default 0)")
    parser.add_argument(
        "--cases",
        type=whole_number(1),
        metavar="N",
        help="how many graphs the level graphs draws, from --seed on (default 30)",
    )
    parser.add_argument("--reference", metavar="DEVICE", help="the other device in the level hetero (default TEMPLATE, or CPU)")
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the device; may be repeated")
    parser.add_argument("--html", metavar="FILE", help="write the report, with the support matrix, as an HTML page")
    parser.add_argument("--markdown", metavar="FILE", help="write it as Markdown")
    parser.add_argument("--matrix", metavar="FILE", help="write operators by versions and element types as one Markdown page")
    parser.add_argument("--badge", metavar="FILE", help="write the JSON of a badge, as shields.io reads it from an endpoint")
    parser.add_argument("--list", action="store_true", help="list the checks and run none")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help=f"show the skipped checks, and all failures, not only {SHOWN_FAILURES}"
    )


def answer(options: argparse.Namespace) -> Answer:
    """Returns the report; exit code 1 if a check failed."""
    from hetero_core.conformance.catalogue import UnknownCheckError, choose_checks  # import the checks, and onnx
    from hetero_core.conformance.runner import make_target, run_checks

    try:
        checks = choose_checks(options.level, options.check, cases=options.cases)
    except UnknownCheckError as error:
        raise UsageError(str(error)) from error
    if options.list:
        return _list_checks(checks)
    if options.device is None:
        raise UsageError("give the device that is to be checked, as in 'hetero conformance CPU'; --list names the checks")
    if options.matrix is not None and all(check.level != "operators" for check in checks):
        raise UsageError("--matrix needs checks of the level operators; leave --level and --check out, or add '--level operators'")
    target = make_target(options.device, seed=options.seed, reference=options.reference, config=_read_config(options))
    outcomes: list[Outcome] = []
    # The checks import their own blobs with trust and without it; the warnings would fill the report.
    logging.getLogger("hetero_core.blobs.trust").setLevel(logging.ERROR)
    with follow(options)(f"checking {options.device}") as show:
        for outcome in run_checks(checks, target):
            outcomes.append(outcome)
            show(f"checking {options.device}: {len(outcomes)} of {len(checks)} checks are done")
    return _answer_outcomes(target, outcomes, options)


def _read_config(options: argparse.Namespace) -> dict[str, str]:
    """Returns the -c options. Raises: UsageError for a device that is composed of several."""
    config = read_config(options)
    if config and ":" in options.device:
        raise UsageError(f"-c configures one device, and '{options.device}' is composed of several; check them one by one")
    return config


def _list_checks(checks: Sequence[Check]) -> Answer:
    written = [check for check in checks if check.level not in ("operators", "contrib", "hetero") or check.summary]
    rows = [(check.name, check.level, check.summary) for check in written]
    fields = {"checks": [{"name": check.name, "level": check.level, "needs": check.needs} for check in checks]}
    return Answer(format_table(("CHECK", "LEVEL", "CLAIM"), rows), fields)


def _answer_outcomes(target: Target, outcomes: Sequence[Outcome], options: argparse.Namespace) -> Answer:
    from hetero_core.conformance.report import describe_badge, format_matrix, report_to_html, report_to_json, report_to_markdown

    with target.make_core() as core:
        report = report_to_json(target, outcomes, core.get_versions(target.device))
    pages: tuple[tuple[str | None, Callable[[dict[str, Any]], str]], ...] = (
        (options.html, report_to_html),
        (options.markdown, report_to_markdown),
        (options.matrix, format_matrix),
        (options.badge, lambda report: json.dumps(describe_badge(report)) + "\n"),
    )
    for path, write in pages:
        if path is not None:
            write_target(Path(path), write(report).encode())
    return Answer(_describe(report, options), report, WRONG_RESULT if report["checks"]["failed"] else OK)


def _describe(report: Mapping[str, Any], options: argparse.Namespace) -> str:
    from hetero_core.conformance.report import describe_operators

    rows = [(level, *(str(count) for count in counts.values())) for level, counts in report["levels"].items()]
    parts = [f"{report['device']}, seed {report['seed']}", format_table(("LEVEL", "PASSED", "FAILED", "SKIPPED"), rows)]
    if report["operators"] is not None:
        parts.append(describe_operators(report["operators"]))
    failures = report["failures"]
    if failures:
        shown = failures if options.verbose else failures[:SHOWN_FAILURES]
        rest = f"\n... and {len(failures) - len(shown)} more; -v shows all" if len(failures) > len(shown) else ""
        parts.append(
            format_table(("FAILED", "REASON"), [(outcome["name"], _shorten(outcome["reason"])) for outcome in shown]) + rest
        )
    if report["skips"] and not options.verbose:
        parts.append(f"{len(report['skips'])} checks were skipped; -v shows them with the reasons")
    elif report["skips"]:
        parts.append(format_table(("SKIPPED", "REASON"), [(outcome["name"], outcome["reason"]) for outcome in report["skips"]]))
    return "\n\n".join(parts)


def _shorten(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= 400 else f"{line[:400]} ..."
