"""A program on CPU whose runs may take fewer threads than BLAS has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import RunContext
from hetero_cpu.blas import begin_limit, end_limit
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.sources import NetworkSource


class LimitedExecutable(CpuExecutable):
    """A program whose runs may take fewer threads than BLAS has; a class of its own, so that others pay nothing for it."""

    def __init__(
        self,
        source: NetworkSource,
        extensions: Mapping[tuple[str, str], Any],
        *,
        workers: int,
        **options: Any,
    ) -> None:
        """`options`: those of `CpuExecutable`."""
        super().__init__(source, extensions, workers=workers, **options)
        self._threads = workers

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, with BLAS limited meanwhile, where it may be called."""
        if not self.calls_blas and context.limits is None:
            return super().run(inputs, context)
        begin_limit(self._threads)
        try:
            return super().run(inputs, context)
        finally:
            end_limit(self._threads)
