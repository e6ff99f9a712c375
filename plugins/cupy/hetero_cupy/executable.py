"""A network on a card: weights written once, intermediate values stay, every copy inside is counted.

A run goes to the stream of its request and is complete when it returns, so the next reader of its arrays, on any stream,
needs to wait for nothing.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hetero_core.contract import Executable, Extension, RunContext
from hetero_core.dtypes import dtype_of_numpy
from hetero_core.errors import DeviceMemoryError
from hetero_core.executed import ExecutedNode
from hetero_core.kernels.program import HostOperator, compile_program, find_host_inputs
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, MapType, TensorType, ValueSpec, ValueType
from hetero_cupy.cupy_runtime import CupyCard
from hetero_cupy.namespace import DTYPES, CardNamespace, CopyCounts

GIVES_UP = "free memory on the card, use smaller inputs, or give a part of the network to another device, as in HETERO:GPU,CPU"


class GpuExecutable(Executable):
    """A compiled program on one card. `network` is the prepared network."""

    def __init__(self, prepared: Network, card: CupyCard, *, extensions: Mapping[tuple[str, str], Extension], where: str) -> None:
        """Writes the weights to the card. Raises: DeviceMemoryError."""
        self.card = card
        self.traffic = CopyCounts()
        self.weights = CopyCounts()
        self._where = where
        self._extensions = {key: HostOperator(extension, self._read, self._write) for key, extension in extensions.items()}
        host_inputs = find_host_inputs(prepared)
        self.inputs = tuple(
            ValueSpec(spec.name, spec.type, HOST) if spec.name in host_inputs else place_value(spec, card.memory)
            for spec in prepared.inputs
        )
        self.outputs = tuple(place_value(spec, card.memory) for spec in prepared.outputs)
        self.network = prepared
        self._counted = self.weights
        with self._watch_memory("while the weights were written"), self.card.use(self.card.create_stream()):
            self._program = compile_program(
                prepared,
                xp=CardNamespace(self.card, self.traffic),
                to_host=self._read,
                from_host=self._write,
                extensions=self._extensions,
                dtypes=DTYPES,
                host_inputs=host_inputs,
            )
        self._counted = self.traffic

    def _read(self, array: Any) -> Any:
        if not self.card.owns(array):
            return array
        self._counted.count(array.nbytes, is_write=False)
        return self.card.to_host(array)

    def _write(self, array: Any) -> Any:
        if dtype_of_numpy(array.dtype) not in DTYPES:
            return array  # texts stay on the host: no kernel of the card reads them
        self._counted.count(array.nbytes, is_write=True)
        return self.card.from_host(array)

    def create_state(self) -> Any:
        """Returns the stream of a request."""
        return self.card.create_stream()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, complete. Raises: DeviceMemoryError; the card can be used afterwards."""
        with self._watch_memory("while it ran"), self.card.use(context.state):
            return self._program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)

    @contextmanager
    def _watch_memory(self, when: str) -> Iterator[None]:
        """Turns the library's error for a full card into ours, and frees unused memory of the card."""
        try:
            yield
        except Exception as error:
            if not self.card.is_out_of_memory(error):
                raise
            needed, notes = self.card.wanted_bytes(error), getattr(error, "__notes__", [])
            # The frames of the error hold the arrays of the run for the lifetime of the error.
            traceback.clear_frames(error.__traceback__)
            # Frames of earlier errors are often part of a cycle.
            gc.collect()
            self.card.free_unused()
            free, total = self.card.read_memory()
            request = "more memory was needed than there is" if needed is None else f"{needed} bytes more were needed"
            full = DeviceMemoryError(
                f"{self._where}: {request} {when}, {free} of {total} are free on {self.card.facts.full_name}; {GIVES_UP}",
                needed=needed,
                free=free,
            )
            for note in notes:
                full.add_note(note)
            raise full from error

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The kernels of the program in order."""
        return self._program.list_steps(self.network.types)

    def metrics(self) -> Mapping[str, Any]:
        """Metrics: bytes on the card, and bytes copied to and from it since the network was loaded."""
        return {
            "GPU_WEIGHT_BYTES": self.weights.snapshot()[3],
            "GPU_HOST_READS": lambda: self.traffic.snapshot()[0],
            "GPU_HOST_READ_BYTES": lambda: self.traffic.snapshot()[1],
            "GPU_HOST_WRITES": lambda: self.traffic.snapshot()[2],
            "GPU_HOST_WRITTEN_BYTES": lambda: self.traffic.snapshot()[3],
        }


def place_value(spec: ValueSpec, memory: str) -> ValueSpec:
    """Returns the spec with its memory: the host for texts, maps and element types that a card does not have."""
    return ValueSpec(spec.name, spec.type, memory if _fits_card(spec.type) else HOST)


def _fits_card(value_type: ValueType) -> bool:
    if isinstance(value_type, MapType):
        return False
    if isinstance(value_type, TensorType):
        return value_type.dtype is None or value_type.dtype in DTYPES
    return _fits_card(value_type.element)
