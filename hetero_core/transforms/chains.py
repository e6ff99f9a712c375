"""Chains of nodes that a pass puts in front of an input or behind an output, and the checks of layouts and conversions.

Nodes take the opset of the network if its version of the operator suffices, so that other engines read the written model right.
The new nodes are their own origins: they are nodes of the network that the user asks about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES, INTEGER_DTYPES, bits_of_dtype, onnx_of_dtype
from hetero_core.errors import InvalidNetworkError, word_missing
from hetero_core.network.border import LAYOUT_OF_RANK, precision_of_dtype
from hetero_core.network.graph import EMPTY, Network, Node
from hetero_core.network.inference import infer_contrib, infer_types, read_numbers
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames, rename_values
from hetero_core.network.scopes import since_version
from hetero_core.network.types import Dimension, TensorType, ValueSpec, ValueType

# The first version with the meaning that is needed: Cast by number, broadcasting by NumPy's rules, Resize with half-pixel centers.
_FIRST_OPSET = {
    **dict.fromkeys(("Gather", "MatMul", "Shape", "Transpose"), 1),
    "Concat": 4,
    "Reshape": 5,
    "Cast": 6,
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), 7),
    "Slice": 10,
    "Clip": 11,
    "Pad": 11,
    "Resize": 11,
}
DEFAULT_OPSET = 18
"""The opset of ONNX's own domain in a network that has no operator of it yet."""


class Chain:
    """Consecutive steps, beginning at a value; names of new nodes and values begin with `base`.

    `type` is the type of the last value, which has as many axes as the first value.
    """

    def __init__(self, network: Network, names: FreshNames, *, base: str, value: str, value_type: TensorType) -> None:
        self._network = network
        self._names = names
        self.base = base
        self.begin = self.value = value
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {value: value_type}
        self.initializers: dict[str, Initializer] = {}

    @property
    def opset(self) -> int:
        """The opset of the network's own operators, which new nodes take, so that an engine finds a common opset."""
        return self._network.opsets.get("", DEFAULT_OPSET)

    @property
    def type(self) -> TensorType:
        """The type of the last value."""
        return self.types[self.value]

    @property
    def shape(self) -> tuple[Dimension, ...]:
        """The shape of the last value, which must have a known rank."""
        shape = self.type.shape
        assert shape is not None
        return shape

    @property
    def dtype(self) -> str:
        """The element type of the last value, which must be known."""
        dtype = self.type.dtype
        assert dtype is not None
        return dtype

    def hold(self, purpose: str, array: np.ndarray[Any, Any]) -> str:
        """Returns the name of a new constant."""
        name = self._names.value(f"{self.base}/{purpose}")
        self.initializers[name] = constant = Initializer.of_array(array)
        self.types[name] = constant.type
        return name

    def add(
        self,
        op_type: str,
        *more: str,
        shape: tuple[Dimension, ...] | None = None,
        attributes: Mapping[str, Any] = EMPTY,
        begins: str = "",
    ) -> None:
        """Adds a node that reads the last value and `more`; `shape` is that of the result if no rule tells it.

        `begins` is read before the last value: the first operand of an operator that does not commute.
        """
        opset = max(self.opset, _FIRST_OPSET[op_type])
        value = self._names.value(f"{self.base}/{op_type.lower()}")
        name = self._names.node(f"{self.base}/{op_type.lower()}")
        inputs = (begins, self.value, *more) if begins else (self.value, *more)
        node = Node(name, op_type, inputs, (value,), "", opset, since_version(op_type, "", opset), attributes)
        inferred = infer_contrib(node, [self.types.get(each) for each in inputs], partial(read_numbers, self.initializers))[value]
        assert isinstance(inferred, TensorType)
        self.nodes.append(node)
        self.types[value] = inferred if shape is None else TensorType(inferred.dtype, shape)
        self.value = value

    def cast(self, dtype: str) -> None:
        """Adds a Cast unless the value is of this element type."""
        if dtype != self.dtype:
            self.add("Cast", attributes={"to": onnx_of_dtype(dtype)})

    def gather(self, axis: int, purpose: str, positions: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Adds a Gather of these positions of an axis."""
        self.add("Gather", self.hold(purpose, np.asarray(positions, np.int64)), attributes={"axis": axis})

    def transpose(self, order: tuple[int, ...]) -> None:
        """Adds a Transpose unless the order is that of the value."""
        if order != tuple(range(len(order))):
            self.add("Transpose", attributes={"perm": order})

    def rename_end(self, name: str) -> None:
        """Gives the last value, which a node of the chain makes, another name."""
        self.types[name] = self.types.pop(self.value)
        self.nodes[-1] = replace(self.nodes[-1], outputs=(name,))
        self.value = name


def splice(network: Network, before: Sequence[Chain], after: Sequence[Chain], **fields: Any) -> Network:
    """Returns the network with chains in front of and behind its nodes, and these fields; types are inferred again.

    The nodes between read and make the inner ends of the chains in place of the values that give the chains their names.
    """
    names = {**{chain.base: chain.value for chain in before}, **{chain.base: chain.begin for chain in after}}
    changed = rename_values(network, names)
    types: dict[str, ValueType] = dict(changed.types)
    initializers = dict(changed.initializers)
    for chain in (*before, *after):
        types.update(chain.types)
        initializers.update(chain.initializers)
    types.update((spec.name, spec.type) for spec in fields.get("inputs", ()))
    opsets = MappingProxyType({"": DEFAULT_OPSET, **changed.opsets}) if before or after else changed.opsets
    first, last = ([node for chain in chains for node in chain.nodes] for chains in (before, after))
    nodes = (*first, *changed.nodes, *last)
    fields = {"initializers": MappingProxyType(initializers), "types": MappingProxyType(types), "opsets": opsets} | fields
    return infer_types(replace(changed, nodes=nodes, **fields))


def require_names(network: Network, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raises InvalidNetworkError if a name is none of the known inputs or outputs."""
    for name in names:
        if name not in known:
            raise InvalidNetworkError(word_missing(f"network '{network.name}'", kind, name, known))


def read_layout(layout: str, rank: int, where: str) -> str:
    """Returns the layout in capitals. Raises: InvalidNetworkError unless it has a letter for each axis, and no letter twice."""
    text = layout.upper()
    if len(text) != rank or len(set(text)) != rank or not text.isalpha():
        raise InvalidNetworkError(
            f"{where}: layout '{layout}' does not name {rank} axes; expected {rank} different letters, as in "
            f"'{LAYOUT_OF_RANK.get(rank, 'NCDHW')}'"
        )
    return text


def find_model_layout(spec: ValueSpec, known: str | None, said: str | None, where: str) -> str:
    """Returns the order of the axes in the model: as said, as known from before, or by the rank.

    Raises: InvalidNetworkError if no layout follows from these.
    """
    if spec.shape is None:
        raise InvalidNetworkError(f"{where}: the number of axes of {spec} is not known; give the input a shape with with_shapes")
    rank = len(spec.shape)
    layout = said if said is not None else known if known is not None else LAYOUT_OF_RANK.get(rank)
    if layout is None:
        raise InvalidNetworkError(f"{where}: {rank} axes have no usual layout; say the model's, as in model_layout='NTHWC'")
    return read_layout(layout, rank, where)


def order_axes(source: str, target: str, where: str) -> tuple[int, ...]:
    """Returns for each axis of `target` its position in `source`. Raises: InvalidNetworkError if they differ in their letters."""
    if sorted(source) != sorted(target):
        raise InvalidNetworkError(
            f"{where}: layout '{source}' and the model's layout '{target}' name different axes; use the same letters, or say the model's "
            "in model_layout"
        )
    return tuple(source.index(letter) for letter in target)


def check_conversion(source: str, target: str, where: str) -> None:
    """Raises InvalidNetworkError if values of `source` may lie outside of `target`, so that a Cast would change them.

    Between floats, and from integers to floats, ONNX rounds to the nearest; a float beyond the range becomes infinite, which shows.
    """
    if source != target and not _keeps_range(source, target):
        raise InvalidNetworkError(
            f"{where}: {precision_of_dtype(source)} cannot become {precision_of_dtype(target)} without losing values: fractions or "
            "numbers out of range; put the rounding or the clipping that you mean into the model"
        )


def _keeps_range(source: str, target: str) -> bool:
    if target in FLOAT_DTYPES:
        return source in FLOAT_DTYPES or source in INTEGER_DTYPES or source == "bool"
    if target not in INTEGER_DTYPES or (source not in INTEGER_DTYPES and source != "bool"):
        return False
    target_bits, source_bits = bits_of_dtype(target) or 0, 1 if source == "bool" else bits_of_dtype(source) or 0
    is_signed, was_signed = target.startswith("int"), source.startswith("int")
    return target_bits >= source_bits if is_signed == was_signed else is_signed and target_bits > source_bits
