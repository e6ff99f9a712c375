"""`hetero doctor`: checks the installed packages and the libraries that they load, and names the cure of each fault."""

from __future__ import annotations

import argparse
import os

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, follow
from hetero_core.cli.options import Parser
from hetero_core.core import Core


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""


def answer(options: argparse.Namespace) -> Answer:
    """Returns all findings; the exit code is 1 if a finding needs a cure."""
    from hetero_core.devices.processors import count_affinity, count_processors, grants_flag, read_processor_flags
    from hetero_core.diagnosis.folders import check_code_folders, read_code_folders
    from hetero_core.diagnosis.hardware import check_gpu, check_threads, find_cuda_fault, read_driver
    from hetero_core.diagnosis.libraries import check_blas, check_libraries, read_blas, read_libraries
    from hetero_core.diagnosis.packages import check_devices, check_distributions, list_distributions

    with Core() as core, follow(options)("making the devices and looking at their libraries"):
        findings = check_devices(core.list_devices())
        # Read while the engines that work are loaded.
        findings += check_distributions(list_distributions())
        findings += check_libraries(read_libraries())
        findings += check_blas(read_blas(), tuple(filter(grants_flag, read_processor_flags())), os.environ)
        findings += check_code_folders(read_code_folders(core))
    findings += check_threads(os.environ, affinity=count_affinity(), processors=count_processors())
    findings += check_gpu(read_driver(), find_cuda_fault())
    lines: list[str] = []
    for topic in dict.fromkeys(finding.topic for finding in findings):
        lines.append(topic)
        for finding in findings:
            if finding.topic == topic:
                lines.append(f"  {'!' if finding.cure else '-'} {finding.text}")
                lines += [f"    cure: {finding.cure}"] if finding.cure else []
    count = sum(bool(finding.cure) for finding in findings)
    lines.append("nothing needs a cure" if count == 0 else f"{count} of {len(findings)} findings need a cure")
    rows = [{"topic": finding.topic, "text": finding.text, "cure": finding.cure or None} for finding in findings]
    return Answer("\n".join(lines), {"findings": rows, "cures": count}, WRONG_RESULT if count else OK)
