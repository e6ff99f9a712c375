"""Verification of plans: a run is computed a second time by the toolkit, node by node and without a plan, and the answers compared.

What a run does with a plan that nobody has verified:

    inputs ── copied ──> toolkit, node by node ──> expected ─┐
       └──> plan ──> outputs, inputs as they are now ────────┴─> agree? ── yes ──> outputs; the plan is noted as right
                                                                   │ no
                 outputs <── yes ── do other roundings differ as much? ── no ──> expected, and a warning

The toolkit comes first: a plan may write into arrays of the caller that are inputs as well. What changes between two runs (states, times,
outputs that the caller has set) sees the run of the plan alone.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import RunContext
from hetero_core.errors import RequestCancelledError, WrongPlanWarning
from hetero_core.records import record
from hetero_cpu.planning.instance import WrongTypeError

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_cpu.deviation import Deviation

logger = logging.getLogger(__name__)

Outputs = tuple[Any, ...]
MOST_ROUNDINGS = 6
"""Runs of the toolkit with other roundings, before a deviation counts as a fault."""


@record(frozen=True, slots=True)
class Verdict:
    """The answer of a run that was computed twice. `fault` says why the plan is wrong, and is empty for one that may be used.

    `is_lasting`: nor need other processes verify the plan. `error` is what the run ends with in place of outputs.
    """

    outputs: Outputs = ()
    is_lasting: bool = False
    fault: str = ""
    error: Exception | None = None


class Verifier:
    """Verifies the plans of one network, and counts what that takes. Safe for threads: runs at the same time verify for themselves."""

    def __init__(self, name: str, outputs: Sequence[str], *, inputs: Sequence[str]) -> None:
        """`name` is the network's, for messages."""
        self.name, self._inputs, self._outputs = name, inputs, outputs
        self._lock = threading.Lock()
        self.plans = 0
        """The plans that were found right."""
        self.seconds = 0.0
        """The seconds that verifying took, in all, beside the runs of the plans."""
        self.has_refuted = False
        """Whether a plan gave a wrong answer."""

    def run(
        self,
        inputs: tuple[Any, ...],
        context: RunContext,
        run_plan: Callable[[], Outputs],
        program: Program,
        answer: Outputs | None = None,
    ) -> Verdict:
        """Returns the answer: of the plan where it is right, else of the toolkit, which runs `program`; `answer` where it has run already.

        Raises: RequestCancelledError, WrongTypeError, and what the plan raises where the toolkit fails, too.
        """
        began = perf_counter()
        if is_random(program):
            logger.info("network '%s' has random operators: its plans cannot be verified", self.name)
            return Verdict(run_plan(), is_lasting=True)
        originals = tuple(_copy(value) for value in inputs)
        expected: Outputs | Exception
        try:
            expected = answer or program.run(originals, is_cancelled=context.cancelled, limits=context.limits)
        except RequestCancelledError:
            raise
        except MemoryError as error:
            logger.warning("network '%s': a plan is not verified, there is no room for it: %s", self.name, error)
            return Verdict(run_plan())
        except Exception as error:  # noqa: BLE001  # a kernel may raise anything; the plan has to, too
            expected = error
        plan_began = perf_counter()
        outputs = _run_plan(run_plan, expected)
        plan_seconds = perf_counter() - plan_began
        fault = self._find_fault(outputs, expected, inputs, originals, context, program)
        with self._lock:
            self.seconds += perf_counter() - began - plan_seconds
            self.plans += not fault
            self.has_refuted |= bool(fault)
        if not fault:
            assert isinstance(outputs, tuple)
            return Verdict(outputs, is_lasting=True)
        if isinstance(expected, Exception):
            return Verdict(fault=fault, error=expected)
        return Verdict(expected, fault=fault)

    def warn(self, fault: str) -> None:
        """Warns that a plan is not used any more: WrongPlanWarning."""
        warnings.warn(
            f"network '{self.name}' on CPU: a plan gave another answer than the toolkit: {fault}. The network goes on node by node, "
            "which is right and slower. Please report it with the smallest model that shows it, as found by "
            "`hetero reduce MODEL.onnx -d TEMPLATE -d CPU -c CPU_KERNELS=JIT -o SMALL.onnx`, and with "
            f"{_list_versions()}",
            WrongPlanWarning,
            stacklevel=2,
        )

    def _find_fault(
        self,
        outputs: Outputs | Exception,
        expected: Outputs | Exception,
        inputs: tuple[Any, ...],
        originals: tuple[Any, ...],
        context: RunContext,
        program: Program,
    ) -> str:
        """Returns what is wrong with the outputs of a plan; nothing where they are right."""
        if isinstance(expected, Exception):
            return f"the toolkit raises {type(expected).__name__}: {expected}"
        if isinstance(outputs, Exception):
            return f"the plan raises {type(outputs).__name__}: {outputs}"
        from hetero_cpu.deviation import is_near, measure_deviation  # most loads compare nothing

        written = self._find_written(inputs, originals, context)
        if written is not None:
            return written
        if all(is_near(actual, right) for actual, right in zip(outputs, expected, strict=True)):
            return ""
        deviations = [measure_deviation(actual, right) for actual, right in zip(outputs, expected, strict=True)]
        if all(not deviation.wrong for deviation in deviations):
            return ""
        return self._find_unexplained(deviations, expected, program, originals, context)

    def _find_unexplained(
        self, deviations: Sequence[Deviation], expected: Outputs, program: Program, originals: tuple[Any, ...], context: RunContext
    ) -> str:
        """Returns the first deviation that runs with other roundings do not have as well; nothing where they explain all."""
        from hetero_cpu.deviation import FACTOR, NONE, is_explained, measure_deviation  # as above
        from hetero_cpu.rounding import blur_program

        spreads: list[list[Deviation]] = [[NONE] for _ in expected]
        for seed in range(MOST_ROUNDINGS):
            try:
                blurred = blur_program(program, seed).run(originals, is_cancelled=context.cancelled, limits=context.limits)
            except RequestCancelledError:
                raise
            except Exception as error:  # noqa: BLE001  # other roundings may lead where a kernel refuses, and explain nothing then
                logger.info("network '%s' fails with other roundings: %s", self.name, error)
                continue
            for spread, other, right in zip(spreads, blurred, expected, strict=True):
                spread.append(measure_deviation(other, right, share=1 / FACTOR))
            if all(is_explained(deviation, spread) for deviation, spread in zip(deviations, spreads, strict=True)):
                logger.info("network '%s': what a plan differs by is rounding; its answers depend on the last digits", self.name)
                return ""
        for name, deviation, spread in zip(self._outputs, deviations, spreads, strict=True):
            if not is_explained(deviation, spread):
                return f"output '{name}': {deviation.text}"
        return ""

    def _find_written(self, inputs: tuple[Any, ...], originals: tuple[Any, ...], context: RunContext) -> str | None:
        """Returns the input that a plan has written, which gets its elements back; None where there is none.

        An array that is an output as well, because the caller has set it so, is written by right.
        """
        presets = [array for array in context.outputs or () if isinstance(array, np.ndarray)]
        for name, value, original in zip(self._inputs, inputs, originals, strict=True):
            if not isinstance(value, np.ndarray) or value.dtype.hasobject or _has_same_bytes(value, original):
                continue
            if any(np.may_share_memory(value, preset) for preset in presets):
                continue
            if value.flags.writeable:
                value[...] = original
            return f"input '{name}' was written"
        return None


def is_random(program: Program) -> bool:
    """Says whether two runs of a program may differ: an operator of it, or of a body, is random."""
    from hetero_core.transforms.constants import RANDOM_OPERATORS  # as above

    return any(
        (not step.node.domain and step.node.op_type in RANDOM_OPERATORS) or any(is_random(body.program) for body in step.bodies)
        for step in program.steps
    )


def _run_plan(run_plan: Callable[[], Outputs], expected: Outputs | Exception) -> Outputs | Exception:
    """Returns the outputs, or the error that the toolkit did not end with."""
    try:
        return run_plan()
    except (MemoryError, RequestCancelledError, WrongTypeError):
        raise
    except Exception as error:
        if isinstance(expected, Exception):
            raise
        return error


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _has_same_bytes(value: np.ndarray[Any, Any], original: np.ndarray[Any, Any]) -> bool:
    # Bytes, since what is no number equals nothing.
    return bool(np.array_equal(np.atleast_1d(value).view(np.uint8), np.atleast_1d(original).view(np.uint8)))


def _list_versions() -> str:
    from importlib.metadata import PackageNotFoundError, version  # imports a parser of mails; only needed for the warning

    versions = []
    for name in ("hetero-core", "hetero-cpu", "llvmlite", "numpy"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    return ", ".join(versions)
