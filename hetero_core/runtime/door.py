"""The door between the user's arrays and a device: names, element types and shapes are checked here and nowhere else.

Arrays pass uncopied where they can; an array is copied only to make it contiguous or to bring its bytes into the machine's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError, enumerate_choices, suggest
from hetero_core.network.types import HOST, MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType

# DLPack's numbers of memories that a device may have; 12 is for devices that DLPack does not know.
_MEMORIES = {2: "cuda", 10: "rocm", 12: "ext"}


def order_inputs(given: Mapping[str, Any], specs: Sequence[ValueSpec], *, network: str) -> tuple[Any, ...]:
    """Returns the values in the order of the specs, each checked and as the device wants it.

    Raises: InputNameError for unknown and missing names, InputTypeError, InputShapeError.
    """
    if not isinstance(given, Mapping):
        raise InputTypeError(f"network '{network}': inputs are a mapping of name to array; got {type(given).__name__}")
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            hint = suggest(str(name), names) or ";"
            raise InputNameError(f"network '{network}' has no input '{name}'{hint} its inputs are {enumerate_choices(names)}")
    missing = [spec for spec in specs if spec.name not in given and not isinstance(spec.type, OptionalType)]
    if missing:
        raise InputNameError(f"network '{network}' misses the inputs " + "; ".join(str(spec) for spec in missing))
    sizes: dict[str, tuple[int, str]] = {}
    return tuple(convert_value(given.get(spec.name), spec, network=network, sizes=sizes) for spec in specs)


def convert_value(value: Any, spec: ValueSpec, *, network: str, sizes: dict[str, tuple[int, str]] | None = None) -> Any:
    """Returns one value checked against its spec. `sizes` collects the named dimensions, so that they agree between inputs.

    An array that lies in the device's own memory already stays there; it is for the device to take it as it is.
    """
    if spec.memory != HOST and isinstance(spec.type, TensorType) and _find_memory(value) == spec.memory:
        where = f"input '{spec.name}' of network '{network}'"
        return _check_in_place(value, spec.type, where, {} if sizes is None else sizes)
    return _convert(value, spec.type, f"input '{spec.name}' of network '{network}'", {} if sizes is None else sizes)


def _find_memory(value: Any) -> str | None:
    """Returns the memory that an array lies in, by the name that devices give it; None for the host's and for what does not say."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    kind, index = value.__dlpack_device__()
    return f"{_MEMORIES[int(kind)]}:{index}" if int(kind) in _MEMORIES else None


def _check_in_place(value: Any, wanted: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    """Returns an array of any library, checked by what it says of itself: PyTorch writes "torch.float32" where NumPy has "float32"."""
    found = str(value.dtype).rpartition(".")[2]
    if wanted.dtype is not None and found != _spell(wanted.dtype):
        raise InputTypeError(f"{where}: expected {wanted.dtype}, got {found}; convert it where it lies")
    check_shape(tuple(value.shape), wanted, where, sizes)
    return value


def _convert(value: Any, wanted: ValueType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    if isinstance(wanted, OptionalType):
        return None if value is None else _convert(value, wanted.element, where, sizes)
    if isinstance(wanted, SequenceType):
        if not isinstance(value, list | tuple):
            raise InputTypeError(f"{where}: expected a list for {wanted}, got {type(value).__name__}")
        return [_convert(item, wanted.element, f"{where}, item {index}", {}) for index, item in enumerate(value)]
    if isinstance(wanted, MapType):
        if not isinstance(value, Mapping):
            raise InputTypeError(f"{where}: expected a dict for {wanted}, got {type(value).__name__}")
        return {_convert_key(key, wanted, where): _convert_entry(key, entry, wanted, where) for key, entry in value.items()}
    return _convert_tensor(value, wanted, where, sizes)


def _convert_key(key: Any, wanted: MapType, where: str) -> str | int:
    """Returns a key as a Python text or integer."""
    if isinstance(key, str) if wanted.key == "string" else isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(key) if isinstance(key, str) else int(key)
    raise InputTypeError(f"{where}: expected keys of {wanted.key} for {wanted}, got {key!r}")


def _convert_entry(key: Any, value: Any, wanted: MapType, where: str) -> Any:
    """Returns a number or text of a map as a Python one; any other value as it is converted elsewhere."""
    where = f"{where}, key {key!r}"
    dtype = wanted.value.dtype if isinstance(wanted.value, TensorType) else None
    array = np.asarray(value, dtype=object) if isinstance(value, str) else np.asarray(value)
    if dtype is None or array.shape != ():
        return _convert(value, wanted.value, where, {})
    kinds = {"string": "O", "bool": "b"}.get(dtype, "iuf" if "float" in dtype else "iu")
    if array.dtype.kind not in kinds:
        raise InputTypeError(f"{where}: expected one {dtype} for {wanted}, got {value!r}")
    return array.item()


def _convert_tensor(value: Any, wanted: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    array = _as_array(value, wanted, where)
    found = dtype_of_numpy(array.dtype)
    if wanted.dtype is not None and found != wanted.dtype:
        raise InputTypeError(
            f"{where}: expected {wanted.dtype}, got {found or array.dtype}; convert it with array.astype('{_spell(wanted.dtype)}')"
        )
    check_shape(array.shape, wanted, where, sizes)
    if found == "string" and array.dtype != object:
        return array.astype(object)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")) if array.ndim else array


def _spell(dtype: str) -> str:
    return numpy_dtype(dtype).name


def _as_array(value: Any, wanted: TensorType, where: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic | str | bool | int | float) and wanted.shape == ():
        return np.asarray(value, dtype=None if isinstance(value, np.generic) or wanted.dtype is None else numpy_dtype(wanted.dtype))
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    raise InputTypeError(
        f"{where}: expected an array for {wanted}, got {type(value).__name__}; give anything with __array__ or __dlpack__"
    )


def check_shape(shape: tuple[int, ...], wanted: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> None:
    """Raises InputShapeError when a shape is not of the wanted type, or gives a named dimension a second size."""
    if wanted.shape is None:
        return
    message = f"{where}: expected shape {TensorType(None, wanted.shape)}, got {list(shape)}".replace("unknown[", "[")
    if len(shape) != len(wanted.shape):
        raise InputShapeError(f"{message}: {len(shape)} dimensions instead of {len(wanted.shape)}")
    for axis, (size, dimension) in enumerate(zip(shape, wanted.shape, strict=True)):
        if isinstance(dimension, int) and size != dimension:
            raise InputShapeError(f"{message}: axis {axis} has {size} instead of {dimension}")
        if isinstance(dimension, str):
            first = sizes.setdefault(dimension, (size, where))
            if first[0] != size:
                raise InputShapeError(f"{message}: '{dimension}' is {size} here and {first[0]} in {first[1]}")


def own_outputs(outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns outputs that belong to the caller alone: copies of those that are constants, inputs, or repeat one another."""
    owned: list[Any] = []
    for output in outputs:
        owned.append(_copy_if_shared(output, inputs, owned))
    return tuple(owned)


def _copy_if_shared(output: Any, inputs: Sequence[Any], earlier: Sequence[Any]) -> Any:
    if isinstance(output, list):
        return [_copy_if_shared(item, inputs, earlier) for item in output]
    if not isinstance(output, np.ndarray):
        return output
    others = [other for other in (*inputs, *earlier) if isinstance(other, np.ndarray)]
    is_shared = not output.flags.writeable or any(np.may_share_memory(output, other) for other in others)
    return output.copy() if is_shared else output
