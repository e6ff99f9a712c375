"""Declared shapes that nobody could prove, compared with what a run returns: a warning once for each value, or an error if asked for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_core.contract import DeviceName
from hetero_core.devices.config import STRICT_KEY
from hetero_core.errors import InferenceError, InvalidNetworkError, NetworkDeclarationWarning
from hetero_core.network.declarations import Declarations, Hint
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.door import fits_shape

_STRICT_ADVICE = f"Correct the declaration or remove it, or load without {STRICT_KEY}"


def check_declarations(network: Network, device: DeviceName, config: Mapping[str, Any]) -> None:
    """Raises InvalidNetworkError for a network with declarations that are proved wrong, where STRICT_DECLARATIONS asks for it."""
    if config[STRICT_KEY] and network.declarations.contradictions:
        listed = "; ".join(map(str, network.declarations.contradictions))
        raise InvalidNetworkError(f"cannot load network '{network.name}' on {device}: {listed}. {_STRICT_ADVICE}.")


class ShapeWatch:
    """Compares the outputs of one loaded network with the shapes that its model declares."""

    def __init__(self, declarations: Declarations, hints: Sequence[tuple[int, Hint]], where: str, *, is_strict: bool) -> None:
        """`hints`: those about outputs, each with the position of its output."""
        self._declarations = declarations
        self._hints = tuple(hints)
        self._where = where
        self._is_strict = is_strict

    def check(self, outputs: Sequence[Any]) -> None:
        """Warns of an output of another shape than the declared one: NetworkDeclarationWarning, once for each value.

        Raises: InferenceError instead where STRICT_DECLARATIONS is set.
        """
        for position, hint in self._hints:
            shape = getattr(outputs[position], "shape", None)
            if shape is not None and hint.declared.shape is not None and not fits_shape(tuple(shape), hint.declared.shape):
                self._report(hint, tuple(shape))

    def _report(self, hint: Hint, shape: tuple[int, ...]) -> None:
        message = (
            f"{self._where}: value '{hint.value}' of {hint.source} is declared as {hint.declared}, but has shape {list(shape)}"
        )
        if self._is_strict:
            raise InferenceError(f"{message}. {_STRICT_ADVICE}.")
        if hint.value in self._declarations.reported:
            return
        self._declarations.reported.add(hint.value)
        advice = "the computed shape is used. Correct the declaration or remove it."
        warnings.warn(f"{message}; {advice}", NetworkDeclarationWarning, stacklevel=2)


def watch_shapes(
    declarations: Declarations, outputs: Sequence[ValueSpec], where: str, config: Mapping[str, Any]
) -> ShapeWatch | None:
    """Returns what compares the outputs with their declared shapes; None where all of these are proved."""
    hints = [
        (index, declarations.hints[spec.name])
        for index, spec in enumerate(outputs)
        if spec.name in declarations.hints and declarations.hints[spec.name].may_fail
    ]
    return ShapeWatch(declarations, hints, where, is_strict=bool(config.get(STRICT_KEY))) if hints else None
