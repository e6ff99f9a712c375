"""Bytes that an engine would allocate to compute values of constants ahead; its time counts as bytes, too.

A kilobyte of nodes can say how to make gigabytes, as 34 Concats of a number with itself. A device with an engine that folds
constants without a
limit tells the engine of `limit_folding`, or refuses the nodes that would pass it. `fold_constants` keeps the limit by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from hetero_core.dtypes import bits_of_dtype
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueType, sizes_of
from hetero_core.transforms.constants import RANDOM_OPERATORS, READS_OF_A_BYTE, bound_reads, limit_folding

_HUGE = 1 << 62
_COUNTED = frozenset({"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile"})
"""Operators that make as many elements as the numbers of an input say, and operators that do so by an attribute or by other
rules."""
_SPREADING = frozenset({"CenterCropPad", "Col2Im", "ConvTranspose", "MaxUnpool", "Upsample"})
_JOINING = frozenset({"Concat", "ConcatFromSequence", "SequenceConstruct", "SequenceInsert"})
_NUMBERS = ("float32", "int32", "int64")
_MOST_NUMBERS = 64
"""Elements of a constant that may be a shape, repeats, pads or limits."""
_LETTERS_OF_NUMBER = 32
"""Letters of a number that a Cast writes."""


def measure_folding(network: Network) -> dict[str, int]:
    """Returns how many bytes each node makes that reads nothing but constants, by its name and in order; nodes of its bodies included.

    Elements that are read many times count, too (`READS_OF_A_BYTE`), and texts with their characters. If a shape is not known, the
    bound is rough and not too low: as many elements as a product of all inputs has.
    """
    nbytes_of_node: dict[str, int] = {}
    _Measurement(nbytes_of_node).read_graph(network, owner="")
    return {name: nbytes for name, nbytes in nbytes_of_node.items() if nbytes}


def find_excess_folding(network: Network) -> Mapping[str, int]:
    """Returns the nodes with which an engine that folds all constants would make more than `limit_folding`, and how much it would be."""
    limit, total = limit_folding(network), 0
    excess = {}
    for name, nbytes in measure_folding(network).items():
        if total + nbytes > limit:
            excess[name] = total + nbytes
        else:
            total += nbytes
    return excess


class _Measurement:
    """The elements of the values that depend on constants alone, in a graph and around it, and the bytes of nodes."""

    def __init__(self, nbytes_of_node: dict[str, int], outer: _Measurement | None = None) -> None:
        self._nbytes_of_node = nbytes_of_node
        # Two bodies may use the same name for different values.
        self._elements: dict[str, int] = {} if outer is None else dict(outer._elements)
        self._letters: dict[str, int] = {} if outer is None else dict(outer._letters)
        self._constants: dict[str, Initializer] = {} if outer is None else dict(outer._constants)

    def read_graph(self, graph: Graph, *, owner: str) -> None:
        """Measures the nodes of a graph; the nodes of a body count for its `owner`, the node of the network."""
        self._constants.update(graph.initializers)
        self._elements.update((name, prod(constant.shape)) for name, constant in graph.initializers.items())
        texts = {name: constant for name, constant in graph.initializers.items() if constant.dtype == "string"}
        self._letters.update(
            (name, max(map(len, constant.array.reshape(-1).tolist()), default=0)) for name, constant in texts.items()
        )
        for node in graph.nodes:
            name = owner or node.name
            for body in node.bodies.values():
                _Measurement(self._nbytes_of_node, self).read_graph(body, owner=name)
            is_random = node.op_type in RANDOM_OPERATORS and not node.domain
            if node.bodies or is_random or any(value not in self._elements for value in node.reads):
                continue
            bound, letters = self._bound_elements(node), self._bound_letters(node)
            shapes = [self._read_shape(value, graph) for value in node.inputs]
            for value in node.writes:
                self._elements[value], nbytes = _measure_value(graph.type_of(value), bound, letters)
                self._letters[value] = letters
                nbytes = max(nbytes, bound_reads(node, shapes, self._elements[value]) // READS_OF_A_BYTE)
                self._nbytes_of_node[name] = min(self._nbytes_of_node.get(name, 0) + nbytes, _HUGE)

    def _read_shape(self, value: str, graph: Graph) -> tuple[int, ...] | None:
        if value in self._constants:
            return self._constants[value].shape
        return sizes_of(graph.type_of(value)) if value else None

    def _bound_letters(self, node: Node) -> int:
        """Returns how many letters a text that the node makes may have."""
        letters = [self._letters.get(value, _LETTERS_OF_NUMBER) for value in node.inputs if value]
        return min(sum(letters) if node.op_type == "StringConcat" else max(letters, default=0), _HUGE)

    def _bound_elements(self, node: Node) -> int:
        counts = [max(self._elements[value], 1) for value in node.inputs if value]
        if node.op_type in _COUNTED:
            return min(prod(counts[:1]) * prod(self._count(value) for value in node.inputs if value), _HUGE)
        if node.op_type in _SPREADING:
            return _HUGE
        return min(sum(counts) if node.op_type in _JOINING else prod(counts), _HUGE)

    def _count(self, value: str) -> int:
        """Returns the product of the numbers of a small constant, each increased by 1; 1 for a large constant, and a bound for
        other values."""
        constant = self._constants.get(value)
        if constant is None:
            return _HUGE
        if constant.dtype not in _NUMBERS or prod(constant.shape) > _MOST_NUMBERS:
            return 1
        product: int = prod(ceil(min(abs(number), _HUGE)) + 1 for number in constant.array.reshape(-1).tolist() if number == number)
        return min(product, _HUGE)


def _measure_value(value_type: ValueType | None, bound: int, letters: int) -> tuple[int, int]:
    """Returns the elements and the bytes of a value, by the bound if its shape is not known."""
    dtype = value_type.dtype if isinstance(value_type, TensorType) else None
    sizes = sizes_of(value_type)
    count = bound if sizes is None else prod(sizes)
    bits = 8 * max(letters, 8) if dtype == "string" else 64 if dtype is None else bits_of_dtype(dtype) or 64
    return count, min(ceil(count * bits / 8), _HUGE)
