"""InferenceSession and IOBinding: a network loaded on a device of hetero, with ONNX Runtime's methods.

A run: the feed is checked, the network's own `infer` runs, and the outputs are returned as a list. A session loads its model again, from
its path or bytes, in a forked child, after `set_providers`, and if a run gives two sizes to one symbolic name: for ONNX Runtime these
names are comments, hetero compiles with them.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import HeteroError, InputShapeError, InputTypeError, UnsupportedNodesError
from hetero_core.frontends.onnxruntime.errors import OnnxRuntimeError, convert_error, make_error, raise_as_onnxruntime
from hetero_core.frontends.onnxruntime.options import FOLDER_ENTRY, RunOptions, SessionOptions
from hetero_core.frontends.onnxruntime.providers import (
    CPU_PROVIDER,
    find_splitter,
    get_all_providers,
    place_session,
    read_providers,
)
from hetero_core.frontends.onnxruntime.values import (
    ModelMetadata,
    NodeArg,
    OrtValue,
    describe_value,
    report_memory,
    view_memory,
    word_fault,
)
from hetero_core.frontends.shared_core import find_core, limit_threads, report_once
from hetero_core.network.reader import read_proto
from hetero_core.network.tensors import read_type
from hetero_core.network.types import TensorType, ValueSpec, shape_of
from hetero_core.profile import Profile
from hetero_core.runtime import executors
from hetero_core.runtime.inputs import name_inputs
from hetero_core.runtime.outputs import own_outputs

if TYPE_CHECKING:
    import onnx

    from hetero_core.runtime.executable import ExecutableNetwork

Feed = Mapping[str, Any] | Sequence[Any]
Names = Sequence[str | int] | None
_NO_VERSION = 2**63 - 1
"""ONNX Runtime's version of a model whose file has none."""


class InferenceSession:
    """A model on a device: `network` is the ExecutableNetwork. Safe for threads, as ONNX Runtime's."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **tuning: Any,
    ) -> None:
        """`providers` and `provider_options` are ONNX Runtime's; wrong ones are replaced by the processor's with a UserWarning, as there,
        unless `tuning` has `enable_fallback=0`. Its other arguments have no effect.

        Raises: ONNX Runtime's exceptions, each with hetero's error as its cause; ValueError, TypeError for wrong arguments.
        """
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if not (sess_options is None or hasattr(sess_options, "enable_profiling")):
            raise TypeError(f"sess_options is {sess_options!r}; expected SessionOptions")
        self._source: str | bytes = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        self._model_bytes = self._source if isinstance(self._source, bytes) else None
        self._model_path = None if isinstance(self._source, bytes) else self._source
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        # An installed ONNX Runtime's own class does not say what it changes in a model.
        self._changes = self._sess_options if isinstance(self._sess_options, SessionOptions) else SessionOptions()
        self._lock = Lock()
        self._profiles: deque[Profile] = deque(maxlen=1000)  # the last runs
        self._begin = time.monotonic_ns()
        self._has_open_sizes = False
        self._open_ranks: frozenset[str] = frozenset()
        try:
            self._place(providers, provider_options)
        except ValueError as error:
            if not tuning.get("enable_fallback", True):
                raise
            warnings.warn(f"{error} {CPU_PROVIDER} is used.", stacklevel=2)
            self._place([CPU_PROVIDER], None)
        if self._sess_options.optimized_model_filepath:
            _copy_model(self._source, self._sess_options.optimized_model_filepath, self._changes.entries)

    # Loading

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None) -> None:
        """Loads the model again for these providers. Raises: RuntimeError for a name that nobody knows; errors of the constructor."""
        for name in read_providers(providers, provider_options):
            if name not in get_all_providers():
                raise RuntimeError(f"Unknown Provider Type: {name}")
        self._place(providers, provider_options)

    def _place(self, providers: Sequence[Any] | None, provider_options: Sequence[Any] | None) -> None:
        own = self._changes.providers if providers is None else []
        self._placement = place_session(own or providers, provider_options)
        with self._lock:
            self._load()

    def _load(self) -> None:
        """Loads the model on its device; if no device of AUTO takes it whole, on HETERO over the host's devices."""
        placement, options = self._placement, self._sess_options
        config: dict[str, Any] = {**placement.config, **({"PERF_COUNT": True} if options.enable_profiling else {})}
        if options.intra_op_num_threads > 0:
            config[THREADS_KEY] = limit_threads(options.intra_op_num_threads, where="intra_op_num_threads")
        core = find_core()
        with raise_as_onnxruntime():
            proto, _, _ = read_proto(self._source, holds_weights=False)
            shapes = _find_shapes(proto, self._changes)
            model = self._change_model(shapes)
            try:
                self.network = core.load_network(model, placement.device, config)
            except UnsupportedNodesError:
                splitter = None if placement.is_chosen else find_splitter()
                if splitter is None:
                    raise
                self.network = core.load_network(model, splitter, config)
                report_once(f"no device takes '{proto.graph.name}' whole; {splitter} divides it")
            values = () if shapes else (*proto.graph.input, *proto.graph.output)  # the network knows the sizes that were set
            self._describe(proto, declared={value.name: value.type for value in values})
        self._process = os.getpid()

    def _change_model(self, shapes: Mapping[str, Any]) -> Any:
        """Returns the path or bytes if the options change nothing in the model, else the changed network."""
        source: Any = self._source
        weights, files, folder = self._changes.weights, self._changes.files, self._changes.entries.get(FOLDER_ENTRY)
        if weights or files or self._open_ranks:
            folder = folder or (os.path.dirname(os.path.abspath(source)) if isinstance(source, str) else None)
            source = _replace_weights(source, weights, files)
            for value in source.graph.input:
                if value.name in self._open_ranks:
                    value.type.tensor_type.ClearField("shape")
        if not (weights or files or folder or shapes or self._has_open_sizes or self._open_ranks):
            return source
        network = find_core().read_network(source, base=folder)
        network = network.with_shapes(shapes) if shapes else network
        if self._has_open_sizes:
            sizes = {spec.name: spec.shape for spec in network.inputs if spec.shape}
            opened = {name: tuple(None if isinstance(size, str) else size for size in shape) for name, shape in sizes.items()}
            network = network.with_shapes(opened)
        return network

    def _describe(self, proto: onnx.ModelProto, *, declared: Mapping[str, onnx.TypeProto]) -> None:
        """Keeps the descriptions of inputs, outputs and model, as the file declares them; of types that it does not, as the network."""
        network, graph = self.network, proto.graph

        def describe(specs: Sequence[ValueSpec]) -> list[NodeArg]:
            return [describe_value(spec, declared.get(spec.name)) for spec in specs]

        self._inputs_meta, self._outputs_meta = describe(network.inputs), describe(network.outputs)
        # The names of the inputs if arrays for them need no translation.
        are_plain = all(spec.dtype not in (None, "string") and spec.shape != () for spec in network.inputs)
        self._plain_inputs = tuple([spec.name for spec in network.inputs]) if are_plain else ()
        self._overridable_initializers = describe(network.replaceable if proto.ir_version >= 4 else ())
        version = proto.model_version if proto.HasField("model_version") else _NO_VERSION
        descriptions = proto.doc_string, graph.doc_string, version, dict(network.metadata)
        self._model_meta = ModelMetadata(proto.producer_name, graph.name, proto.domain, *descriptions)

    # Descriptions

    # The compiled class that a session wraps in ONNX Runtime.
    _sess = property(lambda self: self)

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

    enable_fallback = disable_fallback

    # Runs

    def run(self, output_names: Names, input_feed: Feed, run_options: RunOptions | None = None) -> list[Any]:
        """Returns the outputs of these names (or positions), all if there are none; they belong to the caller.

        `input_feed`: values by name, or all values in order. Raises: ValueError for missing inputs; InvalidArgument, RuntimeException.
        """
        feed, names = self._check_feed(input_feed), self._name_outputs(output_names)
        outputs = self._run_on_network(lambda network: self._infer(network, feed, run_options), feed)
        return [outputs[name] for name in names]

    def run_async(
        self,
        output_names: Names,
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Starts a run; `callback` gets the outputs, `user_data` and the error's text, if any. Raises: ValueError for missing inputs."""

        def start(network: ExecutableNetwork) -> None:
            request = network.create_infer_request()

            def end(_: Any, error: BaseException | None) -> None:
                if error is not None:
                    callback([], user_data, str(convert_error(error) if isinstance(error, HeteroError) else error))
                    return
                outputs = _take_outputs(request, network, feed)
                callback([outputs[name] for name in names], user_data, "")

            request.set_callback(end)
            request.start_async(feed)

        try:
            feed, names = dict(self._check_feed(input_feed)), self._name_outputs(output_names)
            self._run_on_network(start, feed)
        except OnnxRuntimeError as error:
            callback([], user_data, str(error))

    def run_with_ort_values(
        self,
        output_names: Names | Mapping[str, OrtValue],
        input_dict_ort_values: Mapping[str, OrtValue] | Names,
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Returns the outputs as OrtValues. Raises: as `run`."""
        asked: Any = output_names
        feed: Any = input_dict_ort_values
        if isinstance(asked, Mapping):  # the method of ONNX Runtime's compiled class, `_sess`, has the inputs first
            asked, feed = feed, asked
        names = self._name_outputs(asked)
        type_of_name = {spec.name: spec.type for spec in self._outputs_meta}
        outputs = self.run(names, feed, run_options)
        return [OrtValue(value, type_of_name[name]) for name, value in zip(names, outputs, strict=True)]

    def io_binding(self) -> IOBinding:
        """Returns bindings of inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Runs on the bound inputs; the outputs go to the bound memory, or to new arrays. Raises: as `run`."""
        if iobinding.session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        feed = self._check_feed(iobinding.inputs)
        self._run_on_network(lambda network: iobinding.run(network, feed, run_options), feed)

    def _run_on_network(self, run: Callable[[ExecutableNetwork], Any], feed: Mapping[str, Any]) -> Any:
        if self._process != executors.process:  # a forked child
            self._lock = Lock()  # another thread of the parent may have held it
            self._load()
        network = self.network
        try:
            try:
                return run(network)
            except InputShapeError:
                if not self._open_sizes(network, feed):
                    raise
            return run(self.network)
        except (InputShapeError, InputTypeError) as error:
            raise convert_error(error, word_fault(self._inputs_meta, feed)) from error
        except HeteroError as error:
            raise convert_error(error) from error

    def _open_sizes(self, network: ExecutableNetwork, feed: Mapping[str, Any]) -> bool:
        """Loads the model with nameless sizes if the feed gives two sizes to one name, and without the rank of an input that is declared
        without dimensions if the feed gives it any, which ONNX Runtime takes. Says whether it did.
        """
        sizes: dict[str, set[int]] = {}
        tensors = [spec for spec in network.inputs if spec.name in feed and isinstance(spec.type, TensorType)]
        for spec in tensors:
            for size, name in zip(np.shape(feed[spec.name]), spec.shape or (), strict=False):
                if isinstance(name, str):
                    sizes.setdefault(name, set()).add(size)
        repeated = [name for name, values in sizes.items() if len(values) > 1]
        ranked = [spec.name for spec in tensors if spec.shape == () and np.ndim(feed[spec.name])]
        if repeated:
            report_once(f"{network.where}: a run gives several sizes to {', '.join(repeated)}; it is loaded with open sizes")
        if ranked:
            report_once(f"{network.where}: a run gives dimensions to {', '.join(ranked)}; it is loaded with an open rank")
        with self._lock:
            if (repeated or ranked) and self.network is network:  # another thread may have loaded it
                self._has_open_sizes |= bool(repeated)
                self._open_ranks |= set(ranked)
                self._load()
        return bool(repeated or ranked)

    def _infer(self, network: ExecutableNetwork, feed: Mapping[str, Any], options: RunOptions | None) -> dict[str, Any]:
        if options is None and not network.measures:
            return network.infer(feed)
        request = network.create_infer_request()
        _run_request(request, feed, options)
        if request.profile is not None:
            self._profiles.append(request.profile)
        return _take_outputs(request, network, feed)

    def _check_feed(self, feed: Feed) -> dict[str, Any]:
        """Returns the values by name. Raises: ValueError for missing inputs, InvalidArgument for a wrong number of values."""
        network, plain = self.network, self._plain_inputs
        if type(feed) is dict and len(feed) == len(plain) and all([type(feed.get(name)) is np.ndarray for name in plain]):  # noqa: C419  # a generator takes twice as long
            return feed
        if isinstance(feed, Mapping):  # ONNX Runtime skips values that are None, of any name
            feed = {name: value for name, value in feed.items() if value is not None}
        with raise_as_onnxruntime():
            named = dict(name_inputs(feed, network.inputs, network=network.name))
        absent = [each for each in self._inputs_meta if each.name not in named and each.name not in network.border.defaults]
        missing = [each.name for each in absent if not each.type.startswith("optional")]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(named)}).")
        for spec in network.inputs:
            value: Any = named.get(spec.name)
            if isinstance(value, OrtValue):
                named[spec.name] = value = value.value
            if spec.dtype == "string" and isinstance(value, np.ndarray) and value.dtype.kind in "SV":
                named[spec.name] = np.array([bytes(text).decode() for text in value.flat], object).reshape(value.shape)
            elif spec.shape == () and np.ndim(value) and np.size(value) == 1:
                named[spec.name] = np.reshape(value, ())  # ONNX Runtime does not compare the shape of a scalar
        return named

    def _name_outputs(self, names: Names) -> Sequence[str]:
        """Returns names of outputs. Raises: InvalidArgument for a name or position that the model does not have."""
        own = self.network.output_names
        if not names:
            return own
        named = [own[name] if isinstance(name, int) and 0 <= name < len(own) else str(name) for name in names]
        for name in named:
            if name not in own:
                raise make_error("InvalidArgument", f"Invalid output name: {name}; the outputs are {', '.join(own)}")
        return named

    # Profiling

    def end_profiling(self) -> str:
        """Writes a trace of the last runs for Chrome or Perfetto, and returns its path; "" without `enable_profiling`.

        As ONNX Runtime's, the file is a list with an event in each line.
        """
        if not self._sess_options.enable_profiling:
            return ""
        from hetero_core.reports.trace import profiles_to_trace  # only profiles need it

        path = f"{self._sess_options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        events = json.loads(profiles_to_trace(tuple(self._profiles)))["traceEvents"]
        Path(path).write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")
        return path

    def get_profiling_start_time_ns(self) -> int:
        """Returns the moment when the session was made, in nanoseconds of `time.monotonic_ns`."""
        return self._begin


class IOBinding:
    """The inputs and outputs of runs, bound to arrays, pointers and OrtValues in the host's memory."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.inputs: dict[str, Any] = {}
        # Output -> the array that it is written to; None for a new array.
        self._targets: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        # The request of the last run, with the network and the arrays that it writes to.
        self._request: Any = None
        self._written: tuple[Any, ...] = ()

    # The compiled class that a binding wraps in ONNX Runtime.
    _iobinding = property(lambda self: self)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an input to an array."""
        self.inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to the host's memory at a pointer. Raises: NotImplemented for another memory."""
        self.inputs[name] = view_memory(name, device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to an OrtValue."""
        self.inputs[name] = ortvalue.value

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
        (name,) = self.session._name_outputs([name])
        if buffer_ptr is None:
            report_memory(device_type)
            self._targets[name] = None
        else:
            self._targets[name] = view_memory(name, device_type, element_type, shape or (), buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to an OrtValue."""
        (name,) = self.session._name_outputs([name])
        self._targets[name] = ortvalue.tensor

    def synchronize_inputs(self) -> None:
        """Has no effect: the host's memory is always up to date."""

    synchronize_outputs = synchronize_inputs

    def get_outputs(self) -> list[OrtValue]:
        """Returns the outputs of the last run, in the order in which they were bound."""
        return [OrtValue(value) for value in self._outputs.values()]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Returns copies of the outputs of the last run, in the order in which they were bound."""
        return [value.numpy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs."""
        self._targets.clear()
        self._outputs = {}

    def run(self, network: ExecutableNetwork, feed: Mapping[str, Any], options: RunOptions | None) -> None:
        """Runs; the device writes to the bound memory itself, unless that memory is an input's or another output's as well."""
        arrays = [value for value in (*feed.values(), *self._targets.values()) if isinstance(value, np.ndarray)]
        presets = {
            name: target
            for name, target in self._targets.items()
            if target is not None and sum(np.may_share_memory(target, other) for other in arrays) == 1
        }
        written = (network, *presets, *map(id, presets.values()))
        if self._request is None or written != self._written:
            self._request, self._written = network.create_infer_request(), written
            for name, target in presets.items():
                self._request.set_tensor(name, target)
        _run_request(self._request, feed, options)
        outputs = _take_outputs(self._request, network, feed)
        for name, target in self._targets.items():
            value = outputs[name]
            if target is None:  # the next run of the request must not overwrite it
                target = np.array(value) if isinstance(value, np.ndarray) else value
            elif name not in presets:
                np.copyto(target, value)
            self._outputs[name] = target


SessionIOBinding = IOBinding
"""The name of ONNX Runtime's compiled class, which a binding wraps there."""


def _run_request(request: Any, feed: Mapping[str, Any], options: Any) -> None:
    """Runs a request; another thread may end it by `options`. Raises: Fail if they say that the run is to end."""
    if options is None:
        request.infer(feed)
        return
    if options.terminate:
        raise make_error("Fail", "Exiting due to terminate flag being set to true")
    requests: set[Any] = getattr(options, "requests", set())
    requests.add(request)
    try:
        request.start_async(feed)
        if options.terminate:
            request.cancel()
        request.wait()
    finally:
        requests.discard(request)


def _take_outputs(request: Any, network: ExecutableNetwork, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a request's last run; constants, and outputs that share memory, are copied."""
    outputs = tuple(request.get_tensor(name) for name in network.output_names)
    return dict(zip(network.output_names, own_outputs(outputs, tuple(feed.values())), strict=True))


def _find_shapes(proto: onnx.ModelProto, options: SessionOptions) -> dict[str, tuple[Any, ...]]:
    """Returns the shapes of the inputs in which the options set a size, by name or by denotation."""
    shapes = {}
    for value in proto.graph.input:
        axes = value.type.tensor_type.shape.dim
        shape = shape_of(read_type(value.type, value.name)) or ()
        fixed = tuple(
            options.sizes.get(axis.dim_param, options.sizes_of_denotations.get(axis.denotation, size))
            for size, axis in zip(shape, axes, strict=True)
        )
        if fixed != shape:
            shapes[value.name] = fixed
    return shapes


def _replace_weights(source: str | bytes, weights: Mapping[str, OrtValue], files: Mapping[str, memoryview]) -> onnx.ModelProto:
    """Returns the model with these constants, and with those in these files. Raises: InvalidArgument for a name that it does not have."""
    import onnx  # heavy
    import onnx.external_data_helper
    import onnx.numpy_helper

    model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in weights.items():
        if name not in tensors:
            raise make_error("InvalidArgument", f"the model has no constant '{name}' to replace")
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(value.tensor, name))
    for tensor in filter(onnx.external_data_helper.uses_external_data, tensors.values()):
        place = onnx.external_data_helper.ExternalDataInfo(tensor)
        if place.location not in files:
            continue
        content, begin = files[place.location], place.offset or 0
        end = len(content) if place.length is None else begin + place.length
        if end > len(content):
            size = f"{end} bytes of the file '{place.location}', which has {len(content)}"
            raise make_error("InvalidArgument", f"the constant '{tensor.name}' needs {size}")
        tensor.raw_data = bytes(content[begin:end])
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return model


def _copy_model(source: str | bytes, path: str, entries: Mapping[str, str]) -> None:
    """Writes the model to a path, its constants to a second file if an entry names that."""
    import onnx  # heavy
    import onnx.numpy_helper

    report_once("optimized_model_filepath gets the model as it is; each device optimizes it when it loads it")
    model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
    prefix = "session.optimized_model_external_initializers"
    second_file, threshold = entries.get(f"{prefix}_file_name"), int(entries.get(f"{prefix}_min_size_in_bytes", 1024))
    if second_file is not None:
        Path(path).with_name(second_file).unlink(missing_ok=True)  # the package appends to it
    is_divided = second_file is not None
    for tensor in model.graph.initializer if is_divided else ():
        if not tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:  # the package moves bytes alone
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, path, save_as_external_data=is_divided, location=second_file, size_threshold=threshold)
