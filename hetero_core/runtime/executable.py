"""ExecutableNetwork: the public interface of a loaded network, around a device's Executable.

The chain of calls is bound once, at load: `run` is the device's own method unless a wrapper stands around `infer`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import get_ident, main_thread
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NoReturn
from weakref import ref

from hetero_core.contract import Array, CancelToken, Done, Executable, OwnOutputs, Payload, RunContext, freeze_mapping
from hetero_core.devices.config import DEADLINE_KEY, LIMIT_KEYS, LOG_KEY, MEMORY_LIMIT_KEY, convert_changes, resolve_key
from hetero_core.devices.device import find_metric
from hetero_core.devices.provenance import call_named, read_mapping
from hetero_core.devices.registry import CallTarget
from hetero_core.devices.threads import EXCLUSIVE_KEY, PRIORITY_KEY, STREAMS_KEY, THREAD_KEYS, read_value
from hetero_core.errors import (
    BlobDamagedError,
    BlobError,
    ClosedError,
    ConfigKeyError,
    HeteroError,
    InferenceError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    PluginError,
    RequestCancelledError,
    enumerate_choices,
    refuse_pickling,
)
from hetero_core.executed import ExecutedNode, join_executed
from hetero_core.limits import RunLimits
from hetero_core.network.border import (
    EMPTY_BORDER,
    FIRST_WITH_OPTIONAL_INPUTS,
    NO_DECLARATIONS,
    Border,
    Declarations,
    InputInfo,
    OutputInfo,
    describe_values,
    pack_border,
    pack_hints,
    unpack_border,
    unpack_hints,
)
from hetero_core.network.graph import EMPTY, Network
from hetero_core.network.types import HOST, read_record
from hetero_core.profile import Profile
from hetero_core.runtime import executors
from hetero_core.runtime.executors import FORK_ADVICE, RANKS, Executor, keep_in_child, retain
from hetero_core.runtime.inputs import DeviceTensor, QuickCheck, name_inputs, order_inputs
from hetero_core.runtime.outputs import OutputCheck, own_outputs, watch_shapes
from hetero_core.runtime.request import NO_STATE, InferRequest, Start, wait_for_runs
from hetero_core.runtime.transfers import bring_in, take_home

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hetero_core.blobs.container import BlobHeader
    from hetero_core.blobs.samples import Sample
    from hetero_core.runtime.loading import Replacements

logger = logging.getLogger(__name__)

MEASURING_KEY = "PERF_COUNT"
_OWN_KEYS = (*LIMIT_KEYS, LOG_KEY, MEASURING_KEY, PRIORITY_KEY)
"""The keys that the core itself reads, for each run."""

_BORDER, _HINTS, _METADATA = "hetero/border", "hetero/declarations", "hetero/metadata"
_NETWORK = {key: f"hetero/network/{key}" for key in ("model", "weights")}
"""The sections of a blob that the core adds, if they are needed; the plugin that imports the blob does not see them."""

_INPUT_ERRORS = (InputNameError, InputShapeError, InputTypeError)

RunFunction = Callable[[tuple[Array, ...], RunContext], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The core's own part of a loaded network or of a blob; `network` is None unless some of its constants may be replaced."""

    border: Border = EMPTY_BORDER
    declarations: Declarations = NO_DECLARATIONS
    network: Network | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    def pack(self, outputs: Collection[str]) -> dict[str, bytes]:
        """Returns sections: the border, if it affects runs or layouts, hints about outputs, metadata, and replaceable constants.

        These need the network itself. A model of IR version 3, which has to list every weight as an input, is exported without it.
        """
        border, network = self.border, self.network
        packed = {
            _BORDER: pack_border(border) if border.shapes_runs or border.layouts else b"",
            _HINTS: pack_hints(self.declarations, outputs),
            _METADATA: json.dumps(dict(self.metadata)).encode() if self.metadata else b"",
        }
        sections = {name: section for name, section in packed.items() if section}
        if network is not None and network.border.replaceable and network.ir_version >= FIRST_WITH_OPTIONAL_INPUTS:
            from hetero_core.network.writer import pack_network  # only an export needs it

            sections.update((_NETWORK[key], bytes(part)) for key, part in pack_network(network).items())
        return sections

    @classmethod
    def take(cls, payload: Payload) -> tuple[Payload, Surroundings]:
        """Returns the plugin's payload, without samples, and the core's own part. Raises: BlobDamagedError."""
        from hetero_core.blobs.samples import PREFIX  # only an import needs it

        rest = {name: section for name, section in payload.sections.items() if not name.startswith(PREFIX)}
        own = {name: bytes(rest.pop(name)) for name in (_BORDER, _HINTS, _METADATA) if name in rest}
        network = None
        try:
            if _NETWORK["model"] in rest:
                from hetero_core.network.writer import unpack_network  # only an import needs it

                network = unpack_network({key: rest.pop(name) for key, name in _NETWORK.items()})
            border = unpack_border(own[_BORDER]) if _BORDER in own else EMPTY_BORDER
            declarations = unpack_hints(own[_HINTS]) if _HINTS in own else NO_DECLARATIONS
            metadata = read_record(Mapping[str, str], json.loads(own.get(_METADATA, b"{}")), "metadata")
        except (ValueError, KeyError, TypeError) as error:  # errors of networks are ValueErrors
            raise BlobDamagedError(f"the own part of the core in the blob: {error}") from error
        return replace(payload, sections=rest), cls(border, declarations, network, metadata)


@dataclass(frozen=True, slots=True)
class Binding:
    """The device of a loaded network, the executable that it has made, how that runs, its threads, and the core's own part."""

    target: CallTarget
    made: Executable
    run: RunFunction
    executor: Executor
    around: Surroundings
    is_from_cache: bool = False
    replacements: Replacements | None = None


class ExecutableNetwork:
    """A network loaded on a device. Shared by threads; each thread or task works on a request of its own."""

    reload: Callable[[], ExecutableNetwork] | None = None
    """Loads the network again in a forked child; None if its use there is an error."""
    _twin: ExecutableNetwork | None = None
    _changes: Mapping[str, Any] = MappingProxyType({})

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            f"network '{self.name}' on {self.device}",
            "load its path in the other process, or pass the bytes that export_network(stream) writes and import them there with "
            "Core().import_network(bytes)",
        )

    def __init__(self, name: str, fingerprint: Callable[[], str], executable: Executable, binding: Binding) -> None:
        self.name = name
        self.border = border = binding.around.border
        device, entry, config = binding.target.device, binding.target.entry, binding.target.config
        # The part that moves each state which stays with a part of a composed device. Asked before the specs are read: the device may
        # name another memory in them.
        self.homes = executable.keep_states({state.input: state.output for state in border.states}) if border.states else {}
        self.all_inputs, self.all_outputs = executable.inputs, executable.outputs
        # The request, not the caller, passes the inputs and outputs of states.
        tied = {state.input for state in border.states}, {state.output for state in border.states}
        self.inputs = tuple(spec for spec in self.all_inputs if spec.name not in tied[0])
        self.outputs = tuple(spec for spec in self.all_outputs if spec.name not in tied[1])
        self.output_names = tuple(spec.name for spec in self.outputs)
        self._quick_check = QuickCheck(self.inputs, border)
        # Constants that a run may replace.
        self._replacements = binding.replacements
        self.replaceable = () if binding.replacements is None else binding.replacements.specs
        self.device = device
        self.executable = executable
        self.takes_tensors = executable.takes_tensors
        self.run_device: RunFunction = binding.run
        self.to_host: Callable[[Array], Array] = lambda array: entry.call("to_host", device, array=array)
        self.from_host: Callable[..., Array] = lambda array, spec, target=None: entry.call(
            "from_host", device, array=array, spec=spec, target=target
        )
        self.where = f"network '{name}' on {device}"
        self._fingerprint = fingerprint
        self._binding = binding
        self._keys = entry.keys(device)
        self.metadata = binding.around.metadata
        self.provenance = entry.provenance
        self._is_closed = False
        self._await_action: Callable[[], None] | None = None
        self.thread_of_run: dict[RunContext, int] = {}
        """The runs that the device has not ended, each with the thread that computes it; 0 if the device started it by itself."""
        self.process = os.getpid()
        keep_in_child(self)
        is_bare = binding.run == executable.run
        # A wrapper sees each run, and a network that waits for its turn is not passed over.
        self._may_delegate = is_bare and not border.states and not border.replaceable and not config[EXCLUSIVE_KEY]
        self._use_config(config)
        self._is_host = all(spec.memory == HOST for spec in (*self.all_inputs, *self.all_outputs))
        # Inputs and outputs of states that are made and read in the same device memory, so that they never leave it.
        memory_in, memory_out = ({spec.name: spec.memory for spec in specs} for specs in (self.all_inputs, self.all_outputs))
        ties = [state for state in border.states if HOST != memory_in[state.input] == memory_out[state.output]]
        self.resident = frozenset(name for state in ties for name in (state.input, state.output))
        self._stays_in_memory = all(spec.memory == HOST or spec.name in self.resident for spec in self.all_outputs)
        self.shape_watch = watch_shapes(binding.around.declarations, self.all_outputs, self.where, config)
        self.check_outputs = OutputCheck(self.all_outputs, self.resident, self.shape_watch, blame=entry.provenance).check
        # Working memory and states belong to a request.
        self._needs_request = bool(border.states) or getattr(type(executable), "create_state", None) is not Executable.create_state
        # A device starts runs by itself only if no wrapper stands around them, and no other network has its turn.
        self._starts = executable.start is not None and is_bare and not config[EXCLUSIVE_KEY]

    def surround(self, executable: Executable) -> ExecutableNetwork:
        """Returns this network with another executable, which runs on the same device and may run this network within its own runs."""
        return ExecutableNetwork(self.name, self._fingerprint, executable, replace(self._binding, run=executable.run))

    @property
    def start(self) -> Start | None:
        """The function that starts a run on an asynchronous device; None if a thread of the core runs it."""
        # Not stored: a network that refers to its own method is a cycle, which keeps it and its device's threads until the garbage
        # collector runs.
        return self._start_run if self._starts else None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the network that was loaded; computed on first use."""
        return self._fingerprint()

    @property
    def input_info(self) -> Mapping[str, InputInfo]:
        """Input -> name, precision, layout and shape."""
        return describe_values(InputInfo, self.inputs, self.border)

    @property
    def output_info(self) -> Mapping[str, OutputInfo]:
        """Output -> name, precision, layout and shape, as of the network that was loaded."""
        return describe_values(OutputInfo, self.outputs, self.border)

    def run(self, inputs: Any, context: Any = None) -> Any:
        """Runs the device on inputs by position, for devices made of networks; users call `infer`.

        Raises: TypeError with the call of `infer` for the arguments of another project's `run`.
        """
        if hasattr(context, "state"):
            return self.run_device(inputs, context)
        feeds = ", ".join(f'"{spec.name}": ...' for spec in self.inputs)
        names = ", ".join(self.output_names)
        raise TypeError(f"use infer: outputs = loaded.infer({{{feeds}}}), a dict by the names of the outputs: {names}")

    # A property, as __getattr__ would make each access to an attribute slower.

    @property
    def get_inputs(self) -> NoReturn:
        """There is no `get_inputs`. Raises: AttributeError with the names to use."""
        raise AttributeError(
            "a loaded network has no 'get_inputs' and 'get_outputs'; use loaded.inputs and loaded.outputs, two tuples"
        )

    get_outputs = get_inputs

    # Runs

    def __call__(self, inputs: Any) -> dict[str, Any]:
        """Returns the outputs by name, as `infer` does."""
        return self.infer(inputs)

    def infer(self, inputs: Any) -> dict[str, Any]:
        """Returns the outputs by name; they belong to the caller. May be called by several threads at once.

        `inputs`: a mapping of names, or of positions, to values; a list or tuple of all values in order; the value of the only input.

        Raises: InputNameError, InputShapeError, InputTypeError; errors of the device.
        """
        if self.process != executors.process:
            self.require_process()
        delegate = self.executable.delegate if self._delegates else None
        try:
            if delegate is None:
                outputs = self._run_once(inputs)
            else:
                outputs = delegate._run_once(inputs)
                self.executable.delegated_runs += 1
        except HeteroError as error:
            # Inputs that the delegate refuses, as tensors in a device's memory, are this network's to judge.
            if delegate is None or not (isinstance(error, _INPUT_ERRORS) or self.executable.take_back(error)):
                raise
            outputs = self._run_once(inputs)
        return dict(zip(self.output_names, outputs))  # noqa: B905  # of one length, as check_outputs says; 0.13 us

    def _run_once(self, inputs: Any) -> tuple[Any, ...]:
        """Returns the outputs by position, which belong to the caller. Raises: as `infer` does."""
        if self._needs_request or self.deadline is not None:
            run = InferRequest(self).run(inputs)
            return own_outputs(run.outputs, run.inputs)
        computing, ordered = self.route_inputs(inputs)
        context = computing.open_context(None)
        outputs = computing.check_outputs(computing.run_host(ordered, context), context)
        return outputs if type(outputs) is OwnOutputs else own_outputs(outputs, ordered)

    def create_infer_request(self) -> InferRequest:
        """Returns a request with working memory of its own. Raises: ClosedError."""
        self._require_open()
        return InferRequest(self)

    def create_state(self, beside: object = None) -> object:
        """Returns working memory of the device for a request; `beside` is its first working memory. Raises: as `run_host` does."""
        try:
            if beside is None or beside is NO_STATE:
                return self.executable.create_state()
            return self.executable.create_spare(beside)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a device may raise anything; the caller gets one kind
            raise self.blame_device(error)  # noqa: B904  # it has its cause

    def open_context(self, state: object, token: CancelToken | None = None) -> RunContext:
        """Returns the context of a run that begins here: measured if PERF_COUNT is set, limited by MEMORY_LIMIT and DEADLINE."""
        if not self.measures and not self._has_limits and token is None:  # as most runs
            return RunContext(state)
        profile = Profile(str(self.device)) if self.measures else None
        token = CancelToken() if token is None else token
        return RunContext(state, profile=profile, token=token, limits=self.create_limits())

    def create_limits(self) -> RunLimits | None:
        """Returns the limits of a run; None if neither MEMORY_LIMIT nor DEADLINE is set."""
        return RunLimits(self.where, memory_limit=self.memory_limit) if self._has_limits else None

    def route_inputs(self, inputs: Any) -> tuple[ExecutableNetwork, tuple[Any, ...]]:
        """Returns the network that computes a run, and the caller's values in the order of its inputs: this network, or a second
        network if constants are replaced.

        Raises: InputNameError, InputShapeError, InputTypeError; errors of loading the second network.
        """
        if self._replacements is not None:
            self._require_open()
            computing = self._replacements.find(name_inputs(inputs, self.inputs, network=self.name))
            if computing is not None:
                network, named = computing
                return network, network.order_inputs(named)
        ordered = self._quick_check.match(inputs)
        return self, self.order_inputs(inputs) if ordered is None else ordered

    def find_delegate(self, inputs: tuple[Any, ...] = ()) -> ExecutableNetwork | None:
        """Returns the network that computes a run in place of this one; None if this network computes."""
        delegate: ExecutableNetwork | None = self.executable.delegate if self._delegates else None
        return delegate if delegate is not None and DeviceTensor not in map(type, inputs) else None

    def order_inputs(self, inputs: Any) -> tuple[Any, ...]:
        """Returns the caller's values in the order of the inputs. Raises: InputNameError, InputShapeError, InputTypeError."""
        ordered = self._quick_check.match(inputs)
        if ordered is None:
            named = name_inputs(inputs, self.inputs, network=self.name)
            ordered = order_inputs(named, self.inputs, network=self.name, border=self.border, takes_tensors=self.takes_tensors)
            self._quick_check.keep(ordered)
        return ordered

    def run_host(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs the device on host arrays, by position, and returns its outputs as host arrays. A profile gets the begin and the end.

        Raises: InferenceError with the device's own error as its cause; a HeteroError of the device as it is.
        """
        profile = context.profile
        if profile is not None:
            profile.begin_run()
        self.thread_of_run[context] = get_ident()  # of the thread that computes
        if self._is_closed or self.process != executors.process:
            self._refuse(context)
        try:
            if self._is_host:
                return self.run_device(inputs, context)
            placed = bring_in(self, inputs, profile)
            return take_home(self, self.run_device(placed, context), profile, context.tensors)  # type: ignore[no-any-return]  # checked by the caller
        except (Exception, SystemExit) as error:  # noqa: BLE001  # as in create_state
            raise self.blame_device(error)  # noqa: B904  # it has its cause
        finally:
            self.thread_of_run.pop(context, None)
            if profile is not None:
                profile.end_run()

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Returns the future of a task on the threads of the network, which runs before waiting tasks of a lower MODEL_PRIORITY if
        networks take turns. Raises: ClosedError.
        """
        return self._binding.executor.submit(task, rank=RANKS[self.config[PRIORITY_KEY]])

    def _start_run(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Starts a run with inputs in the device's memory; `done` gets outputs on the host. Raises: as `run_host` does."""
        start, profile = self.executable.start, context.profile
        assert start is not None

        expected_calls = [1]

        def end(outputs: Any, error: BaseException | None) -> None:
            if not expected_calls or context not in self.thread_of_run:
                logger.warning("%s called `done` a second time for one run of %s; the call is ignored", self.provenance, self.where)
                return
            expected_calls.clear()
            if error is not None or self._stays_in_memory:
                finish(outputs, error)
                return
            # On a thread of the core: `to_host` may wait for the device's own thread, which is the one that calls here.
            try:
                future = self.submit(lambda: take_home(self, outputs, profile, context.tensors))
            except ClosedError as closed:
                finish(None, closed)
                return
            future.add_done_callback(bring_home)

        def bring_home(ended: Future[Any]) -> None:
            dropped = RequestCancelledError(f"the Core was closed before the outputs of a run on {self.device} were copied")
            error = dropped if ended.cancelled() else ended.exception()
            finish(ended.result() if error is None else None, error)

        def finish(outputs: Any, error: BaseException | None) -> None:
            # The device has finished: the callback may close the network.
            self._leave(context)
            done(outputs, error)

        if profile is not None:
            profile.begin_run()
        self.thread_of_run[context] = 0
        if self._is_closed or self.process != executors.process:
            self._refuse(context)
        try:
            start(inputs if self._is_host else bring_in(self, inputs, profile), context, end)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # as in create_state
            self._leave(context)
            raise self.blame_device(error)  # noqa: B904  # it has its cause

    def _refuse(self, context: RunContext) -> None:
        """Raises ClosedError for a run that was noted as under way.

        It is noted before the check for closing: `close` first marks the network as closed and then looks at the runs.
        """
        del self.thread_of_run[context]
        self._require_open()

    def _leave(self, context: RunContext) -> None:
        """Notes that the device has returned from a run."""
        self.thread_of_run.pop(context, None)
        if context.profile is not None:
            context.profile.end_run()

    def blame_device(self, error: BaseException) -> HeteroError:
        """Returns the error to raise for a failed run: a HeteroError with a note, else an InferenceError with this error as its cause."""
        where = f"on {self.device} ({self.provenance})"
        if isinstance(error, HeteroError):
            error.add_note(f"while network '{self.name}' ran {where}")
            return error
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        blamed = InferenceError(f"network '{self.name}' failed {where}: {type(error).__name__}: {error}{notes}")
        blamed.__cause__ = error
        return blamed

    # Exports and views

    def export_network(self, target: str | os.PathLike[str] | IO[bytes], *, samples: Iterable[Sample] = ()) -> None:
        """Writes the loaded network as a blob, to a path or a binary stream; a file appears complete or not at all.

        `samples` are pairs of inputs and expected outputs by name, runs of one request in order; `hetero verify` compares with them.

        Raises: NotImplementedByDeviceError when the device cannot export; BlobError when the file cannot be written; for inputs of
        samples as `infer`.
        """
        from hetero_core.blobs.container import write_blob  # only an export needs these
        from hetero_core.blobs.samples import pack_samples
        from hetero_core.files import replace_file

        sections = pack_samples((self._convert_inputs(inputs), outputs) for inputs, outputs in samples)
        header, payload = self.pack()
        payload = replace(payload, sections={**payload.sections, **sections})
        place = "the stream" if hasattr(target, "write") else f"'{os.fspath(target)}'"
        try:
            if hasattr(target, "write"):
                write_blob(header, payload, target)  # type: ignore[arg-type]  # hasattr does not narrow the union
                return
            with replace_file(target) as stream:
                write_blob(header, payload, stream)
        except OSError as error:
            reason = error if hasattr(target, "write") else error.strerror or error
            raise BlobError(f"cannot write the exported network '{self.name}' to {place}: {reason}") from error

    def _convert_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the inputs as arrays of their types. Raises: as `order_inputs`."""
        specs = [*self.inputs, *(spec for spec in self.replaceable if spec.name in inputs)]
        values = order_inputs(inputs, specs, network=self.name, border=self.border)
        return {spec.name: value for spec, value in zip(specs, values, strict=True) if spec.name in inputs}

    def find_postponer(self) -> Callable[[Callable[[ExecutableNetwork], None]], None] | None:
        """Returns a function if an export would wait: it has an action called with this network as soon as it need not, at the latest
        by `close`.
        """
        when_final = self.executable.when_final
        if when_final is None:
            return None
        reference = ref(self)

        def postpone(action: Callable[[ExecutableNetwork], None]) -> None:
            def call() -> None:
                network = reference()
                if network is not None and main_thread().is_alive():
                    action(network)

            self._await_action = when_final(call)

        return postpone

    def finish(self) -> None:
        """Waits for the action that `find_postponer` has promised to call; not at the end of the process, when devices are at rest."""
        if self._await_action is not None and main_thread().is_alive():
            self._await_action()

    def pack(self) -> tuple[BlobHeader, Payload]:
        """Returns the header and the content of an exported blob. Raises: NotImplementedByDeviceError, ClosedError."""
        from hetero_core.blobs.container import BlobHeader  # only an export needs both
        from hetero_core.devices.provenance import find_core_version

        self._require_open()
        entry = self._binding.target.entry
        payload = entry.call("export_network", self.device, executable=self._binding.made)
        if not isinstance(payload, Payload):
            raise PluginError(f"{self.provenance} returned {type(payload).__name__} from export_network; expected a Payload")
        sections = self._binding.around.pack([spec.name for spec in self.all_outputs])
        payload = replace(payload, sections={**payload.sections, **sections})
        header = BlobHeader(
            device=self.device.name,
            distribution=self.provenance.distribution,
            plugin_version=self.provenance.version,
            core_version=find_core_version(),
            payload_version=payload.version,
            network=self.name,
            fingerprint=self.fingerprint,
            inputs=tuple(spec.name for spec in self.all_inputs),
            outputs=tuple(spec.name for spec in self.all_outputs),
            config=freeze_mapping((name, value) for name, value in self.config.items() if name not in THREAD_KEYS),
            device_id=self.device.id,
            architecture=entry.find_architecture(self.device),
        )
        return header, payload

    def get_runtime_model(self, profile: Profile | None = None) -> Network:
        """Returns the executed graph: the steps of its devices in order, with layouts, original names, and the times of a profile.

        Its nodes belong to the domain "hetero.executed", so it can be inspected but not loaded. Raises: ClosedError, PluginError.
        """
        self._require_open()
        own = str(self.device)
        placed = [node if node.device else replace(node, device=own) for node in self.list_executed()]
        return join_executed(self.name, self.all_inputs, self.all_outputs, placed, profile)

    def list_executed(self, origins: tuple[str, ...] = ()) -> tuple[ExecutedNode, ...]:
        """Returns the steps in order; a single step for `origins` if the device does not report any. Raises: PluginError."""
        blame = f"device {self.device}"
        nodes = call_named(self.executable.executed_nodes, blame=blame, where="executed_nodes")
        if nodes is None:
            inputs, outputs = (tuple(spec.name for spec in specs) for specs in (self.all_inputs, self.all_outputs))
            types = tuple(spec.type for spec in self.all_outputs)
            return (ExecutedNode(self.name, "Network", origins, inputs, outputs, types=types),)
        if not isinstance(nodes, tuple) or not all(isinstance(node, ExecutedNode) for node in nodes):
            raise PluginError(
                f"{blame} returned {type(nodes).__name__} from executed_nodes; expected a tuple of ExecutedNode, or None"
            )
        return nodes

    def get_metric(self, name: str) -> Any:
        """Returns a metric of the loaded network. Raises: MetricNotFoundError with the near misses and all names."""
        self.require_process()
        metrics = self._metrics()
        value, question = find_metric(name, metrics, self.where)
        return call_named(value, blame=self.provenance, where=question) if callable(value) else value

    def _metrics(self) -> dict[str, Any]:
        blame = str(self.provenance)
        metrics = {
            "NETWORK_NAME": self.name,
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.config[STREAMS_KEY] * self.executable.pipeline_depth,
            "EXECUTION_DEVICES": (str(self.device),),
            "SUPPORTED_CONFIG_KEYS": tuple(sorted(self.config)),
            "LOADED_FROM_CACHE": self._binding.is_from_cache,
            "REFERENCE_NODES": (),
            "SLOW_NODES": (),
            **read_mapping(
                call_named(self.executable.metrics, blame=blame, where="metrics of a network"), blame=blame, where="its metrics"
            ),
        }
        return {**metrics, "SUPPORTED_METRICS": tuple(sorted((*metrics, "SUPPORTED_METRICS")))}

    # Configuration

    def get_config(self, name: str) -> Any:
        """Returns the value of a key that the network was loaded with. Raises: ConfigKeyError with the near misses and all keys."""
        return read_value(name, resolve_key(name, self._keys, device=str(self.device), where=self.where), self.config)

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Changes PERF_COUNT, DEADLINE, MEMORY_LIMIT, MODEL_PRIORITY, LOG_LEVEL, and keys that the device allows to change, for all
        runs that begin afterwards.

        None removes a limit, and resets any other key to its value at load. An error leaves all values unchanged.

        Raises: ConfigKeyError, ConfigValueError, ClosedError; errors of the device.
        """
        self._require_open()
        converted, unset = convert_changes(config, self._keys, device=str(self.device), where=self.where)
        allowed = {*self.executable.settable_keys, *_OWN_KEYS}
        for name, value in {**dict.fromkeys(unset), **converted}.items():
            if name not in allowed:
                raise ConfigKeyError(
                    f"{self.where}: {name} cannot change to {value!r} on a loaded network; the keys that can change are "
                    f"{enumerate_choices(allowed)}. Load the network again with it"
                )
        loaded = self._binding.target.config
        settings = {name: None if name in LIMIT_KEYS else loaded[name] for name in unset} | converted
        changed = freeze_mapping({**self.config, **settings})
        own = {name: value for name, value in settings.items() if name not in _OWN_KEYS}
        if own:
            call_named(lambda: self.executable.set_config(own), blame=self.provenance, where="set_config")
        if LOG_KEY in settings:
            self._binding.target.entry.set_log_level(settings[LOG_KEY])
        self._changes = {**self._changes, **config}
        self._use_config(changed)

    def _use_config(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.measures = bool(config.get(MEASURING_KEY))
        self.deadline: float | None = config.get(DEADLINE_KEY)  # seconds
        self.memory_limit: int | None = config.get(MEMORY_LIMIT_KEY)
        self._has_limits = self.memory_limit is not None or self.deadline is not None
        self._delegates = self._may_delegate and not self.measures and not self._has_limits

    # Lifetime

    def close(self) -> None:
        """Releases the device's resources for this network; a second call, or a call in a forked child, does nothing.

        Waits for the runs that are under way, and cancels runs that take more than 10 seconds. If the device still computes a run a
        second later, its memory cannot be released safely: the network stays open, with a warning.
        """
        if self._is_closed:
            return
        if self.process == os.getpid():
            self.finish()
        self._is_closed = True
        if self.process != os.getpid():
            return
        count = wait_for_runs(self.thread_of_run)
        if count:
            logger.warning("%r is not closed: %d runs have not returned after they were cancelled", self, count)
            return
        self._binding.executor.retire()
        if self._replacements is not None:
            self._replacements.close()
        call_named(self.executable.close, blame=self.provenance, where=f"close of network '{self.name}'")

    def _require_open(self) -> None:
        self.require_process()
        if self._is_closed:
            raise ClosedError(f"network '{self.name}' on {self.device} is closed; load it again")

    def require_process(self) -> None:
        """Loads the network again in a forked child if the Core permits it; else raises ClosedError there, because waiting for a
        thread would never end.
        """
        if self.process != os.getpid():
            if self.reload is None:
                raise ClosedError(f"network '{self.name}' on {self.device} cannot be used here: {FORK_ADVICE}")
            self._reopen(self.reload)

    def _reopen(self, reload: Callable[[], ExecutableNetwork]) -> None:
        """Takes over everything of a network that is loaded here; nothing of the parent is freed. Raises: as a load does."""
        with executors.reopening:
            if self.process == os.getpid() or self._is_closed:
                return
            changes, fresh = self._changes, reload()
            if (fresh.inputs, fresh.outputs) != (self.inputs, self.outputs):
                raise ClosedError(
                    f"{self.where} cannot be opened again here: the inputs or outputs of its model have changed; load it"
                )
            if changes:
                fresh.set_config(changes)
            retain(vars(self).copy())
            vars(self).update(vars(fresh), _twin=fresh)
            # Both objects now share their attributes, so that the Core closes this network together with the new network.
            fresh.__dict__ = vars(self)

    def __enter__(self) -> ExecutableNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ExecutableNetwork('{self.name}' on {self.device})"
