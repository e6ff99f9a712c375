"""The CPU device: plans of machine code, and the kernels toolkit on NumPy. One table answers the query and runs the network."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult
from hetero_core.devices.processors import WEIGHTS_ONCE_KEY, count_processors, describe_host_memory
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_cpu.machine.availability import (
    AUTO,
    KERNEL_CHOICES,
    KERNELS_KEY,
    NO,
    NUMPY,
    VERIFY_CHOICES,
    VERIFY_KEY,
    YES,
    choose_kernels,
    describe_machine_code,
    find_code_folder,
)

if TYPE_CHECKING:
    from hetero_cpu.executable import CpuExecutable
    from hetero_cpu.source import NetworkSource

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
                choices=VERIFY_CHOICES,
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
            "CODE_FOLDER": find_code_folder,
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
        from hetero_cpu.source import load_source  # only a network that runs needs this and the executable
        from hetero_cpu.transforms.blocks import multiply_blocks  # as above
        from hetero_cpu.transforms.precision import widen_halves  # as above

        network = network if config[MODE_KEY] == ACCURACY else widen_halves(network)
        network = network if choose_kernels(config[KERNELS_KEY], str(device)) == NUMPY else multiply_blocks(network)
        return self._open(device, load_source(network, narrows=config[PRECISION_KEY] == BFLOAT16), config)

    def _open(self, device: DeviceName, source: NetworkSource, config: Mapping[str, Any]) -> CpuExecutable:
        from hetero_cpu.executable import CpuExecutable

        return CpuExecutable(
            source,
            self._extensions,
            kernels=choose_kernels(config[KERNELS_KEY], str(device)),
            workers=config[THREADS_KEY],
            streams=config[STREAMS_KEY],
            verifies=config[VERIFY_KEY] == YES,
            is_once=bool(config[WEIGHTS_ONCE_KEY]),
        )

    @hookimpl
    def export_network(self, executable: CpuExecutable) -> Payload:
        """The network after its passes, with the weights as machine code reads them."""
        return executable.export()

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> BlobCheck:
        """Says whether a plan for the packed weights is stored for this user and kind of processor.

        A part of a network runs with a share of the threads, so a plan for any number of threads will do.
        """
        # A payload of version 1 is that of a network without packed weights.
        payload.require_version(1, 2)
        if choose_kernels(config[KERNELS_KEY], str(device)) == NUMPY:
            return BlobCheck(str(device))
        from hetero_cpu.stored.payload import find_digests, find_written_plan  # machine code

        is_once, workers = bool(config[WEIGHTS_ONCE_KEY]), (config[THREADS_KEY], *range(1, count_processors() + 1))
        if find_digests(payload) is None or any(find_written_plan(payload, count, is_once=is_once) for count in workers):
            return BlobCheck(str(device))
        reason = "no plan for its packed weights is stored for this user and kind of processor; the import makes and stores one"
        return BlobCheck(str(device), "works after recompiling", reason)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Takes up the plan that was kept when the blob was written, weights staying in the blob's memory; without it plans again."""
        payload.require_version(1, 2)
        kernels = choose_kernels(config[KERNELS_KEY], str(device))
        if kernels != NUMPY:
            from hetero_cpu.stored.payload import find_blob_network  # machine code

            source = find_blob_network(payload, config[THREADS_KEY], is_once=bool(config[WEIGHTS_ONCE_KEY]))
            if source is not None:
                return self._open(device, source, config)
        from hetero_cpu.stored.payload import read_network  # reads and writes networks

        executable = self.load_network(device, read_network(payload.sections), config, None)
        executable.store_plan(payload)
        return executable

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
