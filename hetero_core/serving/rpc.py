"""The gRPC interface of the Open Inference Protocol, version 2: GRPCInferenceService, with the model repository.

The messages are made at import, in a pool of their own, so that they do not clash with those of a client's package in the same process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # without types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # as above

from hetero_core.errors import HeteroError
from hetero_core.serving.protocol import (
    Refusal,
    describe_error,
    find_datatype,
    join_texts,
    read_tensor,
    require_parameters,
    write_bytes,
)
from hetero_core.serving.repository import Repository

SERVICE = "inference.GRPCInferenceService"
# Message: name, type and number of each field; `*` repeats, `map` maps texts to InferParameter.
# Source: open_inference_grpc.proto of the protocol, and Triton's extension for model repositories.
_FIELDS = """
ServerLiveRequest
ServerLiveResponse: live bool 1
ServerReadyRequest
ServerReadyResponse: ready bool 1
ModelReadyRequest: name string 1, version string 2
ModelReadyResponse: ready bool 1
ServerMetadataRequest
ServerMetadataResponse: name string 1, version string 2, extensions *string 3
ModelMetadataRequest: name string 1, version string 2
TensorMetadata: name string 1, datatype string 2, shape *int64 3
ModelMetadataResponse: name string 1, versions *string 2, platform string 3, inputs *TensorMetadata 4, outputs *TensorMetadata 5
InferParameter: bool_param bool 1, int64_param int64 2, string_param string 3, double_param double 4, uint64_param uint64 5
InferTensorContents: bool_contents *bool 1, int_contents *int32 2, int64_contents *int64 3, uint_contents *uint32 4,\
 uint64_contents *uint64 5, fp32_contents *float 6, fp64_contents *double 7, bytes_contents *bytes 8
InferInputTensor: name string 1, datatype string 2, shape *int64 3, parameters map 4, contents InferTensorContents 5
InferRequestedOutputTensor: name string 1, parameters map 2
ModelInferRequest: model_name string 1, model_version string 2, id string 3, parameters map 4, inputs *InferInputTensor 5,\
 outputs *InferRequestedOutputTensor 6, raw_input_contents *bytes 7
InferOutputTensor: name string 1, datatype string 2, shape *int64 3, parameters map 4, contents InferTensorContents 5
ModelInferResponse: model_name string 1, model_version string 2, id string 3, parameters map 4, outputs *InferOutputTensor 5,\
 raw_output_contents *bytes 6
RepositoryIndexRequest: repository_name string 1, ready bool 2
ModelIndex: name string 1, version string 2, state string 3, reason string 4
RepositoryIndexResponse: models *ModelIndex 1
RepositoryModelLoadRequest: repository_name string 1, model_name string 2, parameters map 3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: repository_name string 1, model_name string 2, parameters map 3
RepositoryModelUnloadResponse
"""
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}
"""Datatype -> the field of InferTensorContents with its values; FP16 and BF16 travel as raw bytes alone."""
_RAW_FIELD, _LENGTH_DELIMITED = 7, 2
_LEAST_BYTES = 1 << 17
"""Size of a request from which to copy its tensors takes longer than to read its records here."""
_MOST_RECORDS = 1000
"""Fields of a request that are read here, some 0.4 ms; a request with more of them is left to protobuf."""
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Status of HTTP -> that of gRPC; INTERNAL for all remaining."""


def make_messages() -> dict[str, Any]:
    """Returns the classes of all messages by name."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="hetero/open_inference.proto", package="inference", syntax="proto3")

    def add_field(message: Any, name: str, kind: str, number: int) -> None:
        plain = kind.removeprefix("*")
        field = message.field.add(name=name, number=number, label=kinds.LABEL_REPEATED if kind != plain else kinds.LABEL_OPTIONAL)
        if plain.islower():
            field.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
        else:
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".inference.{plain}"

    for line in _FIELDS.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for text in fields.split(", ") if fields else ():
            field, kind, number = text.split()
            if kind == "map":
                entry, kind = message.nested_type.add(name="ParametersEntry"), f"*{name}.ParametersEntry"
                entry.options.map_entry = True
                add_field(entry, "key", "string", 1)
                add_field(entry, "value", "InferParameter", 2)
            add_field(message, field, kind, int(number))
        if name == "InferParameter":
            message.oneof_decl.add(name="parameter_choice")
            for choice in message.field:
                choice.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [each.name for each in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}")) for name in names}


MESSAGES = make_messages()


def _read_parameters(tensor: Any, what: str, known: list[str]) -> dict[str, Any]:
    """Returns the parameters of a request, input or output. Raises: Refusal for an unknown parameter."""
    parameters = {}
    for name, value in tensor.parameters.items():
        choice = value.WhichOneof("parameter_choice")
        parameters[name] = getattr(value, choice) if choice else None
    require_parameters(parameters, known, f"parameter of {what}")
    return parameters


def parse_request(content: bytes) -> tuple[Any, Sequence[bytes | memoryview]]:
    """Returns a ModelInferRequest and its raw_input_contents, as views of `content` if they can be: protobuf copies them twice.

    protobuf reads, or refuses, all else, and the whole of a small message or one with other records. Source: Protocol Buffers, Encoding.

    Raises: DecodeError.
    """
    parse, view, place = MESSAGES["ModelInferRequest"].FromString, memoryview(content), 0
    raw, others = list[memoryview](), list[memoryview]()
    for _ in range(_MOST_RECORDS if len(content) >= _LEAST_BYTES else 0):
        if place == len(content):
            return parse(b"".join(others)), raw
        key, begin = _read_varint(content, place)
        length, begin = _read_varint(content, begin)
        end = begin + length
        if key % 8 != _LENGTH_DELIMITED or end > len(content):
            break
        if key // 8 == _RAW_FIELD:
            raw.append(view[begin:end])
        else:
            others.append(view[place:end])
        place = end
    message = parse(content)
    return message, message.raw_input_contents


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Returns the number that begins at a place, and the place after it; a number beyond the content if it has no end within five bytes."""
    number = 0
    for shift, byte in enumerate(content[place : place + 5]):
        number += byte % 128 << 7 * shift
        if byte < 128:
            return number, place + shift + 1
    return len(content) + 1, place


def _read_inputs(message: Any, raw: Sequence[bytes | memoryview]) -> dict[str, Any]:
    """Returns the inputs of a ModelInferRequest. Raises: Refusal."""
    inputs = dict[str, Any]()
    for tensor in (message, *message.outputs):
        _read_parameters(tensor, "the request" if tensor is message else "an output", [])
    for index, tensor in enumerate(message.inputs):
        parameters = _read_parameters(tensor, "an input", ["binary_data_size"])
        fields = [field.name for field, _ in tensor.contents.ListFields()]
        expected = "raw_input_contents" if raw else _CONTENTS.get(tensor.datatype, "raw_input_contents")
        if tensor.name in inputs or fields not in ([], [expected]) or (raw and len(raw) != len(message.inputs)):
            raise Refusal(400, f"input '{tensor.name}' of type {tensor.datatype} needs its values in {expected} alone, once")
        if "binary_data_size" in parameters and not (raw and parameters["binary_data_size"] == len(raw[index])):
            what = f"{len(raw[index])} bytes" if raw else "no raw_input_contents"
            raise Refusal(400, f"input '{tensor.name}' has binary_data_size {parameters['binary_data_size']}, and {what}")
        own: Any = getattr(tensor.contents, expected, b"")
        content = raw[index] if raw else join_texts(own) if expected == "bytes_contents" else own
        if isinstance(content, bytes | memoryview):
            inputs[tensor.name] = read_tensor(tensor.name, tensor.datatype, tensor.shape, content=memoryview(content))
        else:
            inputs[tensor.name] = read_tensor(tensor.name, tensor.datatype, tensor.shape, values=list(content))
    return inputs


def create_handlers(repository: Repository, gate: asyncio.Event) -> Any:
    """Returns the handlers of the service for `add_generic_rpc_handlers`. Requests to a model wait until `gate` is set."""

    async def infer(parsed: tuple[Any, Sequence[bytes | memoryview]]) -> dict[str, Any]:
        message, raw = parsed
        await gate.wait()
        with repository.admit(message.model_name, message.model_version, "grpc") as model:

            def encode(outputs: dict[str, Any]) -> dict[str, Any]:
                rows = [{"name": name, "datatype": find_datatype(array), "shape": array.shape} for name, array in outputs.items()]
                raw = [bytes(write_bytes(array)) for array in outputs.values()]
                names = {"model_name": model.name, "model_version": model.version, "id": message.id}
                return {**names, "outputs": rows, "raw_output_contents": raw}

            return await model.infer(_read_inputs(message, raw), [output.name for output in message.outputs], encode)

    methods: dict[str, Callable[[Any], Any]] = {
        "ServerLive": lambda _: {"live": True},
        "ServerReady": lambda _: {"ready": repository.is_ready},
        "ModelReady": lambda message: repository.tell_ready(message.name, message.version),
        "ServerMetadata": lambda _: repository.describe_server(),
        "ModelMetadata": lambda message: repository.describe_model(message.name, message.version),
        "ModelInfer": infer,
        "RepositoryIndex": lambda message: {"models": repository.index(ready=message.ready)},
        "RepositoryModelLoad": lambda message: repository.change("load", message.model_name, message.parameters),
        "RepositoryModelUnload": lambda message: repository.change("unload", message.model_name, message.parameters),
    }
    return grpc.method_handlers_generic_handler(SERVICE, {name: _make_handler(name, method) for name, method in methods.items()})


def _make_handler(name: str, method: Callable[[Any], Any]) -> Any:
    """Returns a handler that answers with the fields that `method` returns, or with the status of its error."""
    parse = parse_request if name == "ModelInfer" else MESSAGES[f"{name}Request"].FromString
    response = MESSAGES[f"{name}Response"]

    async def answer(content: bytes, context: Any) -> Any:
        try:
            fields = method(parse(content))
            return response(**(fields if isinstance(fields, dict) else await fields))
        except (Refusal, HeteroError, DecodeError) as error:
            status, text = (400, f"the request is no {name}Request") if isinstance(error, DecodeError) else describe_error(error)
            await context.abort(_CODES.get(status, grpc.StatusCode.INTERNAL), text)

    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=response.SerializeToString)
