"""Types of values of a network, constants included, and the ONNX names of arrays' element types."""

from __future__ import annotations

from hetero_core.dtypes import dtype_of_numpy
from hetero_core.kernels.precision import Array
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType, ValueType


def find_type(network: Network, value: str) -> ValueType | None:
    """Returns the type of a constant or of another value; None if it is unknown."""
    return network.initializers[value].type if value in network.initializers else network.type_of(value)


def find_shaped_type(network: Network, value: str) -> TensorType | None:
    """Returns the type of a tensor of known rank; None for any other value."""
    value_type = find_type(network, value)
    return value_type if isinstance(value_type, TensorType) and value_type.shape is not None else None


def name_dtype(x: Array) -> str:
    """Returns ONNX's name of the element type of an array that a kernel got, whose type the query has checked."""
    name = dtype_of_numpy(x.dtype)
    assert name is not None
    return name
