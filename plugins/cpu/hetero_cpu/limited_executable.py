"""A program on CPU whose runs may take fewer threads than BLAS has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_cpu.blas import limit_blas
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.sources import NetworkSource

if TYPE_CHECKING:
    from hetero_cpu.planning.plans_in_use import PlanInUse
    from hetero_cpu.planning.signature import Signature


class LimitedExecutable(CpuExecutable):
    """A program whose runs may take fewer threads than BLAS has; a class of its own, so that others pay nothing for it."""

    def __init__(self, source: NetworkSource, extensions: Mapping[tuple[str, str], Any], *, workers: int, **options: Any) -> None:
        """`options`: those of `CpuExecutable`."""
        # A load is not limited: threadpoolctl would be imported, and most plans never call BLAS.
        self._threads: int | None = None
        super().__init__(source, extensions, workers=workers, **options)
        self._threads = workers

    def _run_plan(self, in_use: PlanInUse | None, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, with BLAS limited meanwhile, where it may be called."""
        is_bare = in_use is not None and not (in_use.calls_blas or in_use.needs_check or in_use.is_refuted)
        if is_bare and context.limits is None:
            return super()._run_plan(in_use, inputs, context)
        with limit_blas(self._threads):
            return super()._run_plan(in_use, inputs, context)

    def _make_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns a new plan; making one may call BLAS as well."""
        with limit_blas(self._threads):
            return super()._make_plan(signature)
