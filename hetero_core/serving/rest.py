"""The REST interface of the Open Inference Protocol, version 2, with binary tensors, the model repository, and metrics.

body ──> JSON, then the bytes of tensors in its order ──> arrays ──> ModelVersion.infer ──> JSON, then the bytes of outputs

The bytes of tensors are not copied once they are in the memory of the body, and those of outputs once, into the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hetero_core.errors import HeteroError
from hetero_core.serving.protocol import (
    Refusal,
    describe_error,
    find_datatype,
    read_tensor,
    require_known,
    require_parameters,
    write_bytes,
)
from hetero_core.serving.repository import ModelVersion, Repository

HEADER_LENGTH = "Inference-Header-Content-Length"
_LENGTHS = (b"content-length", HEADER_LENGTH.lower().encode())
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several workers keep their figures; prometheus_client reads it when it is imported."""
BODY_SECONDS = 60.0
"""Seconds that a body may take to arrive."""


def create_routes(repository: Repository, *, max_body: int) -> list[Route]:
    """Returns the routes; `max_body` is the longest body in bytes."""

    def tell(path: str, describe: Callable[..., dict[str, Any]]) -> Route:
        async def answer(request: Request) -> Response:
            return JSONResponse(describe(**request.path_params))

        return Route(path, answer)

    async def infer(request: Request) -> Response:
        with repository.admit(request.path_params["name"], request.path_params.get("version", ""), "http") as model:
            body = await _read_body(request, max_body)
            length = request.headers.get(HEADER_LENGTH, str(len(body)))
            if not length.isdecimal() or len(length) > 15 or int(length) > len(body):
                raise Refusal(400, f"{HEADER_LENGTH} is '{length[:20]}', and the body has {len(body)} bytes")
            call = _read_object(body[: int(length)])
            for field, own in (("model_name", model.name), ("model_version", model.version)):
                if call.get(field, own) != own:
                    raise Refusal(400, f"{field} is '{str(call[field])[:100]}', and the path asks for '{own}'")
            inputs, outputs, is_binary = _read_call(call, body[int(length) :])
            run = model.infer(inputs, list(outputs), lambda values: _write_answer(model, call, values, outputs, is_binary))
            return await (run if model.is_quick(inputs) else _run_while_connected(request, run))

    async def index(request: Request) -> Response:
        fields = _read_object(await _read_body(request, max_body))
        require_known(fields, ["ready"], "field of this request")
        return JSONResponse(repository.index(ready=fields.get("ready") is True))

    async def change(request: Request) -> Response:
        fields = _read_object(await _read_body(request, max_body))
        require_known(fields, ["parameters"], "field of this request")
        return JSONResponse(await repository.change(**request.path_params, parameters=_read_parameters(fields)))

    async def tell_metrics(_: Request) -> Response:
        figures = generate_latest()
        if METRICS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the package has types, this class has none
            figures = generate_latest(registry)
        return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")

    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    return [
        *(Route(f"{path}/infer", infer, methods=["POST"]) for path in models),  # first: routes are tried in order
        tell("/v2/health/live", lambda: {"live": True}),
        tell("/v2/health/ready", repository.tell_ready),
        tell("/v2", repository.describe_server),
        *(tell(f"{path}/ready", repository.tell_ready) for path in models),
        *(tell(path, repository.describe_model) for path in models),
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{name}/{action}", change, methods=["POST"]),
        Route("/metrics", tell_metrics),
    ]


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        text = f"{request.method} {request.url.path[:200]} is no request of the protocol"
        return JSONResponse({"error": text}, error.status_code)
    status, text = describe_error(error)
    # What is left of a body that was not read must not be taken for the next request.
    headers = {"Connection": "close"} if status in (408, 413) else {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse({"error": text}, status, headers)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


ERROR_HANDLERS: dict[Any, Callable[[Request, Exception], Coroutine[Any, Any, Response]]] = {
    **dict.fromkeys((Refusal, HeteroError, HTTPException, Exception), _answer_error),
    ClientDisconnect: _answer_nobody,
}


class Body:
    """The memory of a body of known length; its connection writes each part that arrives to its place.

    uvicorn itself copies a body four times until the application has it in one piece. Byte `header`, at which the first tensor
    begins, stands at a multiple of 64, so that its array is a view.
    """

    def __init__(self, nbytes: int, header: int) -> None:
        memory = np.empty(nbytes + 64, np.uint8)
        self.content = memory.data[-(memory.ctypes.data + header) % 64 :][:nbytes]
        self._end = 0

    @property
    def is_whole(self) -> bool:
        """Says whether all parts have arrived."""
        return self._end == len(self.content)

    def add(self, part: bytes) -> None:
        """Copies the next part."""
        begin, self._end = self._end, self._end + len(part)
        self.content[begin : self._end] = part


def open_body(headers: Iterable[tuple[bytes, bytes]], limit: int) -> Body | None:
    """Returns the memory for the body of a request; None if its length is unknown or beyond the limit."""
    lengths = {name: int(value) for name, value in headers if name in _LENGTHS and value.isdigit() and len(value) < 16}
    nbytes, header = (lengths.get(name, 0) for name in _LENGTHS)
    return Body(nbytes, header) if 0 < nbytes <= limit else None


async def _read_body(request: Request, limit: int) -> memoryview:
    """Returns the body. Raises: Refusal for a body that is too long, too slow, or compressed; ClientDisconnect."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Refusal(415, "compressed bodies are not read; send the request without Content-Encoding")
    body: Body | None = request.scope.get("state", {}).get("body")
    if body is not None and body.is_whole:
        return body.content
    chunks, nbytes, declared = [], 0, int(request.headers.get("Content-Length", 0))
    try:
        async with asyncio.timeout(BODY_SECONDS):
            # A client reads the answer after it has sent all, unless it asks first.
            if declared <= limit or "Expect" not in request.headers:
                async for chunk in request.stream():
                    nbytes += len(chunk)
                    if nbytes <= limit:
                        chunks.append(chunk)
    except TimeoutError:
        raise Refusal(408, f"the body has not arrived within {BODY_SECONDS:g} s") from None
    if max(nbytes, declared) > limit:
        raise Refusal(413, f"the body is longer than {limit} bytes, the limit of this server (--max-body)")
    return memoryview(b"".join(chunks)) if body is None else body.content


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Returns the result, or cancels the work when the client leaves. Raises: ClientDisconnect; errors of the work."""
    task, is_over = asyncio.current_task(), False
    assert task is not None

    async def wait_for_end() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leave = asyncio.ensure_future(wait_for_end())
    leave.add_done_callback(lambda _: is_over or task.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        raise ClientDisconnect from None
    finally:
        is_over = True
        leave.cancel()


def _read_object(content: memoryview) -> dict[str, Any]:
    """Returns the JSON object of a body, an empty object for an empty body. Raises: Refusal."""
    try:
        fields = json.loads(str(content, "utf-8")) if content else {}
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refusal(400, f"expected a JSON object, got {type(fields).__name__}")
    return fields


def _read_call(fields: Mapping[str, Any], content: memoryview) -> tuple[dict[str, Any], dict[str, bool], bool]:
    """Returns the inputs, whether each requested output is to be binary, and whether all are if none is requested. Raises: Refusal."""
    require_known(fields, ["id", "model_name", "model_version", "inputs", "outputs", "parameters"], "field of the request")
    if not isinstance(fields.get("id", ""), str):
        raise Refusal(400, "the id of the request is no text")
    inputs: dict[str, Any] = {}
    for tensor in _list_tensors(fields, "inputs", ["name", "datatype", "shape", "data", "parameters"]):
        name, datatype, shape = tensor["name"], tensor.get("datatype"), tensor.get("shape")
        size = _find_parameter(tensor, "binary_data_size")
        is_once = name not in inputs and (size is None) != ("data" not in tensor)
        if not isinstance(datatype, str) or not isinstance(shape, list) or not is_once:
            raise Refusal(400, f"input '{name}' needs a datatype, a shape, and either data or binary_data_size, once")
        if size is None:
            inputs[name] = read_tensor(name, datatype, shape, values=tensor["data"])
            continue
        if type(size) is not int or not 0 <= size <= len(content):
            raise Refusal(400, f"input '{name}' has binary_data_size {str(size)[:20]}; {len(content)} bytes are left in the body")
        inputs[name] = read_tensor(name, datatype, shape, content=content[:size])
        content = content[size:]
    if len(content):
        raise Refusal(400, f"the body has {len(content)} bytes that belong to no input")
    is_binary = _find_parameter(fields, "binary_data_output", default=False)
    outputs = _list_tensors(fields, "outputs", ["name", "parameters"]) if "outputs" in fields else []
    return inputs, {output["name"]: _find_parameter(output, "binary_data", default=is_binary) for output in outputs}, is_binary


def _list_tensors(fields: Mapping[str, Any], key: str, known: list[str]) -> list[dict[str, Any]]:
    tensors = fields.get(key)
    if not isinstance(tensors, list) or not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in tensors):
        raise Refusal(400, f"'{key}' of the request is no list of objects with names")
    for tensor in tensors:
        require_known(tensor, known, f"field of {key}")
    return tensors


def _read_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    parameters = fields.get("parameters", {})
    if not isinstance(parameters, dict):
        raise Refusal(400, "parameters are no object")
    return parameters


def _find_parameter(fields: Mapping[str, Any], known: str, *, default: bool | None = None) -> Any:
    """Returns the parameter that is known beside `content_type`, a flag if its default is one. Raises: Refusal for any other."""
    parameters = _read_parameters(fields)
    require_parameters(parameters, [known])
    value = default if parameters.get(known) is None else parameters[known]
    if default is not None and not isinstance(value, bool):
        raise Refusal(400, f"{known} is neither true nor false")
    return value


def _write_answer(
    model: ModelVersion, call: Mapping[str, Any], values: Mapping[str, Any], outputs: Mapping[str, bool], is_binary: bool
) -> Response:
    rows, parts = [], []
    for name, array in values.items():
        row: dict[str, Any] = {"name": name, "datatype": find_datatype(array), "shape": array.shape}
        if outputs.get(name, is_binary):
            parts.append(write_bytes(array))
            row["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            row["data"] = (array.astype("float32") if row["datatype"] == "BF16" else array).ravel().tolist()
        rows.append(row)
    identity = {"id": call["id"]} if "id" in call else {}
    header = json.dumps({"model_name": model.name, "model_version": model.version, **identity, "outputs": rows}).encode()
    if not parts:
        return Response(header, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(header))}
    return Response(b"".join((header, *parts)), headers=headers, media_type="application/octet-stream")
