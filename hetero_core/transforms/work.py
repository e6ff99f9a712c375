"""How many elements the operators read that read each one many times: products, convolutions and windows.

A hundred bytes can say how to slide a window of 2**40 elements over a constant. Who computes constants ahead counts that beside the bytes
that it makes. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hetero_core.network.graph import Node

Sizes = Sequence[tuple[int, ...] | None]
"""The shapes of the inputs, None where one is absent or not known."""

READS_OF_A_BYTE = 64
"""So many reads count as one byte that is made: 128 MiB of them take some seconds of a processor."""

_WINDOWS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "DeformConv", "QLinearConv"})
_PRODUCTS = frozenset({"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})

READING_OPERATORS = _WINDOWS | _CONVOLUTIONS | _PRODUCTS | {"ConvTranspose", "Einsum"}


def bound_reads(node: Node, shapes: Sizes, made: int) -> int:
    """Returns about how many elements a node reads to make `made` of them; 0 for an operator that reads each once or a few times."""
    if node.domain:
        return 0
    first, second = (shapes[index] if index < len(shapes) else None for index in (0, 1))
    if node.op_type in _WINDOWS:
        elements: int = prod(node.attributes.get("kernel_shape", ()))
        return made * abs(elements)
    if node.op_type in _PRODUCTS and first:
        return made * max(first)
    if node.op_type in _CONVOLUTIONS:
        weights = shapes[3] if node.op_type == "QLinearConv" and len(shapes) > 3 else second
        return made * prod(weights[1:]) if weights else 0
    if node.op_type == "ConvTranspose" and first and second:
        return prod(first) * prod(second[1:])
    if node.op_type == "Einsum":
        return _multiply_letters(node.attributes.get("equation", ""), shapes)
    return 0


def _multiply_letters(equation: object, shapes: Sizes) -> int:
    """Returns the product of the sizes of all letters; all inputs' elements together where the equation leaves axes out."""
    text = equation.decode() if isinstance(equation, bytes) else str(equation)
    terms = text.replace(" ", "").partition("->")[0].split(",")
    known = [shape or () for shape in shapes]
    if "." in text or [len(term) for term in terms] != [len(shape) for shape in known]:
        return prod(max(prod(shape), 1) for shape in known)
    size_of_letter: dict[str, int] = {}
    for term, shape in zip(terms, known, strict=True):
        for letter, size in zip(term, shape, strict=True):
            size_of_letter[letter] = max(size, size_of_letter.get(letter, 1))
    return prod(size_of_letter.values())
