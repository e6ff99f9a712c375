"""CompiledModel, its requests, and the results of a run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from operator import attrgetter
from time import perf_counter
from typing import IO, Any, ClassVar

import numpy as np

from hetero_core.core import Core as HeteroCore
from hetero_core.errors import InputNameError
from hetero_core.frontends.openvino.model import Model
from hetero_core.frontends.openvino.ports import ConstOutput, Tensor, find_port, name_inputs, read_array
from hetero_core.frontends.openvino.settings import read_property, settle_properties
from hetero_core.frontends.openvino.shapes import Listed, translated, with_getters
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.queue import AsyncInferQueue as HeteroQueue
from hetero_core.runtime.request import InferRequest as HeteroRequest
from hetero_core.runtime.states import RequestState
from hetero_core.transforms.editing import edit


class OVDict(Mapping[Any, Any]):
    """The outputs of a run, by port, index or name; texts are arrays of NumPy's texts or, if not `decodes`, bytes."""

    def __init__(self, ports: Sequence[ConstOutput], outputs: Mapping[str, Any], *, copies: bool, decodes: bool = True) -> None:
        self._dict: dict[ConstOutput, Any] = {}
        for port in ports:
            value = outputs[port.any_name]
            if isinstance(value, np.ndarray) and value.dtype == object:
                tensor = Tensor(value, shared_memory=True)
                value = tensor.str_data if decodes else tensor.bytes_data
            self._dict[port] = value.copy() if copies and isinstance(value, np.ndarray) else value

    def __getitem__(self, key: Any) -> Any:
        own = (port for port in self._dict if key in (port.index, port.index - len(self), port.any_name))
        return self._dict[next(own, key)]

    def __iter__(self) -> Iterator[ConstOutput]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __repr__(self) -> str:
        return repr(self._dict)

    def names(self) -> tuple[set[str], ...]:
        """Returns the names of each output."""
        return tuple(port.names for port in self)

    def to_dict(self) -> dict[ConstOutput, Any]:
        """Returns port -> output."""
        return dict(self._dict)

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the outputs in order."""
        return tuple(self.values())


@dataclass(frozen=True, slots=True)
class ProfilingInfo:
    """The time of a node in the last run. `node_type` is ONNX's operator, `exec_type` the device."""

    class Status(Enum):
        """Whether a node ran: all listed nodes did."""

        NOT_RUN, OPTIMIZED_OUT, EXECUTED = range(3)

    NOT_RUN: ClassVar = Status.NOT_RUN
    OPTIMIZED_OUT: ClassVar = Status.OPTIMIZED_OUT
    EXECUTED: ClassVar = Status.EXECUTED
    node_name: str
    node_type: str
    exec_type: str
    real_time: timedelta
    cpu_time: timedelta
    status: Status = Status.EXECUTED


class VariableState:
    """A state of a request, which the model's metadata declare."""

    def __init__(self, state: RequestState) -> None:
        self._state = state
        self.name = state.name
        self.reset = state.reset

    @property
    def state(self) -> Tensor:
        """The value; setting it takes effect in the next run."""
        return Tensor(self._state.value)

    @state.setter
    def state(self, value: Any) -> None:
        self._state.value = read_array(value)


class CompiledModel(Listed):
    """A model on a device, for several threads at once."""

    def __init__(self, core: HeteroCore, loaded: ExecutableNetwork, ineffective: Mapping[str, Any]) -> None:
        self._core = core  # lives as long as its networks
        self.loaded = loaded
        self._ineffective = dict(ineffective)
        self._stateful_request: InferRequest | None = None
        bounds = loaded.border.bounds
        self.inputs = [ConstOutput(spec, index, bounds, is_input=True) for index, spec in enumerate(loaded.inputs)]
        self.outputs = [ConstOutput(spec, index, bounds, is_input=False) for index, spec in enumerate(loaded.outputs)]

    input, output = Model.input, Model.output

    @translated
    def __call__(
        self, inputs: Any = None, share_inputs: bool = True, share_outputs: bool = False, *, decode_strings: bool = True
    ) -> OVDict:
        """Returns the caller's own outputs; states stay for the next call. Raises: RuntimeError for wrong inputs and failed devices."""
        if self.loaded.border.states:
            return self._open_stateful().infer(inputs, share_inputs, share_outputs, decode_strings=decode_strings)
        outputs = self.loaded.infer(name_inputs(inputs, self.inputs, shared=True))
        return OVDict(self.outputs, outputs, copies=False, decodes=decode_strings)

    def infer_new_request(self, inputs: Any = None) -> OVDict:
        """Returns the outputs of a run on a request of its own."""
        return self.create_infer_request().infer(inputs)

    @translated
    def create_infer_request(self) -> InferRequest:
        """Returns a request with working memory of its own."""
        return InferRequest(self, self.loaded.create_infer_request())

    def _open_stateful(self) -> InferRequest:
        if self._stateful_request is None:
            self._stateful_request = self.create_infer_request()
        return self._stateful_request

    def query_state(self) -> list[VariableState]:
        """Returns the states of the calls of this model."""
        return self._open_stateful().query_state()

    def reset_state(self) -> None:
        """Sets the states of the calls of this model to their initial values."""
        self._open_stateful().reset_state()

    @translated
    def export_model(self, model_stream: IO[bytes] | None = None) -> IO[bytes]:
        """Writes a blob of hetero to a stream, or returns it as a stream. Raises: RuntimeError."""
        stream = io.BytesIO() if model_stream is None else model_stream
        self.loaded.export_network(stream)
        if model_stream is None:
            stream.seek(0)
        return stream

    def release_memory(self) -> None:
        """Has no effect: a request frees its memory when it is freed."""

    @translated
    def get_property(self, property: str) -> Any:  # noqa: A002  # OpenVINO's name
        """Returns a metric or the value of a key. Raises: RuntimeError with the near misses."""
        return read_property(property, self.loaded.get_metric, self.loaded.get_config, self._ineffective)

    @translated
    def set_property(self, property: Any) -> None:  # noqa: A002  # OpenVINO's name
        """Changes the keys that a loaded network lets change. Raises: RuntimeError."""
        settings, ineffective = settle_properties(property, self.loaded.config, where=str(self.loaded.device))
        self._ineffective.update(ineffective)
        self.loaded.set_config(settings)

    @translated
    def get_runtime_model(self) -> Model:
        """Returns the executed graph, whose nodes are the device's steps."""
        return Model(edit(self.loaded.get_runtime_model()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}:\ninputs{self.inputs}\noutputs{self.outputs}>"


@dataclass(slots=True)
class _Finish:
    """The end of the asynchronous runs of a request. Apart from the request: a request in its own callback would be a cycle."""

    begin: float = 0.0
    latency: float = 0.0
    callback: Callable[[Any], Any] | None = None
    userdata: Any = None

    def end(self, _: HeteroRequest, error: BaseException | None) -> None:
        self.latency = (perf_counter() - self.begin) * 1000
        if error is None and self.callback is not None:
            self.callback(self.userdata)


def _for_each(setter: Callable[..., None]) -> Callable[[Any, Mapping[Any, Any]], None]:
    """Returns the method that sets several tensors by index, name or port."""

    def set_all(request: Any, tensors: Mapping[Any, Any]) -> None:
        for key, tensor in tensors.items():
            setter(request, key, tensor)

    return set_all


@with_getters("compiled_model", "profiling_info")
class InferRequest(Listed):
    """A request on a compiled model. Inputs that were set, or given to a run, stay for the next runs."""

    def __init__(self, compiled: CompiledModel, request: HeteroRequest, *, is_queued: bool = False) -> None:
        self.compiled_model = compiled
        self.model_inputs, self.model_outputs = compiled.inputs, compiled.outputs
        self.cancel = request.cancel
        self.reset_state = request.states.reset
        self._request = request
        self._tensor_of_input: dict[str, Tensor] = {}
        self.finish = _Finish()
        if not is_queued:  # a queue's requests have its callback
            request.set_callback(self.finish.end)

    # Runs

    @translated
    def infer(
        self, inputs: Any = None, share_inputs: bool = False, share_outputs: bool = False, *, decode_strings: bool = True
    ) -> OVDict:
        """Returns the outputs: copies, or with `share_outputs` arrays that are valid until the next run of this request.

        Raises: RuntimeError for wrong inputs, a request that is running, and a failed device.
        """
        values = self._list_inputs(inputs, shared=share_inputs)
        self.finish.begin = perf_counter()
        outputs = self._request.infer(values)
        self.finish.latency = (perf_counter() - self.finish.begin) * 1000
        return OVDict(self.model_outputs, outputs, copies=not share_outputs, decodes=decode_strings)

    @translated
    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts a run and returns. Raises: RuntimeError for wrong inputs, and for a request that is running."""
        values = self._list_inputs(inputs, shared=share_inputs)
        if userdata is not None:
            self.finish.userdata = userdata
        self.finish.begin = perf_counter()
        self._request.start_async(values)

    def _list_inputs(self, inputs: Any, *, shared: bool) -> dict[str, Any]:
        """Keeps the inputs of a run for the next runs; returns all inputs."""
        self._request.require_idle("start a run")
        return self.keep_inputs(name_inputs(inputs, self.model_inputs, shared=shared))

    def keep_inputs(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps these inputs; returns all inputs."""
        self._tensor_of_input.update({name: Tensor(value, shared_memory=True) for name, value in named.items()})
        return {name: tensor.data for name, tensor in self._tensor_of_input.items()}

    def begin_queued(self, named: Mapping[str, Any], userdata: Any) -> dict[str, Any]:
        """Keeps the userdata and the inputs of a run that a queue starts; returns all inputs."""
        self.finish = _Finish(perf_counter(), userdata=userdata)
        return self.keep_inputs(named)

    @translated
    def wait(self) -> None:
        """Waits for the end of the run. Raises: RuntimeError if it failed."""
        self._request.wait()

    @translated
    def wait_for(self, timeout: int) -> bool:
        """Waits for at most `timeout` milliseconds; returns whether the run has ended. Raises: RuntimeError if it failed."""
        return self._request.wait(timeout / 1000)

    userdata = property(attrgetter("finish.userdata"))
    latency = property(attrgetter("finish.latency"))  # milliseconds

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        """Sets the function that is called with the userdata after each asynchronous run that succeeded."""
        self._request.require_idle("set a callback")
        self.finish.callback, self.finish.userdata = callback, userdata

    @property
    def results(self) -> OVDict:
        """Copies of the outputs of the last run."""
        outputs = {port.any_name: self._find_output(port).data for port in self.model_outputs}
        return OVDict(self.model_outputs, outputs, copies=True)

    @property
    def profiling_info(self) -> list[ProfilingInfo]:
        """The time of each node in the last run; empty unless the model was compiled with PERF_COUNT."""
        nodes = [(each, timedelta(seconds=each.seconds)) for each in self._request.perf_counts if each.operator != "transfer"]
        return [ProfilingInfo(each.node, each.operator.partition("-")[0], each.device, time, time) for each, time in nodes]

    def query_state(self) -> list[VariableState]:
        """Returns the states."""
        return [VariableState(self._request.states[name]) for name in self._request.states]

    # Tensors

    @translated
    def get_tensor(self, port: Any) -> Tensor:
        """Returns the tensor of an input or output, by name or port."""
        port = find_port([*self.model_inputs, *self.model_outputs], port, where="the tensor")
        return self._find_input(port) if port in self.model_inputs else self._find_output(port)

    def set_tensor(self, port: Any, tensor: Any) -> None:
        """Sets the tensor of an input, or of an output that a run fills, by name or port."""
        port = find_port([*self.model_inputs, *self.model_outputs], port, where="the tensor")
        (self.set_input_tensor if port in self.model_inputs else self.set_output_tensor)(port, tensor)

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        """Returns the tensor of an input; written to in place, it is the input of the next run."""
        return self._find_input(find_port(self.model_inputs, index, where="the input"))

    @translated
    def get_output_tensor(self, index: int | None = None) -> Tensor:
        """Returns the tensor of an output; it has the values of the last run of this request, whichever that is."""
        return self._find_output(find_port(self.model_outputs, index, where="the output"))

    def set_input_tensor(self, *index_and_tensor: Any) -> None:
        """Sets the tensor of an input: `set_input_tensor(tensor)` of the only one, `set_input_tensor(index, tensor)`."""
        *index, tensor = index_and_tensor
        port = find_port(self.model_inputs, index[0] if index else None, where="the input")
        self._tensor_of_input[port.any_name] = tensor if isinstance(tensor, Tensor) else Tensor(tensor, shared_memory=True)

    @translated
    def set_output_tensor(self, *index_and_tensor: Any) -> None:
        """Sets the tensor that a run fills: `set_output_tensor(tensor)` of the only output, `set_output_tensor(index, tensor)`."""
        *index, tensor = index_and_tensor
        port = find_port(self.model_outputs, index[0] if index else None, where="the output")
        self._request.set_tensor(port.any_name, read_array(tensor))

    set_tensors, set_input_tensors, set_output_tensors = map(_for_each, (set_tensor, set_input_tensor, set_output_tensor))

    @property
    def input_tensors(self) -> list[Tensor]:
        """The tensors of all inputs."""
        return [self._find_input(port) for port in self.model_inputs]

    @property
    def output_tensors(self) -> list[Tensor]:
        """The tensors of all outputs."""
        return [self._find_output(port) for port in self.model_outputs]

    def _find_input(self, port: ConstOutput) -> Tensor:
        return self._tensor_of_input.setdefault(port.any_name, Tensor(port))

    def _find_output(self, port: ConstOutput) -> Tensor:
        """Returns the output of the last run at any time; before the first run, runs fill an array of it if the shape is known."""
        try:
            self._request.get_tensor(port.any_name)
        except InputNameError:
            if port.partial_shape.is_static:
                self._request.set_tensor(port.any_name, Tensor(port).data)
        return _OutputTensor(self._request, port.any_name)


class _OutputTensor(Tensor):
    """The tensor of an output: a program may get it once, and read the values of each run from it."""

    def __init__(self, request: HeteroRequest, name: str) -> None:
        self._request, self._name = request, name

    @property
    @translated
    def data(self) -> np.ndarray[Any, Any]:
        """The values of the last run; setting them gives the next runs memory. Raises: RuntimeError before the first run."""
        return Tensor(self._request.get_tensor(self._name), shared_memory=True).data

    @data.setter
    def data(self, values: np.ndarray[Any, Any]) -> None:
        self._request.set_tensor(self._name, values)


class AsyncInferQueue:
    """A pool of requests; an idle request takes the next inputs. `queue[i].start_async` starts one of them, as OpenVINO's."""

    @translated
    def __init__(self, model: CompiledModel, jobs: int = 0) -> None:
        """Makes `jobs` requests; 0 stands for OPTIMAL_NUMBER_OF_INFER_REQUESTS."""
        self._inputs = model.inputs
        self._queue = HeteroQueue(model.loaded, jobs)
        self._requests = [InferRequest(model, request, is_queued=True) for request in self._queue]
        self._callback: Callable[[InferRequest, Any], Any] | None = None
        self._queue.set_callback(self._end)
        self.is_ready = self._queue.is_ready
        self.get_idle_request_id = self._queue.get_idle_request_id

    @translated
    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts a run on an idle request, once there is one; its earlier inputs stay. Raises: RuntimeError for wrong inputs."""
        named = name_inputs(inputs, self._inputs, shared=share_inputs)
        self._queue.start_async(lambda index: self._requests[index].begin_queued(named, userdata), userdata)

    def _end(self, request: HeteroRequest, _: Any) -> None:
        own = self._requests[list(self._queue).index(request)]
        own.finish.latency = (perf_counter() - own.finish.begin) * 1000
        if self._callback is not None:
            self._callback(own, own.userdata)

    @translated
    def set_callback(self, callback: Callable[[InferRequest, Any], Any]) -> None:
        """Sets the function that is called with the request and its userdata after each run that succeeded."""
        self._queue.set_callback(self._end)  # refused while a request runs
        self._callback = callback

    @translated
    def wait_all(self) -> None:
        """Waits until all requests are idle. Raises: RuntimeError, or the error of a callback, of the first run that failed."""
        self._queue.wait_all()

    @property
    def userdata(self) -> list[Any]:
        """The userdata of the last start of each request."""
        return [request.userdata for request in self._requests]

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]
