"""Inputs of one inference: from files, and random where that was asked for.

An option is NAME=FILE or NAME=VALUE; a bare .npz gives each of its arrays to the input of that name, any other bare file the only input.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.cli.literals import Literal, read_literal
from hetero_core.cli.sizes import Sizes, advise_on_sizes, choose_sizes, find_tensor_shape, is_open
from hetero_core.dtypes import FLOAT_DTYPES, numpy_dtype
from hetero_core.errors import enumerate_choices, suggest
from hetero_core.network.types import OptionalType, TensorType, ValueSpec

if TYPE_CHECKING:
    import numpy as np

    from hetero_core.network.graph import Network


def collect_inputs(
    texts: Sequence[str],
    specs: Sequence[ValueSpec],
    *,
    network: str,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int | None,
    replaceable: Sequence[ValueSpec] = (),
) -> dict[str, Any]:
    """Returns the inputs of one inference, checked as the door checks them: those of the -i options, and with a seed random others.

    `shapes` are those of the --shape options, by input or by named size; `replaceable` are constants that may be given as well.

    Raises: UsageError, InputNameError, InputTypeError, InputShapeError.
    """
    from hetero_core.runtime.inputs import order_inputs

    inputs = read_inputs(texts, specs, network=network, replaceable=replaceable)
    asked = (*specs, *(spec for spec in replaceable if spec.name in inputs))
    filled = fill_inputs(inputs, asked, shapes, seed=seed)
    require_complete(filled, asked, network=network)
    order_inputs(filled, asked, network=network)
    return filled


def collect_with_constants(
    network: Network, texts: Sequence[str], *, shapes: Mapping[str, tuple[int, ...]], seed: int
) -> tuple[Network, dict[str, Any]]:
    """Returns the inputs as `collect_inputs` does, and the network with the replaceable constants that are given as inputs.

    Raises: as `collect_inputs`.
    """
    from hetero_core.runtime.loading import list_replaceable
    from hetero_core.transforms.optional_inputs import free_constants  # imports onnx, for inference

    inputs = collect_inputs(
        texts, network.inputs, network=network.name, shapes=shapes, seed=seed, replaceable=list_replaceable(network)
    )
    names = tuple(name for name in network.border.replaceable if name in inputs)
    return free_constants(network, names) if names else network, inputs


def read_inputs(
    texts: Sequence[str], specs: Sequence[ValueSpec], *, network: str, replaceable: Sequence[ValueSpec] = ()
) -> dict[str, Any]:
    """Returns the values of the -i options by input name: arrays of files, whose types are not checked yet, and `Literal`.

    `replaceable` are constants that may be given by name as well.

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
    """Returns the inputs as arrays, with random values for those that are missing where there is a seed; an optional input stays absent.

    Floats are normal with deviation 1, uint8 is 0 to 255, other integers are 0 or 1. The same seed gives the same values. A named
    size is the same everywhere: what an array or --shape binds holds for the other inputs.

    Raises: UsageError for a shape of no such input, and for all dimensions that stay open, at once.
    """
    sizes = choose_sizes(shapes, specs)
    for name in shapes:
        if name in inputs and not isinstance(inputs[name], Literal):
            raise UsageError(f"--shape {name}: the input is read from a file, which has a shape; leave --shape out")
    filled = dict(inputs)
    for spec in specs:
        value = inputs.get(spec.name)
        if isinstance(value, Literal) and not value.is_single:
            filled[spec.name] = value = value.make_array(spec, sizes.find_shape(spec))
        if value is not None and not isinstance(value, Literal):
            sizes = sizes.bind(spec, getattr(value, "shape", ()))
    missing = [spec for spec in specs if seed is not None and spec.name not in inputs and not isinstance(spec.type, OptionalType)]
    _require_chosen_sizes(missing, [spec for spec in specs if isinstance(filled.get(spec.name), Literal)], sizes)
    for index, spec in enumerate(specs):
        value = filled.get(spec.name)
        if isinstance(value, Literal):
            filled[spec.name] = value.make_array(spec, sizes.find_shape(spec))
        elif spec in missing:
            shape = tuple(size for size in sizes.find_shape(spec) or () if isinstance(size, int))
            try:
                filled[spec.name] = _draw_tensor(spec, shape, seed=(seed or 0, index))
            except MemoryError as error:
                raise UsageError(f"--random: there is no memory for input {spec} of shape {shape}; choose smaller sizes") from error
    return {spec.name: filled[spec.name] for spec in specs if spec.name in filled}


def _require_chosen_sizes(drawn: Sequence[ValueSpec], literals: Sequence[ValueSpec], sizes: Sizes) -> None:
    """Raises UsageError that names every input whose array cannot be made, and --shape options that would do."""
    for spec in drawn:
        if not isinstance(spec.type, TensorType):
            raise UsageError(f"--random makes tensors only; input {spec} has to be given with -i")
    # A value for an input of unknown rank is a scalar.
    filled = [spec for spec in literals if find_tensor_shape(spec) is not None]
    unknown = [spec for spec in (*drawn, *filled) if is_open(sizes.find_shape(spec))]
    if unknown:
        title = f"input {unknown[0]} has" if len(unknown) == 1 else f"{len(unknown)} inputs have"
        listed = "" if len(unknown) == 1 else ": " + "; ".join(map(str, unknown))
        raise UsageError(f"{title} open dimensions{listed}; choose their sizes, as in {advise_on_sizes(unknown, sizes)}")


def require_complete(inputs: Mapping[str, Any], specs: Sequence[ValueSpec], *, network: str) -> None:
    """Raises UsageError that lists the inputs that are missing."""
    missing = [str(spec) for spec in specs if spec.name not in inputs and not isinstance(spec.type, OptionalType)]
    if missing:
        raise UsageError(
            f"network '{network}' misses the inputs {'; '.join(missing)}. "
            "Give each with -i NAME=FILE or -i NAME=VALUE, or ask for random ones with --random"
        )


def _read_option(text: str, specs: Sequence[ValueSpec], replaceable: Sequence[ValueSpec], network: str) -> dict[str, Any]:
    name, equals, file = text.partition("=")
    if not equals:
        name, file = "", text
    path = Path(file)
    if not name and path.suffix.lower() == ".npz":
        return _read_whole_archive(path, (*specs, *replaceable), network)
    if not name:
        name = _find_only_input(path, specs, network)
    specs = (*specs, *replaceable)
    _require_known([name], specs, network, f"-i {text}")
    spec = next(spec for spec in specs if spec.name == name)
    reader = _READERS.get(path.suffix.lower())
    if reader is not None:
        return {name: _view_as(_open(reader, path, spec), spec)}
    literal = read_literal(file, spec)
    if literal is None or path.exists():
        raise UsageError(
            f"-i {text}: '{file}' is of no kind that can be read; these are {enumerate_choices(_READERS)}, and values of input "
            f"{spec} separated by commas, as in -i {name}={_show_example(spec)}"
        )
    return {name: literal}


def _show_example(spec: ValueSpec) -> str:
    dtype = spec.dtype or "float32"
    return "true" if dtype == "bool" else "1.5" if dtype in FLOAT_DTYPES else "1"


def _find_only_input(path: Path, specs: Sequence[ValueSpec], network: str) -> str:
    if len(specs) == 1:
        return specs[0].name
    raise UsageError(
        f"-i {path}: network '{network}' has {len(specs)} inputs; say which, as in -i {specs[0].name if specs else 'NAME'}={path}"
    )


def _require_known(names: Sequence[str], specs: Sequence[ValueSpec], network: str, where: str) -> None:
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            hint = suggest(name, known) or ";"
            raise UsageError(f"{where}: network '{network}' has no input '{name}'{hint} its inputs are {_list_specs(specs)}")


def _list_specs(specs: Sequence[ValueSpec]) -> str:
    return "; ".join(map(str, specs)) or "none"


def _open(reader: Callable[[Path, ValueSpec], Any], path: Path, spec: ValueSpec) -> Any:
    try:
        return reader(path, spec)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read input '{spec.name}' from '{path}': {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
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


def _read_whole_archive(path: Path, specs: Sequence[ValueSpec], network: str) -> dict[str, Any]:
    named = ValueSpec(path.name, TensorType(None))
    arrays: dict[str, Any] = _open(lambda archive, _: _load_archive(archive), path, named)
    hint = f"-i {path}, which gives all its arrays (name one input to take one array: -i NAME={path})"
    _require_known(list(arrays), specs, network, hint)
    return {spec.name: _view_as(arrays[spec.name], spec) for spec in specs if spec.name in arrays}


def _load_archive(path: Path) -> dict[str, Any]:
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise UsageError(f"'{path}' is no .npz archive; a single array is read from a .npy file")
    with loaded:
        return {name: loaded[name] for name in loaded.files}


def _read_proto(path: Path, spec: ValueSpec) -> Any:
    import onnx  # heavy
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes with onnx, without types

    from hetero_core.network.tensors import read_tensor
    from hetero_core.network.weights import WeightFiles

    content = path.read_bytes()
    try:
        proto = onnx.TensorProto.FromString(content)
    except DecodeError as error:
        raise UsageError(
            f"cannot read input '{spec.name}' from '{path}': it is no ONNX TensorProto, or damaged ({error})"
        ) from error
    return read_tensor(proto, WeightFiles(str(path.parent)), f"the tensor of '{path}'").array


def _read_image(path: Path, spec: ValueSpec) -> Any:
    from hetero_core.cli.images import read_image  # imports Pillow

    return read_image(path, spec)


_READERS: Mapping[str, Callable[[Path, ValueSpec], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pb": _read_proto,
    ".png": _read_image,
    ".jpg": _read_image,
    ".jpeg": _read_image,
}


def _view_as(array: Any, spec: ValueSpec) -> Any:
    """NumPy files keep bfloat16 and its kin as plain bytes; those of the right size get their element type back."""
    if spec.dtype is None or array.dtype.kind != "V" or array.dtype.names is not None:
        return array
    dtype = numpy_dtype(spec.dtype)
    return array.view(dtype) if dtype.itemsize == array.dtype.itemsize else array


def _draw_tensor(spec: ValueSpec, shape: tuple[int, ...], *, seed: tuple[int, int]) -> np.ndarray[Any, Any]:
    import numpy as np

    generator = np.random.default_rng(seed)
    dtype = spec.dtype or "float32"
    if dtype == "string":
        return np.array(generator.choice(["a", "b", "c"], shape), dtype=object)
    if dtype.startswith("complex"):
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    if dtype in FLOAT_DTYPES:
        return np.asarray(generator.standard_normal(shape)).astype(numpy_dtype(dtype))
    # Most integers index something whose size is not known here; 0 and 1 are in range of nearly all.
    return np.asarray(generator.integers(0, 256 if dtype == "uint8" else 2, shape)).astype(numpy_dtype(dtype))
