"""The GPU device: the kernels toolkit on a card's arrays. One table answers the query and runs the network.

Knows cards through `CupyCard` alone, so that the same code runs on cards of make-believe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetero_core.contract import BlobCheck, DeviceName, Executable, Extension, Payload, QueryResult
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY
from hetero_core.devices.query import answer_query, require_all_supported
from hetero_core.engines.inspection import dtype_of_input
from hetero_core.engines.known_errors import find_error
from hetero_core.errors import BlobMismatchError
from hetero_core.hookspecs import hookimpl
from hetero_core.kernels.program import evaluate_node
from hetero_core.kernels.registry import find_kernel, find_refusals
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.transforms.activations import fuse_gelu
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization
from hetero_core.transforms.rewrite import run_passes
from hetero_cupy.cupy_runtime import CupyCard, CupyRuntime
from hetero_cupy.executable import GpuExecutable
from hetero_cupy.namespace import ATOMIC_DTYPES, ATOMIC_REDUCTIONS, DTYPES

VERSION = 4
"""Of blobs: the sections of `pack_network` with the prepared network, and `_IDENTITY`. Earlier versions are refused."""
_IDENTITY = "gpu identity"
_AMPERE = 8


class GpuDevice:
    """One object per Core and registered name; the cards of its runtime are its ids."""

    def __init__(self, name: str, runtime: CupyRuntime) -> None:
        self._name = name
        self._runtime = runtime
        self._extensions: dict[tuple[str, str], Extension] = {}

    def _card(self, device: DeviceName) -> CupyCard:
        return self._runtime.cards()[int(device.id or 0)]

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the card, and its free memory."""
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

        The passes of a load only remove nodes, and a part may keep a node that the whole network loses: they do not run here.
        """
        return answer_query(device, network, find_card_refusals(network, self._extensions))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, query: QueryResult | None) -> Executable:
        """Writes the weights to the card and binds the kernels."""
        require_all_supported(device, network, self.query_network(device, network) if query is None else query)
        return self._compile(device, prepare_network(network))

    def _compile(self, device: DeviceName, prepared: Network) -> GpuExecutable:
        where = f"network '{prepared.name}' on {device}"
        return GpuExecutable(prepared, self._card(device), extensions=self._extensions, where=where)

    @hookimpl
    def export_network(self, device: DeviceName, executable: GpuExecutable) -> Payload:
        """The prepared network, and the card and library that it is for.

        Compiled kernels stay in the user's own folder.
        """
        identity = json.dumps(self._identify(executable.card)).encode()
        return Payload({**pack_network(executable.network), _IDENTITY: identity}, VERSION)

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload) -> BlobCheck:
        """Compares library and kind of card. Raises: BlobMismatchError for a difference: weights are stored for the card."""
        payload.require_version(VERSION)
        identity = json.loads(bytes(payload.sections[_IDENTITY]))
        here = self._identify(self._card(device))
        if identity != here:
            raise BlobMismatchError(
                f"cannot import the blob on {device}: it was exported with {_describe(identity)}, here is {_describe(here)}; "
                "load the model again and export it"
            )
        return BlobCheck(str(device))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        """Writes the weights to the card as they lie in the blob: nothing is folded or cast again. Raises: as `check_payload`."""
        self.check_payload(device, payload)
        prepared = unpack_network(payload.sections)
        require_all_supported(device, prepared, self.query_network(device, prepared))
        return self._compile(device, prepared)

    def _identify(self, card: CupyCard) -> dict[str, str]:
        return {"library": self._runtime.name, "compute capability": card.facts.capability}

    @hookimpl
    def add_extension(self, extension: Extension) -> bool:
        """Takes any custom operator: a function on host arrays, which runs on the host between counted copies."""
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
        """Returns a copy on the card, in `target` unless that is None; an array of the card is returned as it is."""
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
        """Forgets the extensions, and frees the library's unused memory."""
        self._extensions.clear()
        for card in self._runtime.cards():
            card.free_unused()
        return True


def prepare_network(network: Network) -> Network:
    """Returns the network with its weights as the card gets them: constants folded, and nodes joined."""
    passes = (
        eliminate_dropout,
        eliminate_copies,
        lambda current: fold_constants(current, evaluate_node),
        fold_affines,
        fuse_layer_normalization,
        fuse_gelu,
    )
    return run_passes(network, passes)


def _describe(identity: Mapping[str, str]) -> str:
    return ", ".join(f"{subject} {value}" for subject, value in identity.items())


def find_capabilities(capability: str) -> tuple[str, ...]:
    """Returns the capabilities of a card by its compute capability: tensor cores take TF32 from 8.0 on."""
    major = int(capability.partition(".")[0])
    return ("FP32", "FP64", "FP16", *(("TF32",) if major >= _AMPERE else ()), "INT8")


def find_card_refusals(network: Network, extensions: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    """Returns node name -> reason for each node of the root graph that the card does not run.

    `extensions` are custom operators that the Core knows, functions on host arrays: they run there, between counted copies.
    """
    own = {node.name: reason for node in network.nodes if (reason := find_error(node, network, _refuse_node)) is not None}
    return own | find_refusals(network, extensions=extensions, dtypes=DTYPES)


def _refuse_node(node: Node, graph: Graph) -> str | None:
    record = find_kernel(node)
    if record is not None and record.runs_on_host:
        return f"{node.operator} is computed on the host; HETERO:GPU,CPU runs it on CPU"
    # The table has checked the inputs of a kernel, but not of a custom operator.
    for value in (*(node.inputs if record is None else ()), *node.writes):
        value_type = graph.type_of(value)
        if isinstance(value_type, TensorType) and value_type.dtype is not None and value_type.dtype not in DTYPES:
            return f"value '{value}' of {node.operator} has dtype {value_type.dtype}; a card has {', '.join(sorted(DTYPES))}"
    reduction = node.attributes.get("reduction", "none")
    if node.op_type in ("ScatterElements", "ScatterND") and not node.domain and reduction != "none":
        dtype = dtype_of_input(node, graph)
        if reduction not in ATOMIC_REDUCTIONS or dtype not in ATOMIC_DTYPES:
            return f"reduction '{reduction}' of {node.operator} on {dtype or 'an unknown type'} has no atomic instruction"
    return None
