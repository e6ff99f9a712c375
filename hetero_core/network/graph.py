"""Network, Graph, Node and Initializer: frozen; a pass or a cut returns a new Network that shares nodes and weights.

Rules: nodes stand in topological order; node names are unique in the root graph; each value has one producer; a value named ""
is an absent optional input or an unused output. Imports neither onnx nor an array library at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from hetero_core.dtypes import bits_of_dtype
from hetero_core.errors import InvalidNetworkError, suggest
from hetero_core.network.affinity import resolve_pins
from hetero_core.network.border import EMPTY_BORDER, LAYOUT_OF_RANK, Border, InputInfo, OutputInfo, precision_of_dtype
from hetero_core.network.types import Dimension, TensorType, ValueSpec, ValueType

if TYPE_CHECKING:
    import numpy as np

EMPTY: Mapping[str, Any] = MappingProxyType({})


def _empty() -> Mapping[str, Any]:
    return EMPTY


class Initializer:
    """A constant of a network: its type is known at once, its array is made on first use and kept, read-only and shared.

    Networks and their parts hold the same object, so weights are never copied between parts. One that is *renewable* can make its
    array again, the same each time, and lets go of it when it is told to.
    """

    __slots__ = ("_array", "_digest", "_is_renewable", "_let_go", "_load", "dtype", "shape")

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        load: Callable[[], np.ndarray[Any, Any]],
        *,
        is_renewable: bool = False,
        array: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """`load` makes the array, where `is_renewable` as often as it is called; `array` is what it would make, where that is there."""
        self.dtype = dtype
        self.shape = shape
        self._load: Callable[[], np.ndarray[Any, Any]] | None = load
        self._is_renewable = is_renewable
        self._array = None if array is None else _protect(array)
        self._let_go: ReferenceType[np.ndarray[Any, Any]] | None = None
        self._digest: bytes | None = None

    @classmethod
    def of_array(cls, array: np.ndarray[Any, Any]) -> Initializer:
        """Returns an initializer over the array's own memory; the caller must not write to it afterwards.

        Raises: InvalidNetworkError when ONNX has no such element type.
        """
        from hetero_core.dtypes import dtype_of_numpy

        name = dtype_of_numpy(array.dtype)
        if name is None:
            raise InvalidNetworkError(f"a constant has the NumPy type {array.dtype}, which ONNX does not have")
        return cls(name, tuple(array.shape), lambda: array)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The array, C-contiguous and read-only; made on the first call. Two threads may both make it; one result stays."""
        array = self._array
        if array is None:
            # Another thread may have just made it, and let go of how; or whoever asked before still has it.
            load, let_go = self._load, self._let_go
            array = self._array if let_go is None else let_go()
            if array is None:
                assert load is not None
                array = _protect(load())
            self._array = array
            if not self._is_renewable:
                self._load = None
        return array

    def release(self) -> None:
        """Lets go of the array, where it can be made again; whoever has it keeps it, and the next who asks gets it or a new one."""
        array = self._array
        if self._is_renewable and array is not None:
            self._let_go, self._array = ref(array), None

    @property
    def is_renewable(self) -> bool:
        """Says whether `release` frees memory."""
        return self._is_renewable

    @property
    def digest(self) -> bytes:
        """SHA-256 over type, shape and contents; made on the first call and kept, as parts of a network share their constants."""
        if self._digest is None:
            from hetero_core.network.tensors import digest_array  # below in the tree; asked for by fingerprints only

            is_held = self._array is not None
            self._digest = digest_array(self.array)
            if not is_held:
                self.release()
        return self._digest

    @property
    def type(self) -> TensorType:
        """The type of the constant."""
        return TensorType(self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array in memory; strings count one pointer each."""
        bits = bits_of_dtype(self.dtype)
        return prod(self.shape) * (8 if bits is None else max(bits // 8, 1))


def _protect(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation.

    `opset` is the version of its domain that its graph or function imports, `since_version` the operator's own version in it (0
    where onnx has no schema for it). `attributes` holds int, float, str (bytes where it is not UTF-8), arrays, ValueTypes, Graphs
    and tuples of these. `captures` are the outer values that its bodies read. `origins` are the names of the nodes of the model
    that it stands for: its own name unless a pass made it. Two nodes are the same only if they are the same object.

    What follows from these is found once, as passes and planners ask for it again and again. `reads`: all values that the node needs,
    present inputs, then captures, each once, in order. `writes`: the outputs that have a name. `bodies`: the graph attributes (If,
    Loop, Scan, ...) by attribute name.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    opset: int = 1
    since_version: int = 0
    attributes: Mapping[str, Any] = field(default_factory=_empty)
    captures: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    original_name: str | None = None
    reads: tuple[str, ...] = field(init=False)
    writes: tuple[str, ...] = field(init=False)
    bodies: Mapping[str, Graph] = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not self.origins:
            put(self, "origins", (self.name,))
        put(self, "reads", tuple(dict.fromkeys(filter(None, (*self.inputs, *self.captures)))))
        put(self, "writes", tuple(filter(None, self.outputs)))
        bodies = {key: value for key, value in self.attributes.items() if isinstance(value, Graph)}
        put(self, "bodies", MappingProxyType(bodies) if bodies else EMPTY)

    def __repr__(self) -> str:
        return f"Node({self.label})"

    @property
    def operator(self) -> str:
        """The operator with its domain and version, as messages write it: "Conv-22", "com.acme:Twist-1"."""
        domain = f"{self.domain}:" if self.domain else ""
        return f"{domain}{self.op_type}-{self.since_version or self.opset}"

    @property
    def label(self) -> str:
        """The node as messages write it: "'conv1' (Conv-22)"."""
        return f"'{self.name}' ({self.operator})"


@dataclass(frozen=True, eq=False)
class Graph:
    """A scope of nodes: the body of a control-flow node, or the root of a network.

    `types` maps values of this scope (inputs, outputs, constants and inner ones) to what is known of their type.
    """

    name: str
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, Initializer] = field(default_factory=_empty)
    types: Mapping[str, ValueType] = field(default_factory=_empty)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.name}', {len(self.nodes)} nodes)"

    @cached_property
    def index_of_producer(self) -> Mapping[str, int]:
        """Value -> position of the node that makes it; inputs and constants are not in it."""
        return {value: index for index, node in enumerate(self.nodes) for value in node.writes}

    @cached_property
    def index_of_consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Value -> positions of the nodes that read it, as input or capture, ascending."""
        consumers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for value in node.reads:
                consumers.setdefault(value, []).append(index)
        return {value: tuple(indices) for value, indices in consumers.items()}

    @cached_property
    def index_of_input(self) -> Mapping[str, int]:
        """Input -> position."""
        return {spec.name: index for index, spec in enumerate(self.inputs)}

    @cached_property
    def names_of_outputs(self) -> frozenset[str]:
        """The values that the graph returns."""
        return frozenset(spec.name for spec in self.outputs)

    def type_of(self, value: str) -> ValueType | None:
        """Returns what is known of a value's type, None where nothing is."""
        return self.types.get(value)


@dataclass(frozen=True, eq=False, repr=False)
class Network(Graph):
    """A whole model: the root graph with its opsets, its metadata and its affinity.

    `affinity` maps node names to the device that they are pinned to; it is stored in the ONNX file. `border` is what is said about inputs
    and outputs beyond their types; a part has none of it.
    """

    opsets: Mapping[str, int] = field(default_factory=_empty)
    ir_version: int = 10
    metadata: Mapping[str, str] = field(default_factory=_empty)
    affinity: Mapping[str, str] = field(default_factory=_empty)
    border: Border = EMPTY_BORDER

    @cached_property
    def index_of_node(self) -> Mapping[str, int]:
        """Node name -> position."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    def node(self, name: str) -> Node:
        """Returns the node of this unique name.

        Raises: InvalidNetworkError with the near misses when there is none.
        """
        index = self.index_of_node.get(name)
        if index is None:
            raise InvalidNetworkError(f"network '{self.name}' has no node '{name}'{suggest(name, self.index_of_node)}")
        return self.nodes[index]

    def with_affinity(self, pins: Mapping[str, str]) -> Network:
        """Returns this network with more nodes pinned to devices.

        A key is a node's name, a glob, "re:" and a regular expression, or "op:" and an operator type; in this order of precedence.
        A pin given here replaces what an earlier call gave the same node.

        Raises: AffinityError for a pattern that matches nothing and for two patterns of one rank that disagree on a node.
        """
        resolved = resolve_pins([(node.name, node.op_type) for node in self.nodes], pins)
        return replace(self, affinity=MappingProxyType({**self.affinity, **resolved}))

    def with_shapes(self, shapes: Mapping[str, Any]) -> Network:
        """Returns this network for other shapes: by input ({"x": (1, 3, 160, 160)}) or by the name of a size ({"batch": 4}).

        A size is an int, a name, None (open) or a range (open, within bounds: range(1, 9) is 1 to 8). All types are inferred again.

        Raises: InvalidNetworkError for unknown names, another rank, and a model that cannot take the shapes: it names the node.
        """
        from hetero_core.transforms.reshaping import reshape_network  # below in the tree, as all passes

        return reshape_network(self, shapes)

    def with_batch(self, size: int | str | range | None) -> Network:
        """Returns this network for another batch size: that of axis N of each input whose layout is known, else of the first axis.

        Raises: InvalidNetworkError as `with_shapes`, and where inputs have different batch sizes now.
        """
        from hetero_core.transforms.reshaping import rebatch_network

        return rebatch_network(self, size)

    def with_inputs(self, inputs: Mapping[str, InputInfo]) -> Network:
        """Returns this network taking its inputs as they are described; what has to be done with them becomes nodes of it.

        Raises: InvalidNetworkError for what is unknown or does not fit together.
        """
        from hetero_core.transforms.preprocessing import add_preprocessing

        return add_preprocessing(self, inputs)

    def with_outputs(
        self,
        outputs: Mapping[str, OutputInfo] | None = None,
        *,
        add: Sequence[str] = (),
        only: Sequence[str] | None = None,
    ) -> Network:
        """Returns this network with other outputs: converted, inner values added, or just those of `only` and what they need.

        Raises: InvalidNetworkError for unknown names, values without element type, and conversions that would lose values.
        """
        from hetero_core.transforms.postprocessing import change_outputs

        return change_outputs(self, {} if outputs is None else outputs, add=add, only=only)

    def with_optional_inputs(self, names: Sequence[str]) -> Network:
        """Returns this network with constants as inputs that may be left out; the model must list them among its inputs.

        Raises: InvalidNetworkError for other names.
        """
        from hetero_core.transforms.optional_inputs import free_constants

        return free_constants(self, names)

    def with_state(self, ties: Mapping[str, str], *, initial: Mapping[str, Any] | None = None) -> Network:
        """Returns this network with outputs tied to inputs: what {output: input} names is kept by each request from run to run.

        The first run reads `initial` (input: array), zeros where it says nothing.

        Raises: InvalidNetworkError for unknown names, types that differ, and an open size without an initial value.
        """
        from hetero_core.transforms.states import tie_states

        return tie_states(self, ties, {} if initial is None else initial)

    def with_precision(self, source: str, target: str) -> Network:
        """Returns this network computing in `target` ("FP32") what is `source` ("FP16") in it; inputs and outputs stay as they are.

        Raises: InvalidNetworkError for precisions that are no floats, and for nodes that name the type in a way that is not known.
        """
        from hetero_core.transforms.precision import convert_precision

        return convert_precision(self, source, target)

    @cached_property
    def input_info(self) -> Mapping[str, InputInfo]:
        """Input -> name, precision, layout and shape."""
        return MappingProxyType({spec.name: InputInfo(*self._describe(spec), name=spec.name) for spec in self.inputs})

    @cached_property
    def output_info(self) -> Mapping[str, OutputInfo]:
        """Output -> name, precision, layout and shape."""
        return MappingProxyType({spec.name: OutputInfo(*self._describe(spec), name=spec.name) for spec in self.outputs})

    def _describe(self, spec: ValueSpec) -> tuple[str | None, str | None, tuple[Dimension, ...] | None]:
        shape = spec.shape
        layout = self.border.layouts.get(spec.name, None if shape is None else LAYOUT_OF_RANK.get(len(shape)))
        return precision_of_dtype(spec.dtype), layout, shape

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex over everything that shapes the result: graph, attributes, types, weights. Names of nodes count, too."""
        from hetero_core.network.fingerprint import fingerprint_network  # below in the tree; a network is asked for it rarely

        return fingerprint_network(self)


def iterate_graphs(graph: Graph) -> Iterator[Graph]:
    """Yields the graph and every body nested in it, outer ones first."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from iterate_graphs(body)
