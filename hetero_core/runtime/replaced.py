"""Constants that the caller replaces: the model lists them among its inputs, and a run may be given another value.

A loaded network is compiled with its constants as they are. The first run that is given some of them loads the network once more, with
these as inputs; later runs with the same names use it again, so that who gives none pays for none. A device may take a node for its
constants alone, such as the axes of an Unsqueeze: where it refuses the network with inputs, one network for each value is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Done, RunContext
from hetero_core.errors import UnsupportedNodesError
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.door import order_inputs, own_outputs
from hetero_core.runtime.output_check import CheckedOutputs

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

_MOST_NETWORKS = 8
"""The number of networks that stay loaded, one for each set of names or each value; the oldest is dropped first."""


@dataclass(frozen=True, slots=True)
class ReplacedConstants:
    """The last of the ordered inputs of a run that is given constants: the network that takes them, and their values as inputs."""

    network: ExecutableNetwork
    values: tuple[Any, ...]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> CheckedOutputs:
        """Returns the outputs for `inputs`, this one aside. Raises: as `ExecutableNetwork.run_host`."""
        network = self.network
        inner = RunContext(
            network.create_state(), outputs=context.outputs, profile=context.profile, token=context.token, limits=context.limits
        )
        outputs = network.run_host((*inputs[:-1], *self.values), inner)
        return CheckedOutputs(own_outputs(network.check_outputs(outputs, inner), self.values))

    def tell(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Calls `done` with the outputs that `run` returns or the error that it raises."""
        try:
            outputs = self.run(inputs, context)
        except BaseException as error:  # noqa: BLE001  # told to the thread that waits; interrupts, too
            done(None, error)
        else:
            done(outputs, None)


class Replacements:
    """The constants of one loaded network that may be given as inputs. Safe for threads."""

    def __init__(self, network: Network, load: Callable[[Network], ExecutableNetwork]) -> None:
        """`load` loads networks on the device that `network` is loaded on."""
        self.network = network
        self.specs = list_replaceable(network)
        self._names = frozenset(spec.name for spec in self.specs)
        self._load = load
        self._lock = Lock()
        self._loaded: dict[Hashable, ExecutableNetwork] = {}
        self._fixed_names: set[tuple[str, ...]] = set()

    def order(self, inputs: Mapping[str, Any], count: int) -> tuple[Any, ...] | None:
        """Returns the `count` other inputs in order and the replacement; None where no constant is given. Raises: as a load does."""
        if not isinstance(inputs, Mapping) or self._names.isdisjoint(inputs):
            return None
        names = tuple(spec.name for spec in self.specs if spec.name in inputs)
        network = self._find_open(names)
        if network is None:
            network = self._find_fixed({name: inputs[name] for name in names})
            inputs = {name: value for name, value in inputs.items() if name not in names}
        ordered = network.order_inputs(inputs)
        return (*ordered[:count], ReplacedConstants(network, ordered[count:]))

    def _find_open(self, names: tuple[str, ...]) -> ExecutableNetwork | None:
        """Returns the network with these constants as inputs, None where the device refuses it."""
        from hetero_core.transforms.optional_inputs import free_constants  # imports onnx, for inference

        if names in self._fixed_names:
            return None
        try:
            return self._find(names, lambda: free_constants(self.network, names))
        except UnsupportedNodesError:
            self._fixed_names.add(names)
            return None

    def _find_fixed(self, values: Mapping[str, Any]) -> ExecutableNetwork:
        """Returns the network with these values as its constants. Raises: as `order_inputs`, for values."""
        from hetero_core.transforms.optional_inputs import fix_constants  # imports onnx, for inference

        specs = [spec for spec in self.specs if spec.name in values]
        arrays = {
            spec.name: array.copy()
            for spec, array in zip(specs, order_inputs(values, specs, network=self.network.name), strict=True)
        }
        key = tuple(
            (name, array.shape, tuple(array.flat) if array.dtype == object else array.tobytes()) for name, array in arrays.items()
        )
        return self._find(key, lambda: fix_constants(self.network, arrays))

    def _find(self, key: Hashable, change: Callable[[], Network]) -> ExecutableNetwork:
        with self._lock:
            network = self._loaded.get(key)
            if network is None:
                network = self._loaded[key] = self._load(change())
                if len(self._loaded) > _MOST_NETWORKS:
                    # Runs may be under way on it: it ends with its last holder.
                    del self._loaded[next(iter(self._loaded))]
        return network

    def close(self) -> None:
        """Closes what was loaded for replacements."""
        with self._lock:
            for network in self._loaded.values():
                network.close()
            self._loaded.clear()


def list_replaceable(network: Network) -> tuple[ValueSpec, ...]:
    """Returns the constants of a network that runs may be given, as inputs."""
    constants = network.initializers
    return tuple(ValueSpec(name, constants[name].type) for name in network.border.replaceable if name in constants)


def find_replacements(network: Network | None, load: Callable[[Network], ExecutableNetwork]) -> Replacements | None:
    """Returns the constants of a network that runs may be given, None where there are none or the network is not known."""
    return Replacements(network, load) if network is not None and network.border.replaceable else None
