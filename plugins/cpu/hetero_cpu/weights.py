"""Weights in the form in which kernels read them, made once for all plans of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class PackedWeights:
    """Arrays by (constants, purpose). Threads may both make one; one result stays."""

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        # The constants are kept beside what was made of them: an id is only theirs while they live.
        self._arrays: dict[tuple[object, ...], tuple[tuple[Array, ...], Array]] = {}

    def pack(self, constants: tuple[Array, ...], purpose: tuple[object, ...], make: Callable[..., Array]) -> Array:
        """Returns `make(*constants)`, read-only; `purpose` tells apart what is made of the same constants."""
        key = (*map(id, constants), *purpose)
        if key not in self._arrays:
            packed = make(*constants)
            packed.flags.writeable = False
            self._arrays.setdefault(key, (constants, packed))
        return self._arrays[key][1]

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays that are held."""
        return sum(packed.nbytes for _, packed in list(self._arrays.values()))
