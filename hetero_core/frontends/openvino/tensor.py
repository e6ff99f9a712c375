"""Tensor, an array with OpenVINO's interface, and the arrays of a run from all that a program passes as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from hetero_core.dtypes import DTYPES, dtype_of_numpy, numpy_dtype
from hetero_core.frontends.openvino.ports import ConstOutput, find_port
from hetero_core.frontends.openvino.shapes import Listed, Shape, Type, find_type, with_getters
from hetero_core.network.arrays import array_of_bytes


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
