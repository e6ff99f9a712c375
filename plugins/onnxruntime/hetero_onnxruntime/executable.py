"""A network in use on the engine: arrays go in and come out without a copy, also into arrays that the caller has preset."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.contract import Executable, RunContext
from hetero_core.dtypes import numpy_dtype, onnx_of_dtype
from hetero_core.engines.arrays import SMALL, Place, count_bytes, find_place
from hetero_core.errors import ClosedError
from hetero_core.executed import ExecutedNode
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs
from hetero_core.network.types import TensorType, ValueSpec, sizes_of
from hetero_core.profile import Profile
from hetero_onnxruntime.compiled import list_optimized
from hetero_onnxruntime.corrections import MANY, has_open_sum
from hetero_onnxruntime.engine import CPU_PROVIDER, OrtEngine, find_turn
from hetero_onnxruntime.probing import shorten_message
from hetero_onnxruntime.session import Loaded, Settings, build_session

logger = logging.getLogger(__name__)

# Element types of plain NumPy arrays; arrays of all further types are bound by address.
_PLAIN = frozenset(
    {"float32", "float64", "float16", "bool", "string", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)

_WRONG_INDEX = re.compile(r"out of data bounds|Out of range value in index|invalid ind(ex|ice) found")
"""The engine's words about an index outside its axis."""


class Bindings:
    """The bindings of a request, kept for its next run: the places of the inputs and then of the outputs; None for those not bound."""

    __slots__ = ("bound", "loaded", "places", "turn")

    def __init__(self, turn: AbstractContextManager[Any]) -> None:
        self.turn = turn
        self.bound: Any = None
        # The binding references the session, which reads memory of this.
        self.loaded: Loaded | None = None
        self.places: list[Place | None] = []

    def __del__(self) -> None:
        """Frees the session under its provider's lock if this is its last owner."""
        with self.turn:
            self.bound = self.loaded = None


class OrtExecutable(Executable):
    """One session, shared by threads: runs share nothing, so results are the caller's own."""

    def __init__(
        self, engine: OrtEngine, network: Network, stamp: Callable[[], Network], settings: Settings, loaded: Loaded
    ) -> None:
        """`stamp` returns the network in opsets that the engine knows, which an import needs for an export and for times alone."""
        self._turn = find_turn(settings.provider)
        self.inputs = network.inputs
        self.outputs = network.outputs
        self.network = network
        self._engine = engine
        self._stamp = stamp
        self.settings = settings
        self._loaded: Loaded | None = loaded
        self._names = [spec.name for spec in self.inputs]
        self._output_names = [spec.name for spec in self.outputs]
        self._is_plain = all(_is_plain(spec) for spec in (*self.inputs, *self.outputs))
        self._makes_little = all(nbytes is not None and nbytes <= SMALL for nbytes in map(count_bytes, self.outputs))
        self._is_fixed = None not in map(count_bytes, (*self.inputs, *self.outputs))
        input_sizes = [sizes_of(spec.type) for spec in self.inputs]
        self._may_be_empty = any(sizes is None or 0 in sizes for sizes in input_sizes)
        self._may_be_large = not (self._is_fixed or settings.widens) and settings.provider == CPU_PROVIDER and has_open_sum(network)
        # ONNX Runtime 1.32 ends the process at sums and products of no quantized numbers if it has several threads.
        self._adds_codes = self._may_be_empty and settings.threads != 1 and any(map(_may_add_codes, iterate_graphs(network)))
        self._program: Program | None = None

    @cached_property
    def stamped(self) -> Network:
        """The network in opsets that the engine knows."""
        return self._stamp()

    def create_state(self) -> Bindings:
        """Returns the bindings of a request."""
        return Bindings(self._turn)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; the session's threads run without the interpreter's lock."""
        if not self.outputs:
            # A part of a network that nobody reads; the engine refuses to run for nothing.
            return ()
        if self._may_be_empty and any(0 in getattr(value, "shape", ()) for value in inputs):
            return self._run_without_elements(inputs, context)
        if self._may_be_large and any(getattr(value, "size", 0) >= MANY for value in inputs):
            self._require_loaded()
            return self._wide.run(inputs, context)
        try:
            return self._run(inputs, context)
        except Exception as error:
            if _WRONG_INDEX.search(str(error)):
                raise IndexError(shorten_message(str(error))) from error
            raise

    def _run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        if context.profile is not None:
            return self._run_profiled(inputs, context.profile)
        presets = context.outputs
        if presets is not None and self._is_fixed and not self._makes_little and all(preset is not None for preset in presets):
            return self._run_again(inputs, presets, context.state)
        loaded = self._require_loaded()  # held: the session reads memory of it
        return self._run_session(loaded.session, inputs, presets)

    def _run_without_elements(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs of a run with an empty input, at which many of the engine's kernels fail: NumPy answers in their place."""
        try:
            if self._adds_codes:
                self._require_loaded()
                return self._single.run(inputs, context)
            return self._run(inputs, context)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001  # engines may raise anything; the error is raised again below if NumPy fails as well
            try:
                if self._program is None:
                    self._program = compile_program(self.network)
                    logger.info(
                        "network '%s': runs with empty inputs at which the engine fails are computed by NumPy: %s",
                        self.network.name,
                        error,
                    )
                outputs = self._program.run(inputs, is_cancelled=context.cancelled, limits=context.limits)
            except Exception:  # noqa: BLE001  # the engine's own error says why this run fails
                raise error from None
            return tuple(map(_own, outputs))

    @cached_property
    def _wide(self) -> OrtExecutable:
        """The network with sums in float64, for runs with inputs of many elements."""
        return self._load_again(replace(self.settings, widens=True))

    @cached_property
    def _single(self) -> OrtExecutable:
        """The network on a single thread, for runs with empty inputs."""
        return self._load_again(replace(self.settings, threads=1))

    def _load_again(self, settings: Settings) -> OrtExecutable:
        return OrtExecutable(self._engine, self.network, self._stamp, settings, build_session(self._engine, self.stamped, settings))

    def _require_loaded(self) -> Loaded:
        """Returns the session with its memory. Raises: ClosedError in a run that began while the network was closed."""
        loaded = self._loaded
        if loaded is None:
            raise ClosedError("the network was closed on ORT while a run of it began; load it again")
        return loaded

    def _run_again(self, inputs: tuple[Any, ...], presets: Any, bindings: Any) -> tuple[Any, ...]:
        """Runs into the caller's arrays; arrays at the same address as in the last run are bound already."""
        loaded = self._require_loaded()
        if bindings.bound is None:
            bindings.loaded, bindings.bound = loaded, loaded.session.io_binding()
            bindings.places = [None] * (len(inputs) + len(presets))
        bound, places = bindings.bound, bindings.places
        for index, value in enumerate((*inputs, *presets)):
            place = find_place(value)
            # An array that was resized in place is bound again, and refused by the engine.
            if place is None or place != places[index]:
                is_input = index < len(inputs)
                spec = self.inputs[index] if is_input else self.outputs[index - len(inputs)]
                _bind(bound.bind_input if is_input else bound.bind_output, spec, value)
                places[index] = place
        with self._turn:
            loaded.session.run_with_iobinding(bound)
        return tuple(presets)

    def _run_session(self, session: Any, inputs: tuple[Any, ...], presets: Any) -> tuple[Any, ...]:
        # The core copies small outputs into presets faster than they are bound.
        if self._is_plain and (presets is None or self._makes_little):
            with self._turn:
                return tuple(session.run(self._output_names, dict(zip(self._names, inputs, strict=True))))
        return self._run_bound(session, inputs, [None] * len(self.outputs) if presets is None else presets)

    def _run_bound(self, session: Any, inputs: tuple[Any, ...], presets: Any) -> tuple[Any, ...]:
        binding = session.io_binding()
        for spec, value in zip(self.inputs, inputs, strict=True):
            if not isinstance(spec.type, TensorType) or spec.dtype == "string":
                binding.bind_ortvalue_input(spec.name, self._engine.module.OrtValue.ortvalue_from_numpy(value))
            else:
                _bind(binding.bind_input, spec, value)
        for spec, preset in zip(self.outputs, presets, strict=True):
            if preset is None:
                binding.bind_output(spec.name)
            else:
                _bind(binding.bind_output, spec, preset)
        with self._turn:
            session.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        return tuple(
            _take(value, spec) if preset is None else preset
            for value, preset, spec in zip(outputs, presets, self.outputs, strict=True)
        )

    def _run_profiled(self, inputs: tuple[Any, ...], profile: Profile) -> tuple[Any, ...]:
        """Runs on a session of its own: the engine hands out the times of a session only once, when its profile ends."""
        with self._turn, tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
            session = build_session(
                self._engine,
                self.stamped,
                self.settings,
                enable_profiling=True,
                profile_file_prefix=os.path.join(folder, "profile"),
            ).session
            outputs = self._run_session(session, inputs, None)
            ended = perf_counter()
            with open(session.end_profiling(), encoding="utf-8") as file:
                events = json.load(file)
            del session
        kernels = [event for event in events if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time")]
        # The engine's clock begins elsewhere than ours; the last kernel ended when the run did.
        last = max((event["ts"] + event["dur"] for event in kernels), default=0)
        for event in kernels:
            name = event["name"].removesuffix("_kernel_time")
            index = self.network.index_of_node.get(name)
            # A fused node of the engine stands under its own name.
            node = Node(name, event["args"]["op_name"], (), ()) if index is None else self.network.nodes[index]
            profile.add(node, event["dur"] * 1e-6, begin=ended - (last - event["ts"]) * 1e-6)
        return outputs

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The nodes of the model as the engine has optimized it; costs a load."""
        return list_optimized(self._engine, self.stamped, self.settings, self.network) if self.outputs else ()

    def metrics(self) -> dict[str, Any]:
        """Metrics that the engine reports of the session."""
        loaded = self._loaded
        return {} if loaded is None else {"ORT_PROVIDERS": tuple(loaded.session.get_providers())}

    def close(self) -> None:
        """Frees the session and its threads, even if this object is still referenced."""
        with self._turn:
            self._loaded = None
            self.__dict__.pop("_wide", None)
            self.__dict__.pop("_single", None)

    def __del__(self) -> None:
        """Releases the session under its provider's lock if the network was not closed."""
        with self._turn:
            self._loaded = None


def _is_plain(spec: ValueSpec) -> bool:
    return not isinstance(spec.type, TensorType) or spec.dtype in _PLAIN


def _own(value: Any) -> Any:
    """Returns a copy of an array: the toolkit may return an input or a constant as it is."""
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value


def _bind(bind: Any, spec: ValueSpec, array: np.ndarray[Any, Any]) -> None:
    assert spec.dtype is not None
    bind(spec.name, "cpu", 0, onnx_of_dtype(spec.dtype), array.shape, array.ctypes.data)


def _take(value: Any, spec: ValueSpec) -> Any:
    """Returns the engine's value as an array; of a type that NumPy lacks, as a copy."""
    if _is_plain(spec):
        return value.numpy()
    assert spec.dtype is not None
    raw = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    return np.frombuffer(raw, numpy_dtype(spec.dtype)).reshape(value.shape()).copy()


def _may_add_codes(graph: Graph) -> bool:
    """Says whether a graph adds or multiplies quantized numbers, as such or between a dequantization and a quantization."""
    operators = {node.op_type for node in graph.nodes}
    is_fused = not operators.isdisjoint({"Add", "Mul"}) and operators >= {"DequantizeLinear", "QuantizeLinear"}
    return is_fused or not operators.isdisjoint({"QLinearAdd", "QLinearMul"})
