"""The check of what a device returns from a run: number, element types and shapes of the outputs, and their memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hetero_core.contract import RunContext
from hetero_core.devices.provenance import Provenance
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import PluginError
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.declared_shapes import ShapeWatch
from hetero_core.runtime.door import fits_shape


class CheckedOutputs(tuple[Any, ...]):
    """Outputs that the network of a replacement has checked, whose shapes need not be those of the constants."""

    __slots__ = ()


class OutputCheck:
    """The check for the outputs of one loaded network; `resident` are those that never leave the device's own memory."""

    def __init__(
        self, specs: Sequence[ValueSpec], resident: Collection[str], watch: ShapeWatch | None, *, blame: Provenance
    ) -> None:
        self._watch = watch
        self._blame = blame
        # Element type and shape of each, None where the device's own memory is no array of NumPy's.
        self._promised = tuple(
            (None, None, spec) if spec.dtype is None or spec.name in resident else (numpy_dtype(spec.dtype), spec.shape, spec)
            for spec in specs
        )

    def check(self, outputs: Any, context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs of a device after a check that their number and types are those of the network.

        Raises: PluginError that names the plugin; MemoryLimitError if the outputs of a device that does not count bytes exceed the limit.
        """
        if type(outputs) is CheckedOutputs:
            return tuple(outputs)
        if not isinstance(outputs, tuple) or len(outputs) != len(self._promised):
            description = f"{len(outputs)} values" if isinstance(outputs, tuple) else type(outputs).__name__
            expected = f"a tuple of {len(self._promised)} outputs"
            raise PluginError(f"{self._blame} returned {description} from run; expected {expected}")
        for value, (dtype, shape, spec) in zip(outputs, self._promised):  # noqa: B905  # compared above; strict takes 0.13 us
            # NumPy has one object for each of its types: the usual comparison is of two names for it.
            if dtype is not None and (own := getattr(value, "dtype", None)) is not dtype and own != dtype:
                named = type(value).__name__ if own is None else own
                raise PluginError(f"{self._blame} returned {named} for output '{spec.name}'; expected an array of {dtype}")
            if shape is not None and value.shape != shape and not fits_shape(value.shape, shape):
                raise PluginError(
                    f"{self._blame} returned shape {list(value.shape)} for output '{spec.name}'; expected {spec.type}, as inference proves"
                )
        if self._watch is not None:
            self._watch.check(outputs)
        if context.limits is not None:
            context.limits.enter("")
            context.limits.hold(outputs)
        return outputs
