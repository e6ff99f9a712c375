"""A server on uvicorn: its application, which lives as long as its process, and one or several processes of it.

start ──> load all models ──> gRPC listens ──> REST listens ──> SIGTERM: REST closes ──> gRPC closes ──> models close

With several workers, uvicorn's supervisor starts them anew rather than forked, because engines and gRPC do not survive a fork. They share
the socket of REST, and each listens on the same port of gRPC. The supervisor replaces a worker that ends or hangs; on SIGHUP it replaces
all, one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from starlette.applications import Starlette
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from hetero_core.blobs.container import is_blob
from hetero_core.core import Core
from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import ConfigValueError, HeteroError, LoadError
from hetero_core.serving.protocol import Refusal
from hetero_core.serving.repository import Repository
from hetero_core.serving.rest import ERROR_HANDLERS, METRICS_FOLDER, Body, create_routes, open_body
from hetero_core.serving.rpc import create_handlers

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open."""
LAST_SECONDS = 0.5
"""Seconds at the end for requests that are on their way: REST answers them, gRPC holds them. Else they would be dropped."""
GOAWAY_SECONDS = 0.1
"""Seconds in which the clients of gRPC learn that the server ends, before it answers the requests that it holds."""
HEALTH_SECONDS = 60
"""Seconds in which a worker must answer its supervisor."""


@dataclass(frozen=True)
class Settings:
    """The options of a server; `max_body` in MiB, `grace` in seconds, `queue` in requests of a model version."""

    models: tuple[str, ...]
    device: str = "AUTO"
    config: dict[str, str] | None = None
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    workers: int = 1
    max_body: int = 64
    queue: int = 128
    grace: float = 30.0

    def write_address(self, port: int) -> str:
        """Returns the address with a port."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


class ServerApp:
    """The application of one process: models, REST, and gRPC on the same event loop. An ASGI application, for any number of connections."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rest = Starlette(lifespan=self._live, exception_handlers=ERROR_HANDLERS)
        self._repository: Repository | None = None
        self.failure: HeteroError | Refusal | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers; an answer closes its connection while the server ends."""

        async def send_last(message: Any) -> None:
            if message["type"] == "http.response.start" and not (self._repository and self._repository.is_ready):
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            elif message["type"] == "lifespan.startup.failed" and self.failure is not None:
                message["message"] = str(self.failure)  # in place of a traceback
            await send(message)

        await self._rest(scope, receive, send_last)

    @contextlib.asynccontextmanager
    async def _live(self, _: Starlette) -> AsyncIterator[dict[str, Any]]:
        settings = self._settings
        limit = settings.max_body * 2**20
        with Core(after_fork="reopen") as core:
            counts = {"queue": settings.queue, "workers": settings.workers}
            self._repository = repository = Repository(settings.models, self._make_loader(core), **counts)
            try:
                await repository.load_all()
            except (HeteroError, Refusal) as error:
                self.failure = error
                raise
            self._rest.routes.extend(create_routes(repository, max_body=limit))
            options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", -1)]
            rpc = grpc.aio.server(options=[*options, ("grpc.so_reuseport", int(settings.workers > 1))])
            gate = asyncio.Event()
            gate.set()
            rpc.add_generic_rpc_handlers((create_handlers(repository, gate),))
            rpc.add_insecure_port(settings.write_address(settings.grpc_port))
            await rpc.start()
            try:
                yield {"repository": repository, "max_body": limit}
            finally:
                repository.is_ready = False
                # gRPC drops a request that arrives between `stop` and the client's receipt of GOAWAY. A client that waits for an
                # answer sends no request meanwhile; its next request opens a new connection.
                gate.clear()
                await asyncio.sleep(LAST_SECONDS)
                end = asyncio.ensure_future(rpc.stop(settings.grace))
                await asyncio.sleep(GOAWAY_SECONDS)
                gate.set()
                await end
                await repository.close()

    def _make_loader(self, core: Core) -> Callable[[Path], Any]:
        """Returns the loader of files; a compiled model keeps its device and keys, several workers share the processors."""
        device, config = self._settings.device, dict(self._settings.config or {})
        if self._settings.workers > 1 and THREADS_KEY in core.config_keys(device):
            config.setdefault(THREADS_KEY, str(max(len(os.sched_getaffinity(0)) // self._settings.workers, 1)))
        return lambda file: core.import_network(file) if is_blob(file) else core.load_network(file, device, config)


class _Connection(HttpToolsProtocol):
    """A connection with one memory for a body; if idle, it stays open for LAST_SECONDS at the end: a request may be on its way."""

    _body: Body | None = None

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._body = self.scope["state"]["body"] = open_body(self.headers, self.app_state["max_body"])

    def on_body(self, body: bytes) -> None:
        if self._body is None:
            super().on_body(body)
        else:
            self._body.add(body)

    def shutdown(self) -> None:
        self.app_state["repository"].is_ready = False
        end = super().shutdown
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_SECONDS, lambda: None if self.transport.is_closing() else end())
        else:
            end()


def serve(settings: Settings, announce: Callable[[str, str], None]) -> None:
    """Serves until SIGTERM or SIGINT. `announce` gets the addresses of REST and gRPC once all models are loaded.

    Raises: errors of loading; ConfigValueError for an address that cannot be used; LoadError if a worker cannot start.
    """
    with _open_sockets(settings) as (rest, grpc_port), tempfile.TemporaryDirectory(prefix="hetero-metrics-") as folder:
        addresses = f"http://{settings.write_address(rest.getsockname()[1])}", settings.write_address(grpc_port)
        app = partial(ServerApp, replace(settings, grpc_port=grpc_port))
        if settings.workers > 1:
            os.environ[METRICS_FOLDER] = folder  # read by the workers
            supervisor = _Supervisor(_configure(settings, app), [rest], lambda: announce(*addresses))
            supervisor.run()
            if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
                raise LoadError("a worker cannot start; its error stands above")
        else:
            _run_process(settings, app(), rest, lambda: announce(*addresses))


def _run_process(settings: Settings, app: ServerApp, rest: socket.socket, announce: Callable[[], None]) -> None:

    async def tell() -> None:
        announce()

    # uvicorn raises the signal that ended it once more, for the handlers of before.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        # Called when the server listens, since 1970 is long ago, and then not for 30 years.
        uvicorn.Server(_configure(settings, lambda: app, callback_notify=tell, timeout_notify=10**9)).run([rest])
    except SystemExit:
        if app.failure is None:
            raise
        raise app.failure from None


def _configure(settings: Settings, app: Callable[[], ServerApp], **more: Any) -> uvicorn.Config:
    more |= {"ws": "none", "lifespan": "on", "log_config": None, "access_log": False, "proxy_headers": False}
    more |= {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": max(round(settings.grace), 1)}
    more["timeout_worker_healthcheck"] = HEALTH_SECONDS
    return uvicorn.Config(app, factory=True, http=_Connection, workers=settings.workers, **more)


class _Supervisor(Multiprocess):
    """A supervisor that tells when all workers listen."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], announce: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._announce: Callable[[], None] | None = announce

    def init_processes(self) -> None:
        super().init_processes()
        for process in self.processes:  # else a question to a worker that has ended waits for HEALTH_SECONDS
            process.child_conn.close()

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        if self._announce is not None and all(process.is_ready() for process in self.processes):
            self._announce()
            self._announce = None

    def terminate_all(self) -> None:
        # Without this the system would go on accepting connections, which nobody answers.
        self.sockets[0].close()
        super().terminate_all()


@contextlib.contextmanager
def _open_sockets(settings: Settings) -> Iterator[tuple[socket.socket, int]]:
    """Gives the socket of REST and the port of gRPC, reserved for the workers. Raises: ConfigValueError for an address in use."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sends at once (TCP_NODELAY); else each answer waits 40 ms for the client's acknowledgement.
    kind = (family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with socket.socket(*kind) as rest, socket.socket(*kind) as first, socket.socket(*kind) as reserved:
        for each, port in ((rest, settings.http_port), (first, settings.grpc_port)):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                each.bind((settings.host, port))
                each.listen()
            except OSError as error:
                raise ConfigValueError(f"cannot listen on {settings.write_address(port)}: {error.strerror or error}") from error
        # The first socket has shown that nobody else listens there; the second keeps the port for those that share it.
        grpc_port = first.getsockname()[1]
        first.close()
        if settings.workers > 1:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((settings.host, grpc_port))
        yield rest, grpc_port
