"""Counts runs of onnx's reference evaluator by a device under test, whose kernels are then not native."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ReferenceRuns:
    """Counts the runs of the evaluator and of its operators."""

    count: int = 0


@contextmanager
def count_reference_runs() -> Iterator[ReferenceRuns]:
    """Counts the runs of onnx's reference evaluator in this process, in all threads.

    It wraps methods of onnx while counting, because a device's own claim does not prove that its kernels are native.
    """
    from onnx.reference import ReferenceEvaluator  # heavy
    from onnx.reference.op_run import OpRun

    counted = ReferenceRuns()
    # Groups of operators override `run`, so every override is wrapped.
    original_runs = {owner: owner.run for owner in (ReferenceEvaluator, *_list_owners(OpRun))}

    def watch(run: Any) -> Any:
        def run_counted(*arguments: Any, **keywords: Any) -> Any:
            counted.count += 1
            return run(*arguments, **keywords)

        return run_counted

    for owner, run in original_runs.items():
        owner.run = watch(run)
    try:
        yield counted
    finally:
        for owner, run in original_runs.items():
            owner.run = run


def _list_owners(base: type) -> list[Any]:
    """Returns the class and its subclasses that define `run`."""
    children: list[type] = base.__subclasses__()
    derived = [owner for child in children for owner in _list_owners(child)]
    return list(dict.fromkeys([*([base] if "run" in vars(base) else []), *derived]))
