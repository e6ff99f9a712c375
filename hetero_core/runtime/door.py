"""The door between the user's values and a device: names, element types and shapes are checked here and nowhere else.

Arrays pass uncopied where they can; an array is copied only to make it contiguous or to bring its bytes into the machine's order. What has
no element type of its own (numbers, lists, bytes, images) is converted where its values are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import InferenceError, InputNameError, InputShapeError, InputTypeError, enumerate_choices, suggest
from hetero_core.network.border import EMPTY_BORDER, LAYOUT_OF_RANK, Border, precision_of_dtype
from hetero_core.network.types import HOST, MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType
from hetero_core.runtime.device_tensor import DeviceTensor
from hetero_core.runtime.untyped import convert_untyped, read_foreign

# DLPack's numbers of memories that a device may have; 12 is for devices that DLPack does not know.
_MEMORIES = {2: "cuda", 10: "rocm", 12: "ext"}


def order_inputs(
    given: Mapping[str, Any], specs: Sequence[ValueSpec], *, network: str, border: Border = EMPTY_BORDER
) -> tuple[Any, ...]:
    """Returns the values in the order of the specs, each checked and as the device wants it; defaults for those that are left out.

    Raises: InputNameError for unknown and missing names, InputTypeError, InputShapeError.
    """
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            hint = suggest(str(name), names) or ";"
            raise InputNameError(f"network '{network}' has no input '{name}'{hint} its inputs are {enumerate_choices(names)}")
    missing = [
        spec
        for spec in specs
        if spec.name not in given and not isinstance(spec.type, OptionalType) and spec.name not in border.defaults
    ]
    if missing:
        raise InputNameError(f"network '{network}' misses the inputs " + "; ".join(str(spec) for spec in missing))
    sizes: dict[str, tuple[int, str]] = {}
    ordered = tuple(
        border.defaults[spec.name].array
        if spec.name not in given and spec.name in border.defaults
        else convert_value(given.get(spec.name), spec, network=network, sizes=sizes)
        for spec in specs
    )
    if border.bounds:
        _check_bounds(sizes, border.bounds)
    return ordered


Plain = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
"""The inputs of a network of host tensors of one size each, in order: name, shape, NumPy type."""


def describe_plain(specs: Sequence[ValueSpec]) -> Plain | None:
    """Returns the inputs as `take_plain` compares them; None where sizes are open, or where some are no tensors of numbers on the host."""
    plain = []
    for spec in specs:
        value_type = spec.type
        if (
            spec.memory != HOST
            or not isinstance(value_type, TensorType)
            or value_type.dtype in (None, "string")
            or value_type.shape is None
        ):
            return None
        sizes = tuple(size for size in value_type.shape if isinstance(size, int))
        if len(sizes) != len(value_type.shape):
            return None
        plain.append((spec.name, sizes, numpy_dtype(str(value_type.dtype))))
    return tuple(plain)


def take_plain(given: Any, plain: Plain) -> tuple[Any, ...] | None:
    """Returns the arrays in order where each is exactly what is wanted, None else, for `order_inputs` to look closer.

    0.4 us an input; `order_inputs`, which must word every error, takes 4.
    """
    if type(given) is not dict or len(given) != len(plain):
        return None
    ordered = []
    for name, shape, dtype in plain:
        array = given.get(name)
        if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape or not array.flags.c_contiguous:
            return None
        ordered.append(array)
    return tuple(ordered)


def _check_bounds(sizes: Mapping[str, tuple[int, str]], bounds: Mapping[str, tuple[int, int]]) -> None:
    for name, (size, where) in sizes.items():
        lowest, highest = bounds.get(name, (size, size))
        if not lowest <= size <= highest:
            raise InputShapeError(f"{where}: '{name}' is {size}, and its bounds are {lowest} to {highest}")


def convert_value(value: Any, spec: ValueSpec, *, network: str, sizes: dict[str, tuple[int, str]] | None = None) -> Any:
    """Returns one value checked against its spec. `sizes` collects the named dimensions, so that they agree between inputs.

    An array that lies in the device's own memory already stays there; it is for the device to take it as it is.
    """
    where = f"input '{spec.name}' of network '{network}'"
    if isinstance(value, DeviceTensor):
        tensor_type = spec.type
        assert isinstance(tensor_type, TensorType), "what lies in the memory of a device is a tensor"
        return _check_in_place(value.require_memory(spec, where), tensor_type, where, {} if sizes is None else sizes)
    if spec.memory != HOST and isinstance(spec.type, TensorType) and _find_memory(value) == spec.memory:
        return _check_in_place(value, spec.type, where, {} if sizes is None else sizes)
    return _convert(value, spec.type, where, {} if sizes is None else sizes)


def _find_memory(value: Any) -> str | None:
    """Returns the memory that an array lies in, by the name that devices give it; None for the host's and for what does not say."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    kind, index = value.__dlpack_device__()
    return f"{_MEMORIES[int(kind)]}:{index}" if int(kind) in _MEMORIES else None


def _check_in_place(value: Any, wanted: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    """Returns an array of any library, checked by what it says of itself: PyTorch writes "torch.float32" where NumPy has "float32"."""
    dtype_name = str(value.dtype).rpartition(".")[2]
    if wanted.dtype is not None and dtype_name != _spell(wanted.dtype):
        raise InputTypeError(f"{where}: expected {wanted.dtype}, got {dtype_name}; convert it where it lies")
    check_shape(tuple(value.shape), wanted, where, sizes)
    return value


def count_copied_bytes(given: Mapping[str, Any], ordered: Sequence[Any], specs: Sequence[ValueSpec]) -> int:
    """Returns the bytes of tensors that the door had to copy, lists and other values without memory of their own included."""
    copied = 0
    for spec, value in zip(specs, ordered, strict=True):
        source = given.get(spec.name)
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
    array_dtype = dtype_of_numpy(array.dtype)
    if wanted.dtype is not None and array_dtype != wanted.dtype:
        raise InputTypeError(
            f"{where}: expected {wanted.dtype}, got {array_dtype or array.dtype}; convert it with array.astype('{_spell(wanted.dtype)}')"
            + _suggest_precision(where, array_dtype)
        )
    check_shape(array.shape, wanted, where, sizes)
    if array_dtype == "string" and array.dtype != object:
        return array.astype(object)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")) if array.ndim else array


def _spell(dtype: str) -> str:
    return numpy_dtype(dtype).name


def _suggest_precision(where: str, found: str | None) -> str:
    """Returns the call that would let the network take arrays of this type, where there is one."""
    if found is None or found == "string" or not where.startswith("input '"):
        return ""
    name = where.removeprefix("input '").partition("'")[0]
    return f", or let the network take it: network.with_inputs({{'{name}': InputInfo(precision='{precision_of_dtype(found)}')}})"


def _as_array(value: Any, wanted: TensorType, where: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    untyped = convert_untyped(value, wanted, where)
    if untyped is not None:
        return untyped
    try:
        array = read_foreign(value)
    except (RuntimeError, TypeError, BufferError, ValueError) as error:
        raise InputTypeError(f"{where}: this {type(value).__name__} gives no array: {error}") from error
    if array is None:
        raise InputTypeError(
            f"{where}: expected an array for {wanted}, got {type(value).__name__}; give anything with __array__ or __dlpack__, "
            "numbers or lists of them"
        )
    return array


def check_shape(shape: tuple[int, ...], wanted: TensorType, where: str, sizes: dict[str, tuple[int, str]]) -> None:
    """Raises InputShapeError when a shape is not of the wanted type, or gives a named dimension a second size."""
    if wanted.shape is None:
        return
    if len(shape) != len(wanted.shape):
        raise InputShapeError(f"{_word_shapes(shape, wanted, where)}: {len(shape)} dimensions instead of {len(wanted.shape)}")
    for axis, (size, dimension) in enumerate(zip(shape, wanted.shape, strict=True)):
        if isinstance(dimension, int) and size != dimension:
            raise InputShapeError(
                f"{_word_shapes(shape, wanted, where)}: axis {axis} has {size} instead of {dimension}"
                + _suggest_shape(where, shape, wanted)
            )
        if isinstance(dimension, str):
            first = sizes.setdefault(dimension, (size, where))
            if first[0] != size:
                raise InputShapeError(
                    f"{_word_shapes(shape, wanted, where)}: '{dimension}' is {size} here and {first[0]} in {first[1]}"
                )


def _word_shapes(shape: tuple[int, ...], wanted: TensorType, where: str) -> str:
    return f"{where}: expected shape {TensorType(None, wanted.shape)}, got {list(shape)}".replace("unknown[", "[")


def fits_shape(shape: tuple[int, ...], wanted: Sequence[int | str | None]) -> bool:
    """Says whether a shape has the wanted rank, and the wanted size wherever one is fixed."""
    if shape == wanted:
        return True
    return len(shape) == len(wanted) and all(
        size == dimension for size, dimension in zip(shape, wanted, strict=True) if isinstance(dimension, int)
    )


def _suggest_shape(where: str, shape: tuple[int, ...], wanted: TensorType) -> str:
    """Returns the call that would let the network take images of this size, or in this order of axes; an empty text for others."""
    expected = wanted.shape or ()
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
    if all_are_apart(outputs, inputs):
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
