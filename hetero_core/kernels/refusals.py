"""Why a kernel does not run a node: its attributes, its inputs, their sizes, or a preparation that fails.

Each function compares a node with the record of its kernel, and returns the reason for a refusal, None if it accepts the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.errors import enumerate_choices
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import MapType, TensorType, ValueType

if TYPE_CHECKING:
    from hetero_core.kernels.registry import Dtypes, KernelRecord

# Attributes that hold the number of an element type.
_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})


def refuse_attributes(node: Node, record: KernelRecord) -> str | None:
    """Returns the reason to refuse an attribute: not implemented, a value outside the choices, or missing."""
    for name, value in node.attributes.items():
        if name not in record.attributes:
            return f"attribute '{name}' of {node.operator} is not implemented"
        if name in record.choices and (hasattr(value, "dtype") or value not in record.choices[name]):
            choices = enumerate_choices(str(choice) for choice in record.choices[name])
            return f"attribute '{name}' of {node.operator} is {value!r}; implemented: {choices}"
        if isinstance(value, Graph) and name not in record.bodies:
            return f"attribute '{name}' of {node.operator} is a graph"
        if name in _DTYPE_ATTRIBUTES and isinstance(value, int) and value != 0 and dtype_of_onnx(value) is None:
            return f"attribute '{name}' of {node.operator} is {value}, which is no element type"
    missing = [name for name in record.required if name not in node.attributes]
    return f"attribute '{missing[0]}' of {node.operator} is missing" if missing else None


def refuse_inputs(node: Node, record: KernelRecord, input_types: Sequence[ValueType | None], dtypes: Dtypes) -> str | None:
    """Returns the reason to refuse the number of inputs or outputs, or the element type of one of them."""
    least, most = record.input_limits
    if len(node.inputs) < least or (most is not None and len(node.inputs) > most):
        return f"{node.operator} has {len(node.inputs)} inputs; implemented: {least} to {'any number' if most is None else most}"
    if record.outputs is not None and any(node.outputs[record.outputs :]):
        return f"{node.operator} has {len(node.outputs)} outputs; implemented: {record.outputs}"
    for name in _DTYPE_ATTRIBUTES & node.attributes.keys():
        value = node.attributes[name]
        dtype = dtype_of_onnx(value) if isinstance(value, int | str) else None
        if dtype is not None and dtype not in dtypes:
            return f"{node.operator} makes {dtype}; this device has {enumerate_choices(dtypes)}"
    for index, (name, value_type) in enumerate(zip(node.inputs, input_types, strict=False)):
        if not name or value_type is None:
            continue
        allowed = record.dtypes_of_input(index)
        # An input that a kernel reads on the host never enters the device, so only the kernel's own limits hold there.
        allowed = allowed if index in record.host else allowed & dtypes
        reason = refuse_type(value_type, allowed, takes_maps=record.takes_maps)
        if reason is not None:
            return f"input '{name}' of {node.operator} {reason}; implemented: {enumerate_choices(allowed)}"
    return None


def refuse_sizes(
    node: Node,
    record: KernelRecord,
    input_types: Sequence[ValueType | None],
    type_of: Callable[[str], ValueType | None] | None,
) -> str | None:
    """Returns the reason to refuse an input or output that is larger than the kernel takes."""
    if record.largest is None:
        return None
    for name, value_type in (
        *zip(node.inputs, input_types, strict=False),
        *((name, type_of and type_of(name)) for name in node.writes),
    ):
        nbytes = value_type.nbytes if isinstance(value_type, TensorType) else None
        if nbytes is not None and nbytes > record.largest:
            return explain_size(node, name, nbytes, record.largest)
    return None


def explain_size(node: Node, name: str, nbytes: int, largest: int) -> str:
    """Returns the reason why a kernel does not take a value of so many bytes."""
    return f"value '{name}' of {node.operator} has {nbytes} bytes; implemented: {largest} at most"


def refuse_type(value_type: ValueType, allowed: Dtypes, *, takes_maps: bool = False) -> str | None:
    """Returns the reason why a value of this type is refused ("has dtype string"); None when its elements are allowed or unknown."""
    if isinstance(value_type, MapType):
        return refuse_type(value_type.value, allowed) if takes_maps else "is a map"
    if isinstance(value_type, TensorType):
        return None if value_type.dtype is None or value_type.dtype in allowed else f"has dtype {value_type.dtype}"
    return refuse_type(value_type.element, allowed, takes_maps=takes_maps)


def refuse_preparation(node: Node, record: KernelRecord, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Returns the reason why the kernel's preparation (computed once, before its runs) fails."""
    if record.prepare is None:
        return None
    import numpy as np  # on the host, whatever the device: only the reason is wanted

    try:
        record.prepare(np, input_types, **{name: value for name, value in node.attributes.items() if name not in record.unread})
    except ValueError as error:
        return f"{node.operator} {error}"
    except (ArithmeticError, LookupError, TypeError) as error:
        # Not every invalid combination of attributes is checked; an exception in `prepare` counts as a refusal.
        return f"{node.operator} has attributes that do not fit together: {type(error).__name__}: {error}"
    return None
