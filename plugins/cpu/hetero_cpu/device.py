"""The CPU device: NumPy through the kernels toolkit. One table answers the query and runs the network."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.contract import ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult, RunContext
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.hookspecs import hookimpl
from hetero_core.kernels.registry import find_refusals
from hetero_core.network.graph import Network
from hetero_core.network.writer import pack_network, unpack_network
from hetero_cpu.blas import begin_limit, end_limit, needs_limit
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.kernel_choice import AUTO, KERNEL_CHOICES, KERNELS_KEY, choose_kernels, describe_machine_code
from hetero_cpu.passes import strip_network


class CpuDevice:
    """One object per Core and registered name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._extensions: dict[tuple[str, str], Extension] = {}

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """Who computes."""
        return {
            KERNELS_KEY: ConfigKey(
                str,
                AUTO,
                "NUMPY computes with NumPy alone, JIT with machine code made for the processor; AUTO begins with NumPy and changes over "
                "when the machine code is compiled, where it can be.",
                choices=KERNEL_CHOICES,
            )
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
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Takes what the kernels table has."""
        reasons = find_refusals(strip_network(network), extensions=self._extensions)
        return query_by_transform(device, network, strip_network, lambda node, _: reasons.get(node.name))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Compiles the network into bound kernels."""
        require_all_supported(device, network, self.query_network(device, network))
        threads = config[THREADS_KEY]
        kind = LimitedExecutable if needs_limit(threads) else CpuExecutable
        kernels = choose_kernels(config[KERNELS_KEY], str(device))
        return kind(network, self._extensions, kernels=kernels, workers=threads, streams=config[STREAMS_KEY])

    @hookimpl
    def export_network(self, executable: CpuExecutable) -> Payload:
        """The network itself: compiling it takes less time than reading a compiled form would save."""
        return Payload(pack_network(executable.network))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Compiles the exported network; its weights stay in the blob's memory."""
        return self.load_network(device, unpack_network(payload.sections), config)

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


class LimitedExecutable(CpuExecutable):
    """A program whose runs may take fewer threads than BLAS has; a class of its own, so that others pay nothing for it."""

    def __init__(
        self, network: Network, extensions: Mapping[tuple[str, str], Any], *, kernels: str, workers: int, streams: int
    ) -> None:
        super().__init__(network, extensions, kernels=kernels, workers=workers, streams=streams)
        self._threads = workers

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, with BLAS limited meanwhile, where it may be called."""
        if not self.calls_blas and context.limits is None:
            return super().run(inputs, context)
        begin_limit(self._threads)
        try:
            return super().run(inputs, context)
        finally:
            end_limit(self._threads)
