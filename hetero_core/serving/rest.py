"""The REST interface of the Open Inference Protocol, version 2, with binary tensors and the model repository, as a Starlette application.

request body ──> JSON, then the bytes of tensors in its order ──> InferCall ──> ModelVersion.infer ──> JSON, then bytes
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

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
from hetero_core.serving.repository import ModelVersion, Repository

PLATFORM = "onnx_hetero"
EXTENSIONS = ["binary_tensor_data", "model_repository"]
HEADER_LENGTH = "Inference-Header-Content-Length"
BODY_SECONDS = 60.0
"""Seconds that a body may take to arrive."""

Control = Callable[[str, str], Awaitable[None]]
"""Applies "load" or "unload" to a model, in every worker."""


def describe_server(version: str) -> dict[str, Any]:
    """Returns the metadata of the server."""
    return {"name": "hetero", "version": version, "extensions": EXTENSIONS}


def describe_model(repository: Repository, model: ModelVersion) -> dict[str, Any]:
    """Returns the metadata of a model."""
    versions = repository.list_versions(model.name)
    return {"name": model.name, "versions": versions, "platform": PLATFORM, "inputs": model.inputs, "outputs": model.outputs}


def create_app(repository: Repository, control: Control, metrics: Metrics, *, version: str, max_body: int) -> Starlette:
    """Returns the application; `max_body` is the largest body in bytes."""

    async def tell_live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def tell_ready(_: Request) -> Response:
        return JSONResponse({"ready": repository.is_ready}, 200 if repository.is_ready else 503)

    async def tell_model_ready(request: Request) -> Response:
        model = _find_model(repository, request)
        return JSONResponse({"name": model.name, "ready": repository.is_ready}, 200 if repository.is_ready else 503)

    async def tell_server(_: Request) -> Response:
        return JSONResponse(describe_server(version))

    async def tell_model(request: Request) -> Response:
        return JSONResponse(describe_model(repository, _find_model(repository, request)))

    async def infer(request: Request) -> Response:
        names = request.path_params
        with repository.admit(names["model"], names.get("version", ""), "http") as model:
            call, binary, is_binary = read_call(await _read_body(request, max_body), request.headers.get(HEADER_LENGTH))
            return await _run_while_connected(
                request, model.infer(call, lambda outputs: write_answer(model, call, outputs, binary, is_binary=is_binary))
            )

    async def list_models(request: Request) -> Response:
        fields = _read_object(await _read_body(request, max_body))
        require_known(list(fields), ["ready"], "field of a request for the index")
        only_ready = fields.get("ready", False)
        return JSONResponse([row for row in repository.index() if row["state"] == "READY" or not only_ready])

    async def change_model(request: Request) -> Response:
        action = request.url.path.rpartition("/")[2]
        fields = _read_object(await _read_body(request, max_body))
        require_known(list(fields), ["parameters"], f"field of a request to {action}")
        _read_parameters(fields, ["unload_dependents"], f"a request to {action}")
        await control(action, request.path_params["model"])
        return JSONResponse({})

    async def tell_metrics(_: Request) -> Response:
        return Response(metrics.format(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def answer_error(_: Request, error: Exception) -> Response:
        status, text = describe_error(error)
        # The rest of a body that was not read must not be taken for the next request.
        headers = {"Connection": "close"} if status in (408, 413) else {"Retry-After": "1"} if status in (429, 503) else {}
        return JSONResponse({"error": text}, status, headers)

    async def answer_unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return JSONResponse({"error": f"{request.method} {request.url.path[:200]} is no request of the protocol"}, status)

    async def answer_bug(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"the server failed: {type(error).__name__}: {error}"}, 500)

    async def answer_nobody(_: Request, __: Exception) -> Response:
        return PlainTextResponse("", 499)

    model, one = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
    routes = [
        Route("/v2/health/live", tell_live),
        Route("/v2/health/ready", tell_ready),
        Route("/v2", tell_server),
        *(Route(f"{path}/ready", tell_model_ready) for path in (model, one)),
        *(Route(path, tell_model) for path in (model, one)),
        *(Route(f"{path}/infer", infer, methods=["POST"]) for path in (model, one)),
        Route("/v2/repository/index", list_models, methods=["POST"]),
        *(Route(f"/v2/repository/models/{{model}}/{action}", change_model, methods=["POST"]) for action in ("load", "unload")),
        Route("/metrics", tell_metrics),
    ]
    handlers: dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
        Refusal: answer_error,
        HeteroError: answer_error,
        HTTPException: answer_unknown,
        ClientDisconnect: answer_nobody,
        Exception: answer_bug,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _find_model(repository: Repository, request: Request) -> ModelVersion:
    return repository.find(request.path_params["model"], request.path_params.get("version", ""))


async def _read_body(request: Request, limit: int) -> bytes:
    """Returns the body. Raises: Refusal for a body that is too long or slow, or compressed; ClientDisconnect."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Refusal(415, "compressed bodies are not read; send the request without Content-Encoding")
    too_long = Refusal(413, f"the body is longer than {limit} bytes, the limit of the server (--max-body)")
    if int(request.headers.get("Content-Length", 0)) > limit:
        raise too_long
    chunks, nbytes = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                chunks.append(chunk)
                nbytes += len(chunk)
                if nbytes > limit:
                    raise too_long
    except TimeoutError:
        raise Refusal(408, f"the body has not arrived within {BODY_SECONDS:g} s") from None
    return b"".join(chunks)


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Returns the result, or cancels the work when the client leaves. Raises: ClientDisconnect; errors of the work."""
    run, leave = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((run, leave), return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            raise ClientDisconnect
        return run.result()
    finally:
        run.cancel()
        leave.cancel()


def _read_object(content: bytes | memoryview) -> dict[str, Any]:
    """Returns the JSON object of a body; an empty body is an empty object. Raises: Refusal."""
    try:
        fields = json.loads(bytes(content)) if len(content) else {}
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refusal(400, f"the request is no JSON object, but {type(fields).__name__}")
    return fields


def read_call(body: bytes, header_length: str | None) -> tuple[InferCall, Mapping[str, bool], bool]:
    """Returns the call, whether each named output is to be binary, and whether all remaining outputs are. Raises: Refusal."""
    length = len(body) if header_length is None else int(header_length) if header_length.isdecimal() else -1
    if not 0 <= length <= len(body):
        raise Refusal(400, f"{HEADER_LENGTH} is {header_length[:20] if header_length else ''}, and the body has {len(body)} bytes")
    fields = _read_object(memoryview(body)[:length])
    require_known(list(fields), ["id", "inputs", "outputs", "parameters"], "field of the request")
    parameters = _read_parameters(fields, ["binary_data_output"], "the request")
    content = memoryview(body)[length:]
    inputs: dict[str, Any] = {}
    for tensor in _read_list(fields, "inputs"):
        require_known(list(tensor), ["name", "datatype", "shape", "data", "parameters"], "field of an input")
        name: Any = tensor.get("name")
        dtype, shape = check_tensor(name, tensor.get("datatype"), tensor.get("shape"))
        if name in inputs:
            raise Refusal(400, f"input '{name}' is given twice")
        size = _read_parameters(tensor, ["binary_data_size"], f"input '{name}'").get("binary_data_size")
        if (size is None) == ("data" not in tensor):
            raise Refusal(400, f"input '{name}' needs either data or the parameter binary_data_size")
        if size is None:
            inputs[name] = read_numbers(name, dtype, shape, tensor["data"])
            continue
        if type(size) is not int or not 0 <= size <= len(content):
            raise Refusal(400, f"input '{name}' has binary_data_size {str(size)[:20]}; {len(content)} bytes are left in the body")
        inputs[name] = read_bytes(name, dtype, shape, content[:size])
        content = content[size:]
    if len(content):
        raise Refusal(400, f"the body has {len(content)} bytes that belong to no input")
    is_binary = parameters.get("binary_data_output", False)
    binary: dict[str, bool] = {}
    for output in _read_list(fields, "outputs") if "outputs" in fields else ():
        require_known(list(output), ["name", "parameters"], "field of an output")
        if not isinstance(output.get("name"), str):
            raise Refusal(400, f"an output has no name, but {output.get('name')!r}")
        own = _read_parameters(output, ["binary_data"], f"output '{output['name']}'")
        binary[output["name"]] = own.get("binary_data", is_binary)
    if not all(isinstance(value, bool) for value in (is_binary, *binary.values())):
        raise Refusal(400, "binary_data and binary_data_output are true or false")
    identity = fields.get("id", "")
    if not isinstance(identity, str):
        raise Refusal(400, f"the id of a request is a text, got {type(identity).__name__}")
    return InferCall(inputs, tuple(binary), identity), binary, is_binary


def _read_list(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = fields.get(name)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise Refusal(400, f"'{name}' of the request is no list of objects")
    return listed


def _read_parameters(fields: Mapping[str, Any], known: list[str], owner: str) -> dict[str, Any]:
    parameters = fields.get("parameters", {})
    if not isinstance(parameters, dict):
        raise Refusal(400, f"the parameters of {owner} are no object")
    require_known(list(parameters), known, f"parameter of {owner}")
    return parameters


def write_answer(
    model: ModelVersion, call: InferCall, outputs: Mapping[str, Any], binary: Mapping[str, bool], *, is_binary: bool
) -> Response:
    """Returns the response with the outputs, as numbers in its JSON or as bytes after it."""
    rows, parts = [], []
    for name, array in outputs.items():
        row: dict[str, Any] = {"name": name, "datatype": find_datatype(array), "shape": list(array.shape)}
        if binary.get(name, is_binary):
            parts.append(write_bytes(array))
            row["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            row["data"] = (array.astype("float32") if row["datatype"] == "BF16" else array).ravel().tolist()
        rows.append(row)
    identity = {"id": call.id} if call.id else {}
    header = json.dumps({"model_name": model.name, "model_version": model.version, **identity, "outputs": rows}).encode()
    if not parts:
        return Response(header, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(header))}
    return Response(b"".join((header, *parts)), headers=headers, media_type="application/octet-stream")
