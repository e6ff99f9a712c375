"""Ports, the inputs and outputs of models and compiled models; Tensor, an array with OpenVINO's interface; and the arrays of a run from
all that a program passes as inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hetero_core.dtypes import DTYPES, dtype_of_numpy, numpy_dtype
from hetero_core.frontends.openvino.shapes import Layout, Listed, Shape, Type, find_shape, find_type, with_getters
from hetero_core.network.arrays import array_of_bytes
from hetero_core.network.types import ValueSpec

if TYPE_CHECKING:
    from hetero_core.frontends.openvino.model import Model

Port = TypeVar("Port", bound="ConstOutput")


@with_getters("any_name", "names", "index", "shape", "partial_shape", "element_type")
@with_getters("node", "tensor", "source_output", "friendly_name", "name", "type_name")
class ConstOutput(Listed):
    """An input or output: its name, element type and shape. Ports of the same side, index and name are equal.

    OpenVINO keeps a node, the node's input and a tensor apart from the port; here all are the port, which has the name of the value.
    """

    def __init__(self, spec: ValueSpec, index: int, bounds: Mapping[str, tuple[int, int]], *, is_input: bool) -> None:
        self._identity = (is_input, index, spec.name)
        self.spec = spec
        self.index = index
        self.any_name = spec.name
        self.names = {spec.name}
        self.element_type = find_type(spec.dtype)
        self.partial_shape = find_shape(spec, bounds)

    @property
    def shape(self) -> Shape:
        """The shape. Raises: RuntimeError if a size is open."""
        return self.partial_shape.to_shape()

    node = tensor = source_output = property(lambda self: self)
    friendly_name = name = property(attrgetter("any_name"))

    @property
    def type_name(self) -> str:
        """OpenVINO's operator of an input or output."""
        return "Parameter" if self._identity[0] else "Result"

    def input(self, _: int) -> ConstOutput:
        """Returns the port: `output.get_node().input(0).get_source_output()` is the value that an output returns."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstOutput) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: names[{self.any_name}] shape{self.partial_shape} type: {self.element_type.to_string()}>"


@with_getters("layout")
class Output(ConstOutput):
    """An input or output of a model that is not compiled yet. As in OpenVINO's parameters and results, its layout can be set."""

    def __init__(self, model: Model, spec: ValueSpec, index: int, *, is_input: bool) -> None:
        super().__init__(spec, index, model.network.border.bounds, is_input=is_input)
        self._model = model

    @property
    def layout(self) -> Layout:
        """The order of the axes, empty if it was not said. Raises: RuntimeError when it is set without a letter for each axis."""
        return Layout(self._model.network.border.layouts.get(self.any_name, ""))

    @layout.setter
    def layout(self, layout: Any) -> None:
        rank = len(self.partial_shape.require_sizes())
        letters = Layout(layout).name_axes(rank)
        if not letters.isalpha() or len(letters) != rank:
            raise RuntimeError(f"'{self.any_name}' has {rank} axes; expected a letter for each, got the layout '{letters}'")
        network = self._model.network
        layouts = MappingProxyType({**network.border.layouts, self.any_name: letters})
        self._model.network = replace(network, border=replace(network.border, layouts=layouts))

    def set_names(self, names: Set[str]) -> None:
        """Sets the name. Raises: RuntimeError for several names, and for a name that another value has."""
        if len(names) != 1:
            raise RuntimeError(f"'{self.any_name}' has one name; expected a set of one, got {sorted(names)}")
        (name,) = names
        if name != self.any_name:
            self._model.rename_value(self.any_name, name)
            self.spec, self._identity = replace(self.spec, name=name), (*self._identity[:2], name)
            self.any_name, self.names = name, {name}


def find_port(ports: Sequence[Port], key: Any, *, where: str) -> Port:
    """Returns the port of a name, an index or an equal port; of None, the only port. Raises: RuntimeError with the names."""
    if key is None and len(ports) == 1:
        return ports[0]
    name = key.any_name if isinstance(key, ConstOutput) else key
    for port in ports:
        if name in (port.index, port.any_name):
            return port
    text = "without a name or index" if key is None else f"'{name}'"
    raise RuntimeError(f"{where} {text} was not found; there are {', '.join(f'{port.index}: {port.any_name}' for port in ports)}")


@with_getters("shape", "element_type", "size", "byte_size", "strides")
class Tensor(Listed):
    """An array: of an array or a list (copied, unless `shared_memory`), of a type and a shape, of a port, or a region of a tensor.

    An array with a shape and a type, or a port with an array, is the array's memory read as that. Texts are arrays of objects. Elements
    of less than a byte take a byte each.
    """

    def __init__(self, array: Any = None, shape: Any = None, end: Any = None, *, shared_memory: bool = False, **named: Any) -> None:
        self.data: np.ndarray[Any, Any]
        is_memory = isinstance(array, np.ndarray) and shape is not None and not isinstance(shape, bool)
        sources = [] if is_memory else [named[key] for key in ("type", "list", "port", "other", "image") if key in named]
        source = next(iter(sources), array)
        if isinstance(shape, bool):
            shared_memory, shape = shape, None
        if is_memory:
            self.data = _read_memory(array, Shape(shape), named.get("type", end))
        elif isinstance(source, ConstOutput) and (isinstance(shape, np.ndarray) or isinstance(array, np.ndarray)):
            self.data = _read_memory(shape if array is source else array, source.shape, source.element_type)
        elif isinstance(source, Tensor):
            begin, end = named.get("begin", shape), named.get("end", end)
            self.data = source.data if begin is None else source.data[tuple(map(slice, begin, end))]
        elif isinstance(source, ConstOutput):
            self.data = np.zeros(source.partial_shape.get_min_shape(), source.element_type.to_dtype())
        elif shape is not None:
            self.data = np.zeros(tuple(shape), source.to_dtype() if isinstance(source, Type) else source)
        else:
            self.data = _hold(source, shared=shared_memory)

    size, byte_size, strides = (property(attrgetter(f"data.{name}")) for name in ("size", "nbytes", "strides"))

    @property
    def str_data(self) -> np.ndarray[Any, Any]:
        """A copy of the texts as an array of NumPy's texts."""
        return np.asarray(self.data.astype(str))

    @str_data.setter
    def str_data(self, texts: Any) -> None:
        self.data[...] = texts

    @property
    def bytes_data(self) -> np.ndarray[Any, Any]:
        """A copy of the texts as an array of NumPy's bytes."""
        return np.asarray(np.char.encode(self.str_data, "utf-8"))

    @property
    def shape(self) -> Shape:
        """The shape; setting it keeps the elements if their number stays."""
        return Shape(self.data.shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        sizes = tuple(Shape(shape))
        self.data = self.data.reshape(sizes) if np.prod(sizes) == self.data.size else np.zeros(sizes, self.data.dtype)

    @property
    def element_type(self) -> Type:
        """The element type."""
        return find_type(dtype_of_numpy(self.data.dtype))

    def is_continuous(self) -> bool:
        """Says whether the elements lie in memory without gaps; those of a region may not."""
        return bool(self.data.flags.c_contiguous)

    def copy_from(self, source: Any) -> None:
        """Copies a tensor or an array into this tensor, which takes its shape."""
        values = np.asarray(read_array(source))
        self.shape = Shape(values.shape)
        self.data[...] = values

    def copy_to(self, target: Tensor) -> None:
        """Copies this tensor into another."""
        target.copy_from(self)

    def __repr__(self) -> str:
        return f"<Tensor: shape{self.shape} type: {self.element_type.to_string()}>"


def _read_memory(array: np.ndarray[Any, Any], shape: Shape, element_type: Type | None) -> np.ndarray[Any, Any]:
    """Returns the memory of an array as elements of a type, by default its own; packed elements are copied. Raises: RuntimeError."""
    kind = find_type(dtype_of_numpy(array.dtype)) if element_type in (None, Type.dynamic) else element_type
    if kind.bitwidth == 0 or kind.value not in DTYPES:
        raise RuntimeError(f"memory cannot be read as {kind.to_string()}; expected a type of numbers that ONNX has")
    size = -(-int(np.prod(shape)) * kind.bitwidth // 8)
    if not array.flags.c_contiguous or array.nbytes < size:
        raise RuntimeError(f"{shape} of {kind.to_string()} needs {size} contiguous bytes; the array has {array.nbytes}")
    return array_of_bytes(array.reshape(-1).view(np.uint8)[:size], kind.value, tuple(shape))


def _hold(source: Any, *, shared: bool) -> np.ndarray[Any, Any]:
    values = np.asarray(source)
    if values.dtype.kind in "US":
        return values.astype(object)
    if shared and not values.flags.c_contiguous:
        raise RuntimeError("an array that is not contiguous cannot be shared with a Tensor; give np.ascontiguousarray(array)")
    return values if shared else np.array(values, order="C")


def tensor_from_file(path: str) -> Tensor:
    """Returns the bytes of a file as a tensor of u8."""
    return Tensor(np.fromfile(path, np.uint8), shared_memory=True)


def read_array(value: Any) -> Any:
    """Returns the array of a tensor; any other value as it is."""
    return value.data if isinstance(value, Tensor) else value


def name_inputs(inputs: Any, ports: Sequence[ConstOutput], *, shared: bool) -> dict[str, Any]:
    """Returns input -> value of a mapping of names, indexes or ports, of a list of values in order, or of the value of the only input.

    Arrays are cast to the type of their input, as OpenVINO does; other arrays are copied unless `shared`. Raises: RuntimeError.
    """
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        pairs = list(inputs.items())
    elif isinstance(inputs, list | tuple) and not _is_value(inputs):
        pairs = list(enumerate(inputs))
    else:
        pairs = [(None, inputs)]
    named = [(find_port(ports, key, where="the input"), value) for key, value in pairs]
    return {port.any_name: _convert(value, port, shared=shared) for port, value in named}


def _is_value(inputs: Sequence[Any]) -> bool:
    """Says whether a list is a single value: numbers or texts, or lists of them."""
    rows = [each if isinstance(each, list) else [each] for each in inputs]
    return isinstance(inputs, list) and all(isinstance(element, str | bytes | int | float) for row in rows for element in row)


def _convert(value: Any, port: ConstOutput, *, shared: bool) -> Any:
    if isinstance(value, Tensor) or not (hasattr(value, "__array__") or isinstance(value, int | float | list | tuple)):
        return read_array(value)
    array, dtype = np.asarray(value), port.spec.dtype
    if array.ndim == 0 and port.partial_shape.is_static:
        array = array.reshape(tuple(port.shape))
    if dtype not in (None, "string") and array.dtype != (expected := numpy_dtype(dtype)):
        return array.astype(expected)
    return np.asarray(array, order="C") if shared else np.array(array, order="C")
