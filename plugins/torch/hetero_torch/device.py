"""The TORCH device: hooks on PyTorch. `TORCH` and `TORCH.CPU` are the processor; `TORCH.CUDA.0` is an accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hetero_core.contract import BlobCheck, DeviceHooks, DeviceName, Executable, Extension, Payload, QueryResult
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY, describe_host_memory
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.hookspecs import hookimpl
from hetero_core.kernels.program import evaluate_node
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.transforms.activations import fuse_gelu, fuse_hard_swish, fuse_swish
from hetero_core.transforms.attention import fuse_attention
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization, fuse_rms_normalization
from hetero_core.transforms.rewrite import run_passes
from hetero_torch.arrays import DTYPES, to_array, to_tensor
from hetero_torch.executable import TorchExecutable
from hetero_torch.installation import CPU, TorchProcessors
from hetero_torch.table import find_torch_refusals

PASSES_OF_QUERY = (eliminate_dropout, eliminate_copies)
PASSES = (
    lambda network: fold_constants(network, evaluate_node),
    fuse_attention,
    fuse_layer_normalization,
    fuse_rms_normalization,
    fuse_gelu,
    fuse_hard_swish,
    fuse_swish,
)
"""Passes that fold constants and join an expression of several nodes to one function; the device takes the joined nodes, too."""


class TorchDevice(DeviceHooks):
    """One object per Core and registered name; the places of PyTorch are its ids."""

    def __init__(self, name: str, places: TorchProcessors, *, shares_memory: bool = True) -> None:
        """With `shares_memory=False` the processor has a memory of its own, as accelerators do: for tests without an accelerator."""
        self._name = name
        self._places = places
        self._shares_memory = shares_memory
        self._extensions: dict[tuple[str, str], Extension] = {}

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the place; accelerators are probed when the ids are asked for."""
        is_processor = device.id in ("", CPU)
        place = self._places.find(device.id)
        return {
            "AVAILABLE_DEVICES": lambda: tuple(self._places.list_working()),
            "FULL_DEVICE_NAME": f"PyTorch {self._places.version} on {_name_place(place)}",
            # The toolkit computes quantized operators, on the host's memory.
            "OPTIMIZATION_CAPABILITIES": (
                *("FP32", "FP16", "BF16"),
                *(() if place.type == "mps" else ("FP64",)),
                *(("INT8",) if self._is_on_host(place) else ()),
            ),
            "DEVICE_ARCHITECTURE": "torch",
            "DEVICE_TYPE": "integrated" if is_processor or place.type == "mps" else "discrete",
            **(describe_host_memory() if is_processor else {}),
            **(
                {TOTAL_MEMORY: lambda: torch.cuda.mem_get_info(place)[1], FREE_MEMORY: lambda: torch.cuda.mem_get_info(place)[0]}
                if place.type == "cuda"
                else {}
            ),
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Takes the nodes of the table, in the element types of the place."""
        transformed = run_passes(network, PASSES_OF_QUERY)
        place = self._places.find(device.id)
        reasons = find_torch_refusals(
            transformed,
            dtypes=DTYPES - {"float64"} if place.type == "mps" else DTYPES,
            shares_memory=self._is_on_host(place),
            extensions=self._extensions,
        )
        return query_by_transform(device, network, lambda _: transformed, lambda node, _: reasons.get(node.name))

    def _is_on_host(self, place: torch.device) -> bool:
        return place.type == "cpu" and self._shares_memory

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, query: QueryResult | None) -> Executable:
        """Writes the weights to the place and binds the functions."""
        require_all_supported(device, network, self.query_network(device, network) if query is None else query)
        place = self._places.find(device.id)
        return TorchExecutable(
            network,
            run_passes(network, (*PASSES_OF_QUERY, *PASSES)),
            place,
            memory=HOST if self._is_on_host(place) else str(place),
            extensions=self._extensions,
            where=f"network '{network.name}' on {device}",
        )

    @hookimpl
    def export_network(self, executable: TorchExecutable) -> Payload:
        """The network: nothing costly was compiled."""
        return Payload(pack_network(executable.network))

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload) -> BlobCheck:
        """A payload holds a network alone, which every machine compiles."""
        payload.require_version(1)
        return BlobCheck(str(device))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        """Loads the network of a blob that the core has checked."""
        self.check_payload(device, payload)
        return self.load_network(device, unpack_network(payload.sections), None)

    @hookimpl
    def add_extension(self, extension: Extension) -> bool:
        """Takes any custom operator: a function on arrays of the host, which runs there."""
        self._extensions[extension.domain, extension.op_type] = extension
        return True

    @hookimpl
    def to_host(self, array: torch.Tensor) -> Any:
        """Returns a copy on the host."""
        return to_array(array.clone() if array.device.type == "cpu" else array)

    @hookimpl
    def from_host(self, device: DeviceName, array: Any, spec: ValueSpec) -> torch.Tensor:
        """Returns a copy at the place."""
        place = self._places.find(device.id)
        tensor = to_tensor(array, place)
        return tensor.clone() if place.type == "cpu" else tensor

    @hookimpl
    def close_device(self) -> bool:
        """Forgets the extensions."""
        self._extensions.clear()
        return True


def _name_place(place: torch.device) -> str:
    return str(torch.cuda.get_device_name(place)) if place.type == "cuda" else str(place)
