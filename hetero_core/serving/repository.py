"""The models of a server: found in files and folders, loaded and unloaded while it runs, described, counted, and run.

A reload first loads the new files and then hands over: requests that were admitted before end on the network of before, which is closed
after the last of them. A single event loop calls everything here; networks load and close on threads.

A model version admits a limited number of requests, from before their body is read until they are answered. Some of them run, each on an
InferRequest; the rest wait for their turn. An AsyncInferQueue would let the event loop wait, since its start blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from importlib_metadata import version as find_version
from prometheus_client import Counter, Gauge, Histogram

from hetero_core.errors import HeteroError, InvalidNetworkError, NetworkNotFoundError, enumerate_choices
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.request import InferRequest
from hetero_core.serving.protocol import Refusal, describe_error, describe_spec, require_known

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Load = Callable[[Path], ExecutableNetwork]

_ENDINGS = (".onnx", ".blob")
_LABELS = ("model", "version", "protocol")
QUICK_SECONDS = 0.0001
"""Seconds of processor time that the change to the thread of a run and back takes, so that quicker runs stay in the event loop."""
_REQUESTS = Counter("hetero_requests", "Requests by the status of their answer; 499: the client left.", (*_LABELS, "status"))
_SECONDS = Histogram("hetero_request_seconds", "Seconds from the admission of a request to its answer.", _LABELS)
_ACTIVE = Gauge("hetero_active_requests", "Requests that are admitted and unanswered.", _LABELS, multiprocess_mode="livesum")


@cache
def _find_series(metric: Any, *labels: str) -> Any:
    """Returns the counter, gauge or histogram with these labels; prometheus_client itself needs some 10 us for each search."""
    return metric.labels(*labels)


def find_models(places: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Returns model -> version -> file, in order, of files, `NAME=FILE`, and folders with NAME.onnx or NAME/VERSION/model.onnx.

    A plain file is version 1. Compiled models end with .blob in place of .onnx.

    Raises: NetworkNotFoundError for a place without a model; InvalidNetworkError for a name with two files.
    """
    models: dict[str, dict[str, Path]] = {}
    for place in places:
        name, _, path = ("", "", place) if Path(place).exists() else place.rpartition("=")
        whole = Path(path)
        plain = [whole] if whole.is_file() else sorted(file for ending in _ENDINGS for file in whole.glob(f"*{ending}"))
        listed = [(name or file.stem, "1", file) for file in plain]
        versions = sorted(file for ending in _ENDINGS for file in whole.glob(f"*/*/model{ending}"))
        listed += [(file.parts[-3], file.parts[-2], file) for file in versions if file.parts[-2].isdecimal()]
        if not listed:
            expected = "a file, NAME=FILE, or a folder with NAME.onnx or NAME/1/model.onnx"
            raise NetworkNotFoundError(f"there is no model in '{place}'; expected {expected}")
        for model, version, file in listed:
            if models.setdefault(model, {}).setdefault(version, file) != file:
                raise InvalidNetworkError(f"model '{model}' stands for {models[model][version]} and {file}; name one, as NAME=FILE")
    return {model: {version: files[version] for version in sorted(files, key=int)} for model, files in sorted(models.items())}


def _count_bytes(inputs: Mapping[str, Any]) -> int:
    return sum(array.nbytes for array in inputs.values())


class ModelVersion:
    """A loaded version of a model."""

    def __init__(self, name: str, version: str, network: ExecutableNetwork) -> None:
        """Raises: Refusal for a network that the protocol cannot serve."""
        if network.border.states:
            raise Refusal(400, f"model '{name}' keeps states between runs, but the requests of the protocol are independent")
        self.name, self.version, self.network = name, version, network
        self.inputs, self.outputs = ([describe_spec(spec) for spec in specs] for specs in (network.inputs, network.outputs))
        # One more than run at once: it is ready when a run ends.
        self._slots = asyncio.Semaphore(int(network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) + 1)
        self._idle: list[InferRequest] = []
        self._quick_bytes = -1  # inputs of so many bytes have run in QUICK_SECONDS
        self._active = 0
        self._retired: asyncio.Event | None = None

    async def infer(self, inputs: Mapping[str, Any], outputs: Sequence[str], encode: Callable[[dict[str, Any]], Answer]) -> Answer:
        """Returns these outputs, else all, encoded; a cancelled task ends its run or its wait. Raises: Refusal; errors of the run."""
        require_known(outputs, self.network.output_names, f"output of model '{self.name}'")
        is_quick = self.is_quick(inputs)
        async with contextlib.nullcontext() if is_quick else self._slots:
            request = self._idle.pop() if self._idle else self.network.create_infer_request()
            try:
                values = request.infer(inputs) if is_quick else await request.infer_async(inputs)
                if request.seconds <= QUICK_SECONDS and self.network.deadline is None:  # with a deadline, a thread runs it anyway
                    self._quick_bytes = max(self._quick_bytes, _count_bytes(inputs))
                elif request.seconds > 10 * QUICK_SECONDS and self.is_quick(inputs):
                    self._quick_bytes = -1
                # They are encoded before the next run of the request, until which they are valid.
                return encode({name: values[name] for name in outputs or values})
            finally:
                self._idle.append(request)

    def is_quick(self, inputs: Mapping[str, Any]) -> bool:
        """Says whether the event loop itself runs these inputs, since as many bytes have run in QUICK_SECONDS."""
        return _count_bytes(inputs) <= self._quick_bytes

    @contextlib.contextmanager
    def admit(self, limit: int, protocol: str) -> Iterator[ModelVersion]:
        """Gives the version, and counts and times a request. Raises: Refusal if `limit` requests are admitted already."""
        labels, start, status = (self.name, self.version, protocol), perf_counter(), 499
        active = _find_series(_ACTIVE, *labels)
        self._active += 1
        active.inc()
        try:
            if self._active > limit:
                raise Refusal(429, f"model '{self.name}' has {limit} unanswered requests, its limit (--queue); try again later")
            yield self
            status = 200
        except Exception as error:
            status = describe_error(error)[0]
            raise
        finally:
            self._active -= 1
            active.dec()
            _find_series(_REQUESTS, *labels, str(status)).inc()
            _find_series(_SECONDS, *labels).observe(perf_counter() - start)
            if self._retired is not None and not self._active:
                self._retired.set()

    async def retire(self) -> None:
        """Closes the network after the last admitted request."""
        self._retired = asyncio.Event()
        if self._active:
            await self._retired.wait()
        try:
            await asyncio.to_thread(self.network.close)
        except HeteroError as error:
            logger.warning("version %s of model '%s' is not closed: %s", self.version, self.name, error)


class Repository:
    """The models that a server knows, and the versions that are loaded. Each method returns the fields of an answer."""

    def __init__(self, places: Sequence[str], load: Load, *, queue: int, workers: int = 1) -> None:
        """`load` is called on a thread; `queue` is how many requests a version admits; `workers` are the processes of the server."""
        self._places, self._load, self._queue, self._workers = places, load, queue, workers
        self._loaded: dict[str, dict[str, ModelVersion]] = {}
        self._changing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self.is_ready = False
        """Says whether all models were loaded at the start, and the server does not end."""

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Returns a loaded version, "" for the highest. Raises: Refusal."""
        versions = self._loaded.get(name)
        if versions is None:
            raise Refusal(404, f"model '{name[:100]}' is not loaded; loaded are {enumerate_choices(self._loaded) or 'none'}")
        if version not in ("", *versions):
            raise Refusal(404, f"model '{name}' has no version '{version[:100]}'; loaded are {', '.join(versions)}")
        return versions[version or list(versions)[-1]]

    def admit(self, name: str, version: str, protocol: str) -> contextlib.AbstractContextManager[ModelVersion]:
        """Returns the context in which a request holds a loaded version. Raises: Refusal."""
        return self.find(name, version).admit(self._queue, protocol)

    def tell_ready(self, name: str | None = None, version: str = "") -> dict[str, Any]:
        """Returns `ready`, of the server or a model. Raises: Refusal."""
        if not self.is_ready:
            raise Refusal(503, "the server is starting or ending")
        return {"ready": bool(name is None or self.find(name, version))}

    def describe_server(self) -> dict[str, Any]:
        """Returns the metadata of the server."""
        return {"name": "hetero", "version": find_version("hetero-core"), "extensions": ["binary_tensor_data", "model_repository"]}

    def describe_model(self, name: str, version: str = "") -> dict[str, Any]:
        """Returns the metadata of a model. Raises: Refusal."""
        model, versions = self.find(name, version), list(self._loaded[name])
        return {"name": name, "versions": versions, "platform": "onnx_hetero", "inputs": model.inputs, "outputs": model.outputs}

    def index(self, *, ready: bool) -> list[dict[str, str]]:
        """Returns every version in the files and every loaded version, with its state; only loaded versions with `ready`."""
        known: list[Mapping[str, Mapping[str, Any]]] = [self._loaded] if ready else [find_models(self._places), self._loaded]
        keys = sorted({(name, version) for models in known for name in models for version in models[name]})
        states = ["READY" if version in self._loaded.get(name, ()) else "UNAVAILABLE" for name, version in keys]
        return [{"name": name, "version": version, "state": state} for (name, version), state in zip(keys, states, strict=True)]

    async def change(self, action: str, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Loads or unloads a model as a request asks; returns no fields. Raises: Refusal; errors of a load."""
        require_known(parameters, ["unload_dependents"], "parameter")
        if self._workers > 1:
            reason = f"one of several workers cannot {action} a model for all"
            raise Refusal(501, f"{reason}; change the files and send SIGHUP to the server")
        if action not in ("load", "unload"):
            raise Refusal(404, "a model is told to load or to unload")
        await (self.load if action == "load" else self.unload)(name)
        return {}

    async def load_all(self) -> None:
        """Loads all models, and is ready then. Raises: errors of the first load that fails."""
        for name in find_models(self._places):
            await self.load(name)
        self.is_ready = True

    async def load(self, name: str) -> None:
        """Loads all versions of a model that its files hold now, and then retires the versions of before.

        Raises: Refusal for an unknown model; errors of a load, after which the versions of before still answer.
        """
        async with self._changing:
            files = find_models(self._places).get(name)
            if files is None:
                raise Refusal(404, f"there is no model '{name[:100]}' in the files")
            loaded: dict[str, ModelVersion] = {}
            try:
                for version, file in files.items():
                    loaded[version] = ModelVersion(name, version, await asyncio.to_thread(self._load, file))
            except BaseException:
                self._retire(loaded)
                raise
            before, self._loaded[name] = self._loaded.get(name, {}), loaded
            self._retire(before)

    async def unload(self, name: str) -> None:
        """Retires all versions of a model. Raises: Refusal unless it is loaded."""
        self.find(name)
        self._retire(self._loaded.pop(name))

    def _retire(self, versions: Mapping[str, ModelVersion]) -> None:
        for model in versions.values():
            task = asyncio.create_task(model.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Retires all models, and waits until they are closed."""
        self.is_ready = False
        for name in list(self._loaded):
            self._retire(self._loaded.pop(name))
        await asyncio.gather(*self._retiring)
