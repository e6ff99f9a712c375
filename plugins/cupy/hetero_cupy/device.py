"""The GPU device: the kernels toolkit on a card's arrays. One table answers the query and runs the network.

Knows cards through `runtime` alone, so that the same code runs with CuPy and on cards of make-believe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY
from hetero_core.devices.query import answer_query, require_all_supported
from hetero_core.errors import BlobMismatchError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_core.network.writer import unpack_network
from hetero_cupy.conversions import SMALL
from hetero_cupy.executable import GpuExecutable
from hetero_cupy.operators import CardOperators, take_operators
from hetero_cupy.passes import LOWERED, prepare_network
from hetero_cupy.payload import VERSION, WEIGHTS, describe_mapping, pack_prepared, unpack_prepared
from hetero_cupy.refusals import DTYPES, find_card_refusals
from hetero_cupy.runtime import Card, Runtime

PRECISION_KEY, MODE_KEY = "INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"

_IDENTITY = "gpu identity"
_PLANS = "gpu arena"
"""A section that blobs of hetero-cupy 0.1.0 hold; it is not read any more."""
_AMPERE = 8


class GpuDevice:
    """One object per Core and registered name; the cards of its runtime are its ids."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self._name = name
        self._runtime = runtime
        self._extensions: dict[tuple[str, str], Extension] = {}

    def _card(self, device: DeviceName) -> Card:
        return self._runtime.cards()[int(device.id or 0)]

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """The configuration keys of GPU: the precision of float32."""
        precision = ConfigKey(
            str,
            None,
            "What float32 is computed in; not set: as EXECUTION_MODE_HINT has it. "
            "f16 and bf16 keep most values in 16 bits, tf32 rounds what products multiply.",
            choices=("bf16", "f16", "f32", "tf32"),
        )
        mode = ConfigKey(
            str,
            "ACCURACY",
            "ACCURACY: float32 is computed in f32; PERFORMANCE: in tf32. INFERENCE_PRECISION_HINT wins.",
            choices=("ACCURACY", "PERFORMANCE"),
        )
        return {PRECISION_KEY: precision, MODE_KEY: mode}

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the card, and what is free on it."""
        card = self._card(device)
        return {
            "AVAILABLE_DEVICES": tuple(str(index) for index in range(len(self._runtime.cards()))),
            "FULL_DEVICE_NAME": f"{card.facts.full_name} with {self._runtime.name}",
            "OPTIMIZATION_CAPABILITIES": find_capabilities(card.facts.capability),
            "DEVICE_ARCHITECTURE": f"compute capability {card.facts.capability}",
            **({"DEVICE_UUID": card.facts.uuid} if card.facts.uuid else {}),
            TOTAL_MEMORY: lambda: card.read_memory()[1],
            FREE_MEMORY: lambda: card.read_memory()[0],
            "GPU_COMPUTE_CAPABILITY": card.facts.capability,
            "GPU_MEMORY_BYTES": card.facts.memory_bytes,
            "GPU_FREE_MEMORY_BYTES": lambda: card.read_memory()[0],
            # -1 if unknown.
            "GPU_UTILISATION": lambda: -1 if (utilisation := card.read_utilisation()) is None else utilisation,
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Takes the operators of the kernels table that a card can run.

        Asks about the network as it is: the passes of loading only take nodes away, and what they take away here may stay in a part.
        """
        return answer_query(device, network, find_card_refusals(network, self._extensions))

    def _require_taken(self, device: DeviceName, prepared: Network) -> None:
        """Raises UnsupportedNodesError for a prepared network with nodes that the card does not run; its values may be bfloat16."""
        reasons = find_card_refusals(prepared, self._extensions, dtypes=DTYPES | SMALL)
        require_all_supported(device, prepared, answer_query(device, prepared, reasons))

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> Executable:
        """Writes the weights to the card and binds the kernels."""
        return self._compile(device, self._prepare(device, network, config, query), config)

    def _prepare(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None = None
    ) -> Network:
        require_all_supported(device, network, self.query_network(device, network) if query is None else query)
        return prepare_network(network, precision=read_precision(config))

    def _compile(
        self,
        device: DeviceName,
        prepared: Network,
        config: Mapping[str, Any],
        *,
        is_stored: bool = False,
    ) -> GpuExecutable:
        card = self._card(device)
        return GpuExecutable(
            prepared,
            take_operators(prepared),
            card,
            recipe=describe_recipe(config),
            is_stored=is_stored,
            extensions=self._extensions,
            where=f"network '{prepared.name}' on {device}",
            operators=CardOperators(card, uses_tf32=read_precision(config) == "tf32"),
        )

    @hookimpl
    def export_network(self, device: DeviceName, executable: GpuExecutable) -> Payload:
        """The prepared network, its weights read back from the card, and the card and library that it is for.

        Compiled kernels stay in the user's own folder.
        """
        identity = json.dumps(self._identify(executable.card)).encode()
        return Payload({**pack_prepared(executable.network, executable.recipe), _IDENTITY: identity}, VERSION)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Writes the weights to the card as they lie in the blob, and chooses the kernels.

        Raises: BlobMismatchError for a blob of another library, another kind of card or other keys; BlobDamagedError.
        """
        payload.require_version(1, VERSION)
        sections = dict(payload.sections)
        identity = json.loads(bytes(sections.pop(_IDENTITY)))
        here = self._identify(self._card(device))
        if identity != here:
            raise BlobMismatchError(
                f"cannot import the blob on {device}: it was exported with {describe_mapping(identity)}, here is "
                f"{describe_mapping(here)}; load the model again and export it"
            )
        sections.pop(_PLANS, None)
        if WEIGHTS not in sections:
            return self._compile(device, self._prepare(device, unpack_network(sections), config), config)
        prepared = unpack_prepared(sections, describe_recipe(config), str(device))
        self._require_taken(device, prepared)
        return self._compile(device, prepared, config, is_stored=True)

    def _identify(self, card: Card) -> dict[str, str]:
        return {"library": self._runtime.name, "compute capability": card.facts.capability}

    @hookimpl
    def add_extension(self, extension: Extension) -> bool:
        """Takes any operator that is given as a function on host arrays; it runs there, between counted copies."""
        self._extensions[extension.domain, extension.op_type] = extension
        return True

    @hookimpl
    def to_host(self, device: DeviceName, array: Any) -> Any:
        """Returns a copy on the host; of a sequence, a list of copies."""
        if isinstance(array, list):
            return [self.to_host(device, element) for element in array]
        return array if array is None else self._card(device).to_host(array)

    @hookimpl
    def from_host(self, device: DeviceName, array: Any, spec: ValueSpec, target: Any) -> Any:
        """Returns a copy on the card, in `target` if given; an array that lies there already is taken as it is."""
        card = self._card(device)
        if isinstance(array, list):
            return [self.from_host(device, element, spec, None) for element in array]
        if array is None or card.owns(array):
            return array
        if target is None:
            return card.from_host(array)
        card.fill(target, array)
        return target

    @hookimpl
    def close_device(self) -> bool:
        """Forgets the extensions, and gives back what the library keeps."""
        self._extensions.clear()
        for card in self._runtime.cards():
            card.free_unused()
        return True


def read_precision(config: Mapping[str, Any]) -> str:
    """Returns what float32 is computed in."""
    precision = config[PRECISION_KEY]
    return str(precision) if precision is not None else "tf32" if config[MODE_KEY] == "PERFORMANCE" else "f32"


def describe_recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration that the prepared weights depend on; other keys do not affect them."""
    return {"precision": LOWERED.get(read_precision(config), "float32"), "attention": False}


def find_capabilities(capability: str) -> tuple[str, ...]:
    """Returns what a card computes with, by its compute capability: tensor cores take bfloat16 and TF32 from 8.0 on."""
    major = int(capability.partition(".")[0])
    return ("FP32", "FP64", "FP16", *(("BF16", "TF32") if major >= _AMPERE else ()), "INT8")
