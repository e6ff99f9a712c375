"""The door between the user's values and a device: names, element types and shapes are checked here and nowhere else.

Arrays pass uncopied where they can; an array is copied only to make it contiguous or to bring its bytes into the machine's order. What has
no element type of its own (numbers, lists, bytes, images) is converted where its values are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.contract import OwnOutputs
from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import (
    InferenceError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    enumerate_choices,
    suggest,
    word_missing,
)
from hetero_core.network.border import EMPTY_BORDER, LAYOUT_OF_RANK, Border, precision_of_dtype
from hetero_core.network.types import HOST, MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType
from hetero_core.runtime.device_tensor import DeviceTensor
from hetero_core.runtime.untyped import convert_untyped, read_foreign

# DLPack's numbers of memories that a device may have; 12 is for devices that DLPack does not know.
_MEMORIES = {2: "cuda", 10: "rocm", 12: "ext"}


def order_inputs(
    inputs: Mapping[str, Any],
    specs: Sequence[ValueSpec],
    *,
    network: str,
    border: Border = EMPTY_BORDER,
    takes_tensors: bool = False,
) -> tuple[Any, ...]:
    """Returns the values in the order of the specs, each checked and as the device wants it; defaults for those that are left out.

    Raises: InputNameError for unknown and missing names, InputTypeError, InputShapeError.
    """
    names = [spec.name for spec in specs]
    for name in inputs:
        if name not in names:
            raise InputNameError(word_missing(f"network '{network}'", "input", name, names))
    missing = [
        spec
        for spec in specs
        if spec.name not in inputs and not isinstance(spec.type, OptionalType) and spec.name not in border.defaults
    ]
    if missing:
        raise InputNameError(f"network '{network}' misses the inputs " + "; ".join(str(spec) for spec in missing))
    sizes: dict[str, tuple[int, str]] = {}
    ordered = tuple(
        border.defaults[spec.name].array
        if spec.name not in inputs and spec.name in border.defaults
        else convert_value(inputs.get(spec.name), spec, network=network, sizes=sizes, takes_tensors=takes_tensors)
        for spec in specs
    )
    if border.bounds:
        _check_bounds(sizes, border.bounds)
    return ordered


def _check_bounds(sizes: Mapping[str, tuple[int, str]], bounds: Mapping[str, tuple[int, int]]) -> None:
    for name, (size, where) in sizes.items():
        lowest, highest = bounds.get(name, (size, size))
        if not lowest <= size <= highest:
            raise InputShapeError(f"{where}: '{name}' is {size}, and its bounds are {lowest} to {highest}")


def convert_value(
    value: Any,
    spec: ValueSpec,
    *,
    network: str,
    sizes: dict[str, tuple[int, str]] | None = None,
    takes_tensors: bool = False,
) -> Any:
    """Returns one value checked against its spec. `sizes` collects the named dimensions, so that they agree between inputs.

    An array that lies in the device's own memory already stays there; it is for the device to take it as it is. `takes_tensors` says that
    the device takes tensors of any memory.
    """
    where = f"input '{spec.name}' of network '{network}'"
    if isinstance(value, DeviceTensor):
        tensor_type = spec.type
        if not (takes_tensors and isinstance(tensor_type, TensorType)):
            value.require_memory(spec, where)
        assert isinstance(tensor_type, TensorType), "what lies in the memory of a device is a tensor"
        return _check_in_place(value, tensor_type, where, {} if sizes is None else sizes)
    if spec.memory != HOST and isinstance(spec.type, TensorType) and _find_memory(value) == spec.memory:
        return _check_in_place(value, spec.type, where, {} if sizes is None else sizes)
    return _convert(value, spec.type, where, {} if sizes is None else sizes)


def _find_memory(value: Any) -> str | None:
    """Returns the memory that an array lies in, by the name that devices give it; None for the host's and for what does not say."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    kind, index = value.__dlpack_device__()
    return f"{_MEMORIES[int(kind)]}:{index}" if int(kind) in _MEMORIES else None


def _check_in_place(value: Any, value_type: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    """Returns an array of any library, checked by what it says of itself: PyTorch writes "torch.float32" where NumPy has "float32"."""
    dtype_name = str(value.dtype).rpartition(".")[2]
    if value_type.dtype is not None and dtype_name != _spell(value_type.dtype):
        raise InputTypeError(f"{where}: expected {value_type.dtype}, got {dtype_name}; convert it where it lies")
    check_shape(tuple(value.shape), value_type, where, sizes)
    return value


def count_copied_bytes(inputs: Mapping[str, Any], ordered: Sequence[Any], specs: Sequence[ValueSpec]) -> int:
    """Returns the bytes of tensors that the door had to copy, lists and other values without memory of their own included."""
    copied = 0
    for spec, value in zip(specs, ordered, strict=True):
        source = inputs.get(spec.name)
        if isinstance(value, np.ndarray) and source is not None and not _is_same_memory(source, value):
            copied += value.nbytes
    return copied


def _is_same_memory(source: Any, array: np.ndarray[Any, Any]) -> bool:
    if array.size == 0:
        return True
    if isinstance(source, bytes | bytearray | memoryview):
        source = np.frombuffer(source, np.uint8)
    source_array = source if isinstance(source, np.ndarray) else read_foreign(source)
    return source_array is not None and np.may_share_memory(source_array, array)


def _convert(value: Any, value_type: ValueType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    if isinstance(value_type, OptionalType):
        return None if value is None else _convert(value, value_type.element, where, sizes)
    if isinstance(value_type, SequenceType):
        if not isinstance(value, list | tuple):
            raise InputTypeError(f"{where}: expected a list for {value_type}, got {type(value).__name__}")
        return [_convert(item, value_type.element, f"{where}, item {index}", {}) for index, item in enumerate(value)]
    if isinstance(value_type, MapType):
        if not isinstance(value, Mapping):
            raise InputTypeError(f"{where}: expected a dict for {value_type}, got {type(value).__name__}")
        return {_convert_key(key, value_type, where): _convert_entry(key, entry, value_type, where) for key, entry in value.items()}
    return _convert_tensor(value, value_type, where, sizes)


def _convert_key(key: Any, value_type: MapType, where: str) -> str | int:
    """Returns a key as a Python text or integer."""
    if isinstance(key, str) if value_type.key == "string" else isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(key) if isinstance(key, str) else int(key)
    raise InputTypeError(f"{where}: expected keys of {value_type.key} for {value_type}, got {key!r}")


def _convert_entry(key: Any, value: Any, value_type: MapType, where: str) -> Any:
    """Returns a number or text of a map as a Python one; any other value as it is converted elsewhere."""
    where = f"{where}, key {key!r}"
    dtype = value_type.value.dtype if isinstance(value_type.value, TensorType) else None
    array = np.asarray(value, dtype=object) if isinstance(value, str) else np.asarray(value)
    if dtype is None or array.shape != ():
        return _convert(value, value_type.value, where, {})
    kinds = {"string": "O", "bool": "b"}.get(dtype, "iuf" if "float" in dtype else "iu")
    if array.dtype.kind not in kinds:
        raise InputTypeError(f"{where}: expected one {dtype} for {value_type}, got {value!r}")
    return array.item()


def _convert_tensor(value: Any, value_type: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    array = _as_array(value, value_type, where)
    array_dtype = dtype_of_numpy(array.dtype)
    if value_type.dtype is not None and array_dtype != value_type.dtype:
        raise InputTypeError(
            f"{where}: expected {value_type.dtype}, got {array_dtype or array.dtype}; "
            f"convert it with array.astype('{_spell(value_type.dtype)}')" + _suggest_precision(where, array_dtype)
        )
    check_shape(array.shape, value_type, where, sizes)
    if array_dtype == "string" and array.dtype != object:
        return array.astype(object)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")) if array.ndim else array


def _spell(dtype: str) -> str:
    return numpy_dtype(dtype).name


def _suggest_precision(where: str, dtype: str | None) -> str:
    """Returns the call that would let the network take arrays of this type, where there is one."""
    if dtype is None or dtype == "string" or not where.startswith("input '"):
        return ""
    name = where.removeprefix("input '").partition("'")[0]
    return f", or let the network take it: network.with_inputs({{'{name}': InputInfo(precision='{precision_of_dtype(dtype)}')}})"


def _as_array(value: Any, value_type: TensorType, where: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    untyped = convert_untyped(value, value_type, where)
    if untyped is not None:
        return untyped
    try:
        array = read_foreign(value)
    except (RuntimeError, TypeError, BufferError, ValueError) as error:
        raise InputTypeError(f"{where}: this {type(value).__name__} gives no array: {error}") from error
    if array is None:
        raise InputTypeError(
            f"{where}: expected an array for {value_type}, got {type(value).__name__}; give anything with __array__ or __dlpack__, "
            "numbers or lists of them"
        )
    return array


def check_shape(shape: tuple[int, ...], value_type: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> None:
    """Raises InputShapeError when a shape is not of the wanted type, or gives a named dimension a second size."""
    if value_type.shape is None:
        return
    if len(shape) != len(value_type.shape):
        raise InputShapeError(
            f"{_word_shapes(shape, value_type, where)}: {len(shape)} dimensions instead of {len(value_type.shape)}"
        )
    for axis, (size, dimension) in enumerate(zip(shape, value_type.shape, strict=True)):
        if isinstance(dimension, int) and size != dimension:
            raise InputShapeError(
                f"{_word_shapes(shape, value_type, where)}: axis {axis} has {size} instead of {dimension}"
                + _suggest_shape(where, shape, value_type)
            )
        if isinstance(dimension, str):
            first = sizes.setdefault(dimension, (size, where))
            if first[0] != size:
                raise InputShapeError(
                    f"{_word_shapes(shape, value_type, where)}: '{dimension}' is {size} here and {first[0]} in {first[1]}"
                )


def _word_shapes(shape: tuple[int, ...], value_type: TensorType, where: str) -> str:
    return f"{where}: expected shape {TensorType(None, value_type.shape)}, got {list(shape)}".replace("unknown[", "[")


def fits_shape(shape: tuple[int, ...], declared: Sequence[int | str | None]) -> bool:
    """Says whether a shape has the wanted rank, and the wanted size wherever one is fixed."""
    if shape == declared:
        return True
    if len(shape) != len(declared):
        return False
    for size, dimension in zip(shape, declared, strict=True):  # noqa: SIM110  # a generator takes twice as long, and this is every output
        if size != dimension and isinstance(dimension, int):
            return False
    return True


def _suggest_shape(where: str, shape: tuple[int, ...], value_type: TensorType) -> str:
    """Returns the call that would let the network take images of this size, or in this order of axes; an empty text for others."""
    expected = value_type.shape or ()
    rank = len(shape)
    if rank not in (3, 4) or not where.startswith("input '"):
        return ""
    name = where.removeprefix("input '").partition("'")[0]
    layout = LAYOUT_OF_RANK[rank]
    last = "NHWC" if rank == 4 else "HWC"
    channels = expected[layout.index("C")]
    described = []
    if isinstance(channels, int) and channels in (1, 3, 4) and shape[layout.index("C")] != channels == shape[-1]:
        described.append(f"layout='{last}'")
        layout = last
    sizes = {letter: size for letter, size in zip(layout, shape, strict=True) if letter in "HW"}
    model = dict(zip(LAYOUT_OF_RANK[rank], expected, strict=True))
    if any(isinstance(model[letter], int) and model[letter] != size for letter, size in sizes.items()):
        described += [f"shape={tuple(shape)}", "resize='bilinear'"]
    return f"; network.with_inputs({{'{name}': InputInfo({', '.join(described)})}}) would take it" if described else ""


def fill_presets(presets: Sequence[Any], outputs: tuple[Any, ...], specs: Sequence[ValueSpec], *, network: str) -> tuple[Any, ...]:
    """Returns the outputs with the caller's own arrays, filled, in place of those that the device made itself.

    Raises: InferenceError for an array of another shape.
    """
    filled = []
    for preset, output, spec in zip(presets, outputs, specs):  # noqa: B905  # of one length, as check_outputs says; 0.13 us
        if preset is not None and preset is not output:
            if preset.shape != output.shape:
                raise InferenceError(
                    f"output '{spec.name}' of network '{network}' has shape {list(output.shape)}; "
                    f"the array set for it has {list(preset.shape)}"
                )
            np.copyto(preset, output)
        filled.append(output if preset is None else preset)
    return tuple(filled)


def find_spec(name: str, inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec], *, network: str) -> tuple[ValueSpec, bool]:
    """Returns the input or output of a name, and whether it is an input. Raises: InputNameError with all names."""
    for specs, is_input in ((inputs, True), (outputs, False)):
        for spec in specs:
            if spec.name == name:
                return spec, is_input
    names = [spec.name for spec in (*inputs, *outputs)]
    raise InputNameError(
        f"network '{network}' has no input or output '{name}'{suggest(str(name), names) or ';'} it has {enumerate_choices(names)}"
    )


def own_outputs(outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns outputs that belong to the caller alone: copies of those that are constants, inputs, or repeat one another."""
    if type(outputs) is OwnOutputs or all_are_apart(outputs, inputs):
        return outputs
    owned: list[Any] = []
    for output in outputs:
        owned.append(_copy_if_shared(output, inputs, owned))
    return tuple(owned)


def all_are_apart(outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> bool:
    """Says whether each output is plainly a writable array with memory of its own; False also where that takes a closer look.

    Arrays that own their memory share none unless they are one. Only where the memory is that of something else the spans are compared.
    """
    known = list(inputs)
    has_views = False
    for output in outputs:
        if type(output) is not np.ndarray or not output.flags.writeable:
            return False
        has_views = has_views or output.base is not None
        for other in known:
            if other is output or (has_views and isinstance(other, np.ndarray) and np.may_share_memory(output, other)):
                return False
        known.append(output)
    return True


def _copy_if_shared(output: Any, inputs: Sequence[Any], earlier: Sequence[Any]) -> Any:
    if isinstance(output, list):
        return [_copy_if_shared(item, inputs, earlier) for item in output]
    if not isinstance(output, np.ndarray):
        return output
    others = [other for other in (*inputs, *earlier) if isinstance(other, np.ndarray)]
    is_shared = not output.flags.writeable or any(np.may_share_memory(output, other) for other in others)
    return output.copy() if is_shared else output
