"""A network on a card: weights written once, intermediate values stay, every copy inside is counted.

A run goes to the stream of its request and is complete when it returns, so that whoever reads its arrays next, on whatever stream,
needs to wait for nothing.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hetero_core.contract import Executable, Extension, RunContext
from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import DeviceMemoryError
from hetero_core.executed import ExecutedNode
from hetero_core.kernels.execution import Program
from hetero_core.kernels.host_operators import HostOperator
from hetero_core.kernels.program import compile_program, find_host_inputs
from hetero_core.network.graph import Network, iterate_graphs
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_cupy.arena import ArenaPlan
from hetero_cupy.attention_operator import AttentionOperator
from hetero_cupy.conversions import SMALL
from hetero_cupy.epilogues import LINEAR, LinearOperator
from hetero_cupy.fusion import FUSED, FusedOperator
from hetero_cupy.namespace import CardNamespace
from hetero_cupy.operators import DOMAIN, CardOperators
from hetero_cupy.placement import place_value
from hetero_cupy.recording import Recordings
from hetero_cupy.refusals import DTYPES
from hetero_cupy.request_memory import PlanBook, RequestMemory, Signature, sign_inputs
from hetero_cupy.runtime import Card, Products
from hetero_cupy.traffic import CopyCounts
from hetero_cupy.uploads import Uploads

GIVES_UP = "free memory on the card, use smaller inputs, or give a part of the network to another device, as in HETERO:GPU,CPU"


@dataclass(slots=True)
class GpuState:
    """The state of one request: its stream, its memory where that is planned, and the runs that were recorded for it."""

    stream: Any
    memory: RequestMemory | None
    recordings: Recordings | None


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
        products: Products | None,
        plans: bool,
        records: bool,
        known_plans: Mapping[Signature, ArenaPlan],
    ) -> None:
        """Writes the weights to the card; with `plans` also finds a place for each array of a run, where shapes are known.

        `recipe` says what the weights were prepared for; `is_stored` that they lie in a blob, and need not be read back to be exported.

        Raises: DeviceMemoryError.
        """
        self.recipe = recipe
        self.card = card
        self.traffic = CopyCounts()
        self.weights = CopyCounts()
        self._where = where
        self._records = records
        self._book = PlanBook(card, self.traffic, known_plans) if plans or records else None
        self._extensions = {key: HostOperator(extension, self._read, self._write) for key, extension in extensions.items()}
        self._stream = card.create_stream()
        self._fused = sum((node.domain, node.op_type) == FUSED for node in transformed.nodes)
        linear = {} if products is None else {LINEAR: LinearOperator(card, products, uses_tf32=operators.uses_tf32)}
        self._own = {
            **operators.list_extensions(),
            FUSED: FusedOperator(card),
            (DOMAIN, "Attention"): AttentionOperator(card),
            **linear,
        }
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
        self._planned: Signature | None = None
        if self._book is not None and can_run_on_zeros(transformed, extensions):
            self._plan_on_zeros(self._book)

    def _plan_on_zeros(self, book: PlanBook) -> None:
        """Plans the one signature of a network of known shapes. Raises: DeviceMemoryError where a request has no room on the card."""
        types = [spec.type for spec in self.inputs if isinstance(spec.type, TensorType) and spec.memory != HOST]
        if len(types) != len(self.inputs):
            return
        with self._watch_memory("while a first run on zeros was watched"), self.card.use(self._stream):
            zeros = tuple(self.card.xp.zeros(input_type.shape, dtype=numpy_dtype(str(input_type.dtype))) for input_type in types)
            signature = sign_inputs(self.card, zeros)
            if signature is None:
                return
            if not book.knows(signature):
                try:
                    book.watch(self._program.run, zeros, signature)
                except Exception as error:
                    if self.card.is_out_of_memory(error):
                        raise
                    # Zeros are nobody's inputs: a network may be right to refuse them, as sizes of parts. Its first run is watched.
                    return
            del zeros
        plan = book.find(signature)
        if plan is None:
            return
        self._planned = signature
        free, _ = self.card.read_memory()
        if plan.nbytes > free:
            raise DeviceMemoryError(
                f"cannot load {self._where}: the values of one request take {plan.nbytes} bytes, {free} are free on "
                f"{self.card.facts.full_name} beside the constants; {GIVES_UP}",
                needed=plan.nbytes,
                free=free,
            )

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

    def list_plans(self) -> list[Any]:
        """Returns the places that were found so far, for a blob."""
        return [] if self._book is None else self._book.dump()

    def create_state(self) -> GpuState:
        """Returns a stream, the request's memory, and a place for recorded runs where they are asked for. Raises: DeviceMemoryError."""
        stream = self.card.create_stream()
        if self._book is None:
            return GpuState(stream, None, None)
        memory = RequestMemory(self.card, self._book)
        if self._planned is not None:
            with self._watch_memory("while the memory of a request was set aside"), self.card.use(stream):
                memory.open(self._planned)
        return GpuState(stream, memory, Recordings(self.card, memory) if self._records else None)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, complete. Raises: DeviceMemoryError; the card can be used afterwards."""
        state = context.state
        assert isinstance(state, GpuState)
        run = self._bind(context)
        with self._watch_memory("while it ran"), self.card.use(state.stream):
            if state.memory is None or context.limits is not None:
                return run(inputs)
            if state.recordings is not None and context.profile is None:
                return state.recordings.run(run, inputs, state.stream)
            signature = sign_inputs(self.card, inputs)
            return run(inputs) if signature is None else state.memory.run(run, inputs, signature)

    def _bind(self, context: RunContext) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        return lambda inputs: self._program.run(
            inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits
        )

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
            "GPU_FUSED_KERNELS": self._fused,
            "GPU_ARENA_BYTES": lambda: 0 if self._book is None else self._book.largest_bytes,
            "GPU_ARENA_IN_PLACE": lambda: 0 if self._book is None else self._book.in_place,
            "GPU_ARENA_MISSES": lambda: 0 if self._book is None else self._book.misses,
        }


def can_run_on_zeros(network: Network, extensions: Mapping[tuple[str, str], Extension]) -> bool:
    """Says whether a run on zeros ends and is nobody's business: known shapes, no loop, no function that somebody gave."""
    if any(node.bodies or (node.domain, node.op_type) in extensions for node in network.nodes):
        return False
    return all(
        isinstance(spec.type, TensorType)
        and spec.type.dtype is not None
        and spec.type.shape is not None
        and all(isinstance(size, int) for size in spec.type.shape)
        for spec in network.inputs
    )


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
