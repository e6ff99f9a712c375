"""Loader: compiles or imports a network on a device, and binds the result to that device as an ExecutableNetwork.

check limits ──> cache, or the plugin's load_network ──> bind
blob ──> take off its border ──> the plugin's import_network ──> bind
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from hetero_core.contract import DeviceName, Executable, Extension, Payload
from hetero_core.devices.device import Device
from hetero_core.devices.provenance import find_core_version
from hetero_core.devices.registry import CallTarget, Registry
from hetero_core.network.graph import Network
from hetero_core.runtime.binding import Binding
from hetero_core.runtime.declared_shapes import check_declarations
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.executors import ExecutorManager
from hetero_core.runtime.load_limits import check_constants
from hetero_core.runtime.loaded_border import Surroundings, bare_network, check_border, take_border
from hetero_core.runtime.replaced import find_replacements
from hetero_core.runtime.wrapped_run import bind_run

if TYPE_CHECKING:
    from hetero_core.blobs.cache import NetworkCache
    from hetero_core.blobs.container import BlobHeader

    Bind: TypeAlias = Callable[..., ExecutableNetwork]


class Loader:
    """The loads of one Core. Safe for threads."""

    def __init__(
        self,
        registry: Registry,
        executors: ExecutorManager,
        extensions: Mapping[tuple[str, str], Extension],
        find: Callable[[str | DeviceName], tuple[DeviceName, Device]],
    ) -> None:
        self._registry = registry
        self._executors = executors
        self._extensions = extensions
        self._find = find
        # A network that nobody holds any more needs no closing by us.
        self._loaded: WeakSet[ExecutableNetwork] = WeakSet()

    def load(self, network: Network, target: CallTarget) -> ExecutableNetwork:
        """Returns the network compiled for the target, or as its cache has it. Raises: as `Core.load_network` does."""
        check_declarations(network, target.device, target.config)
        check_constants(network, target.device, target.config)
        around = Surroundings(network.border, network.declarations, network)

        def bind(executable: Executable, *, is_from_cache: bool = False) -> ExecutableNetwork:
            return self._bind(
                target, executable, network.name, lambda: network.fingerprint, around=around, is_from_cache=is_from_cache
            )

        cache = _open_cache(target.config)
        if cache is None:
            return bind(target.entry.load_network(target.device, bare_network(network), target.config))
        return self._load_cached(cache, network, target, bind)

    def _load_cached(self, cache: NetworkCache, network: Network, target: CallTarget, bind: Bind) -> ExecutableNetwork:
        from hetero_core.blobs.cache import describe_load  # only a load with a cache needs it

        device, entry, config = target.device, target.entry, target.config
        identity = describe_load(
            network,
            device,
            entry,
            config,
            find=self._find,
            extensions=self._extensions.values(),
            wrappers=self._registry.wrappers,
            core_version=find_core_version(),
        )
        names = tuple(spec.name for spec in network.inputs), tuple(spec.name for spec in network.outputs)
        return cache.load(
            identity,
            take=lambda _, payload: bind(entry.import_network(device, take_border(payload)[0], config, names), is_from_cache=True),
            make=lambda: bind(entry.load_network(device, bare_network(network), config)),
            pack=ExecutableNetwork.pack,
        )

    def import_blob(self, header: BlobHeader, payload: Payload, target: CallTarget) -> ExecutableNetwork:
        """Returns the network of a blob that has been checked and is trusted. Raises: as `Core.import_network` does."""
        bare, around = take_border(payload)
        executable = target.entry.import_network(target.device, bare, target.config, (header.inputs, header.outputs))
        check_border(around.border, executable)
        return self._bind(target, executable, header.network, lambda: header.fingerprint, around=around)

    def _bind(
        self,
        target: CallTarget,
        executable: Executable,
        name: str,
        fingerprint: Callable[[], str],
        *,
        around: Surroundings,
        is_from_cache: bool = False,
    ) -> ExecutableNetwork:
        device, entry, config = target.device, target.entry, target.config
        binding = Binding(
            device=device,
            provenance=entry.provenance,
            config=config,
            keys=entry.keys(device),
            run=bind_run(entry, device, executable),
            to_host=lambda array: entry.call("to_host", device, array=array),
            from_host=lambda array, spec, target=None: entry.call("from_host", device, array=array, spec=spec, target=target),
            export=lambda: entry.call("export_network", device, executable=executable),
            executor=self._executors.open_executor(str(device), config, depth=executable.pipeline_depth),
            find_architecture=lambda: entry.find_architecture(device),
            set_log_level=entry.set_log_level,
            is_from_cache=is_from_cache,
            border=around.border,
            declarations=around.declarations,
            replacements=find_replacements(around.network, lambda changed: self.load(changed, target)),
        )
        loaded = ExecutableNetwork(name, fingerprint, executable, binding)
        self._loaded.add(loaded)
        return loaded

    def close(self) -> None:
        """Closes every loaded network."""
        for loaded in list(self._loaded):
            loaded.close()


def _open_cache(config: Mapping[str, Any]) -> NetworkCache | None:
    """Returns the cache of CACHE_DIR; None if that is not set, and within a load that is cached as a whole."""
    folder = config.get("CACHE_DIR", "")
    if not folder:
        return None
    from hetero_core.blobs.cache import make_cache  # hashes, locks, blobs

    return make_cache(folder, config.get("CACHE_SIZE_LIMIT", 0))
