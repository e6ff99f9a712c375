"""Prints the numbers of models, packages and comparisons, and the times of applications."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    from sessions import TALLY, TIMES

    terminalreporter.write_line(
        f"{len(TALLY.models)} models of {len(TALLY.packages)} packages ({', '.join(sorted(TALLY.packages))}): {TALLY.comparisons} outputs "
        f"compared with ONNX Runtime, {TALLY.after_machine_code} of them after machine code had taken over"
    )
    for line in TIMES:
        terminalreporter.write_line(line)
