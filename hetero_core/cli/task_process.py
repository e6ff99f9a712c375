"""A task for a process of its own: FOLDER/task.json says what to do, FOLDER/answer.json what came of it or, under `error`, what failed.

One process at a time measures, so that no engine's threads disturb another's. `hetero bench` and the benchmarks of the repository share
the format and this side of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hetero_core.cli.answer import BUG

Answer = dict[str, Any]
Party = TypeVar("Party")


def run_task(
    arguments: Sequence[str], task: Mapping[str, Any], *, folder: Path, environment: Mapping[str, str], who: str
) -> Answer:
    """Returns the answer of a new interpreter, called with the arguments and the folder, or an error that tells how it ended."""
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    command = [sys.executable, *arguments, str(folder)]
    ended = subprocess.run(command, env=dict(environment), stdin=subprocess.DEVNULL, check=False)
    try:
        answer: Answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = f"the process that ran {who} ended {_describe_end(ended.returncode)} and said nothing"
        return {"error": {"type": "ProcessError", "message": message, "exit_code": BUG, "notes": []}}
    return answer


def take_turns(parties: Sequence[Party], turn: int) -> list[Party]:
    """Returns them in order, and in every other round back: what the machine gains or loses over time is shared out evenly."""
    return list(parties) if turn % 2 == 0 else list(reversed(parties))


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    names = {member.value: member.name for member in signal.Signals}
    return f"by signal {-code} ({names.get(-code, 'unknown')})"
