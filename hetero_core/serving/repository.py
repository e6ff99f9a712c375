"""The models of a server: found in files and folders, loaded and unloaded while it runs, and answered on a few requests each.

A folder holds plain files, `NAME.onnx`, and models with versions, `NAME/VERSION/model.onnx`. A reload first loads the new versions, then
hands over: runs that have begun end on the network on which they began, which is closed after the last of them.

One event loop calls everything here; networks load and close on threads. At most `queue` requests of a model version are admitted at
once, from the moment before their body is read until their answer is ready. Of these a few run, each on an InferRequest, and the rest
wait their turn for one. AsyncInferQueue is not used since its start waits on the thread of its caller, which here is the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hetero_core.errors import HeteroError, InvalidNetworkError, NetworkNotFoundError
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.request import InferRequest
from hetero_core.serving.metrics import Metrics
from hetero_core.serving.protocol import InferCall, Refusal, describe_spec, require_known

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
SUFFIXES = (".onnx", ".blob")
_NAME = re.compile(r"[\w.+-]+")


def find_models(places: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Returns model -> version -> file, of files, `NAME=FILE` and folders. Versions are in order; a plain file is version 1.

    Raises: NetworkNotFoundError for a place without a model; InvalidNetworkError for a name that is invalid or stands for two files.
    """
    models: dict[str, dict[str, Path]] = {}
    for place in places:
        name, equals, path = place.partition("=")
        if Path(place).exists() or not equals:
            name, path = "", place
        listed = list(_list_files(name, Path(path)))
        if not listed:
            raise NetworkNotFoundError(
                f"there is no model in '{place}'; expected a file, NAME=FILE, or a folder with NAME.onnx or NAME/1/model.onnx"
            )
        for model, version, file in listed:
            if not _NAME.fullmatch(model):
                raise InvalidNetworkError(f"'{model}' cannot name a model; use letters, digits and ._+-, as in NAME={file}")
            if models.setdefault(model, {}).setdefault(version, file) != file:
                raise InvalidNetworkError(f"model '{model}' stands for {models[model][version]} and {file}; give one as NAME=FILE")
    return {model: {key: versions[key] for key in sorted(versions, key=int)} for model, versions in models.items()}


def _list_files(name: str, place: Path) -> Iterator[tuple[str, str, Path]]:
    if place.is_file():
        yield name or place.stem, "1", place
        return
    for entry in sorted(place.iterdir()) if place.is_dir() else ():
        if entry.is_file() and entry.suffix in SUFFIXES:
            yield entry.stem, "1", entry
        elif entry.is_dir():
            # The place may itself be the folder of a model.
            model, versions = (place.resolve().name, [entry]) if entry.name.isdecimal() else (entry.name, sorted(entry.iterdir()))
            for version in versions:
                files = [file for suffix in SUFFIXES if (file := version / f"model{suffix}").is_file()]
                if version.name.isdecimal() and files:
                    yield name or model, str(int(version.name)), files[0]


@dataclass(eq=False)
class ModelVersion:
    """A loaded version of a model."""

    name: str
    version: str
    network: ExecutableNetwork
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    slots: asyncio.Semaphore
    active: int = 0
    """Admitted requests."""
    is_retired: bool = False
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: list[InferRequest] = field(default_factory=list)

    async def infer(self, call: InferCall, encode: Callable[[dict[str, Any]], Answer]) -> Answer:
        """Returns what `encode` makes of the outputs by name; they are valid until it returns.

        A cancelled task ends its run, or its wait for one. Raises: Refusal for an unknown output; errors of the run.
        """
        require_known(call.outputs, self.network.output_names, f"output of model '{self.name}'")
        async with self.slots:
            request = self._idle.pop() if self._idle else self.network.create_infer_request()
            try:
                outputs = await request.infer_async(call.inputs)
                return encode({name: outputs[name] for name in call.outputs or self.network.output_names})
            finally:
                self._idle.append(request)

    @contextlib.contextmanager
    def admit(self, limit: int) -> Iterator[None]:
        """Counts a request while the block lasts. Raises: Refusal if `limit` requests are admitted already."""
        if self.active >= limit:
            raise Refusal(429, f"model '{self.name}' has {limit} requests already, which is its limit (--queue); try again later")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            if self.is_retired and not self.active:
                self.unused.set()


class Repository:
    """The models that a server knows, and the versions that are loaded. Used by a single event loop."""

    def __init__(
        self,
        places: Sequence[str],
        load: Callable[[Path], ExecutableNetwork],
        metrics: Metrics,
        *,
        queue: int,
        unloaded: Sequence[str] = (),
    ) -> None:
        """`load` is called on a thread. `unloaded` are models that `load_all` leaves out."""
        self._places = places
        self._load = load
        self._metrics = metrics
        self._queue = queue
        self._unloaded = set(unloaded)
        self._known = find_models(places)
        self._loaded: dict[str, dict[str, ModelVersion]] = {}
        self._changing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self.is_ready = False
        """Says whether all models were loaded at the start, and the server does not end."""

    @contextlib.contextmanager
    def admit(self, name: str, version: str, protocol: str) -> Iterator[ModelVersion]:
        """Gives the loaded version, "" for the highest, to one request, which is measured. Raises: Refusal."""
        model = self.find(name, version)
        with self._metrics.measure(model.name, model.version, protocol), model.admit(self._queue):
            yield model

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Returns a loaded version, "" for the highest. Raises: Refusal."""
        versions = self._loaded.get(name)
        if versions is None and name not in self._known:
            raise Refusal(404, f"there is no model '{name[:100]}'; POST v2/repository/index lists the models")
        if versions is None:
            raise Refusal(503, f"model '{name}' is not loaded; POST v2/repository/models/{name}/load loads it")
        if version not in ("", *versions):
            raise Refusal(404, f"model '{name}' has no version '{version[:100]}'; loaded are {', '.join(versions)}")
        return versions[version or list(versions)[-1]]

    def list_versions(self, name: str) -> list[str]:
        """Returns the loaded versions of a model, in order."""
        return list(self._loaded.get(name, ()))

    def index(self) -> list[dict[str, str]]:
        """Returns every version that is loaded or in the files, with its state; looks at the files again."""
        self._known = find_models(self._places)
        rows = []
        for name in sorted({*self._known, *self._loaded}):
            loaded = self._loaded.get(name, {})
            for version in sorted({*self._known.get(name, ()), *loaded}, key=int):
                state, reason = ("READY", "") if version in loaded else ("UNAVAILABLE", "not loaded")
                rows.append({"name": name, "version": version, "state": state, "reason": reason})
        return rows

    async def load_all(self) -> None:
        """Loads all models that are not loaded. Raises: errors of the first load that fails."""
        for name in self._known:
            if name not in self._unloaded:
                await self.load(name)
        self.is_ready = True

    async def load(self, name: str) -> None:
        """Loads all versions of a model that are in the files now, and then retires those that were loaded before.

        Raises: Refusal; errors of a load, after which the versions of before still answer.
        """
        async with self._changing:
            self._known = find_models(self._places)
            if name not in self._known:
                raise Refusal(404, f"there is no model '{name[:100]}' in the files; POST v2/repository/index lists the models")
            loaded: dict[str, ModelVersion] = {}
            try:
                for version, file in self._known[name].items():
                    loaded[version] = await self._load_version(name, version, file)
            except Exception as error:
                await asyncio.gather(*(asyncio.to_thread(model.network.close) for model in loaded.values()))
                error.add_note(f"while loading model '{name}'")
                raise
            before, self._loaded[name] = self._loaded.get(name, {}), loaded
            self._unloaded.discard(name)
            self._retire(before)

    async def _load_version(self, name: str, version: str, file: Path) -> ModelVersion:
        network = await asyncio.to_thread(self._load, file)
        try:
            if network.border.states:
                raise Refusal(
                    400, f"'{file}' keeps states between runs, but requests of the protocol are independent of one another"
                )
            inputs, outputs = ([describe_spec(spec) for spec in specs] for specs in (network.inputs, network.outputs))
            # One more request than runs at once: it is ready when a run ends.
            slots = asyncio.Semaphore(int(network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) + 1)
        except BaseException:
            network.close()
            raise
        return ModelVersion(name, version, network, inputs, outputs, slots)

    async def unload(self, name: str) -> None:
        """Retires all versions of a model. Raises: Refusal unless it is loaded."""
        async with self._changing:
            self.find(name)
            self._unloaded.add(name)
            self._retire(self._loaded.pop(name))

    def _retire(self, versions: Mapping[str, ModelVersion]) -> None:
        for model in versions.values():
            task = asyncio.create_task(_close_unused(model))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Retires all models, and waits until they are closed."""
        for name in list(self._loaded):
            self._retire(self._loaded.pop(name))
        await asyncio.gather(*self._closing)


async def _close_unused(model: ModelVersion) -> None:
    model.is_retired = True
    if model.active:
        await model.unused.wait()
    try:
        await asyncio.to_thread(model.network.close)
    except HeteroError as error:
        logger.warning("version %s of model '%s' is not closed: %s", model.version, model.name, error)
