"""InferenceSession and IOBinding: a network loaded on a device of hetero, with ONNX Runtime's methods.

A run: names and order of the feed are checked, the network's own `infer` runs, and the outputs are returned as a list. A session loads its
model again, from its path or bytes, in a forked child, after `set_providers`, and if a run gives two sizes to one symbolic name: ONNX
Runtime takes these names as remarks, hetero compiles with them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.errors import HeteroError, InputShapeError, UnsupportedNodesError
from hetero_core.frontends.onnxruntime.errors import convert_error, make_error, raise_as_onnxruntime
from hetero_core.frontends.onnxruntime.options import FOLDER_ENTRY, RunOptions, SessionOptions, report_once
from hetero_core.frontends.onnxruntime.providers import Placement, find_core, find_splitter, place_session
from hetero_core.frontends.onnxruntime.values import (
    ModelMetadata,
    NodeArg,
    OrtValue,
    find_dtype,
    name_type,
    report_memory,
    view_memory,
)
from hetero_core.network.reader import read_proto
from hetero_core.network.tensors import read_type
from hetero_core.network.types import TensorType, ValueSpec, shape_of
from hetero_core.profile import Profile
from hetero_core.reports.trace import profiles_to_trace
from hetero_core.runtime.inputs import name_inputs
from hetero_core.runtime.outputs import own_outputs

if TYPE_CHECKING:
    import onnx

    from hetero_core.runtime.executable import ExecutableNetwork

_MOST_PROFILES = 1000
"""The number of runs that a profile holds; older runs are dropped."""

Feed = Mapping[str, Any] | Sequence[Any]


class InferenceSession:
    """A model on a device. Safe for threads, as ONNX Runtime's."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`providers` and `provider_options` as ONNX Runtime takes them, see `providers`. Other arguments tune ONNX Runtime.

        Raises: ONNX Runtime's exceptions, each with hetero's error as its cause; ValueError, TypeError for wrong arguments.
        """
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        is_bytes = isinstance(path_or_bytes, bytes)
        self._model_path = None if is_bytes else os.fspath(path_or_bytes)
        self._model_bytes = path_or_bytes if is_bytes else None
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        self._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        self._lock = Lock()
        self._profiles: deque[Profile] = deque(maxlen=_MOST_PROFILES)
        self._profiling_start_time_ns = time.monotonic_ns()
        self._has_open_sizes = False
        self.set_providers(providers, provider_options)
        if self._sess_options.optimized_model_filepath:
            self._write_model(self._sess_options.optimized_model_filepath)

    # Loading

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None) -> None:
        """Loads the model again on the device for these providers. Raises: as the constructor."""
        if providers is None:
            providers = getattr(self._sess_options, "_providers", None) or None
        self._placement = place_session(providers, provider_options)
        with self._lock:
            self._load()

    def _load(self) -> None:
        """Loads the model on its device; if no device of AUTO takes it whole, on HETERO over the host's devices."""
        placement = self._placement
        config = {**placement.config, **self._read_config()}
        with raise_as_onnxruntime():
            model = self._read_model()
            try:
                self.network = find_core().load_network(model, placement.device, config)
            except UnsupportedNodesError:
                splitter = None if placement.is_chosen else find_splitter()
                if splitter is None:
                    raise
                self.network = find_core().load_network(model, splitter, config)
        self._process = os.getpid()
        self._describe()

    def _source(self) -> str | bytes:
        source = self._model_bytes if self._model_path is None else self._model_path
        assert source is not None, "a session has a path or bytes"
        return source

    def _read_config(self) -> dict[str, Any]:
        options = self._sess_options
        config: dict[str, Any] = {"PERF_COUNT": True} if options.enable_profiling else {}
        if options.intra_op_num_threads > 0:
            config["INFERENCE_NUM_THREADS"] = options.intra_op_num_threads
        return config

    def _read_model(self) -> Any:
        """Returns the path or bytes if nothing changes the model, else the changed network."""
        options = self._sess_options
        weights, sizes = getattr(options, "_weights", {}), getattr(options, "_free_sizes", {})
        folder = getattr(options, "_entries", {}).get(FOLDER_ENTRY)
        source: Any = self._source()
        if not (weights or sizes or folder or self._has_open_sizes):
            return source
        if weights:
            folder = folder or (os.path.dirname(os.path.abspath(source)) if isinstance(source, str) else None)
            source = _replace_weights(source, weights)
        network = find_core().read_network(source, base=folder)
        names = {size for spec in network.inputs for size in shape_of(spec.type) or ()}
        sizes = {name: size for name, size in sizes.items() if name in names}
        network = network.with_shapes(sizes) if sizes else network
        if self._has_open_sizes:
            shapes = {spec.name: spec.shape for spec in network.inputs if spec.shape}
            network = network.with_shapes(
                {name: tuple(size if isinstance(size, int) else None for size in shape) for name, shape in shapes.items()}
            )
        return network

    def _describe(self) -> None:
        """Reads the descriptions of inputs, outputs and model, as the file declares them."""
        with raise_as_onnxruntime():
            proto, _, _ = read_proto(self._source(), holds_weights=False)
        network, graph = self.network, proto.graph
        declared = {value.name: read_type(value.type, value.name) for value in (*graph.input, *graph.output)}
        sizes = getattr(self._sess_options, "_free_sizes", {})

        def describe(specs: Sequence[ValueSpec]) -> list[NodeArg]:
            return [_describe_value(spec, declared.get(spec.name), sizes) for spec in specs]

        self._inputs_meta = describe(network.inputs)
        self._outputs_meta = describe(network.outputs)
        self._overridable_initializers = describe(network.replaceable if proto.ir_version >= 4 else ())
        self._scalars = frozenset(spec.name for spec in network.inputs if spec.shape == ())
        self._model_meta = ModelMetadata(
            proto.producer_name,
            graph.name,
            proto.domain,
            proto.doc_string,
            graph.doc_string,
            proto.model_version,
            dict(network.metadata),
        )

    def _write_model(self, path: str) -> None:
        import onnx  # loaded already with the network

        report_once("optimized_model_filepath gets the model as it is; each device optimizes it when it loads it")
        source = self._source()
        onnx.save(onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source), path)

    # Descriptions

    def get_session_options(self) -> SessionOptions:
        """Returns the options of the session."""
        return self._sess_options

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs, with names of sizes as the model has them."""
        return self._inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs, with names of sizes as the model has them."""
        return self._outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns the constants that a run may replace."""
        return self._overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        """Returns the model's own description."""
        return self._model_meta

    def get_providers(self) -> list[str]:
        """Returns the requested providers that are available."""
        return list(self._placement.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Returns the options of each provider."""
        return {name: dict(options) for name, options in self._placement.providers.items()}

    def disable_fallback(self) -> None:
        """Has no effect: a failed run is never repeated on another provider."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Has no effect, as `disable_fallback`."""
        self._enable_fallback = True

    # Runs

    def run(self, output_names: Sequence[str | int] | None, input_feed: Feed, run_options: RunOptions | None = None) -> list[Any]:
        """Returns the outputs of these names (or positions), all if there are none; they belong to the caller.

        `input_feed`: values by name, or all values in order. Raises: ValueError for missing inputs; InvalidArgument, RuntimeException.
        """
        feed, names = self._check_feed(input_feed), self._name_outputs(output_names)
        outputs = self._run_on_network(lambda network: self._infer(network, feed, run_options), feed)
        return [outputs[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str | int] | None,
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Starts a run and returns; `callback` gets the outputs, `user_data` and the text of the error, which is empty without one."""
        feed, names = self._check_feed(input_feed), self._name_outputs(output_names)

        def start(network: ExecutableNetwork) -> None:
            request = network.create_infer_request()
            watch = _Watch(request, run_options)

            def end(_: Any, error: BaseException | None) -> None:
                watch.leave()
                if error is not None:
                    callback([], user_data, str(convert_error(error) if isinstance(error, HeteroError) else error))
                    return
                outputs = _take_outputs(request, network, feed)
                callback([outputs[name] for name in names], user_data, "")

            request.set_callback(end)
            watch.start(feed)

        self._run_on_network(start, feed)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Returns the outputs as OrtValues. Raises: as `run`."""
        feed = {name: value._value for name, value in input_dict_ort_values.items()}
        type_of_name = {spec.name: spec.type for spec in self._outputs_meta}
        names = self._name_outputs(output_names)
        outputs = self.run(names, feed, run_options)
        return [OrtValue(value, type_of_name[name]) for name, value in zip(names, outputs, strict=True)]

    def io_binding(self) -> IOBinding:
        """Returns bindings of inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Runs on the bound inputs; the outputs go to the bound memory, or to new arrays. Raises: as `run`."""
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        feed = self._check_feed(iobinding._inputs)
        self._run_on_network(lambda network: iobinding._run(network, feed, run_options), feed)

    def _current(self) -> ExecutableNetwork:
        """Returns the network, loaded again in a forked child."""
        if self._process != os.getpid():
            self._lock = Lock()  # another thread of the parent may have held it
            self._load()
        return self.network

    def _run_on_network(self, run: Callable[[ExecutableNetwork], Any], feed: Mapping[str, Any]) -> Any:
        with raise_as_onnxruntime():
            try:
                return run(self._current())
            except InputShapeError:
                if not self._open_sizes(feed):
                    raise
            return run(self.network)

    def _open_sizes(self, feed: Mapping[str, Any]) -> bool:
        """Loads the model with nameless sizes if the feed gives two sizes to one name. Says whether it did."""
        sizes: dict[str, set[int]] = {}
        for spec in self.network.inputs:
            for size, name in zip(np.shape(feed.get(spec.name)), spec.shape or (), strict=False):
                sizes.setdefault(name, set()).add(size) if isinstance(name, str) else None
        repeated = [name for name, values in sizes.items() if len(values) > 1]
        if not repeated:
            return False
        report_once(
            f"{self.network.where}: a run gives several sizes to {', '.join(repeated)}; the model is loaded with open sizes"
        )
        with self._lock:
            if not self._has_open_sizes:
                self._has_open_sizes = True
                self._load()
        return True

    def _infer(self, network: ExecutableNetwork, feed: Mapping[str, Any], options: RunOptions | None) -> dict[str, Any]:
        if options is None and not network.measures:
            return network.infer(feed)
        request = network.create_infer_request()
        watch = _Watch(request, options)
        try:
            watch.start(feed)
            request.wait()
        finally:
            watch.leave()
        if request.profile is not None:
            self._profiles.append(request.profile)
        return _take_outputs(request, network, feed)

    def _check_feed(self, feed: Feed) -> dict[str, Any]:
        """Returns the values by name. Raises: ValueError for missing inputs, InvalidArgument for unknown names."""
        network = self.network
        with raise_as_onnxruntime():
            named = dict(name_inputs(feed, network.inputs, network=network.name))
        defaults = network.border.defaults
        missing = [
            spec.name
            for spec in self._inputs_meta
            if spec.name not in named and not spec.type.startswith("optional") and spec.name not in defaults
        ]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(named)}).")
        for name in self._scalars & named.keys():
            # ONNX Runtime does not compare the shape of a scalar.
            value = np.asarray(named[name])
            if value.ndim and value.size == 1:
                named[name] = value.reshape(())
        return {name: value._value if isinstance(value, OrtValue) else value for name, value in named.items()}

    def _name_outputs(self, names: Sequence[str | int] | None) -> Sequence[str]:
        """Returns names of outputs. Raises: InvalidArgument for a name or position that the model does not have."""
        own = self.network.output_names
        if not names:
            return own
        named = [own[name] if isinstance(name, int) and 0 <= name < len(own) else name for name in names]
        for name in named:
            if name not in own:
                raise make_error("InvalidArgument", f"Invalid output name: {name}; the outputs are {', '.join(own)}")
        return [str(name) for name in named]

    # Profiling

    def end_profiling(self) -> str:
        """Writes a trace of the last runs for Chrome or Perfetto, and returns its path; "" without `enable_profiling`."""
        if not self._sess_options.enable_profiling:
            return ""
        path = f"{self._sess_options.profile_file_prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        Path(path).write_text(profiles_to_trace(tuple(self._profiles)), encoding="utf-8")
        return path

    def get_profiling_start_time_ns(self) -> int:
        """Returns the moment when the session was made, in nanoseconds of `time.monotonic_ns`."""
        return self._profiling_start_time_ns


class _Watch:
    """A run that RunOptions may end."""

    def __init__(self, request: Any, options: RunOptions | None) -> None:
        self._request = request
        # Options of ONNX Runtime's own class cannot end a run.
        self._options = options if isinstance(options, RunOptions) else None
        if getattr(options, "terminate", False):
            raise make_error("Fail", "Exiting due to terminate flag being set to true")

    def start(self, feed: Mapping[str, Any] | None) -> None:
        if self._options is not None:
            self._options._requests.add(self._request)
        self._request.start_async(feed)
        if self._options is not None and self._options.terminate:
            self._request.cancel()

    def leave(self) -> None:
        if self._options is not None:
            self._options._requests.discard(self._request)


class IOBinding:
    """The inputs and outputs of runs, bound to arrays, pointers and OrtValues in the host's memory."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        # Output -> the array that it is written to; None for a new array.
        self._targets: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._request: Any = None
        self._presets: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an input to an array."""
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to the host's memory at a pointer. Raises: NotImplemented for another memory."""
        self._inputs[name] = _view(name, device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to an OrtValue."""
        self._inputs[name] = ortvalue._value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to the host's memory at a pointer; without one, to an array that the run makes."""
        self._require_output(name)
        if buffer_ptr is None:
            report_memory(device_type)
            self._targets[name] = None
            return
        self._targets[name] = _view(name, device_type, element_type, () if shape is None else shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to an OrtValue."""
        self._require_output(name)
        self._targets[name] = ortvalue._tensor()

    def _require_output(self, name: str) -> None:
        self._session._name_outputs([name])

    def synchronize_inputs(self) -> None:
        """Has no effect: the host's memory is always up to date."""

    def synchronize_outputs(self) -> None:
        """Has no effect, as `synchronize_inputs`."""

    def get_outputs(self) -> list[OrtValue]:
        """Returns the outputs of the last run, in the order in which they were bound."""
        return [OrtValue(value) for value in self._outputs.values()]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Returns copies of the outputs of the last run, in the order in which they were bound."""
        return [value.numpy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs."""
        self._targets.clear()
        self._outputs = {}

    def _run(self, network: ExecutableNetwork, feed: Mapping[str, Any], options: RunOptions | None) -> None:
        """Runs; the device writes to bound memory itself, unless that memory is an input's as well."""
        inputs = [value for value in feed.values() if isinstance(value, np.ndarray)]
        presets = {
            name: target
            for name, target in self._targets.items()
            if target is not None and not any(np.may_share_memory(target, value) for value in inputs)
        }
        is_same = presets.keys() == self._presets.keys() and all(presets[name] is self._presets[name] for name in presets)
        if self._request is None or self._request._network is not network or not is_same:
            self._request = network.create_infer_request()
            for name, target in presets.items():
                self._request.set_tensor(name, target)
            self._presets = presets
        watch = _Watch(self._request, options)
        try:
            if options is None:
                self._request.infer(feed)
            else:
                watch.start(feed)
                self._request.wait()
        finally:
            watch.leave()
        outputs = _take_outputs(self._request, network, feed)
        for name, target in self._targets.items():
            if target is not None and name not in presets:
                np.copyto(target, outputs[name])
        self._outputs = {
            name: self._own(name, outputs[name]) if target is None else target for name, target in self._targets.items()
        }

    def _own(self, name: str, value: Any) -> Any:
        """Returns an output that the next run of the request does not overwrite."""
        return value.copy() if isinstance(value, np.ndarray) else value


SessionIOBinding = IOBinding
"""The name of ONNX Runtime's compiled class, which a binding wraps there."""


def _view(name: str, device_type: str, element_type: Any, shape: Sequence[int], pointer: int) -> np.ndarray[Any, Any]:
    if device_type != "cpu":
        raise make_error(
            "NotImplemented",
            f"'{name}' cannot be bound to a pointer into memory of '{device_type}'; bind the host's memory, and the device copies it",
        )
    if element_type is None:
        raise make_error("InvalidArgument", f"'{name}' is bound to a pointer without an element type")
    return view_memory(pointer, shape, find_dtype(element_type))


def _take_outputs(request: Any, network: ExecutableNetwork, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a request's last run; constants, and outputs that share memory, are copied."""
    outputs = tuple(request.get_tensor(name) for name in network.output_names)
    return dict(zip(network.output_names, own_outputs(outputs, tuple(feed.values())), strict=True))


def _describe_value(spec: ValueSpec, declared: Any, sizes: Mapping[str, int]) -> NodeArg:
    """Returns the description of a value as the file declares it; without a declared shape, as inference knows it."""
    value_type = spec.type if declared is None or (isinstance(declared, TensorType) and declared.shape is None) else declared
    shape = [sizes.get(size, size) if isinstance(size, str) else size for size in shape_of(value_type) or ()]
    return NodeArg(spec.name, name_type(value_type), shape)


def _replace_weights(source: str | bytes, weights: Mapping[str, OrtValue]) -> onnx.ModelProto:
    """Returns the model with these constants. Raises: InvalidArgument for a name that it does not have."""
    import onnx  # heavy
    import onnx.numpy_helper

    model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in weights.items():
        if name not in tensors:
            raise make_error("InvalidArgument", f"the model has no constant '{name}' to replace")
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(value.numpy(), name))
    return model
