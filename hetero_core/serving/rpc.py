"""The gRPC interface of the Open Inference Protocol, version 2: GRPCInferenceService with the model repository.

Its messages are made when this module is imported, in a pool of their own, so that they do not clash with those of a client's package in
the same process. A message is a line of the table: fields with type and number; `*` repeats, `map` is a map from texts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # it has no types

from hetero_core.errors import HeteroError
from hetero_core.serving.metrics import Metrics
from hetero_core.serving.protocol import (
    InferCall,
    Refusal,
    check_tensor,
    describe_error,
    find_datatype,
    read_bytes,
    read_numbers,
    require_known,
    write_bytes,
)
from hetero_core.serving.repository import Repository
from hetero_core.serving.rest import Control, describe_model, describe_server

SERVICE = "inference.GRPCInferenceService"
# Source: the protocol's open_inference_grpc.proto, and Triton's extension for model repositories.
_TABLE = """
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
InferTensorContents: bool_contents *bool 1, int_contents *int32 2, int64_contents *int64 3, uint_contents *uint32 4, \
uint64_contents *uint64 5, fp32_contents *float 6, fp64_contents *double 7, bytes_contents *bytes 8
InferInputTensor: name string 1, datatype string 2, shape *int64 3, parameters map:InferParameter 4, contents InferTensorContents 5
InferRequestedOutputTensor: name string 1, parameters map:InferParameter 2
ModelInferRequest: model_name string 1, model_version string 2, id string 3, parameters map:InferParameter 4, inputs *InferInputTensor 5, \
outputs *InferRequestedOutputTensor 6, raw_input_contents *bytes 7
InferOutputTensor: name string 1, datatype string 2, shape *int64 3, parameters map:InferParameter 4, contents InferTensorContents 5
ModelInferResponse: model_name string 1, model_version string 2, id string 3, parameters map:InferParameter 4, \
outputs *InferOutputTensor 5, raw_output_contents *bytes 6
RepositoryIndexRequest: repository_name string 1, ready bool 2
ModelIndex: name string 1, version string 2, state string 3, reason string 4
RepositoryIndexResponse: models *ModelIndex 1
RepositoryModelLoadRequest: repository_name string 1, model_name string 2, parameters map:InferParameter 3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: repository_name string 1, model_name string 2, parameters map:InferParameter 3
RepositoryModelUnloadResponse
"""
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype -> the field of InferTensorContents that holds its values; FP16 and BF16 travel as raw bytes alone."""
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def make_messages() -> dict[str, Any]:
    """Returns the classes of all messages by name."""
    file = descriptor_pb2.FileDescriptorProto(name="hetero/open_inference.proto", package="inference", syntax="proto3")
    for line in _TABLE.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for text in fields.split(", ") if fields else ():
            field, kind, number = text.split()
            if kind.startswith("map:"):
                _add_map_entry(message, f"{field.title()}Entry", kind.removeprefix("map:"))
                kind = f"*{name}.{field.title()}Entry"
            _add_field(message, field, kind, int(number))
        if name == "InferParameter":
            message.oneof_decl.add(name="parameter_choice")
            for choice in message.field:
                choice.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        each.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{each.name}"))
        for each in file.message_type
    }


def _add_map_entry(message: Any, name: str, kind: str) -> None:
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    _add_field(entry, "key", "string", 1)
    _add_field(entry, "value", kind, 2)


def _add_field(message: Any, name: str, kind: str, number: int) -> None:
    types, plain = descriptor_pb2.FieldDescriptorProto, kind.removeprefix("*")
    field = message.field.add(name=name, number=number, label=types.LABEL_REPEATED if kind != plain else types.LABEL_OPTIONAL)
    if plain[0].islower():
        field.type = types.Type.Value(f"TYPE_{plain.upper()}")
    else:
        field.type, field.type_name = types.TYPE_MESSAGE, f".inference.{plain}"


MESSAGES = make_messages()


def read_call(message: Any) -> InferCall:
    """Returns the call of a ModelInferRequest. Raises: Refusal."""
    require_known(list(message.parameters), [], "parameter of the request")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise Refusal(400, f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs")
    inputs: dict[str, Any] = {}
    for index, tensor in enumerate(message.inputs):
        require_known(list(tensor.parameters), [], f"parameter of input '{tensor.name}'")
        dtype, shape = check_tensor(tensor.name, tensor.datatype, list(tensor.shape))
        if tensor.name in inputs:
            raise Refusal(400, f"input '{tensor.name}' is given twice")
        fields = [field.name for field, _ in tensor.contents.ListFields()]
        if raw and fields:
            raise Refusal(400, f"input '{tensor.name}' has both contents and raw_input_contents")
        if raw:
            inputs[tensor.name] = read_bytes(tensor.name, dtype, shape, memoryview(raw[index]))
            continue
        expected = _CONTENTS.get(tensor.datatype)
        if expected is None or fields not in ([], [expected]):
            advice = "raw_input_contents" if expected is None else expected
            raise Refusal(400, f"input '{tensor.name}' is {tensor.datatype}; send its values in {advice}")
        values: list[Any] = list(getattr(tensor.contents, expected))
        if tensor.datatype == "BYTES":
            try:
                values = [value.decode() for value in values]
            except UnicodeDecodeError as error:
                raise Refusal(400, f"input '{tensor.name}' is no text in UTF-8: {error}") from None
        inputs[tensor.name] = read_numbers(tensor.name, dtype, shape, values)
    for output in message.outputs:
        require_known(list(output.parameters), [], f"parameter of output '{output.name}'")
    return InferCall(inputs, tuple(output.name for output in message.outputs), message.id)


def create_handlers(repository: Repository, control: Control, metrics: Metrics, *, version: str) -> Any:
    """Returns the handlers of the service for `grpc.aio.Server.add_generic_rpc_handlers`."""

    async def server_live(_: Any) -> Mapping[str, Any]:
        return {"live": True}

    async def server_ready(_: Any) -> Mapping[str, Any]:
        return {"ready": repository.is_ready}

    async def model_ready(message: Any) -> Mapping[str, Any]:
        repository.find(message.name, message.version)
        return {"ready": repository.is_ready}

    async def server_metadata(_: Any) -> Mapping[str, Any]:
        return describe_server(version)

    async def model_metadata(message: Any) -> Mapping[str, Any]:
        return describe_model(repository, repository.find(message.name, message.version))

    async def model_infer(message: Any) -> Mapping[str, Any]:
        if not repository.is_ready:
            raise Refusal(503, "the server is ending; ask another")
        with repository.admit(message.model_name, message.model_version, "grpc") as model:
            call = read_call(message)

            def encode(outputs: dict[str, Any]) -> Mapping[str, Any]:
                rows = [{"name": name, "datatype": find_datatype(array), "shape": array.shape} for name, array in outputs.items()]
                raw = [write_bytes(array) for array in outputs.values()]
                return {
                    "model_name": model.name,
                    "model_version": model.version,
                    "id": call.id,
                    "outputs": rows,
                    "raw_output_contents": raw,
                }

            return await model.infer(call, encode)

    async def repository_index(message: Any) -> Mapping[str, Any]:
        return {"models": [row for row in repository.index() if row["state"] == "READY" or not message.ready]}

    def change(action: str) -> Callable[[Any], Awaitable[Mapping[str, Any]]]:
        async def change_model(message: Any) -> Mapping[str, Any]:
            require_known(list(message.parameters), ["unload_dependents"], f"parameter of a request to {action}")
            await control(action, message.model_name)
            return {}

        return change_model

    methods = {
        "ServerLive": server_live,
        "ServerReady": server_ready,
        "ModelReady": model_ready,
        "ServerMetadata": server_metadata,
        "ModelMetadata": model_metadata,
        "ModelInfer": model_infer,
        "RepositoryIndex": repository_index,
        "RepositoryModelLoad": change("load"),
        "RepositoryModelUnload": change("unload"),
    }
    handlers = {name: _make_handler(name, method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _make_handler(name: str, method: Callable[[Any], Awaitable[Mapping[str, Any]]]) -> Any:
    """Returns a handler that answers with the fields that `method` returns, or with the status of its error."""
    response = MESSAGES[f"{name}Response"]

    async def answer(message: Any, context: Any) -> Any:
        try:
            return response(**await method(message))
        except (Refusal, HeteroError) as error:
            status, text = describe_error(error)
            await context.abort(_CODES.get(status, grpc.StatusCode.INTERNAL), text)

    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=MESSAGES[f"{name}Request"].FromString, response_serializer=response.SerializeToString
    )
