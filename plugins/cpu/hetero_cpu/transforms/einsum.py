"""The pass that writes `Einsum` as operators that have machine code: products of matrices, or of elements if no letter is summed.

```text
bcxd,bcyd->bcxy   y: Transpose to (b, c, d, y)      MatMul
ibh,hnd->ibnd     weights: Reshape to (h, n * d)    MatMul, Reshape
```

More than two operands are multiplied from the left. The letters of a sum need sizes that are known to be equal, as `Einsum` broadcasts
sizes of 1 and a product does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.operators import REFUSALS, read_equation
from hetero_core.network.types import Dimension
from hetero_core.transforms.matching import read_shape
from hetero_cpu.transforms.writer import Writer, rewrite_operators


def express_einsum(network: Network) -> Network:
    """Returns the network with `Einsum` as products; ellipses, diagonals and sums of unknown length stay."""
    return rewrite_operators(network, {("", "Einsum"): _express})


def _express(network: Network, node: Node, writer: Writer) -> bool:
    try:
        terms, output = read_equation(node)
    except REFUSALS:
        return False
    if any(not term or len(set(term)) < len(term) for term in terms) or len(set(output)) < len(output):
        return False
    sizes: dict[str, Dimension] = {}
    for value, term in zip(node.inputs, terms, strict=True):
        shape = read_shape(network, value)
        if shape is None or len(shape) != len(term):
            return False
        for letter, size in zip(term, shape, strict=True):
            other = sizes.setdefault(letter, size)
            if other != size:
                if isinstance(size, int) and isinstance(other, int):
                    return False
                sizes[letter] = None
    products = _Products(sizes, writer)
    operands = list(zip(node.inputs, terms, strict=True))
    left = operands[0]
    for index, right in enumerate(operands[1:], 2):
        later = output + "".join(terms[index:])
        kept = "".join(dict.fromkeys(letter for letter in left[1] + right[1] if letter in later))
        product = products.multiply(left, right, output if index == len(operands) else kept)
        if product is None:
            return False
        left = product
    if len(operands) == 1:
        if sorted(output) != sorted(left[1]):
            return False
        writer.add("Transpose", left[0], perm=tuple(map(left[1].index, output)))
    writer.end_with(node.outputs[0])
    return True


_Operand = tuple[str, str]
"""A value, and the letters of its axes."""


@dataclass(frozen=True, slots=True)
class _Products:
    """Writes products; `sizes` are those of letters. A group of letters is an axis that they share."""

    sizes: dict[str, Dimension]
    writer: Writer

    def multiply(self, left: _Operand, right: _Operand, output: str) -> _Operand | None:
        """Returns the product with the letters of `output`, in that order; None if a letter is summed alone, or sizes are not known."""
        shared = [letter for letter in left[1] if letter in right[1]]
        sums = "".join(letter for letter in shared if letter not in output)
        batch = [letter for letter in output if letter in shared]
        if set(left[1] + right[1]) != set(output + sums) or not all(isinstance(self.sizes[letter], int) for letter in sums):
            return None
        if not sums:
            return self.writer.add("Mul", self._spread(left, output), self._spread(right, output)), output
        # Constants are packed on the right; else the order of the output decides.
        are_constant = [operand[0] in self.writer.constants for operand in (left, right)]
        if are_constant[0] > are_constant[1] or (
            not are_constant[1] and output and output[-1] in left[1] and output[-1] not in batch
        ):
            left, right = right, left
        rows, columns = ("".join(letter for letter in output if letter in own[1] and letter not in batch) for own in (left, right))
        lines = [*rows] if rows and not batch else [rows]
        a, b = self._arrange(left, [*batch, *lines, sums]), self._arrange(right, [*batch, sums, columns])
        if a is None or b is None:
            return None
        groups = [*batch, *lines, columns]
        letters = "".join(groups)
        product = self._reshape(self.writer.add("MatMul", a, b), letters, groups)
        return None if product is None else (self._turn((product, letters), output), output)

    def _measure(self, group: str) -> Dimension:
        sizes: list[Any] = [self.sizes.get(letter, 1) for letter in group]
        return sizes[0] if len(sizes) == 1 else prod(sizes) if all(isinstance(size, int) for size in sizes) else None

    def _spread(self, operand: _Operand, output: str) -> str:
        turned = self._turn(operand, "".join(letter for letter in output if letter in operand[1]))
        missing = [axis for axis, letter in enumerate(output) if letter not in operand[1]]
        return self.writer.add("Unsqueeze", turned, self.writer.add_integers(*missing)) if missing else turned

    def _arrange(self, operand: _Operand, groups: Sequence[str]) -> str | None:
        return self._reshape(self._turn(operand, "".join(groups)), groups, groups)

    def _reshape(self, value: str, axes: Sequence[str], groups: Sequence[str]) -> str | None:
        """Returns a value whose axes are letters or groups with those axes; the axes before the first larger group stay."""
        same = next((index for index, group in enumerate(groups) if len(group) != 1), None)
        if same is None:
            return value
        rest = [self._measure(axis) for axis in axes[same:]]
        # A single open size is left to the Reshape.
        target = [size if type(size) is int else -1 for size in rest]
        if not all(isinstance(size, int) for size in rest) or target.count(-1) > 1:
            return None
        return self.writer.add("Reshape", value, self.writer.add_integers(*[0] * same, *target))

    def _turn(self, operand: _Operand, letters: str) -> str:
        value, own = operand
        return value if own == letters else self.writer.add("Transpose", value, perm=tuple(map(own.index, letters)))
