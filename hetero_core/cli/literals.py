"""Values of inputs that stand in the command itself: -i sr=16000, -i ids=1,2,3, -i text=hello."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.cli.sizes import find_tensor_type
from hetero_core.dtypes import FLOAT_DTYPES, numpy_dtype
from hetero_core.network.types import Dimension, ValueSpec

if TYPE_CHECKING:
    import numpy as np

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Literal:
    """The values of an input that stand in the command. One value fills the whole input; several are its elements in order."""

    text: str
    dtype: str
    values: tuple[Any, ...]

    @property
    def is_single(self) -> bool:
        """Says whether one value stands for all elements."""
        return len(self.values) == 1

    def make_array(self, spec: ValueSpec, shape: Sequence[Dimension] | None) -> np.ndarray[Any, Any]:
        """Returns the array; `shape` may have one open size where there are several values.

        Raises: UsageError where the values do not fit into the shape.
        """
        import numpy as np

        values = np.array(self.values, dtype=object if self.dtype == "string" else numpy_dtype(self.dtype))
        if shape is None:
            return values.reshape(()) if self.is_single else values
        if self.is_single:
            return np.full([size for size in shape if isinstance(size, int)], values[0], dtype=values.dtype)
        open_axes = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        # Of several open sizes, the last takes the values: a row of tokens is 1 x n.
        sizes = [size if isinstance(size, int) else -1 if axis == open_axes[-1] else 1 for axis, size in enumerate(shape)]
        try:
            return values.reshape(sizes)
        except ValueError as error:
            raise UsageError(f"-i {spec.name}={self.text}: {len(self.values)} values do not fit input {spec}") from error


def read_literal(text: str, spec: ValueSpec) -> Literal | None:
    """Returns the values of a text for an input; None where the text is none of the input's element type."""
    tensor = find_tensor_type(spec)
    if tensor is None or not text:
        return None
    dtype = tensor.dtype or "float32"
    if dtype == "string":
        return Literal(text, dtype, (text,))
    try:
        return Literal(text, dtype, tuple(_read_value(piece.strip(), dtype) for piece in text.split(",")))
    except (ValueError, KeyError, OverflowError):
        return None


def _read_value(text: str, dtype: str) -> Any:
    if dtype == "bool":
        return _BOOLS[text.lower()]
    if dtype.startswith("complex"):
        return complex(text)
    if dtype in FLOAT_DTYPES:
        return float(text)
    number = int(text)
    bits = int("".join(letter for letter in dtype if letter.isdigit()))
    lowest, highest = (0, 2**bits - 1) if dtype.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not lowest <= number <= highest:
        raise ValueError(f"{number} is no {dtype}")
    return number
