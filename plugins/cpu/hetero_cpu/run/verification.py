"""CPU_VERIFY=YES: the first run of each plan is computed once more by the toolkit, node by node, and the answers are compared.

The toolkit runs first, on copies of the inputs: a plan may write into outputs of the caller that are inputs as well. States, the profile
and outputs that the caller has set belong to the run of the plan alone.
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
from hetero_cpu.run.plans import WrongTypeError

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program


logger = logging.getLogger(__name__)

Outputs = tuple[Any, ...]


class Verifier:
    """Verifies the plans of one network and counts its work. Safe for threads: simultaneous first runs are each verified."""

    def __init__(self, outputs: Sequence[str]) -> None:
        """`outputs`: names, for messages."""
        self._outputs = outputs
        self._lock = threading.Lock()
        self.plans = 0
        """The number of plans whose answer agreed with the toolkit's."""
        self.seconds = 0.0
        """The seconds that verification took, without the runs of the plans."""
        self.has_refuted = False
        """Whether the answer of a plan differed."""

    def run(self, network: str, inputs: Outputs, context: RunContext, run_plan: Callable[[], Outputs], program: Program) -> Outputs:
        """Returns the answer of the plan if it agrees with that of `program`; otherwise warns and returns the answer of `program`.

        `network` is a name, for messages. Raises: RequestCancelledError; WrongTypeError; errors of `program`, also if only it fails.
        """
        if is_random(program):
            logger.info("network '%s' has random operators: its plans cannot be verified", network)
            return run_plan()
        began = perf_counter()
        expected: Outputs | Exception
        try:
            copies = tuple(map(_copy, inputs))
            expected = program.run(copies, is_cancelled=context.cancelled, limits=context.limits)
        except RequestCancelledError:
            raise
        except MemoryError as error:
            logger.warning("network '%s': a plan is not verified, there is no room for it: %s", network, error)
            return run_plan()
        except Exception as error:  # noqa: BLE001  # a kernel may raise anything; the plan has to raise as well
            expected = error
        plan_began = perf_counter()
        outputs: Outputs = ()
        fault = f"the toolkit raises {type(expected).__name__}: {expected}" if isinstance(expected, Exception) else ""
        try:
            outputs = run_plan()
        except (MemoryError, RequestCancelledError, WrongTypeError):
            raise
        except Exception as error:
            if isinstance(expected, Exception):
                raise
            fault = f"the plan raises {type(error).__name__}: {error}"
        plan_seconds = perf_counter() - plan_began
        if not fault and not isinstance(expected, Exception):
            fault = self._find_fault(outputs, expected)
        with self._lock:
            self.seconds += perf_counter() - began - plan_seconds
            self.plans += not fault
            self.has_refuted |= bool(fault)
        if not fault:
            return outputs
        _warn(network, fault)
        if isinstance(expected, Exception):
            raise expected
        return expected

    def _find_fault(self, outputs: Outputs, expected: Outputs) -> str:
        """Returns the first difference of the plan's answer; empty if the answers agree."""
        from hetero_core.testing.compare import describe_mismatch  # only a verified run compares

        differences = (
            describe_mismatch(actual, right, name=f"output '{name}'")
            for name, actual, right in zip(self._outputs, outputs, expected, strict=True)
        )
        return next(filter(None, differences), "")


def is_random(program: Program) -> bool:
    """Says whether two runs of a program may differ: an operator of it, or of a body, is random."""
    from hetero_core.transforms.constants import RANDOM_OPERATORS  # as above

    return any(
        (not step.node.domain and step.node.op_type in RANDOM_OPERATORS) or any(is_random(body.program) for body in step.bodies)
        for step in program.steps
    )


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _warn(network: str, fault: str) -> None:
    warnings.warn(
        f"network '{network}' on CPU: a plan gave another answer than the toolkit: {fault}. The network goes on node by node, "
        "which is right and slower. Please report it with the smallest model that shows it, as found by "
        "`hetero reduce MODEL.onnx -d TEMPLATE -d CPU -c CPU_KERNELS=JIT -o SMALL.onnx`, and with the output of `hetero doctor`",
        WrongPlanWarning,
        stacklevel=2,
    )
