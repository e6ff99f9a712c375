"""Inputs of one inference: from files, from values in the command, and random on demand; the options that bring them into the model's form.

An option is NAME=FILE or NAME=VALUE. A bare .npz gives each of its arrays to the input of that name; another bare file is the only input.
--shape x=2,3 is the shape of input x, and binds the named sizes in it; --shape height=320 binds a named size for every input. The shape of
a file's array binds names, too. Images are not scaled or cropped; colours are converted to the channels of the input. A uint8 input gets
the pixels 0..255, a float input the pixels divided by 255.
"""

from __future__ import annotations

import argparse
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.cli.options import Parser, add_repeated, read_shapes, reshape
from hetero_core.dtypes import FLOAT_DTYPES, numpy_dtype
from hetero_core.errors import enumerate_choices, suggest
from hetero_core.network.border import InputInfo
from hetero_core.network.types import Dimension, OptionalType, TensorType, ValueSpec, fixed_sizes, shape_of

if TYPE_CHECKING:
    import numpy as np

    from hetero_core.transforms.editing import EditableNetwork


def collect_inputs(
    options: argparse.Namespace, specs: Sequence[ValueSpec], *, network: str, replaceable: Sequence[ValueSpec] = ()
) -> dict[str, Any]:
    """Returns the checked inputs of an inference by the options -i, --shape and --seed, which is None if missing inputs are an error.

    `replaceable` are constants that -i may replace.

    Raises: UsageError, InputNameError, InputTypeError, InputShapeError.
    """
    from hetero_core.runtime.inputs import order_inputs

    inputs = read_inputs(options.input, specs, network=network, replaceable=replaceable)
    asked = (*specs, *(spec for spec in replaceable if spec.name in inputs))
    filled = fill_inputs(inputs, asked, read_shapes(options.shape, specs), seed=options.seed)
    require_complete(filled, asked, network=network)
    order_inputs(filled, asked, network=network)
    return filled


def read_inputs(
    texts: Sequence[str], specs: Sequence[ValueSpec], *, network: str, replaceable: Sequence[ValueSpec] = ()
) -> dict[str, Any]:
    """Returns the values of the -i options by input name: arrays of files, whose types are not checked yet, and `Literal`.

    `replaceable` are constants that -i may replace by name.

    Raises: UsageError for names that are unknown or given twice, and for files that cannot be read.
    """
    inputs: dict[str, Any] = {}
    for text in texts:
        for name, value in _read_option(text, specs, replaceable, network).items():
            if name in inputs:
                raise UsageError(f"-i {text}: input '{name}' is given twice; leave one out")
            inputs[name] = value
    return inputs


def fill_inputs(
    inputs: Mapping[str, Any], specs: Sequence[ValueSpec], shapes: Mapping[str, tuple[int, ...]], *, seed: int | None
) -> dict[str, Any]:
    """Returns the inputs as arrays, and with a seed random values for missing inputs; an optional input stays absent.

    Floats are normal with deviation 1, uint8 is 0 to 255, other integers are 0 or 1. The same seed gives the same values. A named
    size is the same everywhere: an array or --shape sets it for all inputs.

    Raises: UsageError for a shape of no such input, and for all dimensions that stay open, at once.
    """
    sizes, filled = _bind_sizes(shapes, specs), dict(inputs)
    for name in shapes:
        if name in inputs and not isinstance(inputs[name], Literal):
            raise UsageError(f"--shape {name}: the input is read from a file, which has a shape; leave --shape out")
    for spec in specs:
        value = inputs.get(spec.name)
        if isinstance(value, Literal) and len(value.values) > 1:
            filled[spec.name] = value = value.make_array(spec, _find_shape(spec, shapes, sizes))
        if value is not None and not isinstance(value, Literal):
            sizes = {**dict(_pair_names(spec, getattr(value, "shape", ()))), **sizes}
    drawn = [spec for spec in specs if seed is not None and spec.name not in inputs and not isinstance(spec.type, OptionalType)]
    literals = [spec for spec in specs if isinstance(filled.get(spec.name), Literal)]
    shape_of_input = {spec.name: _find_shape(spec, shapes, sizes) for spec in specs}
    _require_chosen_sizes(drawn, literals, shape_of_input)
    for index, spec in enumerate(specs):
        shape = shape_of_input[spec.name]
        if spec in literals:
            filled[spec.name] = filled[spec.name].make_array(spec, shape)
        elif spec in drawn:
            filled[spec.name] = _draw_tensor(spec, shape or (), seed=(seed or 0, index))
    return {spec.name: filled[spec.name] for spec in specs if spec.name in filled}


def _require_chosen_sizes(
    drawn: Sequence[ValueSpec], literals: Sequence[ValueSpec], shape_of_input: Mapping[str, Sequence[Dimension] | None]
) -> None:
    """Raises UsageError that names every input with open sizes, and --shape options that choose them."""
    for spec in drawn:
        if not isinstance(spec.type, TensorType):
            raise UsageError(f"--random makes tensors only; input {spec} has to be given with -i")
    # A value for an input of unknown rank is a scalar.
    filled = [spec for spec in literals if find_tensor_shape(spec) is not None]
    unknown = [spec for spec in (*drawn, *filled) if fixed_sizes(shape_of_input[spec.name]) is None]
    if unknown:
        title = f"input {unknown[0]} has" if len(unknown) == 1 else f"{len(unknown)} inputs have"
        listed = "" if len(unknown) == 1 else ": " + "; ".join(map(str, unknown))
        shapes = {spec.name: shape_of_input[spec.name] or (1, 3, 224, 224) for spec in unknown}
        texts = {name: ",".join(str(size if isinstance(size, int) else 1) for size in shape) for name, shape in shapes.items()}
        advice = " ".join(f"--shape {name}={text}" for name, text in texts.items())
        raise UsageError(f"{title} open dimensions{listed}; choose their sizes, as in {advice}")


_CURE = "Give each with -i NAME=FILE or -i NAME=VALUE, or ask for random ones with --random"


def require_complete(inputs: Mapping[str, Any], specs: Sequence[ValueSpec], *, network: str, cure: str = _CURE) -> None:
    """Raises UsageError that lists the inputs that are missing."""
    missing = [str(spec) for spec in specs if spec.name not in inputs and not isinstance(spec.type, OptionalType)]
    if missing:
        raise UsageError(f"network '{network}' misses the inputs {'; '.join(missing)}. {cure}")


def _read_option(text: str, specs: Sequence[ValueSpec], replaceable: Sequence[ValueSpec], network: str) -> dict[str, Any]:
    name, equals, file = text.partition("=")
    if not equals:
        name, file = "", text
    path = Path(file)
    if not name and path.suffix.lower() != ".npz":
        name = find_only_input(path, specs, network)
    specs = (*specs, *replaceable)
    if name:
        require_known([name], specs, network, f"-i {text}")
    if path.suffix.lower() in READERS:
        return read_file(path, name, specs, network=network)
    spec = next(spec for spec in specs if spec.name == name)
    literal = read_literal(file, spec)
    if literal is None or path.exists():
        example = "true" if spec.dtype == "bool" else "1.5" if spec.dtype is None or spec.dtype in FLOAT_DTYPES else "1"
        kinds = f"{enumerate_choices(READERS)}, and values of input {spec} separated by commas, as in -i {name}={example}"
        raise UsageError(f"-i {text}: '{file}' is of no kind that can be read; these are {kinds}")
    return {name: literal}


def read_file(path: Path, name: str, specs: Sequence[ValueSpec], *, network: str, where: str = "") -> dict[str, Any]:
    """Returns the arrays of a file for the input of this name; "" gives each array of a .npz archive to the input of its own name.

    `where` begins the message about an unknown name, by default the option -i.

    Raises: UsageError if the file cannot be read, or has an array for no input.
    """
    if name:
        spec = next(spec for spec in specs if spec.name == name)
        return {name: _view_as(open_input(READERS[path.suffix.lower()], path, spec), spec)}
    arrays: dict[str, Any] = open_input(lambda archive, _: _load_archive(archive), path, ValueSpec(path.name, TensorType(None)))
    hint = f"-i {path}, which gives all its arrays (name one input to take one array: -i NAME={path})"
    require_known(list(arrays), specs, network, where or hint)
    return {spec.name: _view_as(arrays[spec.name], spec) for spec in specs if spec.name in arrays}


def find_only_input(path: Path, specs: Sequence[ValueSpec], network: str) -> str:
    """Returns the name of the only input. Raises: UsageError if there are several, or none."""
    if len(specs) == 1:
        return specs[0].name
    example = f"-i {specs[0].name if specs else 'NAME'}={path}"
    raise UsageError(f"-i {path}: network '{network}' has {len(specs)} inputs; say which, as in {example}")


def require_known(names: Sequence[str], specs: Sequence[ValueSpec], network: str, where: str) -> None:
    """Raises: UsageError that says where the unknown name stands."""
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            hint, inputs = suggest(name, known) or ";", "; ".join(map(str, specs)) or "none"
            raise UsageError(f"{where}: network '{network}' has no input '{name}'{hint} its inputs are {inputs}")


def open_input(reader: Callable[[Path, ValueSpec], Any], path: Path, spec: ValueSpec) -> Any:
    """Returns the value that the reader makes of a file. Raises: UsageError for every error of reading."""
    try:
        return reader(path, spec)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read input '{spec.name}' from '{path}': {error.strerror or error}") from error
    except (ValueError, EOFError, SyntaxError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"cannot read input '{spec.name}' from '{path}': it is damaged or of another kind: {error}") from error


def _read_npy(path: Path, _: ValueSpec) -> Any:
    import numpy as np

    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_npz(path: Path, spec: ValueSpec) -> Any:
    """Returns the array of the input's name, or the only one."""
    arrays = _load_archive(path)
    if spec.name in arrays:
        return arrays[spec.name]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise UsageError(f"'{path}' has no array '{spec.name}'{suggest(spec.name, arrays) or ';'} it has {enumerate_choices(arrays)}")


def _load_archive(path: Path) -> dict[str, Any]:
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise UsageError(f"'{path}' is no .npz archive; a single array is read from a .npy file")
    with loaded:
        return {name: loaded[name] for name in loaded.files}


def _read_proto(path: Path, _: ValueSpec) -> Any:
    import onnx  # heavy
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes with onnx, without types

    from hetero_core.network.tensors import read_tensor
    from hetero_core.network.weights import WeightFiles

    try:
        proto = onnx.TensorProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(f"it is no ONNX TensorProto: {error}") from error
    return read_tensor(proto, WeightFiles(str(path.parent)), f"the tensor of '{path}'").array


def _view_as(array: Any, spec: ValueSpec) -> Any:
    """Returns plain bytes, which NumPy writes for bfloat16 and its kin, as the input's element type if the size is right."""
    if spec.dtype is None or array.dtype.kind != "V" or array.dtype.names is not None:
        return array
    dtype = numpy_dtype(spec.dtype)
    return array.view(dtype) if dtype.itemsize == array.dtype.itemsize else array


def _draw_tensor(spec: ValueSpec, shape: Any, *, seed: tuple[int, int]) -> np.ndarray[Any, Any]:
    import numpy as np

    generator, dtype = np.random.default_rng(seed), spec.dtype or "float32"
    try:
        if dtype == "string":
            values: Any = generator.choice(["a", "b", "c"], shape)
        elif dtype.startswith("complex"):
            values = generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
        elif dtype in FLOAT_DTYPES:
            values = generator.standard_normal(shape)
        else:  # Most integers are indices into an axis of unknown size; 0 and 1 are nearly always in range.
            values = generator.integers(0, 256 if dtype == "uint8" else 2, shape)
        return np.asarray(values).astype(numpy_dtype(dtype))
    except MemoryError as error:
        raise UsageError(f"--random: there is no memory for input {spec} of shape {shape}; choose smaller sizes") from error


def _find_shape(spec: ValueSpec, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> tuple[Any, ...] | None:
    """Returns the chosen shape of an input, else the declared shape with the chosen sizes in it; None for an open number of axes."""
    shape = shapes.get(spec.name, find_tensor_shape(spec))
    return None if shape is None else tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)


def find_tensor_type(spec: ValueSpec) -> TensorType | None:
    """Returns the type of a tensor or an optional tensor; None for sequences and maps."""
    value_type = spec.type.element if isinstance(spec.type, OptionalType) else spec.type
    return value_type if isinstance(value_type, TensorType) else None


def find_tensor_shape(spec: ValueSpec) -> tuple[Dimension, ...] | None:
    """Returns the declared shape of a tensor or an optional tensor, or None."""
    return shape_of(find_tensor_type(spec))


def choose_sizes(shapes: Mapping[str, tuple[int, ...]], specs: Sequence[ValueSpec]) -> dict[str, int | tuple[Any, ...]]:
    """Returns the sizes of --shape as `with_shapes` takes them: whole shapes by input, and sizes by name. Raises: as `_bind_sizes`."""
    sizes = _bind_sizes(shapes, specs)
    # If an input has the name of a size, every input with that size gets a whole shape.
    chosen = {spec.name for spec in specs} & shapes.keys()
    reshaped = [spec for spec in specs if chosen.intersection((spec.name, *(find_tensor_shape(spec) or ())))]
    return {**sizes, **{spec.name: _find_shape(spec, shapes, sizes) or () for spec in reshaped}}


def _bind_sizes(shapes: Mapping[str, tuple[int, ...]], specs: Sequence[ValueSpec]) -> dict[str, int]:
    """Returns the named sizes of --shape. Raises: UsageError for an unknown name, another number of axes, two sizes for one name."""
    spec_of_name = {spec.name: spec for spec in specs}
    names = list(dict.fromkeys(size for spec in specs for size in find_tensor_shape(spec) or () if isinstance(size, str)))
    named: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        text = f"--shape {name}={','.join(map(str, shape))}"
        if name in spec_of_name:
            declared = find_tensor_shape(spec_of_name[name])
            if declared is not None and len(declared) != len(shape):
                raise UsageError(f"{text}: input {spec_of_name[name]} has {len(declared)} axes, and {len(shape)} sizes were given")
            pairs = _pair_names(spec_of_name[name], shape)
        elif name in names:
            if len(shape) != 1:
                raise UsageError(f"{text}: '{name}' is one size; expected one number, as in --shape {name}=1")
            pairs = [(name, shape[0])]
        else:
            hint = suggest(name, [*spec_of_name, *names]) or ";"
            inputs = "; ".join(map(str, specs)) or "none"
            text = f"{text}: there is no such input or named size{hint} the inputs are {inputs}"
            raise UsageError(f"{text}; the named sizes are {enumerate_choices(names)}")
        for size_name, size in pairs:
            earlier, earlier_text = named.setdefault(size_name, (size, text))
            if earlier != size:
                raise UsageError(f"{text}: makes size '{size_name}' {size}, and {earlier_text} makes it {earlier}; they must agree")
    return {name: size for name, (size, _) in named.items()}


def _pair_names(spec: ValueSpec, shape: Sequence[int]) -> list[tuple[str, int]]:
    """Returns the named sizes of an input with those of a shape; none for another number of axes."""
    declared = find_tensor_shape(spec) or ()
    return [
        (name, size) for name, size in zip(declared, shape, strict=False) if isinstance(name, str) and len(declared) == len(shape)
    ]


_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Literal:
    """Values of an input in the command. A single value fills the whole input; several are its elements in order."""

    text: str
    values: np.ndarray[Any, Any]

    def make_array(self, spec: ValueSpec, shape: Sequence[Dimension] | None) -> np.ndarray[Any, Any]:
        """Returns the array; `shape` may have one open size for several values. Raises: UsageError if they do not fit into it."""
        import numpy as np

        if shape is None:
            return self.values.reshape(()) if len(self.values) == 1 else self.values
        if len(self.values) == 1:
            return np.full([size for size in shape if isinstance(size, int)], self.values[0], self.values.dtype)
        open_axes = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        # Of several open sizes, the last takes the values: a row of tokens is 1 x n.
        sizes = [size if isinstance(size, int) else -1 if axis == open_axes[-1] else 1 for axis, size in enumerate(shape)]
        try:
            return self.values.reshape(sizes)
        except ValueError as error:
            raise UsageError(f"-i {spec.name}={self.text}: {len(self.values)} values do not fit input {spec}") from error


def read_literal(text: str, spec: ValueSpec) -> Literal | None:
    """Returns the values of a text for an input; None if the text cannot be read as the input's element type."""
    import numpy as np

    tensor = find_tensor_type(spec)
    if tensor is None or not text:
        return None
    dtype = tensor.dtype or "float32"
    readers: dict[str, Callable[[str], Any]] = {"string": str, "bool": lambda piece: _BOOLS[piece.lower()]}
    read = readers.get(dtype, complex if dtype.startswith("complex") else float if dtype in FLOAT_DTYPES else int)
    try:
        values = [read(piece) for piece in ([text] if dtype == "string" else map(str.strip, text.split(",")))]
        array = np.array(values, numpy_dtype(dtype))
    except (ValueError, KeyError, OverflowError):
        return None
    is_exact = read is not int or array.tolist() == values  # integers of less than a byte would wrap around
    return Literal(text, array) if is_exact else None


IMAGES = (".png", ".jpg", ".jpeg")
_MODE_OF_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
# Modes of Pillow with at most 8 bits a channel; a conversion of others would cut values off.
_NARROW_MODES = ("1", "CMYK", "L", "LA", "P", "RGB", "RGBA", "YCbCr")


def read_image(path: Path, spec: ValueSpec) -> np.ndarray[Any, Any]:
    """Returns the pixels in the layout, channels and element type of the input; height and width are the file's.

    Raises: UsageError if Pillow is missing, the layout is ambiguous, or the element type does not fit; OSError.
    """
    import numpy as np

    axis, shape = _find_channel_axis(path, spec), spec.shape or ()
    channels = 1 if axis is None else shape[axis]
    with import_pillow(path).open(path) as image:
        if image.mode not in _NARROW_MODES:
            raise UsageError(f"image '{path}' has mode {image.mode}; expected at most 8 bits a channel. Convert it first")
        pixels = np.array(image.convert(_MODE_OF_CHANNELS[channels]))
    if axis is not None:
        pixels = pixels.reshape(*pixels.shape[:2], channels)
        pixels = pixels.transpose(2, 0, 1) if axis == len(shape) - 3 else pixels
    pixels = pixels[None] if len(shape) == 4 else pixels
    if spec.dtype == "uint8":
        return pixels
    if spec.dtype in FLOAT_DTYPES:
        return (pixels / np.float32(255)).astype(numpy_dtype(spec.dtype))
    raise UsageError(f"image '{path}' gives uint8 or floats; input {spec} takes neither. Give the input as a .npy file")


def import_pillow(path: Path) -> Any:
    """Returns the module of images, which this image needs. Raises: UsageError if it is not installed."""
    try:
        from PIL import Image  # the optional extra
    except ImportError as error:
        raise UsageError(f"reading '{path}' needs Pillow; install it with: pip install 'hetero-core[images]'") from error
    return Image


def _find_channel_axis(path: Path, spec: ValueSpec) -> Any:
    """Returns the axis of the channels, None for (height, width). Raises: UsageError unless exactly one place has 1, 3 or 4 of them."""
    shape: tuple[Dimension, ...] = spec.shape or ()
    if len(shape) == 2:
        return None
    axes = (len(shape) - 3, len(shape) - 1) if len(shape) in (3, 4) else ()
    candidates = [axis for axis in axes if shape[axis] in _MODE_OF_CHANNELS]
    if len(candidates) == 1:
        return candidates[0]
    expected = "(height, width), or one axis of 1, 3 or 4 channels before or behind them and perhaps a batch axis in front"
    raise UsageError(f"image '{path}' cannot be laid out for input {spec}: expected {expected}. Give the input as a .npy file")


READERS: Mapping[str, Callable[[Path, ValueSpec], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pb": _read_proto,
    **dict.fromkeys(IMAGES, read_image),
}
"""Ending of a file -> the function that reads it for an input."""


# The options that bring the inputs and outputs of a model into another form, for the commands that run it: the steps become nodes


_DESCRIPTIONS = {
    "layout": "the order of the axes of the array, as in NHWC",
    "precision": "the element type of the array, as in U8",
    "color": "a change of colors, as in 'BGR->RGB'",
    "resize": "nearest, bilinear, cubic or area: brings height and width to those of the model",
    "mean": "a number, or one for each channel, to subtract",
    "scale": "a number, or one for each channel, to divide by",
}


def add_preparation_options(parser: Parser) -> argparse._ArgumentGroup:
    """Returns a new group with the options that bring inputs into the model's form."""
    group = parser.add_argument_group("preparation of the model")
    text = """run the model for this shape of an input, or this value of a named size; for an exported network the shape of a random
    input with open dimensions"""
    add_repeated(group, "--shape", metavar="NAME=SIZE,...", help=text)
    for name, summary in _DESCRIPTIONS.items():
        group.add_argument(f"--{name}", action="append", default=[], metavar="[NAME=]VALUE", help=summary)
    return group


def find_given(options: argparse.Namespace, *more: str) -> list[str]:
    """Returns the options of the call that need a model; `more` are names of further such options."""
    return [f"--{name}" for name in (*_DESCRIPTIONS, *more) if getattr(options, name)]


def choose_values(network: EditableNetwork, values: Sequence[str]) -> EditableNetwork:
    """Returns the network with these values as its outputs, itself without any. Raises: InvalidNetworkError for an unknown name."""
    if not values:
        return network
    known = [spec.name for spec in network.outputs]
    added = [value for value in dict.fromkeys(values) if value not in known]
    return network.with_outputs(add=added, only=values)


def prepare_network(network: EditableNetwork, options: argparse.Namespace) -> EditableNetwork:
    """Returns the network as the options ask for it: outputs, then shapes and batch, then the preparation of inputs.

    Raises: UsageError for texts that cannot be read; InvalidNetworkError for changes that the network does not allow.
    """
    network = reshape(choose_values(network, options.output), options.shape)
    if options.batch is not None:
        network = network.with_batch(options.batch)
    return describe_inputs(network, options, _list_images(options.input, [spec.name for spec in network.inputs]))


def describe_inputs(network: EditableNetwork, options: argparse.Namespace, images: Mapping[str, Sequence[Path]]) -> EditableNetwork:
    """Returns the network for inputs as the options describe them; `images` has those from images, whose size is that of the first
    file; it is open without a file. Raises: as `prepare_network`.
    """
    names = [spec.name for spec in network.inputs]
    described: dict[str, dict[str, Any]] = {}
    for option in _DESCRIPTIONS:
        for text in getattr(options, option):
            name, value = _split_value(text, option, names)
            fields = described.setdefault(name, {})
            if option in fields:
                raise UsageError(f"--{option} {text}: input '{name}' has one already; leave one out")
            fields[option] = _read_numbers(value, option) if option in ("mean", "scale") else value
    infos = {name: InputInfo(**fields) for name, fields in described.items()}
    for spec in network.inputs:
        if spec.name in infos and spec.name in images:
            infos[spec.name] = _complete(infos[spec.name], images[spec.name], spec.shape or ())
    return network.with_inputs(infos) if infos else network


def _split_value(text: str, option: str, names: Sequence[str]) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if equals:
        return name, value
    if len(names) != 1:
        example = names[0] if names else "NAME"
        raise UsageError(f"--{option} {text}: the network has {len(names)} inputs; say which, as in --{option} {example}={text}")
    return names[0], text


def _read_numbers(text: str, option: str) -> float | tuple[float, ...]:
    try:
        numbers = tuple(float(piece) for piece in text.split(","))
    except ValueError as error:
        raise UsageError(f"--{option} {text}: expected a number, or one for each channel, as in 123.7,116.3,103.5") from error
    return numbers[0] if len(numbers) == 1 else numbers


def _list_images(texts: Sequence[str], names: Sequence[str]) -> dict[str, list[Path]]:
    """Returns input -> image file, of the -i options; mistakes in these are reported when they are read."""
    files: dict[str, list[Path]] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = (names[0] if len(names) == 1 else ""), text
        if name and Path(file).suffix.lower() in IMAGES:
            files[name] = [Path(file)]
    return files


def _complete(info: InputInfo, images: Sequence[Path], shape: Sequence[Dimension]) -> InputInfo:
    """Returns the description completed for images: 8 bits, channels last, and their size for a resize."""
    layout = info.layout if info.layout is not None else {2: "HW", 3: "HWC", 4: "NHWC"}.get(len(shape))
    info = replace(info, layout=layout, precision="U8" if info.precision is None else info.precision)
    if info.resize is None or layout is None:
        return info
    sizes = {"N": shape[0] if shape else None, **_measure_images(images)}
    return replace(info, shape=tuple(sizes.get(letter) for letter in layout.upper()))


def _measure_images(paths: Sequence[Path]) -> dict[str, int]:
    """Returns the size of the first image that can be read. Raises: UsageError if none can."""
    for path in paths:
        try:
            with import_pillow(path).open(path) as image:
                return {"H": image.height, "W": image.width}
        except OSError as error:
            if path == paths[-1]:
                raise UsageError(f"cannot read the image '{path}': {error.strerror or error}") from error
    return {}
