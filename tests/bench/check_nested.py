"""Runs levels of the conformance kit on devices made of devices, each nested in others; ends with 1 where a check fails.

    python tests/bench/check_nested.py [DEVICE ...] [--level contract --level concurrency ...]

Every one of HETERO, MULTI, AUTO and BATCH stands around another one, and inside another one. A device takes minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from time import perf_counter

DEVICES = (
    "HETERO:(MULTI:TEMPLATE,CPU),CPU",
    "MULTI:(HETERO:TEMPLATE,CPU),CPU",
    "AUTO:(HETERO:TEMPLATE,CPU),CPU",
    "BATCH:(MULTI:TEMPLATE,CPU)(4)",
    "HETERO:(BATCH:CPU(4)),TEMPLATE",
    "MULTI:(AUTO:CPU),TEMPLATE",
    "AUTO:(MULTI:(BATCH:CPU(2)),TEMPLATE),CPU",
    "HETERO:(AUTO:(MULTI:TEMPLATE(2),CPU(2)),CPU),CPU",
)
LEVELS = ("contract", "concurrency", "export", "models")


def check(device: str, levels: list[str]) -> tuple[dict[str, int], list[str]]:
    """Returns how many checks passed, failed and were skipped, and the names and reasons of those that failed."""
    asked = [piece for level in levels for piece in ("--level", level)]
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_core", "conformance", device, *asked, "--json"], capture_output=True, text=True, check=False
    )
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        return {"passed": 0, "failed": 1, "skipped": 0}, [(ended.stderr or ended.stdout)[-400:]]
    if "error" in report:
        return {"passed": 0, "failed": 1, "skipped": 0}, [str(report["error"]["message"])]
    return report["checks"], [f"{one['name']}: {' '.join(one['reason'].split())[:300]}" for one in report["failures"]]


def main() -> int:
    """Prints a row for each device as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="*", metavar="DEVICE", help=f"all by default: {' '.join(DEVICES)}")
    parser.add_argument("--level", action="append", choices=LEVELS)
    options = parser.parse_args()
    failed = 0
    print("| device | passed | failed | skipped | seconds |\n|---|---|---|---|---|")
    for device in options.devices or DEVICES:
        began = perf_counter()
        counts, failures = check(device, options.level or list(LEVELS))
        failed += counts["failed"]
        print(
            f"| `{device}` | {counts['passed']} | {counts['failed']} | {counts['skipped']} | {perf_counter() - began:.0f} |",
            flush=True,
        )
        for failure in failures:
            print(f"  {failure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
