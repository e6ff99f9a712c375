"""A network in use on the engine: arrays go in and come out without a copy, small ones aside; each run has a request of the engine.

With a single stream a run of the main thread stays there. Every other run goes to the engine's threads: they share several streams
evenly, and they outlive a network. When a thread that ran the engine ends, it releases its share of the engine's state; if a second
thread releases its last reference to a network at that moment, the network is freed while in use (OpenVINO 2026.4: a lock that is
never released, or an abort). The main thread ends with the process.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from threading import Lock, get_ident, main_thread
from time import perf_counter
from types import MethodType
from typing import Any

import numpy as np

from hetero_core.contract import Executable, RunContext
from hetero_core.dtypes import numpy_dtype
from hetero_core.engines.arrays import SMALL, Place, count_bytes, find_place
from hetero_core.errors import ClosedError, DeadlineExceededError, InferenceError, MemoryLimitError, RequestCancelledError
from hetero_core.executed import ExecutedNode
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_core.profile import Profile
from hetero_openvino.arithmetic import EXACT_FLOAT, LARGEST, LONG, settle_limit
from hetero_openvino.engine import OpenvinoEngine
from hetero_openvino.executed import list_layers, record_layers
from hetero_openvino.known_errors import joins_views, list_size_limits
from hetero_openvino.ports import Ports
from hetero_openvino.probing import shorten_message

logger = logging.getLogger(__name__)

_SECOND_NAMES = "qQ"
"""C has two names for integers of 64 bits, and the binding knows NumPy's arrays of the first only."""
_CARRIED = "bfloat16"
"""The element type that NumPy lacks; uint16 carries its bytes to the engine and back."""
_CURE = "NumPy computes such runs, slower; place the nodes that read the input on another device to avoid that"
_ELSEWHERE = ". Run the node on another device"
_SET_BEFORE: dict[int, Any] = {}
"""The argument of `infer`: all inputs stand in the engine's memory, or were set before."""


@dataclass(slots=True)
class EngineRequest:
    """A request of the engine, with views of its own memory for small arrays: index of the input or output, and its view.

    `places` has the last place of each larger array that the engine was told, by index and whether it is an output.
    """

    request: Any
    infer: Callable[[dict[int, Any], bool, bool], dict[Any, np.ndarray[Any, Any]]]
    inputs: tuple[tuple[int, np.ndarray[Any, Any]], ...]
    outputs: tuple[tuple[int, np.ndarray[Any, Any]], ...]
    places: dict[tuple[int, bool], Place | None]


class OpenvinoExecutable(Executable):
    """A compiled model and its requests, which are kept and reused; runs share nothing, so results are the caller's own."""

    def __init__(
        self,
        engine: OpenvinoEngine,
        network: Network,
        compiled: Any,
        ports: Ports,
        *,
        streams: int,
        blob: memoryview | None = None,
        compile_measured: Callable[[], OpenvinoExecutable] | None = None,
    ) -> None:
        """`blob` is the memory that the compiled model was imported from: the engine reads its weights there in every run.

        `compile_measured` compiles the network so that the engine measures its layers; None if it already measures.
        """
        self.inputs = network.inputs
        self.outputs = network.outputs
        self.network = network
        self.compiled = compiled
        self._is_compiled = compiled is not None  # if all outputs are inputs, nothing is
        self._module = engine.module
        self.ports = ports
        self._lanes: deque[EngineRequest] = deque()
        self._dtypes = [numpy_dtype(str(spec.dtype)) for spec in self.outputs]
        read = () if compiled is None else zip(ports.inputs, self.inputs, strict=True)
        inner = [(index, port, spec) for index, (port, spec) in enumerate(read) if port is not None]
        self._small_inputs = tuple((index, port) for index, port, spec in inner if _is_small(compiled.inputs[port], spec))
        self._bound_inputs = tuple(each for each in inner if each[:2] not in self._small_inputs)
        lanes = [
            (index, port, spec, _find_static_shape(compiled.outputs[port]))
            for index, (port, spec) in enumerate(zip(ports.outputs, self.outputs, strict=True))
            if port is not None
        ]
        self._small_outputs = tuple((index, port) for index, port, spec, _ in lanes if _is_small(compiled.outputs[port], spec))
        self._bound_outputs = tuple(
            (index, port, spec, shape)
            for index, port, spec, shape in lanes
            if shape is not None and (index, port) not in self._small_outputs
        )
        small = [self.inputs[index] for index, _ in self._small_inputs] + [self.outputs[index] for index, _ in self._small_outputs]
        self._copied_bytes = sum(count_bytes(spec) or 0 for spec in small)
        self._taken_outputs = tuple((index, port) for index, port, _, shape in lanes if shape is None)
        # A calling thread always gets the same stream: with several streams, two threads may share a stream.
        self._has_one_stream = streams == 1
        is_all_copied = compiled is not None and not self._bound_inputs and not self._bound_outputs and not ports.passed
        is_plain = not any(spec.dtype == _CARRIED for spec in self.outputs)
        runs_in_turn = joins_views(network)
        self._turn: AbstractContextManager[Any] = Lock() if runs_in_turn else nullcontext()
        self._is_copied = self._has_one_stream and is_all_copied and is_plain and not runs_in_turn
        self._limit, _ = settle_limit(network)
        limited = LONG if self._limit == LARGEST else LONG | {"int32"}
        self._limited = [
            index for index, spec in enumerate(self.inputs) if spec.dtype in limited and ports.inputs[index] is not None
        ]
        self._size_limits = list_size_limits(network)
        self._compile_measured = compile_measured
        self._measured: OpenvinoExecutable | None = None
        self._program: Program | None = None
        self._has_warned = False
        self._lock = Lock()
        # Last, so that it is released after the compiled model and its requests.
        self._blob = blob

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, in arrays of their own or in the caller's; the engine runs without the interpreter's lock.

        NumPy's kernels compute integers beyond the engine's limits, sizes that a `SizeLimit` excludes, and runs in which the engine fails.
        """
        if (self._limited or self._size_limits) and (excess := self._find_excess(inputs)) is not None:
            return self._run_kernels(excess, inputs, context)
        if self._is_copied and context.profile is None and get_ident() == main_thread().ident:
            lane = self._take_lane(inputs)
            # The engine's copies are the results: by port, and so by output.
            copies = lane.infer(_SET_BEFORE, False, False)
            self._keep_lane(lane)
            return tuple(copies.values())
        presets = context.outputs
        results: list[Any] = list(presets) if presets is not None else [None] * len(self.outputs)
        if self._is_compiled and context.profile is not None and self._compile_measured is not None:
            with self._lock:
                if self._measured is None:
                    self._measured = self._compile_measured()
            return self._measured.run(inputs, context)
        if self._is_compiled:
            try:
                with self._turn:
                    self._run_engine(inputs, results, context.profile)
            except InferenceError as error:
                # As of empty tensors, which some of the engine's kernels cannot compute. Bad input is an error of both.
                try:
                    return self._run_kernels(str(error).removesuffix(_ELSEWHERE), inputs, context)
                except (MemoryLimitError, RequestCancelledError, DeadlineExceededError):
                    raise
                except Exception:  # noqa: BLE001  # a kernel raises any error for bad input
                    raise error from error.__cause__
        for index, source in self.ports.passed.items():
            results[index] = _copy(inputs[source], results[index])
        return tuple(results)

    def _find_excess(self, inputs: tuple[Any, ...]) -> str | None:
        """Returns why the engine would compute a wrong result from these inputs, or None."""
        for index in self._limited:
            array = inputs[index]
            if array.size and (array.max() > self._limit or array.min() < -self._limit):
                return (
                    f"input '{self.inputs[index].name}' has {array.dtype} values from {array.min()} to {array.max()}; OpenVINO computes "
                    f"what is made of them in {'float32' if self._limit == EXACT_FLOAT else 'int32'}, exact up to {self._limit}"
                )
        for size_limit in self._size_limits:
            lengths = [inputs[index].shape[axis] for index, axis in size_limit.places]
            if not size_limit.least <= prod(lengths) <= size_limit.most:
                axes = " and ".join(f"axis {axis} of input '{self.inputs[index].name}'" for index, axis in size_limit.places)
                return f"{axes} has length {', '.join(map(str, lengths))}; {size_limit.reason}"
        return None

    def _run_kernels(self, excess: str, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Computes with NumPy's kernels what the engine would compute wrongly, or cannot compute; warns once."""
        with self._lock:
            if self._program is None:
                self._program = compile_program(self.network)
        results = self._program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
        if not self._has_warned:
            self._has_warned = True
            logger.warning("network '%s': %s. %s", self.network.name, excess, _CURE)
        presets = context.outputs if context.outputs is not None else [None] * len(results)
        return tuple(_copy(result, preset) for result, preset in zip(results, presets, strict=True))

    def _run_engine(self, inputs: tuple[Any, ...], results: list[Any], profile: Profile | None) -> None:
        """Runs a request; outputs replace the arrays in `results` that the engine cannot fill."""
        lane = self._take_lane(inputs)
        request = lane.request
        # A tensor does not keep its memory alive; the arrays here do, until the run is over.
        shared: list[np.ndarray[Any, Any]] = []
        for index, port, spec in self._bound_inputs:
            if self._is_new_place(lane, (index, False), inputs[index], spec):
                shared.append(self._carry(inputs[index], spec))
                request.set_input_tensor(port, self._share(shared[-1], spec, inputs[index].shape))
        for index, port, spec, shape in self._bound_outputs:
            if results[index] is None or results[index].shape != shape:
                results[index] = np.empty(shape, self._dtypes[index])
            if self._is_new_place(lane, (index, True), results[index], spec):
                shared.append(self._carry(results[index], spec))
                request.set_output_tensor(port, self._share(shared[-1], spec, shape))
        began = perf_counter()
        try:
            if self._has_one_stream and get_ident() == main_thread().ident:
                lane.infer(_SET_BEFORE, True, False)
            else:
                request.start_async()
                request.wait()
        except RuntimeError as error:
            shapes = ", ".join(f"{spec.name}{list(array.shape)}" for spec, array in zip(self.inputs, inputs, strict=True))
            raise InferenceError(
                f"OpenVINO cannot compute network '{self.network.name}' of {shapes}: {shorten_message(str(error))}{_ELSEWHERE}"
            ) from error
        ended = perf_counter()
        for index, view in lane.outputs:
            results[index] = _copy(view, results[index])
        for index, port in self._taken_outputs:
            results[index] = self._take(request.get_output_tensor(port), index)
        if profile is not None:
            record_layers(request, self.compiled, self.network, profile, began, ended)
        self._keep_lane(lane)

    def _take_lane(self, inputs: tuple[Any, ...]) -> EngineRequest:
        try:
            lane = self._lanes.pop()
        except IndexError:
            if (compiled := self.compiled) is None:
                raise ClosedError("the network was closed on OPENVINO while a run of it began; load it again") from None
            request = compiled.create_infer_request()
            lane = EngineRequest(
                request,
                # The binding's own `infer`: its wrapper in Python converts inputs and results, for 1 us.
                MethodType(self._module.InferRequest.__base__.infer, request),
                tuple((index, request.get_input_tensor(port).data) for index, port in self._small_inputs),
                tuple((index, request.get_output_tensor(port).data) for index, port in self._small_outputs),
                {},
            )
        for index, view in lane.inputs:
            view[...] = inputs[index]
        return lane

    def _keep_lane(self, lane: EngineRequest) -> None:
        self._lanes.append(lane)
        if self.compiled is None:  # closed meanwhile
            self._lanes.clear()

    def _is_new_place(self, lane: EngineRequest, key: tuple[int, bool], array: np.ndarray[Any, Any], spec: ValueSpec) -> bool:
        """Says whether the engine must be told the place of an array, and remembers the place for the next run."""
        place = None if spec.dtype == _CARRIED else find_place(array)
        if place is not None and lane.places.get(key) == place:
            return False
        lane.places[key] = place
        return True

    def _carry(self, array: np.ndarray[Any, Any], spec: ValueSpec) -> np.ndarray[Any, Any]:
        """Returns an array over the same memory, of a type that the engine's binding knows."""
        if not array.flags.writeable:
            array = _open_for_engine(array)
        if array.dtype.char in _SECOND_NAMES:
            return array.view(array.dtype.name)
        return array.view("uint16") if spec.dtype == _CARRIED else array

    def _share(self, array: np.ndarray[Any, Any], spec: ValueSpec, shape: tuple[int, ...]) -> Any:
        """Returns the engine's tensor over an array's memory, read-only arrays included: the engine writes no input."""
        if spec.dtype == _CARRIED:
            return self._module.Tensor(array, shape, self._module.Type.bf16)
        return self._module.Tensor(array, shared_memory=True)

    def _take(self, tensor: Any, index: int) -> np.ndarray[Any, Any]:
        array = np.array(tensor.data)
        return array.view(self._dtypes[index]) if self.outputs[index].dtype == _CARRIED else array

    def metrics(self) -> Mapping[str, Any]:
        """Metrics that the engine reports of the compiled model; empty if all outputs are inputs, because nothing is compiled then."""
        if self.compiled is None:
            return {}
        return {
            "OPENVINO_COPIED_BYTES": self._copied_bytes,
            "OPENVINO_THREADS": int(self.compiled.get_property("INFERENCE_NUM_THREADS")),
            "OPENVINO_STREAMS": int(self.compiled.get_property("NUM_STREAMS")),
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...] | None:
        """The layers of the engine's own executed graph."""
        compiled = self.compiled
        return () if compiled is None else list_layers(compiled.get_runtime_model(), self.network)

    def close(self) -> None:
        """Frees the compiled model, its requests and their threads, even if this object is still referenced."""
        self.compiled = None
        self._lanes.clear()
        if self._measured is not None:
            self._measured.close()


def _find_static_shape(port: Any) -> tuple[int, ...] | None:
    return None if port.get_partial_shape().is_dynamic else tuple(port.get_shape())


def _is_small(port: Any, spec: ValueSpec) -> bool:
    """Says whether a port's arrays have a small fixed size and a type that NumPy has."""
    if _find_static_shape(port) is None or spec.dtype == _CARRIED:
        return False
    return 0 < (count_bytes(spec) or 0) <= SMALL


def _open_for_engine(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a writable array over the same memory: the binding refuses read-only arrays."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    raw = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memoryview(raw), array.dtype).reshape(array.shape)


def open_tensor(module: Any, section: memoryview) -> Any:
    """Returns the engine's tensor over bytes, which it reads and does not write."""
    return module.Tensor(_open_for_engine(np.frombuffer(section, np.uint8)), shared_memory=True)


def _copy(array: np.ndarray[Any, Any], preset: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    if preset is None or preset.shape != array.shape:
        return np.array(array)
    np.copyto(preset, array)
    return preset
