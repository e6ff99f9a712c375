"""Descriptions of values (NodeArg, ModelMetadata) and values themselves (OrtValue), all in the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, dtype_of_onnx, numpy_dtype, onnx_of_dtype
from hetero_core.frontends.onnxruntime.errors import make_error
from hetero_core.frontends.shared_core import report_once
from hetero_core.network.tensors import read_type
from hetero_core.network.types import Dimension, MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType, shape_of

if TYPE_CHECKING:
    import onnx

_SPELLED = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model. `shape` has a size, a name (text) or None for each dimension; it is empty for an unknown rank."""

    name: str
    type: str
    shape: list[Dimension]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass(frozen=True)
class ModelMetadata:
    """What a model's file says about itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def name_type(value_type: ValueType | None) -> str:
    """Returns a type as ONNX Runtime writes it: "tensor(float)", "seq(map(int64,tensor(float)))"."""
    match value_type:
        case TensorType(str() as dtype):
            return f"tensor({_SPELLED.get(dtype, dtype)})"
        case SequenceType(element):
            return f"seq({name_type(element)})"
        case OptionalType(element):
            return f"optional({name_type(element)})"
        case MapType(key, value):
            return f"map({key},{name_type(value)})"
    return "tensor(undefined)"


def describe_value(spec: ValueSpec, declared: onnx.TypeProto | None) -> NodeArg:
    """Returns the description of a value as the file declares it, placeholders of names included; without a declared shape, as inferred."""
    value_type = None if declared is None else read_type(declared, spec.name)
    if declared is None or value_type in (None, TensorType(spec.dtype)):
        return NodeArg(spec.name, name_type(spec.type), list(shape_of(spec.type) or ()))
    shape = [axis.dim_param or (axis.dim_value if axis.HasField("dim_value") else None) for axis in declared.tensor_type.shape.dim]
    return NodeArg(spec.name, name_type(value_type), [None if size in (-1, "") else size for size in shape])


def word_fault(inputs: Sequence[NodeArg], feed: Mapping[str, Any]) -> str:
    """Returns ONNX Runtime's words for the first array that does not fit its input; "" if all fit."""
    for described in inputs:
        value, ending = feed.get(described.name), " Please fix either the inputs/outputs or the model.\n"
        if not isinstance(value, np.ndarray):
            continue
        if (actual := name_type(TensorType(dtype_of_numpy(value.dtype)))) != described.type:
            return f"Unexpected input data type. Actual: ({actual}) , expected: ({described.type})\n"
        if described.shape and len(described.shape) != value.ndim:
            return f"Invalid rank for input: {described.name} Got: {value.ndim} Expected: {len(described.shape)}{ending}"
        rows = zip(range(value.ndim), value.shape, described.shape, strict=False)
        wrong = [f" index: {i} Got: {size} Expected: {own}\n" for i, size, own in rows if isinstance(own, int) and own != size]
        if wrong:
            return f"Got invalid dimensions for input: {described.name} for the following indices\n{''.join(wrong)}{ending}"
    return ""


def find_dtype(element_type: Any) -> np.dtype[Any]:
    """Returns NumPy's type of an element type: a NumPy type, or ONNX's number of it. Raises: InvalidArgument."""
    name = dtype_of_onnx(element_type) if isinstance(element_type, int) else element_type and dtype_of_numpy(element_type)
    if not name:
        raise make_error("InvalidArgument", f"{element_type!r} is no element type of ONNX")
    return numpy_dtype(name)


def view_memory(name: str, device_type: str, element_type: Any, shape: Sequence[int], pointer: int) -> np.ndarray[Any, Any]:
    """Returns an array over the host's memory at a pointer, for the value `name`; the caller keeps the memory alive.

    Raises: NotImplemented for another memory, InvalidArgument for texts and without an element type.
    """
    if device_type != "cpu":
        advice = "bind the host's memory, and the device copies it"
        raise make_error("NotImplemented", f"'{name}' cannot be bound to a pointer into memory of '{device_type}'; {advice}")
    dtype = find_dtype(element_type)
    if dtype.kind == "O":
        raise make_error("InvalidArgument", f"'{name}' cannot be bound to texts by a pointer; bind an array or an OrtValue")
    nbytes = prod(shape) * dtype.itemsize
    memory = memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)) if nbytes else b""
    return np.frombuffer(memory, dtype).reshape(tuple(shape))


def report_memory(device_type: str) -> None:
    """Says once that a value for another memory stays in the host's memory."""
    if device_type != "cpu":
        report_once(f"a value for memory of '{device_type}' stays in the host's memory; the device copies it")


class _Capsule:
    """A capsule of DLPack as NumPy takes it: as an object with methods. NumPy itself refuses memory of another device."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


class OrtValue:
    """A tensor, a list of tensors or maps, or an absent optional. A tensor shares the memory of its array."""

    def __init__(self, value: Any, type_name: str = "") -> None:
        self.value = value
        self._type = type_name

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1) -> OrtValue:
        """Returns a value over an array; a copy only if the array is not contiguous."""
        report_memory(device_type)
        return cls(np.asarray(array, order="C"))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> OrtValue:
        """Returns a value over the bytes of an array, as elements of another type of the same size."""
        return cls(np.ascontiguousarray(data).view(find_dtype(onnx_element_type)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Returns a tensor of zeros."""
        report_memory(device_type)
        return cls(np.zeros(tuple(shape), find_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Returns a value over a tensor of another library, or over a capsule that its `__dlpack__` has returned."""
        return cls(np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data)))

    # The compiled class that a value wraps in ONNX Runtime; libraries pass it on.
    _ortvalue = property(lambda self: self)

    @property
    def tensor(self) -> np.ndarray[Any, Any]:
        """The array of a tensor, whose memory it shares. Raises: Fail for any other value."""
        if not isinstance(self.value, np.ndarray):
            raise make_error("Fail", f"expected a tensor, the OrtValue holds {self.data_type()}")
        return self.value

    def numpy(self) -> Any:
        """Returns a copy of a tensor; the lists and maps of any other value."""
        return self.value.copy() if isinstance(self.value, np.ndarray) else self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.tensor, dtype, copy=copy)

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def update_inplace(self, data: Any) -> None:
        """Overwrites a tensor with values of the same type and number. Raises: InvalidArgument."""
        array, target = np.asarray(data), self.tensor
        if array.dtype != target.dtype or array.size != target.size:
            own, given = (f"{each.dtype}{list(each.shape)}" for each in (target, array))
            raise make_error("InvalidArgument", f"cannot write {given} to an OrtValue of {own}")
        np.copyto(target, array.reshape(target.shape))

    def data_ptr(self) -> int:
        """Returns the address of the first element."""
        return int(self.tensor.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Returns the bytes of all elements."""
        return int(self.tensor.nbytes)

    def device_name(self) -> str:
        """Returns "cpu": all values lie in the host's memory."""
        return "cpu"

    def shape(self) -> list[int]:
        """Returns the sizes of a tensor."""
        return list(self.tensor.shape)

    def data_type(self) -> str:
        """Returns the type as ONNX Runtime writes it."""
        if self._type or not isinstance(self.value, np.ndarray):
            return self._type or "optional"
        return name_type(TensorType(dtype_of_numpy(self.value.dtype)))

    def element_type(self) -> int:
        """Returns ONNX's number of a tensor's element type."""
        return onnx_of_dtype(dtype_of_numpy(self.tensor.dtype) or "undefined")

    def has_value(self) -> bool:
        """Says whether this is not an absent optional."""
        return self.value is not None

    def is_tensor(self) -> bool:
        """Says whether this is a tensor."""
        return isinstance(self.value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Says whether this is a list of tensors."""
        return isinstance(self.value, list) and all(isinstance(item, np.ndarray) for item in self.value)

    def is_sparse_tensor(self) -> bool:
        """Returns False: sparse tensors are not supported."""
        return False
