"""CPU_VERIFY=YES: the first run of each plan is computed once more by the toolkit, node by node, and the answers are compared.

The toolkit runs first, on copies of the inputs: a plan may write into outputs of the caller that are inputs as well. States, the profile
and outputs that the caller has set belong to the run of the plan alone.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from copy import deepcopy
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_core.errors import WrongPlanWarning
from hetero_core.network.graph import Network

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program


logger = logging.getLogger(__name__)

Outputs = tuple[Any, ...]


class Verifier:
    """Verifies the plans of one network and counts its work."""

    def __init__(self, network: Network) -> None:
        self._name, self._outputs = network.name, [spec.name for spec in network.outputs]
        self.plans = 0
        """The number of plans whose answer agreed with the toolkit's."""
        self.seconds = 0.0
        """The seconds that the toolkit took."""
        self.has_refuted = False
        """Whether the answer of a plan differed."""

    def run(self, inputs: Outputs, context: RunContext, run_plan: Callable[[], Outputs], program: Program) -> Outputs:
        """Returns the answer of the plan if it agrees with that of `program`; otherwise warns and returns the answer of `program`."""
        if is_random(program):
            logger.info("network '%s' has random operators: its plans cannot be verified", self._name)
            return run_plan()
        from hetero_core.testing.compare import describe_mismatch  # only a verified run compares

        began = perf_counter()
        expected = program.run(deepcopy(inputs), is_cancelled=context.cancelled, limits=context.limits)
        self.seconds += perf_counter() - began
        outputs = run_plan()
        answers = zip(self._outputs, outputs, expected, strict=True)
        faults = [describe_mismatch(actual, right, name=f"output '{name}'") for name, actual, right in answers]
        if not any(faults):
            self.plans += 1
            return outputs
        self.has_refuted = True
        warnings.warn(
            f"network '{self._name}' on CPU: a plan gave another answer than the toolkit: {next(filter(None, faults))}. The network goes "
            "on node by node, which is right and slower. Please report it with the smallest model that shows it, as found by "
            "`hetero reduce MODEL.onnx -d TEMPLATE -d CPU -c CPU_KERNELS=JIT -o SMALL.onnx`, and with the output of `hetero doctor`",
            WrongPlanWarning,
            stacklevel=2,
        )
        return expected


def is_random(program: Program) -> bool:
    """Says whether two runs of a program may differ: an operator of it, or of a body, is random."""
    from hetero_core.transforms.constants import RANDOM_OPERATORS  # as above

    return any(
        (not step.node.domain and step.node.op_type in RANDOM_OPERATORS) or any(is_random(body.program) for body in step.bodies)
        for step in program.steps
    )
