"""A program on CPU whose products NumPy computes in threads of the network, not of BLAS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_core.kernels.precision import multiply_with
from hetero_cpu.blas import limit_blas
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.sources import NetworkSource

if TYPE_CHECKING:
    from hetero_cpu.planning.plans_in_use import PlanInUse
    from hetero_cpu.planning.signature import Signature
    from hetero_cpu.shared_products import ProductTeam


class LimitedExecutable(CpuExecutable):
    """A program for processes with several processors; a class of its own, so that a process with one pays nothing for it."""

    def __init__(
        self, source: NetworkSource, extensions: Mapping[tuple[str, str], Any], *, workers: int, streams: int = 1, **options: Any
    ) -> None:
        """`options`: those of `CpuExecutable`."""
        # A load is not limited: threadpoolctl would be imported, and most plans never call BLAS.
        self._team: ProductTeam | None = None
        self._is_loaded = False
        super().__init__(source, extensions, workers=workers, streams=streams, **options)
        self._streams, self._is_loaded = streams, True

    def _run_plan(self, in_use: PlanInUse | None, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, with BLAS limited meanwhile, where it may be called."""
        is_bare = in_use is not None and not (in_use.calls_blas or in_use.needs_check or in_use.is_refuted)
        if is_bare and context.limits is None:
            return super()._run_plan(in_use, inputs, context)
        with self._share_products():
            return super()._run_plan(in_use, inputs, context)

    def _make_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns a new plan; making one may call BLAS as well."""
        if not self._is_loaded:
            return super()._make_plan(signature)
        with self._share_products():
            return super()._make_plan(signature)

    @contextmanager
    def _share_products(self) -> Iterator[None]:
        if self._team is None:
            from hetero_cpu.shared_products import ProductTeam  # only NumPy's products need it

            with self._lock:
                self._team = self._team or ProductTeam(self.workers, self._streams)
        with limit_blas(), multiply_with(self._team.multiply):
            yield

    def close(self) -> None:
        """Ends the helping threads, too."""
        super().close()
        if self._team is not None:
            self._team.close()
