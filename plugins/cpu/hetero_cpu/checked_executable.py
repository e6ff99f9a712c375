"""Runs node by node, and runs that are computed twice: with a plan that nobody has verified, and without one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_cpu.executed import TellingExecutable
from hetero_cpu.planning.instance import lay_inputs
from hetero_cpu.planning.later import compile_toolkit

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network
    from hetero_cpu.machine.team import TeamPool
    from hetero_cpu.planning.plans_in_use import PlanInUse
    from hetero_cpu.planning.signature import Signature


class CheckedExecutable(TellingExecutable):
    """An executable on CPU that can do without a plan, and finds out whether one is right."""

    _extensions: Mapping[tuple[str, str], Any]
    _lock: threading.Lock
    _plans: OrderedDict[Signature, PlanInUse]
    _program: Program | None
    _teams: TeamPool | None

    def _run_twice(
        self, in_use: PlanInUse, inputs: tuple[Any, ...], context: RunContext, expected: tuple[Any, ...] | None = None
    ) -> tuple[Any, ...]:
        """Runs with a plan that nobody has verified, and without one; where the answers differ the network goes on node by node.

        `expected`: the answer of a run without a plan that was under way when the plan took over.
        """
        from hetero_cpu.blas import limit_blas  # only what is verified needs them
        from hetero_cpu.mapped_weights import drop_read_pages

        program = drop_read_pages(self._open_program(), self.transformed.initializers)
        # A thread of OpenBLAS goes on looking for work for some 100 ms, on the processors of those that help the next runs.
        with limit_blas(None if self._teams is None else 1):
            verdict = self._verifier.run(inputs, context, lambda: in_use.run(inputs, context, self._teams), program, expected)
        if verdict.fault:
            self._refute_all()
            self._verifier.warn(verdict.fault)
            if verdict.error is not None:
                raise verdict.error
            return verdict.outputs
        in_use.needs_check = False
        if verdict.is_lasting and in_use.name:
            from hetero_cpu.stored.verified_plans import note_verified

            note_verified(in_use.name)
        if self._weights.releases or self.source.is_read_again:
            # Nothing is left to be verified: the plan has what it needs of the constants.
            self._program = None
            self._let_go(self.transformed)
            self.source.let_go()
        return verdict.outputs

    def _refute_all(self) -> None:
        """Keeps all plans from being used again, also those that are still to come: where one is wrong, so may be others."""
        with self._lock:
            for in_use in self._plans.values():
                in_use.is_refuted = True
                in_use.free.clear()
            self._open_plans.refute()

    def _run_frugally(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs node by node, where a value is freed when it is read for the last time; names the node for which there is no room."""
        program, inputs = self._open_program(), lay_inputs(inputs)
        return program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)

    def _open_program(self) -> Program:
        """Returns the network as the toolkit runs it."""
        program = self._program
        if program is None:
            program = self._program = compile_toolkit(self.transformed, self._extensions)
            self._verifier.name = self.source.name
        return program

    def _let_go(self, special: Network) -> None:
        """Lets go of the constants where there will be no other plan: what this one needs of them it has."""
        if self._weights.releases:
            for constant in (*self.transformed.initializers.values(), *special.initializers.values()):
                constant.release()
