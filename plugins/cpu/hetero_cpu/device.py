"""The CPU device: plans of machine code, and the kernels toolkit on NumPy. One table answers the query and runs the network."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.blobs.store import FOLDER
from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult
from hetero_core.devices.processors import WEIGHTS_ONCE_KEY, describe_host_memory
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import BlobMismatchError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_cpu.machine.compiler import AUTO, KERNEL_CHOICES, KERNELS_KEY, NUMPY, choose_kernels, describe_machine_code, find_width

if TYPE_CHECKING:
    from hetero_cpu.executable import CpuExecutable

VERIFY_KEY, YES, NO = "CPU_VERIFY", "YES", "NO"
MODE_KEY, ACCURACY, PERFORMANCE = "EXECUTION_MODE_HINT", "ACCURACY", "PERFORMANCE"
PRECISION_KEY, FLOAT32, BFLOAT16 = "INFERENCE_PRECISION_HINT", "f32", "bf16"


class CpuDevice:
    """One object per Core and registered name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._extensions: dict[tuple[str, str], Extension] = {}

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """The configuration keys of CPU: which kernels compute, in which precision, and which plans are verified."""
        return {
            KERNELS_KEY: ConfigKey(
                str,
                AUTO,
                "NUMPY runs the network node by node with NumPy, JIT by machine code made for the processor; AUTO begins node by node and "
                "changes over when the machine code is compiled, where it can be.",
                choices=KERNEL_CHOICES,
            ),
            VERIFY_KEY: ConfigKey(
                str,
                NO,
                "YES computes the first run of each plan a second time without a plan, and stops using a plan whose answer differs; it "
                "is for finding faults. NO never does; AUTO is an old word for NO.",
                choices=(NO, YES, AUTO),
                runtime=True,
            ),
            MODE_KEY: ConfigKey(
                str,
                PERFORMANCE,
                "PERFORMANCE computes float16 and bfloat16 in float32 and rounds only the outputs of the network; ACCURACY rounds "
                "after each operator, as the standard says.",
                choices=(ACCURACY, PERFORMANCE),
                added_later=True,
            ),
            PRECISION_KEY: ConfigKey(
                str,
                FLOAT32,
                "The precision of products with constant weights: bf16 rounds what they multiply to bfloat16 and adds in float32, on "
                "processors that multiply bfloat16 (AVX512_BF16, AMX); others compute in float32. Of f32 nothing is rounded.",
                choices=(BFLOAT16, FLOAT32),
                added_later=True,
            ),
            WEIGHTS_ONCE_KEY: ConfigKey(
                bool,
                None,
                "Hold each weight in one form, although products of some sizes take longer then; where nothing is set, HETERO sets it if "
                "it places by memory.",
                added_later=True,
            ),
        }

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        """Facts about the machine's processor."""
        return {
            "FULL_DEVICE_NAME": lambda: (
                f"{platform.processor() or platform.machine()} with NumPy {np.__version__}, {describe_machine_code()}"
            ),
            "OPTIMIZATION_CAPABILITIES": ("FP32", "FP64", "FP16", "BF16", "INT8"),
            "DEVICE_ARCHITECTURE": platform.machine(),
            "CODE_FOLDER": lambda: FOLDER if find_width() else "",
            **describe_host_memory(),
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Takes what the kernels table has."""
        from hetero_core.kernels.registry import find_refusals  # an import of a blob asks about no node
        from hetero_cpu.plan.passes import strip_network

        stripped = strip_network(network)
        reasons = find_refusals(stripped, extensions=self._extensions)
        return query_by_transform(device, network, lambda _: stripped, lambda node, _: reasons.get(node.name))

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> CpuExecutable:
        """Compiles the network into bound kernels."""
        require_all_supported(device, network, self.query_network(device, network) if query is None else query)
        # Only a network that runs needs these and the executable.
        from hetero_cpu.executable import CpuExecutable
        from hetero_cpu.plan.passes import transform_network
        from hetero_cpu.transforms.blocks import multiply_blocks
        from hetero_cpu.transforms.precision import widen_halves

        kernels = choose_kernels(config[KERNELS_KEY], str(device))
        network = network if config[MODE_KEY] == ACCURACY else widen_halves(network)
        network = transform_network(network if kernels == NUMPY else multiply_blocks(network))
        if config[PRECISION_KEY] == BFLOAT16:
            from hetero_cpu.plan.narrowing import narrow_products  # few ask for it

            network = narrow_products(network)
        return CpuExecutable(
            network,
            self._extensions,
            kernels=kernels,
            workers=config[THREADS_KEY],
            streams=config[STREAMS_KEY],
            verifies=config[VERIFY_KEY] == YES,
            is_once=bool(config[WEIGHTS_ONCE_KEY]),
        )

    @hookimpl
    def export_network(self, executable: CpuExecutable) -> Payload:
        """The network after its passes."""
        from hetero_core.network.writer import pack_network  # only an export needs it

        try:
            return Payload(pack_network(executable.network), 2)
        finally:
            # Constants that a plan has released were read again to be written.
            for constant in executable.network.initializers.values():
                constant.release()

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload) -> BlobCheck:
        """Says that a blob fits. Raises: BlobMismatchError as an import."""
        _require_readable(payload)
        return BlobCheck(str(device))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Loads the network of a blob."""
        from hetero_core.network.writer import unpack_network  # only an import needs it

        _require_readable(payload)
        return self.load_network(device, unpack_network(payload.sections), config, None)

    @hookimpl
    def add_extension(self, extension: Extension) -> bool:
        """Takes any operator that is given as a function on NumPy arrays."""
        self._extensions[extension.domain, extension.op_type] = extension
        return True

    @hookimpl
    def close_device(self) -> bool:
        """Forgets the extensions; there is nothing else to give back."""
        self._extensions.clear()
        return True


def _require_readable(payload: Payload) -> None:
    payload.require_version(1, 2)
    if "packed" in payload.sections:
        raise BlobMismatchError(
            "the blob's weights are packed for kernels, as an earlier version of hetero-cpu wrote them; this version reads those of the "
            "network; load the model again and export it"
        )
