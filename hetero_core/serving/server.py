"""The processes of a server: one, or a supervisor with several workers; each listens by REST and gRPC, and ends without losing a request.

One process:      sockets ──> load all models ──> listen ──> SIGTERM ──> stop accepting ──> answer what was accepted ──> close
Several workers:  the supervisor opens the REST socket, which the workers share, and reserves the gRPC port, on which each worker listens.
                  They are started anew rather than forked, because the libraries of engines and gRPC do not survive a fork.
A load or unload goes from the worker that got it to the supervisor, from there to all workers, and is answered after the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from importlib_metadata import version

from hetero_core.blobs.container import is_blob
from hetero_core.core import Core
from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import ConfigValueError, LoadError
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.serving.metrics import FOLDER_VARIABLE, Metrics
from hetero_core.serving.protocol import Refusal, describe_error
from hetero_core.serving.repository import Repository
from hetero_core.serving.rest import create_app
from hetero_core.serving.rpc import create_handlers

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open."""
LAST_SECONDS = 0.5
"""Seconds at the end for requests that are on their way: REST answers them and closes their connection, gRPC tells them UNAVAILABLE.
Without them the libraries would drop such requests unread.
"""


@dataclass(frozen=True)
class Settings:
    """The options of a server. `max_body` in bytes; `queue` is how many requests a model version admits; `grace` in seconds."""

    places: tuple[str, ...]
    device: str
    config: dict[str, Any]
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    workers: int = 1
    max_body: int = 64 * 2**20
    queue: int = 128
    grace: float = 30.0
    trust: bool = False
    unloaded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Addresses:
    """The addresses on which a server listens."""

    http: str
    grpc: str


Announce = Callable[[Addresses], None]


def serve(settings: Settings, announce: Announce) -> None:
    """Serves until SIGTERM or SIGINT; `announce` is called once all models are loaded and all processes listen.

    Raises: errors of loading; ConfigValueError for an address that cannot be used; LoadError for a worker that ends early.
    """
    with _open_sockets(settings) as (rest, grpc_port):
        settings = dataclasses.replace(settings, grpc_port=grpc_port)
        host = _write_host(settings)
        addresses = Addresses(f"http://{host}:{rest.getsockname()[1]}", f"{host}:{grpc_port}")
        if settings.workers == 1:
            asyncio.run(_serve_process(settings, rest, None, lambda: announce(addresses)))
        else:
            with _share_metrics():
                Supervisor(settings, rest).run(lambda: announce(addresses))


@contextlib.contextmanager
def _open_sockets(settings: Settings) -> Iterator[tuple[socket.socket, int]]:
    """Gives the socket of REST and the port of gRPC, which is reserved. Raises: ConfigValueError for an address that is in use."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as rest, socket.socket(family) as first, socket.socket(family) as reserved:
        rest.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for each, port in ((rest, settings.http_port), (first, settings.grpc_port)):
            try:
                each.bind((settings.host, port))
                each.listen(2048)
            except OSError as error:
                raise ConfigValueError(f"cannot listen on {settings.host}, port {port}: {error.strerror or error}") from error
        # The first socket has shown that nobody else listens there. The second reserves the port for those that share it.
        grpc_port = first.getsockname()[1]
        first.close()
        if settings.workers > 1:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((settings.host, grpc_port))
        yield rest, grpc_port


@contextlib.contextmanager
def _share_metrics() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="hetero-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder  # read by the workers
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


# One process


class _Listener(uvicorn.Server):
    """A server that leaves signals to `_serve_process`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve_process(settings: Settings, rest: socket.socket, link: Link | None, announce: Callable[[], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    with Core(after_fork="reopen") as core:
        load = _make_loader(core, settings)
        repository = Repository(settings.places, load, metrics, queue=settings.queue, unloaded=settings.unloaded)
        actions = {"load": repository.load, "unload": repository.unload}
        if link is not None:
            link.connect(actions, stop)
        loading = asyncio.ensure_future(repository.load_all())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            return
        loading.result()

        async def control(action: str, name: str) -> None:
            if link is None:
                await actions[action](name)
            else:
                await link.ask(action, name)

        release = version("hetero-core")
        app = create_app(repository, control, metrics, version=release, max_body=settings.max_body)
        listener = _Listener(_configure(settings, _closing_connections(app, repository)))
        options = [
            ("grpc.max_receive_message_length", settings.max_body),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(settings.workers > 1)),
        ]
        rpc = grpc.aio.server(options=options)
        rpc.add_generic_rpc_handlers((create_handlers(repository, control, metrics, version=release),))
        rpc.add_insecure_port(
            f"[{settings.host}]:{settings.grpc_port}" if ":" in settings.host else f"{settings.host}:{settings.grpc_port}"
        )
        await rpc.start()
        serving = asyncio.ensure_future(listener.serve([rest]))
        while not listener.started:
            await asyncio.sleep(0.01)
        announce()
        await stop.wait()
        repository.is_ready = False
        for server in listener.servers:
            server.close()
        await asyncio.sleep(LAST_SECONDS)
        listener.should_exit = True
        await asyncio.gather(rpc.stop(settings.grace), serving)
        await repository.close()


def _write_host(settings: Settings) -> str:
    return f"[{settings.host}]" if ":" in settings.host else settings.host


def _configure(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(round(settings.grace), 1),
    )


def _closing_connections(app: Any, repository: Repository) -> Any:
    """Returns the application with answers that close their connection while the server ends."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_closing(message: Any) -> None:
            if message["type"] == "http.response.start" and not repository.is_ready:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, receive, send_closing)

    return answer


def _make_loader(core: Core, settings: Settings) -> Callable[[Path], ExecutableNetwork]:
    """Returns the function that loads a file, a model or a blob; each of several workers gets its share of the processors."""
    config = dict(settings.config)
    if settings.workers > 1 and THREADS_KEY in core.config_keys(settings.device):
        config.setdefault(THREADS_KEY, str(max(len(os.sched_getaffinity(0)) // settings.workers, 1)))

    def load(file: Path) -> ExecutableNetwork:
        if is_blob(str(file)):
            return core.import_network(file, settings.device, settings.config, trust=settings.trust)
        return core.load_network(file, settings.device, config)

    return load


# Several workers


class Link:
    """The connection of a worker to its supervisor: asks for actions in all workers, and applies those that are asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    def connect(self, actions: dict[str, Any], stop: asyncio.Event) -> None:
        """Receives from now on; `stop` is set when the supervisor is gone."""
        loop = asyncio.get_running_loop()

        def receive() -> None:
            try:
                kind, *content = self._connection.recv()
            except (EOFError, OSError):
                loop.remove_reader(self._connection.fileno())
                stop.set()
                return
            if kind == "apply":
                task = loop.create_task(self._apply(actions, *content))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                number, refusal = content
                answer = self._answers.pop(number)
                if not answer.done():
                    answer.set_exception(Refusal(*refusal)) if refusal else answer.set_result(None)

        loop.add_reader(self._connection.fileno(), receive)

    async def _apply(self, actions: dict[str, Any], token: object, action: str, name: str) -> None:
        refusal = None
        try:
            await actions[action](name)
        except Exception as error:  # noqa: BLE001  # the client that asked gets it
            refusal = describe_error(error)
        self._connection.send(("applied", token, refusal))

    async def ask(self, action: str, name: str) -> None:
        """Applies an action in all workers. Raises: Refusal with the first error."""
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        self._connection.send(("ask", self._count, action, name))
        await answer

    def tell_ready(self) -> None:
        """Tells the supervisor that this worker listens."""
        self._connection.send(("ready",))


def run_worker(settings: Settings, rest: socket.socket, connection: Connection) -> None:
    """Runs a worker in a process of its own; a failure at the start goes to the supervisor as text."""
    link = Link(connection)
    try:
        asyncio.run(_serve_process(settings, rest, link, link.tell_ready))
    except Exception as error:  # noqa: BLE001  # the supervisor raises it
        connection.send(("failed", describe_error(error)[1]))
        sys.exit(1)


@dataclass(eq=False)
class _Worker:
    process: Any
    connection: Connection
    is_ready: bool = False


@dataclass(eq=False)
class _Request:
    """An action that workers apply; `remaining` have not answered."""

    asker: _Worker
    number: int
    action: str
    name: str
    remaining: set[_Worker]
    refusal: tuple[int, str] | None = None


class Supervisor:
    """Starts the workers, starts a worker again that ends by itself, hands actions to all, and ends them together."""

    def __init__(self, settings: Settings, rest: socket.socket) -> None:
        self._settings = settings
        self._rest = rest
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._requests: dict[int, _Request] = {}
        self._count = 0
        self._is_stopping = False
        self._failure = ""

    def run(self, announce: Callable[[], None]) -> None:
        """Returns when all workers have ended. Raises: LoadError for a worker that ended before it was ready."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        is_announced = False
        for _ in range(self._settings.workers):
            self._start_worker()
        while self._workers:
            for source in wait(
                [*(each.connection for each in self._workers), *(each.process.sentinel for each in self._workers)], 0.5
            ):
                worker = next((each for each in self._workers if source in (each.connection, each.process.sentinel)), None)
                if worker is None:
                    continue
                if source is worker.connection:
                    self._receive(worker)
                else:
                    self._bury(worker)
            if not is_announced and not self._is_stopping and all(worker.is_ready for worker in self._workers):
                is_announced = True
                announce()
        if self._failure:
            raise LoadError(self._failure)

    def _stop(self) -> None:
        self._is_stopping = True
        # Without this the system would go on accepting connections, which nobody answers.
        self._rest.close()
        for worker in self._workers:
            worker.process.terminate()

    def _start_worker(self) -> None:
        connection, other = self._context.Pipe()
        process = self._context.Process(target=run_worker, args=(self._settings, self._rest, other))
        process.start()
        other.close()
        self._workers.append(_Worker(process, connection))

    def _receive(self, worker: _Worker) -> None:
        try:
            kind, *content = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if kind == "ready":
            worker.is_ready = True
        elif kind == "failed":
            self._failure = self._failure or f"a worker cannot start: {content[0]}"
        elif kind == "ask":
            self._count += 1
            number, action, name = content
            request = _Request(worker, number, action, name, {each for each in self._workers if each.is_ready})
            self._requests[self._count] = request
            for each in request.remaining:
                _send(each, ("apply", self._count, request.action, request.name))
        else:
            token, refusal = content
            self._end_part(token, worker, refusal)

    def _end_part(self, token: int, worker: _Worker, refusal: tuple[int, str] | None) -> None:
        request = self._requests[token]
        request.remaining.discard(worker)
        request.refusal = request.refusal or refusal
        if request.remaining:
            return
        del self._requests[token]
        if request.refusal is None:
            others = [name for name in self._settings.unloaded if name != request.name]
            unloaded = (*others, request.name) if request.action == "unload" else tuple(others)
            self._settings = dataclasses.replace(self._settings, unloaded=unloaded)
        _send(request.asker, ("answer", request.number, request.refusal))

    def _bury(self, worker: _Worker) -> None:
        """Ends the part of a worker that has ended, and starts another unless the server ends."""
        worker.process.join()
        while worker.connection.poll():
            try:
                kind, *content = worker.connection.recv()
            except (EOFError, OSError):
                break
            if kind == "failed":
                self._failure = self._failure or f"a worker cannot start: {content[0]}"
        self._workers.remove(worker)
        for token, request in list(self._requests.items()):
            if worker in request.remaining:
                self._end_part(token, worker, (503, "a worker ended meanwhile; try again"))
        if self._is_stopping:
            return
        if worker.is_ready:
            logger.warning("a worker ended with exit code %s and is started again", worker.process.exitcode)
            self._start_worker()
            return
        self._failure = self._failure or f"a worker ended with exit code {worker.process.exitcode} before it was ready"
        self._stop()


def _send(worker: _Worker, message: tuple[Any, ...]) -> None:
    with contextlib.suppress(OSError):  # a worker that has just ended is buried next
        worker.connection.send(message)
