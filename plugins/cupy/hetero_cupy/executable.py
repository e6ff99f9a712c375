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
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import HostOperator, compile_program, find_host_inputs
from hetero_core.network.graph import Network, iterate_graphs
from hetero_core.network.types import HOST, ValueSpec
from hetero_cupy.conversions import SMALL
from hetero_cupy.namespace import CardNamespace
from hetero_cupy.operators import CardOperators
from hetero_cupy.placement import place_value
from hetero_cupy.refusals import DTYPES
from hetero_cupy.runtime import Card
from hetero_cupy.traffic import CopyCounts
from hetero_cupy.uploads import Uploads

GIVES_UP = "free memory on the card, use smaller inputs, or give a part of the network to another device, as in HETERO:GPU,CPU"


class GpuExecutable(Executable):
    """A compiled program on one card. `transformed` is the network as it is compiled; exports hold `prepared`, what it was made from."""

    def __init__(
        self,
        prepared: Network,
        transformed: Network,
        card: Card,
        *,
        recipe: Mapping[str, Any],
        is_stored: bool,
        extensions: Mapping[tuple[str, str], Extension],
        where: str,
        operators: CardOperators,
    ) -> None:
        """Writes the weights to the card.

        `recipe` says what the weights were prepared for; `is_stored` that they lie in a blob, and need not be read back to be exported.

        Raises: DeviceMemoryError.
        """
        self.recipe = recipe
        self.card = card
        self.traffic = CopyCounts()
        self.weights = CopyCounts()
        self._where = where
        self._extensions = {key: HostOperator(extension, self._read, self._write) for key, extension in extensions.items()}
        self._stream = card.create_stream()
        self._own = operators.list_extensions()
        host_inputs = find_host_inputs(transformed)
        self.inputs = tuple(
            ValueSpec(spec.name, spec.type, HOST) if spec.name in host_inputs else place_value(spec, card.memory)
            for spec in prepared.inputs
        )
        self.outputs = tuple(place_value(spec, card.memory) for spec in prepared.outputs)
        require_room_for_weights(card, transformed, where)
        uploads = Uploads()
        self._uploads: Uploads | None = uploads
        self._counted = self.weights
        with self._watch_memory("while the weights were written"):
            self._program = self._compile(transformed, host_inputs)
        self._counted = self.traffic
        self._uploads = None
        self.network = prepared if is_stored else uploads.keep_on_card(prepared, self._download)

    def _compile(self, network: Network, host_inputs: frozenset[str]) -> Program:
        with self.card.use(self._stream):
            return compile_program(
                network,
                xp=CardNamespace(self.card, self.traffic),
                to_host=self._read,
                from_host=self._write,
                extensions={**self._extensions, **self._own},
                dtypes=DTYPES | SMALL,
                host_inputs=host_inputs,
            )

    def _read(self, array: Any) -> Any:
        if not self.card.owns(array):
            return array
        self._counted.count_read(array.nbytes)
        return self.card.to_host(array)

    def _write(self, array: Any) -> Any:
        if dtype_of_numpy(array.dtype) not in DTYPES | SMALL:
            return array  # a text: it is an output as it is, since no kernel of the card reads one
        self._counted.count_write(array.nbytes)
        written = self.card.from_host(array)
        if self._uploads is not None:
            self._uploads.note(array, written)
        return written

    def _download(self, array: Any) -> Any:
        self.weights.count_read(array.nbytes)
        return self.card.to_host(array)

    def create_state(self) -> Any:
        """Returns the stream of a request."""
        return self.card.create_stream()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, complete. Raises: DeviceMemoryError; the card can be used afterwards."""
        with self._watch_memory("while it ran"), self.card.use(context.state):
            return self._program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)

    @contextmanager
    def _watch_memory(self, when: str) -> Iterator[None]:
        """Turns the library's error for a full card into ours, and gives back what is kept for later."""
        try:
            yield
        except Exception as error:
            if not self.card.is_out_of_memory(error):
                raise
            needed, notes = self.card.wanted_bytes(error), getattr(error, "__notes__", [])
            # The frames of the error hold the arrays of the run, for as long as somebody keeps the error.
            traceback.clear_frames(error.__traceback__)
            # Those of earlier errors are often a part of a cycle.
            gc.collect()
            self.card.free_unused()
            raise describe_full_card(self.card, self._where, when, needed, notes) from error

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The kernels of the program in order."""
        return self._program.list_steps(self.network.types)

    def metrics(self) -> Mapping[str, Any]:
        """Metrics: bytes on the card, and bytes copied to and from it since the network was loaded."""
        return {
            "GPU_WEIGHT_BYTES": self.weights.written_bytes,
            "GPU_WEIGHT_READS": lambda: self.weights.snapshot()[0],
            "GPU_WEIGHT_READ_BYTES": lambda: self.weights.snapshot()[1],
            "GPU_HOST_READS": lambda: self.traffic.snapshot()[0],
            "GPU_HOST_READ_BYTES": lambda: self.traffic.snapshot()[1],
            "GPU_HOST_WRITES": lambda: self.traffic.snapshot()[2],
            "GPU_HOST_WRITTEN_BYTES": lambda: self.traffic.snapshot()[3],
        }


def require_room_for_weights(card: Card, network: Network, where: str) -> None:
    """Raises DeviceMemoryError where the constants of a network take more than is free on the card."""
    bytes_of_constant = {
        id(constant): constant.nbytes for graph in iterate_graphs(network) for constant in graph.initializers.values()
    }
    needed = sum(bytes_of_constant.values())
    free, _ = card.read_memory()
    if needed > free:
        raise DeviceMemoryError(
            f"cannot load {where}: its constants take {needed} bytes, {free} are free on {card.facts.full_name}; {GIVES_UP}",
            needed=needed,
            free=free,
        )


def describe_full_card(card: Card, where: str, when: str, needed: int | None, notes: list[str]) -> DeviceMemoryError:
    """Returns the error for a card without room."""
    free, total = card.read_memory()
    request = "more memory was needed than there is" if needed is None else f"{needed} bytes more were needed"
    error = DeviceMemoryError(
        f"{where}: {request} {when}, {free} of {total} are free on {card.facts.full_name}; {GIVES_UP}", needed=needed, free=free
    )
    for note in notes:
        error.add_note(note)
    return error
