"""Outputs of a run: the check against the contract and the declared shapes, the caller's arrays, and copies of shared memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.contract import OwnOutputs, RunContext
from hetero_core.devices.config import STRICT_KEY
from hetero_core.devices.provenance import Provenance
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InferenceError, NetworkDeclarationWarning, PluginError
from hetero_core.network.border import Declarations
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.inputs import fits_shape

ShapeWatch = Callable[[Sequence[Any]], None]


class OutputCheck:
    """The check for the outputs of a loaded network; `resident` are outputs that never leave the device's own memory."""

    def __init__(
        self, specs: Sequence[ValueSpec], resident: Collection[str], watch: ShapeWatch | None, *, blame: Provenance
    ) -> None:
        self._watch = watch
        self._blame = blame
        # Element type of each and the last shape that fitted; None for an output that stays in the memory of the device.
        self._promised = tuple(
            (None, [None], spec) if spec.dtype is None or spec.name in resident else (numpy_dtype(spec.dtype), [spec.shape], spec)
            for spec in specs
        )

    def check(self, outputs: Any, context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs of a device after a check that their number and types match the network.

        Raises: PluginError that names the plugin; MemoryLimitError if the outputs of a device that does not count bytes exceed the limit.
        """
        if not isinstance(outputs, tuple) or len(outputs) != len(self._promised):
            description = f"{len(outputs)} values" if isinstance(outputs, tuple) else type(outputs).__name__
            expected = f"a tuple of {len(self._promised)} outputs"
            raise PluginError(f"{self._blame} returned {description} from run; expected {expected}")
        for value, (dtype, last, spec) in zip(outputs, self._promised):  # noqa: B905  # compared above; strict takes 0.13 us
            # NumPy has a single object for each of its types, so the usual comparison is by identity.
            if dtype is not None and (own := getattr(value, "dtype", None)) is not dtype and own != dtype:
                named = type(value).__name__ if own is None else own
                raise PluginError(f"{self._blame} returned {named} for output '{spec.name}'; expected an array of {dtype}")
            if last[0] is not None and (shape := value.shape) != last[0]:
                if not fits_shape(shape, spec.shape or ()):
                    raise PluginError(
                        f"{self._blame} returned shape {list(shape)} for output '{spec.name}'; expected {spec.type}, as inference proves"
                    )
                last[0] = shape
        if self._watch is not None:
            self._watch(outputs)
        if context.limits is not None:
            context.limits.enter("")
            context.limits.hold(outputs)
        return outputs


STRICT_ADVICE = f"Correct the declaration or remove it, or load without {STRICT_KEY}"


def watch_shapes(
    declarations: Declarations, outputs: Sequence[ValueSpec], where: str, config: Mapping[str, Any]
) -> ShapeWatch | None:
    """Returns the watch over declared shapes of outputs; None if inference has proved all of them.

    It warns of an output whose shape differs from the declared shape: NetworkDeclarationWarning, once for each value; if
    STRICT_DECLARATIONS is set, it raises InferenceError instead.
    """
    named = ((index, declarations.hints.get(spec.name)) for index, spec in enumerate(outputs))
    hints = [(index, hint) for index, hint in named if hint is not None and hint.may_fail]
    last_fitting: dict[int, Any] = {}

    def check(values: Sequence[Any]) -> None:
        for index, hint in hints:
            shape = getattr(values[index], "shape", None)
            if shape is None or shape == last_fitting.get(index):
                continue
            if hint.declared.shape is None or fits_shape(tuple(shape), hint.declared.shape):
                last_fitting[index] = shape
                continue
            message = f"{where}: value '{hint.value}' of {hint.source} is declared as {hint.declared}, but has shape {list(shape)}"
            if config.get(STRICT_KEY):
                raise InferenceError(f"{message}. {STRICT_ADVICE}.")
            if hint.value not in declarations.reported:
                declarations.reported.add(hint.value)
                advice = "the computed shape is used. Correct the declaration or remove it."
                warnings.warn(f"{message}; {advice}", NetworkDeclarationWarning, stacklevel=2)

    return check if hints else None


def fill_presets(presets: Sequence[Any], outputs: tuple[Any, ...], specs: Sequence[ValueSpec], *, network: str) -> tuple[Any, ...]:
    """Returns the outputs with the caller's own arrays, filled, in place of the device's own arrays.

    Raises: InferenceError for an array of another shape.
    """
    filled = []
    for preset, output, spec in zip(presets, outputs, specs):  # noqa: B905  # of one length, as check_outputs says; 0.13 us
        if preset is not None and preset is not output:
            if preset.shape != output.shape:
                raise InferenceError(
                    f"output '{spec.name}' of network '{network}' has shape {list(output.shape)}; "
                    f"the array set for it has {list(preset.shape)}"
                )
            np.copyto(preset, output)
        filled.append(output if preset is None else preset)
    return tuple(filled)


def own_outputs(outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns outputs that belong to the caller alone: constants, inputs and outputs that share memory are copied."""
    if type(outputs) is OwnOutputs:
        return outputs
    shared = find_shared((*outputs, *inputs))
    return tuple([_own(output, shared) for output in outputs])


def _own(output: Any, shared: Container[int]) -> Any:
    """Returns an output, or a copy if it is a constant or its id is in `shared`."""
    if isinstance(output, list):
        return output.copy() if holds_maps(output) else [_own(item, shared) for item in output]
    is_copied = isinstance(output, np.ndarray) and (id(output) in shared or not output.flags.writeable)
    return output.copy() if is_copied else output


def holds_maps(values: Sequence[Any]) -> bool:
    """Says whether a sequence is one of maps, which hold no arrays."""
    return bool(values) and isinstance(values[0], dict)


def find_shared(values: Sequence[Any]) -> set[int]:
    """Returns the ids of the arrays that overlap with another array, items of lists included.

    Arrays that own their memory overlap only if they are the same; views are compared by their spans, which costs 2 us each.
    """
    if list in map(type, values):
        values = list(_flatten(values))
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.size]
    if all(array.base is None for array in arrays):
        ids = list(map(id, arrays))
        return set() if len(set(ids)) == len(ids) else {each for each in ids if ids.count(each) > 1}
    shared: set[int] = set()
    reach, last = 0, 0
    for low, high, array in sorted((*np.lib.array_utils.byte_bounds(array), id(array)) for array in arrays):
        if low < reach:
            shared.update((last, array))
        if high > reach:
            reach, last = high, array
    return shared


def _flatten(values: Iterable[Any]) -> Iterator[Any]:
    """Yields the values, and the items of lists among them."""
    for value in values:
        if isinstance(value, list):
            yield from () if holds_maps(value) else _flatten(value)
        else:
            yield value
