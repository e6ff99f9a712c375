"""Inputs of a run, checked and converted: names, element types and shapes are checked here and nowhere else; and tensors that stay in
the memory of a device.

Arrays pass uncopied if they can; an array is copied only to make it contiguous or to bring its bytes into the machine's order. Numbers,
lists, bytes and images have no element type of their own: they are converted if and only if their values stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES, INTEGER_DTYPES, dtype_of_numpy, numpy_dtype
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError, enumerate_choices, suggest, word_missing
from hetero_core.network.border import EMPTY_BORDER, LAYOUT_OF_RANK, Border, precision_of_dtype
from hetero_core.network.types import HOST, MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType

if TYPE_CHECKING:
    from hetero_core.contract import RunContext
    from hetero_core.runtime.executable import ExecutableNetwork

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
    """Returns the values in the order of the specs, each checked and as the device wants it; missing inputs get their defaults.

    Raises: InputNameError for unknown and missing names, InputTypeError, InputShapeError.
    """
    sizes: dict[str, tuple[int, str]] = {}
    ordered: list[Any] = []
    for spec in specs:
        name = spec.name
        if name in inputs:
            ordered.append(convert_value(inputs[name], spec, network=network, sizes=sizes, takes_tensors=takes_tensors))
        else:
            _require_names(inputs, specs, border, network)
            ordered.append(border.defaults[name].array if name in border.defaults else None)
    if len(inputs) > len(ordered):
        _require_names(inputs, specs, border, network)
    for name, (lowest, highest) in border.bounds.items():
        size, where = sizes.get(name, (lowest, ""))
        if not lowest <= size <= highest:
            raise InputShapeError(f"{where}: '{name}' is {size}, and its bounds are {lowest} to {highest}")
    return tuple(ordered)


class QuickCheck:
    """The check that most inputs pass: arrays of the declared types, in the shapes of the last run or in others that fit. Safe for threads.

    All other inputs are left to `order_inputs`.
    """

    __slots__ = ("_constants", "_last", "_ranks", "_read_first", "_read_second", "_texts", "_types")

    def __init__(self, specs: Sequence[ValueSpec], border: Border) -> None:
        are_known = all(type(spec.type) is TensorType and spec.dtype for spec in specs)
        self._types = [(spec.name, numpy_dtype(spec.dtype or "")) for spec in specs] if are_known else None
        self._texts = [place for place, spec in enumerate(specs) if spec.dtype == "string"]
        self._last: list[tuple[int, ...]] | None = None
        shapes = [spec.shape for spec in specs]
        # None: no other shapes than those of the last run pass.
        self._ranks = None if border.bounds or None in shapes else [len(shape or ()) for shape in shapes]
        # Sizes in a row, behind a 0, then the declared numbers: shapes that fit have the same number at both places of each pair.
        sizes = [size for shape in shapes for size in shape or ()]
        self._constants = tuple([size for size in sizes if isinstance(size, int)])
        first, second, place_of_size, end = [0], [0], dict[str, int](), 1 + len(sizes)
        for place, size in enumerate(sizes, 1):
            if size is not None:
                first.append(place)
                second.append(end if isinstance(size, int) else place_of_size.setdefault(size, place))
                end += isinstance(size, int)
        self._read_first, self._read_second = itemgetter(*first), itemgetter(*second)

    def match(self, inputs: Any) -> tuple[Any, ...] | None:
        """Returns the arrays in order; None for inputs that do not pass."""
        types = self._types
        if types is None or type(inputs) is not dict or len(inputs) != len(types):
            return None
        ordered, shapes = [], []
        for name, dtype in types:
            value = inputs.get(name)
            # NumPy has a single object for each of its types, except in arrays that were pickled.
            if type(value) is not np.ndarray or (value.dtype is not dtype and value.dtype != dtype) or not value.flags.c_contiguous:
                return None
            ordered.append(value)
            shapes.append(value.shape)
        if self._texts and not all(_holds_texts(ordered[place]) for place in self._texts):
            return None
        if shapes != self._last:
            if self._ranks is None or self._ranks != list(map(len, shapes)):
                return None
            sizes = (0, *chain.from_iterable(shapes), *self._constants)
            if self._read_first(sizes) != self._read_second(sizes):
                return None
            self._last = shapes
        return tuple(ordered)

    def keep(self, ordered: Sequence[Any]) -> None:
        """Notes the shapes of inputs that `order_inputs` has returned."""
        self._last = [getattr(value, "shape", ()) for value in ordered]


def _require_names(inputs: Mapping[str, Any], specs: Sequence[ValueSpec], border: Border, network: str) -> None:
    """Raises InputNameError for an unknown name, and for an input that has neither a value nor a default."""
    names = [spec.name for spec in specs]
    unknown = [name for name in inputs if name not in names]
    if unknown:
        raise InputNameError(word_missing(f"network '{network}'", "input", unknown[0], names))
    absent = (spec for spec in specs if spec.name not in inputs)
    missing = [spec for spec in absent if not isinstance(spec.type, OptionalType) and spec.name not in border.defaults]
    if missing:
        raise InputNameError(f"network '{network}' misses the inputs " + "; ".join(str(spec) for spec in missing))


def convert_value(
    value: Any, spec: ValueSpec, *, network: str, sizes: dict[str, tuple[int, str]] | None = None, takes_tensors: bool = False
) -> Any:
    """Returns a value, checked against its spec. `sizes` collects the named dimensions, so that they agree between inputs.

    An array that already lies in the device's own memory stays there; the device gets it unchanged. `takes_tensors` says that
    the device takes tensors of any memory.
    """
    value_type = spec.type
    where = f"input '{spec.name}' of network '{network}'"
    sizes = {} if sizes is None else sizes
    if isinstance(value, DeviceTensor):
        if not (takes_tensors and isinstance(value_type, TensorType)):
            value.require_memory(spec, where)
        assert isinstance(value_type, TensorType), "only tensors lie in the memory of a device"
    elif spec.memory == HOST or not isinstance(value_type, TensorType) or _find_memory(value) != spec.memory:
        return _convert(value, value_type, where, sizes)
    # An array of any library is checked by its own attributes: PyTorch writes "torch.float32", NumPy "float32".
    dtype_name = str(value.dtype).rpartition(".")[2]
    if value_type.dtype is not None and dtype_name != numpy_dtype(value_type.dtype).name:
        raise InputTypeError(f"{where}: expected {value_type.dtype}, got {dtype_name}; convert it where it lies")
    check_shape(tuple(value.shape), value_type, where, sizes)
    return value


def _find_memory(value: Any) -> str | None:
    """Returns the memory that an array lies in, by the name that devices give it; None for the host's, and if the array does not say."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    kind, index = value.__dlpack_device__()
    return f"{_MEMORIES[int(kind)]}:{index}" if int(kind) in _MEMORIES else None


def count_copied_bytes(inputs: Mapping[str, Any], ordered: Sequence[Any], specs: Sequence[ValueSpec]) -> int:
    """Returns the bytes of tensors that `order_inputs` had to copy, including lists and other values without memory of their own."""
    pairs = [(inputs.get(spec.name), value) for spec, value in zip(specs, ordered, strict=True) if isinstance(value, np.ndarray)]
    return sum(value.nbytes for source, value in pairs if source is not None and not _is_same_memory(source, value))


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
    """Returns a number or text of a map as a Python object; any other value as `_convert` does."""
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
            f"convert it with array.astype('{numpy_dtype(value_type.dtype).name}')"
            + _suggest_precision(where, array_dtype, value_type.dtype)
        )
    check_shape(array.shape, value_type, where, sizes)
    if array_dtype == "string" and array.dtype != object:
        return array.astype(object)
    if array_dtype == "string" and not _holds_texts(array):
        # As ONNX Runtime does: a missing value is the text "nan" or "None", which converters of data frames have among their categories.
        return np.array([str(each) for each in array.flat], object).reshape(array.shape)
    is_plain = array.ndim == 0 or (array.flags.c_contiguous and array.dtype.isnative)
    return array if is_plain else np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def _holds_texts(array: np.ndarray[Any, Any]) -> bool:
    """Says whether all objects of an array are texts."""
    return all(issubclass(kind, str) for kind in set(map(type, array.ravel().tolist())))


def _suggest_precision(where: str, dtype: str | None, expected: str) -> str:
    """Returns the call that would let the network take arrays of this type, "" if no call would, as it would lose fractions."""
    loses = dtype in FLOAT_DTYPES and expected not in FLOAT_DTYPES
    if dtype is None or "string" in (dtype, expected) or loses or not where.startswith("input '"):
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
    """Raises InputShapeError for a shape that contradicts its type, or gives a named dimension a second size."""
    fault, declared = "", value_type.shape
    if declared is None:
        return
    if len(shape) != len(declared):
        fault = f"{len(shape)} dimensions instead of {len(declared)}"
    for axis, (size, dimension) in enumerate(zip(shape, declared)):  # noqa: B905  # strict takes 0.13 us
        if fault:
            break
        if size == dimension or dimension is None:
            continue
        if isinstance(dimension, int):
            fault = f"axis {axis} has {size} instead of {dimension}{_suggest_shape(where, shape, value_type)}"
        elif (first := sizes.setdefault(dimension, (size, where)))[0] != size:
            fault = f"'{dimension}' is {size} here and {first[0]} in {first[1]}"
    if fault:
        expected = str(TensorType(None, declared)).removeprefix("unknown")
        raise InputShapeError(f"{where}: expected shape {expected}, got {list(shape)}: {fault}")


def fits_shape(shape: tuple[int, ...], declared: Sequence[int | str | None]) -> bool:
    """Says whether a shape has the declared rank, and the declared size for each fixed dimension."""
    if len(shape) != len(declared):
        return False
    for size, dimension in zip(shape, declared):  # noqa: B905, SIM110  # every output: strict takes 0.13 us, a generator twice as long
        if size != dimension and isinstance(dimension, int):
            return False
    return True


def _suggest_shape(where: str, shape: tuple[int, ...], value_type: TensorType) -> str:
    """Returns the call that would let the network take images of this size, or in this order of axes; empty for any other shape."""
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


def name_inputs(inputs: Any, specs: Sequence[ValueSpec], *, network: str) -> Mapping[str, Any]:
    """Returns input name -> value. A list or tuple has a value for each input; any other object belongs to the only input.

    Raises: InputNameError for a number of values that the network does not take, a position that it does not have, and a name given twice.
    """
    names = [spec.name for spec in specs]
    if type(inputs) is dict or isinstance(inputs, Mapping):
        return _name_keys(inputs, names, network) if int in map(type, inputs) else inputs
    values = inputs if isinstance(inputs, list | tuple) else (inputs,)
    if len(values) != len(names):
        advice = "; a single input that is a list goes by its name, or as an array" if len(names) == 1 else ""
        raise InputNameError(
            f"network '{network}' got {len(values)} values by position; its inputs are {', '.join(names) or 'none'}, in this order{advice}"
        )
    return dict(zip(names, values, strict=True))


def _name_keys(inputs: Mapping[Any, Any], names: list[str], network: str) -> dict[str, Any]:
    """Returns the mapping with names in place of positions."""
    named: dict[str, Any] = {}
    for key, value in inputs.items():
        if type(key) is int and not 0 <= key < len(names):
            raise InputNameError(f"network '{network}' has no input at position {key}; it has {len(names)}, counted from 0")
        name = names[key] if type(key) is int else key
        if name in named:
            raise InputNameError(f"network '{network}': input '{name}' is given twice, by name and by position")
        named[name] = value
    return named


def read_foreign(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns the array of another library's object, sharing its memory if NumPy can; None if the object offers no array.

    Raises: any error of the library, such as RuntimeError for a tensor that records gradients.
    """
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else None


def convert_untyped(value: Any, value_type: TensorType, where: str) -> np.ndarray[Any, Any] | None:
    """Returns a number, a list, bytes or an image as an array of the declared element type; None for anything else.

    Raises: InputTypeError and InputShapeError if a value would not be kept.
    """
    if isinstance(value, bytes | bytearray | memoryview) and value_type.dtype == "uint8":
        return _read_bytes(value, value_type, where)
    if type(value).__module__.startswith("PIL."):
        return _read_image(value, where)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, str | bool | int | float) and value_type.shape in ((), None):
        return _convert_numbers(value, value_type, where)
    return _convert_numbers(value, value_type, where) if isinstance(value, list | tuple) else None


def _read_bytes(value: bytes | bytearray | memoryview, value_type: TensorType, where: str) -> np.ndarray[Any, Any]:
    """Returns the bytes as uint8 in the declared shape, in which a single size may be open; copies nothing."""
    flat = np.frombuffer(value, np.uint8)
    shape = (flat.size,) if value_type.shape is None else tuple(size if isinstance(size, int) else -1 for size in value_type.shape)
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise InputShapeError(
            f"{where}: {flat.size} bytes cannot become {value_type}; give an array of that shape, or as many bytes as it has elements"
        ) from error


def _read_image(value: Any, where: str) -> np.ndarray[Any, Any]:
    """Returns the pixels (height, width, channels), 8 bits each."""
    mode = getattr(value, "mode", None)
    if mode not in ("L", "RGB", "RGBA", "I;16", "I", "F"):
        raise InputTypeError(
            f"{where}: an image of mode '{mode}' has no pixels of its own as an array; convert it with image.convert('RGB')"
        )
    return np.asarray(value)


def _convert_numbers(value: Any, value_type: TensorType, where: str) -> np.ndarray[Any, Any]:
    try:
        numbers = np.asarray(value)
    except ValueError as error:
        raise InputShapeError(f"{where}: the lists are of different lengths: {error}") from error
    if value_type.dtype is None or value_type.dtype == "string":
        return numbers
    dtype = numpy_dtype(value_type.dtype)
    if numbers.dtype == dtype or numbers.size == 0:
        return numbers.astype(dtype, copy=False)
    advice = f"say what is meant with np.array(values).astype('{dtype.name}')"
    kinds = "b" if value_type.dtype == "bool" else "biu" if value_type.dtype in INTEGER_DTYPES else "biuf"
    if numbers.dtype.kind not in kinds or value_type.dtype not in FLOAT_DTYPES | INTEGER_DTYPES:
        names = {"f": "float", "i": "int", "u": "int", "b": "bool", "O": "object", "U": "str", "S": "bytes"}
        named = names.get(numbers.dtype.kind, str(numbers.dtype))
        raise InputTypeError(f"{where}: expected {value_type.dtype}, got numbers of type {named}; {advice}")
    # An overflow is found in the result, without a warning.
    with np.errstate(all="ignore"):
        converted = numbers.astype(dtype)
        lost = _find_lost(numbers, converted, is_float=value_type.dtype in FLOAT_DTYPES)
    if lost.any():
        first = numbers.reshape(-1)[int(np.argmax(lost))]
        raise InputTypeError(f"{where}: expected {value_type.dtype}, got the number {first}, which it does not have; {advice}")
    return converted


def _find_lost(numbers: np.ndarray[Any, Any], converted: np.ndarray[Any, Any], *, is_float: bool) -> np.ndarray[Any, Any]:
    """Returns a mask of the numbers that the conversion changes: integers that change, and decimals that become infinite."""
    flat, results = numbers.reshape(-1), converted.reshape(-1)
    if is_float:
        results = results.astype(np.float64)
    if numbers.dtype.kind == "f":
        return np.isfinite(flat) & ~np.isfinite(results)  # type: ignore[no-any-return]  # an array
    # As objects of Python, which compare integers of any size exactly.
    return results.astype(object) != flat.astype(object)  # type: ignore[no-any-return]  # an array


class DeviceTensor:
    """A tensor in the memory of a device. `array` is the device's own array; the array of an output is valid until the next run of
    its request.

    `place` identifies the memory across plugins, because two plugins may use the same name for incompatible memories.
    """

    def __init__(self, network: ExecutableNetwork, spec: ValueSpec) -> None:
        assert spec.dtype is not None, "only tensors lie in the memory of a device"
        self.memory = spec.memory
        self.place = name_place(network, spec)
        self.device = str(network.device)
        self.dtype = numpy_dtype(spec.dtype)
        self.array: Any = None
        # Whether `put` made the array; an array from a run may be a constant of the network.
        self._is_own = False
        self._spec = spec
        self._to_host, self._from_host = network.to_host, network.from_host

    @classmethod
    def create(cls, network: ExecutableNetwork, name: str, value: Any = None) -> DeviceTensor:
        """Returns a tensor for an input or output of a loaded network, with `value` written to it. On a device composed of devices, it
        lies in the memory of the part that reads or makes the value.

        Raises: InputNameError for a name that the network does not have, and for a value in the host's memory; errors of `write`.
        """
        part = network
        while (inner := part.executable.find_part(name)) is not None:
            part = inner
        spec, _ = find_spec(name, part.all_inputs, part.all_outputs, network=network.name)
        if spec.memory == HOST or not isinstance(spec.type, TensorType) or spec.dtype is None:
            raise InputNameError(
                f"'{name}' of {network.where} lies in the host's memory; give arrays of NumPy, which are shared and not copied"
            )
        tensor = cls(part, spec)
        if value is not None:
            tensor.write(value)
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the last value that `write` or a run put here."""
        return tuple(self._require().shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def write(self, value: Any) -> None:
        """Copies a value of the host to the device, into the array of an earlier `write` if the device can fill it.

        Raises: InputTypeError, InputShapeError.
        """
        host = ValueSpec(self._spec.name, self._spec.type, HOST)
        self.put(convert_value(value, host, network="its tensor"))

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        """Copies an array of its element type to the device; returns the device's array."""
        target = self.array if self._is_own and self.shape == array.shape else None
        self.array, self._is_own = self._from_host(array, self._spec, target), True
        return self.array

    def keep(self, array: Any) -> None:
        """Stores an array that a run has made in this tensor's memory; copies nothing."""
        self.array, self._is_own = array, False

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy on the host. Raises: InputNameError before anything was written."""
        array: np.ndarray[Any, Any] = self._to_host(self._require())
        return array

    def _require(self) -> Any:
        if self.array is None:
            raise InputNameError(f"the tensor for '{self._spec.name}' has no value yet; write one, or set it as output and run")
        return self.array

    def require_memory(self, spec: ValueSpec, where: str) -> DeviceTensor:
        """Returns this tensor, after a check that it lies in the memory of this spec. Raises: InputTypeError."""
        if spec.memory != self.memory:
            raise InputTypeError(f"{where}: expected an array in {spec.memory}, got a tensor in {self.memory}; give tensor.read()")
        return self


def name_place(network: ExecutableNetwork, spec: ValueSpec) -> str:
    """Returns the memory of a value as all plugins know it."""
    return spec.memory if spec.memory == HOST else f"{network.provenance.distribution}/{spec.memory}"


def check_preset(value: Any, spec: ValueSpec, *, network: str, takes_tensors: bool) -> Any:
    """Returns the array or tensor that an output is to be written to. Raises: InputNameError, InputTypeError, InputShapeError."""
    where = f"output '{spec.name}' of network '{network}'"
    if isinstance(value, DeviceTensor):
        return value if takes_tensors and spec.dtype is not None else value.require_memory(spec, where)
    if not (isinstance(value, np.ndarray) and value.flags.writeable and value.flags.c_contiguous):
        raise InputNameError(f"{where}: expected a writable C-contiguous NumPy array to fill")
    convert_value(value, spec, network=network)
    return value


class OrderedPresets:
    """The presets of a request by position: the caller's arrays, and the tensors, which stay in the device's memory."""

    def __init__(self, presets: Mapping[str, Any], outputs: Sequence[ValueSpec]) -> None:
        ordered = [presets.get(spec.name) for spec in outputs]
        self._tensors = {index: value for index, value in enumerate(ordered) if isinstance(value, DeviceTensor)}
        arrays = [None if index in self._tensors else value for index, value in enumerate(ordered)]
        self._arrays = arrays if any(value is not None for value in arrays) else []
        self._clash = next(
            (
                f"outputs '{outputs[other].name}' and '{outputs[index].name}' would be written to the same memory, and one of them lost; "
                "set an array or tensor of its own for each"
                for index, value in enumerate(ordered)
                for other in range(index)
                if _share_memory(value, ordered[other])
            ),
            None,
        )

    def enter(self, context: RunContext) -> None:
        """Puts the presets into the context of a run. Raises: InputNameError if two of them share memory."""
        if self._clash is not None:
            raise InputNameError(self._clash)
        if self._arrays:
            context.outputs = self._arrays.copy()
        if self._tensors:
            context.tensors = self._tensors


def _share_memory(value: Any, other: Any) -> bool:
    is_in_memory = isinstance(value, np.ndarray) and isinstance(other, np.ndarray)
    return np.may_share_memory(value, other) if is_in_memory else value is other and value is not None
