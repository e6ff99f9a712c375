"""ONNX to Network: files, bytes, protos, and programs of torch; docs/reference/network.md lists accepted and refused models.

Ignored: documentation strings, training information, quantization annotations, device configurations. Imports onnx only inside
functions.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from hetero_core.errors import InvalidNetworkError, NetworkNotFoundError, NetworkReadError
from hetero_core.files import open_plain
from hetero_core.limits import ReadBudget, ReadLimits
from hetero_core.network.assembly import GraphReader
from hetero_core.network.border import BORDER_KEY, NO_BORDER, NO_DECLARATIONS, Declarations, border_of_json, find_contradiction
from hetero_core.network.graph import EMPTY, Network
from hetero_core.network.hints import compare_declarations, forget_shapes, warn_of_declarations
from hetero_core.network.inference import CustomTypes, infer_types
from hetero_core.network.scopes import BLOCKED_DOMAIN, check_text, read_opsets
from hetero_core.network.splitting import NO_RAW_DATA, HeldFile, RawData, split_model
from hetero_core.network.types import ValueSpec, has_known_element
from hetero_core.network.weights import WeightFiles, WeightSource

if TYPE_CHECKING:
    import onnx


def read_network(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
    *,
    base: str | os.PathLike[str] | None = None,
    infer_custom_types: CustomTypes | None = None,
    holds_weights: bool = True,
    limits: ReadLimits | None = None,
) -> Network:
    """Returns the network of an ONNX file, of its bytes, or of a ModelProto, with the types of all values as far as they are known.

    `base` is the folder of external weights; by default the folder of the file. `infer_custom_types` gives the output types of
    a node that onnx does not know (`inference.CustomTypes`). A ModelProto is not kept: later changes of it change nothing.
    External weights are mapped when they are first used; all else is in memory when this returns. Without `holds_weights` large
    weights of a file are read when they are used, and are renewable: the file stays open, and must not be changed. `limits` are
    `ReadLimits()` by default.

    Raises: NetworkNotFoundError, NetworkReadError for a source that is no ONNX model; ReadLimitError for a model that takes too
    much to read; InvalidNetworkError for a model that is no valid network; AffinityError for a pin without a device.
    """
    folder = None if base is None else os.fspath(base)
    if folder is not None:
        _check_path(folder, "the folder of external weights")
    model, raw_data, title = read_proto(source, holds_weights=holds_weights)
    if folder is None and isinstance(source, (str, os.PathLike)):
        folder = os.path.dirname(os.path.abspath(source))
    budget = ReadBudget(ReadLimits() if limits is None else limits, title, model.ByteSize)
    network = assemble_network(model, WeightFiles(folder), title, raw_data, budget=budget)
    inferred = infer_types(forget_shapes(network), infer_custom_types=infer_custom_types, budget=budget)
    compared = compare_declarations(network, inferred)
    warn_of_declarations(compared)
    return compared


def read_proto(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto, *, holds_weights: bool
) -> tuple[onnx.ModelProto, Mapping[int, RawData], str]:
    """Returns the proto without its large weights, these weights by the position of their initializer, and a title for messages.

    Raises: NetworkNotFoundError, NetworkReadError.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        _check_path(path, "a file")
        title = f"'{path}'"
        return *_read_file(path, title, holds_weights=holds_weights), title
    if isinstance(source, (bytes, bytearray, memoryview)):
        title = f"{len(source)} bytes"
        return *_parse_split(io.BytesIO(source), title), title
    import onnx  # heavy

    kind = type(source).__name__ if type(source).__module__.startswith("torch.") else ""
    if isinstance(source, onnx.ModelProto):
        model = source
    elif kind == "ONNXProgram":
        model = source.model_proto
    elif kind == "ExportedProgram":
        model = export_program(source)
    else:
        raise NetworkReadError(
            f"cannot read network from an object of type {type(source).__name__}; expected a path, bytes or an onnx.ModelProto. "
            "Pass one of these."
        )
    return model, NO_RAW_DATA, "the ModelProto"


def _check_path(path: str | bytes, what: str) -> None:
    """Refuses a path that no file can have. Raises: NetworkReadError."""
    try:
        is_path = isinstance(path, str) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise NetworkReadError(
            f"cannot read network: {path!r} is no path of {what}; expected text without zero bytes or surrogates. Pass such a path."
        )


def _read_file(path: str, title: str, *, holds_weights: bool) -> tuple[onnx.ModelProto, Mapping[int, RawData]]:
    if os.path.isdir(path):
        raise _refuse(title, "it is a folder. Give the path of the .onnx file in it.")
    try:
        with open(open_plain(path), "rb") as file:
            foreign = describe_foreign(path, file.peek(1)[:1])
            if foreign:
                raise _refuse(title, foreign)
            held = None if holds_weights or not hasattr(os, "pread") else HeldFile(file.fileno(), path)
            return _parse_split(file, title, held)
    except FileNotFoundError as error:
        raise NetworkNotFoundError(f"cannot read network from '{path}': there is no such file. Check the path.") from error
    except OSError as error:
        raise _refuse(title, f"{error.strerror}. Check the path and who may read it.") from error


def _refuse(title: str, fault: str) -> NetworkReadError:
    return NetworkReadError(f"cannot read network from {title}: {fault}")


def _parse_split(file: IO[bytes], title: str, held: HeldFile | None = None) -> tuple[onnx.ModelProto, Mapping[int, RawData]]:
    """Returns the proto in a file, and the `raw_data` that it lacks by the position of the initializer.

    Raises: NetworkReadError when there is none; OSError of the file.
    """
    split = split_model(file, held)
    if split is not None:
        import onnx  # heavy
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes with onnx, without stubs

        # A refused skeleton is parsed again with its weights, so that the error has the same words.
        with suppress(DecodeError):
            return onnx.ModelProto.FromString(split[0]), split[1]
    file.seek(0)
    return parse_model(file.read(), title), NO_RAW_DATA


def parse_model(content: bytes, title: str) -> onnx.ModelProto:
    """Returns the proto in `content`. Raises: NetworkReadError."""
    import onnx  # heavy
    from google.protobuf.message import DecodeError

    if not content:
        raise _refuse(title, "it is empty. Export or copy it again.")
    if content.startswith(b"version https://git-lfs"):
        raise _refuse(title, "it is a Git LFS pointer, not the model. Run 'git lfs pull'.")
    try:
        return onnx.ModelProto.FromString(content)
    except DecodeError as error:
        fault = f"it is no ONNX model, or damaged or cut short ({error}). Export or copy it again."
        if "depth" in str(error).lower():
            fault = "its bodies are nested deeper than protobuf reads (100 messages, about 30 bodies). Flatten the model."
        raise _refuse(title, fault) from error


def assemble_network(
    model: onnx.ModelProto,
    weights: WeightSource,
    title: str,
    raw_data: Mapping[int, RawData] = NO_RAW_DATA,
    *,
    budget: ReadBudget | None = None,
) -> Network:
    """Returns the network of a proto with the types that it declares, none inferred.

    `raw_data` maps positions of initializers of the graph to the bytes that were split off the proto.

    Raises: as `read_network`.
    """
    # Protobuf parses almost anything; these three fields are in every ONNX model.
    missing = [name for name in ("ir_version", "graph") if not model.HasField(name)]
    missing += [] if model.opset_import or model.ir_version in (1, 2) else ["opset_import"]
    if missing:
        raise _refuse(title, f"it is no ONNX model, it has no {' and no '.join(missing)}. Export it as ONNX.")
    if model.ir_version < 3:
        version = model.ir_version
        raise _refuse(title, f"its IR version is {version}; expected 3 or more (ONNX 1.0, 2017). Export the model again.")
    budget = ReadBudget(ReadLimits(), title, model.ByteSize) if budget is None else budget
    opsets = read_opsets(model.opset_import, "the model")
    reader = GraphReader(model, weights, raw_data, budget)
    graph, pins = reader.read_root(opsets)
    if BLOCKED_DOMAIN in opsets:
        from hetero_core.network.blocked_channels import restore_channels  # few files have it

        graph = restore_channels(graph, opsets.get("", 1))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    check_text(*metadata, *metadata.values())
    text = metadata.pop(BORDER_KEY, NO_BORDER)
    listed = [spec.name for spec in model.graph.input if spec.name in graph.initializers]
    border = border_of_json(text, {name: graph.initializers[name] for name in listed})
    if border.defaults:
        # Constants that are defaults go back among the inputs, in the order of the file.
        places = {spec.name: index for index, spec in enumerate(model.graph.input)}
        freed = [ValueSpec(name, constant.type) for name, constant in border.defaults.items()]
        graph = replace(
            graph,
            inputs=tuple(sorted((*graph.inputs, *freed), key=lambda spec: places[spec.name])),
            initializers=MappingProxyType({k: v for k, v in graph.initializers.items() if k not in border.defaults}),
        )
    elif listed and not border.replaceable:
        border = replace(border, replaceable=tuple(listed))
    untyped = ", ".join(f"'{spec.name}'" for spec in graph.inputs if not has_known_element(spec.type))
    if untyped:
        raise InvalidNetworkError(f"inputs {untyped} of network '{graph.name}' are untyped; state the element type of every input.")
    contradiction = find_contradiction(border, graph.inputs, graph.outputs)
    if contradiction is not None:
        raise InvalidNetworkError(f"the '{BORDER_KEY}' of the model contradicts it: {contradiction}. Remove it from the metadata.")
    return Network(
        graph.name,
        graph.inputs,
        graph.outputs,
        graph.nodes,
        graph.initializers,
        graph.types,
        opsets=MappingProxyType(opsets),
        ir_version=model.ir_version,
        metadata=MappingProxyType(metadata) if metadata else EMPTY,
        affinity=MappingProxyType(dict(pins)) if pins else EMPTY,
        border=border,
        declarations=Declarations(tuple(reader.contradictions)) if reader.contradictions else NO_DECLARATIONS,
    )


# Models of other projects.

_TORCH = "in PyTorch and call torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)"
_WEIGHTS = "weights without a graph", "Export their folder: optimum-cli export onnx --model FOLDER OUTPUT"
_KERAS = "a model of Keras", "Load it in Keras and call model.export('model.onnx', format='onnx')"
_ENGINE = "an engine of TensorRT for one kind of card", "Use the ONNX model that it was built from"
_TENSORFLOW = "python -m tf2onnx.convert"

FOREIGN_MODELS = {
    ".pt": ("a model of PyTorch", f"Load it {_TORCH}"),
    ".pth": ("the weights of a model of PyTorch", f"Load them into their model {_TORCH}"),
    ".safetensors": _WEIGHTS,
    ".gguf": _WEIGHTS,
    ".xml": ("a model of OpenVINO", "Export the model that it was made from to ONNX; an .xml file cannot be turned back"),
    ".tflite": ("a model of TensorFlow Lite", f"Run {_TENSORFLOW} --tflite MODEL.tflite --output model.onnx"),
    ".h5": _KERAS,
    ".keras": _KERAS,
    ".pb": ("a graph of TensorFlow", f"Run {_TENSORFLOW} --graphdef MODEL.pb --inputs NAMES --outputs NAMES --output model.onnx"),
    "saved_model.pb": ("a SavedModel of TensorFlow", f"Run {_TENSORFLOW} --saved-model FOLDER --output model.onnx"),
    ".engine": _ENGINE,
}
"""The end of a file's name -> a description of the file, and the way to an ONNX model."""

_FIRST_BYTE_OF_ONNX = b"\x08"
"""ir_version, the first field of a ModelProto, which every exporter writes."""


def describe_foreign(path: str, first: bytes) -> str:
    """Returns what a file is and how to export it, by its name and its first byte; "" for a file that may be an ONNX model.

    A file with a foreign name that begins as an ONNX model does is read: some files of ONNX end with ".pb".
    """
    name = os.path.basename(path).lower()
    ending = name if name in FOREIGN_MODELS else os.path.splitext(name)[1]
    if ending not in FOREIGN_MODELS or (first == _FIRST_BYTE_OF_ONNX and ending != name):
        return ""
    description, cure = FOREIGN_MODELS[ending]
    return f"it is {description}, not an ONNX model. {cure}."


def export_program(program: Any) -> onnx.ModelProto:
    """Returns the ONNX model of an ExportedProgram, without the exporter's warnings and messages about itself.

    Raises: NetworkReadError without onnxscript, for a program that changes its inputs or buffers, and for an error of the exporter.
    """
    if importlib.util.find_spec("onnxscript") is None:
        raise NetworkReadError(
            "cannot export an ExportedProgram: torch.onnx needs the package onnxscript. Run: pip install onnxscript"
        )
    import torch  # heavy

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed = _list_changed(program)
            if not changed:
                return torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    except Exception as error:
        raise NetworkReadError(f"cannot export an ExportedProgram: {describe_cause(error)}") from error
    finally:
        logger.setLevel(level)
    names = ", ".join(f"'{name}'" for name in changed)
    raise NetworkReadError(f"cannot export an ExportedProgram: it changes {names} in place, and a network changes no input")


def _list_changed(program: Any) -> list[str]:
    """Returns the inputs, parameters and buffers that a program changes; the exporter would leave the changes out."""
    calls = [node for node in program.graph.nodes if hasattr(node.target, "_schema")]
    # batch_norm(input, weight, bias, running_mean, running_var, training, ...) does not tell that it changes its statistics.
    trained = [node for node in calls if "batch_norm" in str(node.target) and node.args[3] is not None and node.args[5] is True]
    if any(node.target._schema.is_mutable for node in calls):
        program = program.run_decompositions({})  # the signature lists changes only of a program without calls in place
    changed = [str(spec.target or spec.arg.name) for spec in program.graph_signature.output_specs if "MUTATION" in spec.kind.name]
    return changed + [str(node.args[3]) for node in trained]


def describe_cause(error: BaseException) -> str:
    """Returns the class and the first line of the error at the root of an exporter's chain, which wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
