"""Loader: compiles or imports a network on a device, and binds the result to that device as an ExecutableNetwork.

check limits ──> cache, or the plugin's load_network ──> bind
blob ──> take off its border ──> the plugin's import_network ──> bind

Constants that the caller replaces: the model lists them among its inputs, and a run may be given another value. A loaded network is
compiled with its constants as they are. The first run that is given some of them loads the network once more, with these as inputs; later
runs with the same names use it again, so that a run without replaced constants has no overhead. A device may take a node for its
constants alone, such as the axes of an Unsqueeze: if it refuses the network with inputs, a network for each value is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from hetero_core.contract import DeviceName, Executable, Extension, Payload, QueryResult, RunContext
from hetero_core.devices.config import DEADLINE_KEY, MEMORY_LIMIT_KEY, STRICT_KEY
from hetero_core.devices.registry import CallTarget, Registry
from hetero_core.devices.threads import EXCLUSIVE_KEY, STREAMS_KEY
from hetero_core.devices.watch import OutOfTimeError, call_within, find_deadline
from hetero_core.errors import BlobDamagedError, DeadlineExceededError, InvalidNetworkError, MemoryLimitError, UnsupportedNodesError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.border import EMPTY_BORDER, Border, find_contradiction
from hetero_core.network.graph import Network, iterate_graphs
from hetero_core.network.hints import without_hints
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.executable import Binding, ExecutableNetwork, Surroundings
from hetero_core.runtime.executors import ExecutorManager
from hetero_core.runtime.inputs import order_inputs
from hetero_core.runtime.outputs import STRICT_ADVICE

if TYPE_CHECKING:
    from hetero_core.blobs.container import BlobHeader

Result = TypeVar("Result")


def call_in_time(
    call: Callable[[], Result], target: CallTarget, *, what: str, discard: Callable[[Result], None] | None = None
) -> Result:
    """Returns the result of a query, a load or an import; with DEADLINE, within that time.

    `what` begins the error message: "loading network 'g'". `discard` gets a late result.

    Raises: DeadlineExceededError that names the plugin at work; errors of the call.
    """
    seconds: float | None = target.config[DEADLINE_KEY]
    outer = find_deadline()
    # If an outer load has less time left, its own limit is sufficient.
    if seconds is None or (outer is not None and outer <= monotonic() + seconds):
        return call()
    try:
        return call_within(seconds, call, thread=f"hetero-{target.device} {what}", is_budget=True, on_late_result=discard)
    except OutOfTimeError as error:
        place = f"it is in {error.place}" if error.place else "it is in the core itself"
        raise DeadlineExceededError(
            f"{what} on {target.device} has not ended within DEADLINE={seconds:g} s: {place}. It was set aside, and its thread goes on; "
            "give it more time, or look at the device"
        ) from None


def check_constants(network: Network, device: DeviceName, config: Mapping[str, Any]) -> None:
    """Raises MemoryLimitError if the constants of a network, including its bodies, take more than MEMORY_LIMIT together."""
    limit: int | None = config[MEMORY_LIMIT_KEY]
    if limit is None:
        return
    constants: dict[int, tuple[str, Initializer]] = {}
    for graph in iterate_graphs(network):
        constants.update((id(constant), (name, constant)) for name, constant in graph.initializers.items())
    total = sum(constant.nbytes for _, constant in constants.values())
    if total > limit:
        name, largest = max(constants.values(), key=lambda entry: entry[1].nbytes)
        raise MemoryLimitError(
            f"cannot load network '{network.name}' on {device}: its constants take {total} bytes, the largest, '{name}' {largest.type}, "
            f"{largest.nbytes}; MEMORY_LIMIT is {limit}. Raise the limit, or take a smaller network"
        )


def check_sections(payload: Payload, name: str, device: DeviceName, config: Mapping[str, Any]) -> None:
    """Raises MemoryLimitError if the sections of a blob take more than MEMORY_LIMIT together."""
    limit: int | None = config[MEMORY_LIMIT_KEY]
    total = sum(memoryview(section).nbytes for section in payload.sections.values())
    if limit is not None and total > limit:
        raise MemoryLimitError(
            f"cannot import network '{name}' on {device}: its blob holds {total} bytes; MEMORY_LIMIT is {limit}. Raise the limit"
        )


def describe_model(model: object) -> str:
    """Returns the description of an unread model for messages."""
    if isinstance(model, Network):
        return f"network '{model.name}'"
    return f"network '{os.fspath(model)}'" if isinstance(model, (str, os.PathLike)) else "a network"


class _InnermostRun:
    """The innermost call that wrappers of `infer` surround: the device's own run."""

    @hookimpl
    def infer(self, executable: Executable, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return executable.run(inputs, context)


_MOST_NETWORKS = 8
"""The number of networks that stay loaded, for sets of names and for values; the oldest is dropped first."""


class Replacements:
    """The constants of a loaded network that may be given as inputs. Safe for threads."""

    def __init__(self, network: Network, load: Callable[[Network], ExecutableNetwork]) -> None:
        """`load` loads networks on the device that `network` is loaded on."""
        self.network = network
        self.specs = list_replaceable(network)
        self._names = frozenset(spec.name for spec in self.specs)
        self._load = load
        self._lock = Lock()
        self._loaded: dict[Hashable, ExecutableNetwork] = {}
        self._fixed_names: set[tuple[str, ...]] = set()

    def find(self, inputs: Mapping[str, Any]) -> tuple[ExecutableNetwork, Mapping[str, Any]] | None:
        """Returns the network that computes a run and its inputs; None if no constant is given. Raises: as a load does."""
        if self._names.isdisjoint(inputs):
            return None
        from hetero_core.transforms.optional_inputs import fix_constants, free_constants  # import onnx, for inference

        specs = [spec for spec in self.specs if spec.name in inputs]
        names = tuple(spec.name for spec in specs)
        if names not in self._fixed_names:
            try:
                return self._find(names, lambda: free_constants(self.network, names)), inputs
            except UnsupportedNodesError:  # the device takes some node for its constants alone
                self._fixed_names.add(names)
        values = order_inputs({name: inputs[name] for name in names}, specs, network=self.network.name)
        arrays = {name: value.copy() for name, value in zip(names, values, strict=True)}
        key = tuple(
            (name, array.shape, tuple(array.flat) if array.dtype == object else array.tobytes()) for name, array in arrays.items()
        )
        fixed = self._find(key, lambda: fix_constants(self.network, arrays))
        return fixed, {name: value for name, value in inputs.items() if name not in names}

    def _find(self, key: Hashable, change: Callable[[], Network]) -> ExecutableNetwork:
        with self._lock:
            network = self._loaded.get(key)
            if network is None:
                network = self._loaded[key] = self._load(change())
                if len(self._loaded) > _MOST_NETWORKS:
                    # Runs may be under way on it: it is closed with its last reference.
                    del self._loaded[next(iter(self._loaded))]
        return network

    def close(self) -> None:
        """Closes the networks that were loaded for replacements."""
        with self._lock:
            for network in self._loaded.values():
                network.close()
            self._loaded.clear()


def list_replaceable(network: Network) -> tuple[ValueSpec, ...]:
    """Returns the constants of a network that runs may be given, as inputs."""
    constants = network.initializers
    return tuple(ValueSpec(name, constants[name].type) for name in network.border.replaceable if name in constants)


class Loader:
    """The loads of a Core. Safe for threads."""

    def __init__(self, registry: Registry, executors: ExecutorManager, extensions: Mapping[tuple[str, str], Extension]) -> None:
        self._registry = registry
        self._executors = executors
        self._extensions = extensions
        # Weak: a network without references needs no closing.
        self._loaded: WeakSet[ExecutableNetwork] = WeakSet()

    def load(self, network: Network, target: CallTarget, query: QueryResult | None = None) -> ExecutableNetwork:
        """Returns the network compiled for the target, or as its cache has it. Raises: as `Core.load_network` does."""
        contradictions = network.declarations.contradictions
        if contradictions and target.config[STRICT_KEY]:
            listed = "; ".join(map(str, contradictions))
            raise InvalidNetworkError(f"cannot load network '{network.name}' on {target.device}: {listed}. {STRICT_ADVICE}.")
        check_constants(network, target.device, target.config)
        around = Surroundings(network.border, network.declarations, network, network.metadata)

        device, entry, config = target.device, target.entry, target.config

        def bind(executable: Executable, *, is_from_cache: bool = False) -> ExecutableNetwork:
            return self._bind(target, executable, network.name, lambda: network.fingerprint, around, is_from_cache=is_from_cache)

        def make() -> ExecutableNetwork:
            # Without shapes that are only declared, and without states and defaults, which the core handles for every device.
            bare, border = without_hints(network), network.border
            if border is not EMPTY_BORDER:
                bare = replace(bare, border=Border(bounds=border.bounds, layouts=border.layouts))
            return bind(entry.load_network(device, bare, config, query))

        folder = config.get("CACHE_DIR")
        if not folder:
            return make()
        from hetero_core.blobs.cache import describe_load, load_cached  # hashes, blobs

        names = tuple(spec.name for spec in network.inputs), tuple(spec.name for spec in network.outputs)
        return load_cached(
            folder,
            config.get("CACHE_SIZE_LIMIT", 0),
            lambda: describe_load(network, target, self._registry, self._extensions.values()),
            take=lambda payload: bind(
                entry.import_network(device, Surroundings.take(payload)[0], config, names), is_from_cache=True
            ),
            make=make,
            pack=ExecutableNetwork.pack,
            find_postponer=ExecutableNetwork.find_postponer,
        )

    def import_blob(self, header: BlobHeader, payload: Payload, target: CallTarget) -> ExecutableNetwork:
        """Returns the network of a blob that has been checked and is trusted. Raises: as `Core.import_network` does."""
        bare, around = Surroundings.take(payload)
        executable = target.entry.import_network(target.device, bare, target.config, (header.inputs, header.outputs))
        contradiction = find_contradiction(around.border, executable.inputs, executable.outputs)
        if contradiction is not None:
            raise BlobDamagedError(f"the border of the blob contradicts its network: {contradiction}; export the network again")
        return self._bind(target, executable, header.network, lambda: header.fingerprint, around)

    def _bind(
        self,
        target: CallTarget,
        executable: Executable,
        name: str,
        fingerprint: Callable[[], str],
        around: Surroundings,
        *,
        is_from_cache: bool = False,
    ) -> ExecutableNetwork:
        device, entry, config = target.device, target.entry, target.config
        replacements = None
        if around.network is not None and around.network.border.replaceable:
            replacements = Replacements(around.network, lambda changed: self.load(changed, target))
        run, infer = executable.run, entry.manager.hook.infer
        if infer.get_hookimpls():  # wrappers stand around it
            if not entry.implements("infer"):
                entry.manager.register(_InnermostRun())

            def run(inputs: tuple[Any, ...], context: RunContext) -> Any:
                return infer(device=device, executable=executable, inputs=inputs, context=context)

        if config[EXCLUSIVE_KEY]:  # such networks of a device take turns on one thread
            executor = self._executors.create_executor(f"{device}-exclusive", workers=1, is_shared=True)
        else:
            executor = self._executors.create_executor(str(device), workers=config[STREAMS_KEY] * executable.pipeline_depth)
        binding = Binding(target, executable, run, executor, around, is_from_cache, replacements)
        loaded = ExecutableNetwork(name, fingerprint, executable, binding)
        self._loaded.add(loaded)
        return loaded

    def finish(self) -> None:
        """Waits for the choices of devices that a cache is to keep."""
        for loaded in list(self._loaded):
            loaded.finish()

    def close(self) -> None:
        """Closes every loaded network."""
        for loaded in list(self._loaded):
            loaded.close()
