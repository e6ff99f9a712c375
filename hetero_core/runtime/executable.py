"""ExecutableNetwork: the public face that the core gives every device's Executable.

The chain of calls is bound once, at load: `run` is the device's own method unless a wrapper stands around `infer`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import IO, TYPE_CHECKING, Any, NoReturn

from hetero_core.contract import Done, Executable, Payload, RunContext
from hetero_core.devices.config import resolve_key
from hetero_core.devices.metrics import find_metric
from hetero_core.devices.provenance import call_named, call_plugin, describe_exit, is_interrupt, read_mapping
from hetero_core.devices.threads import EXCLUSIVE_KEY, STREAMS_KEY, read_value
from hetero_core.devices.watch import LateCalls
from hetero_core.errors import ClosedError, HeteroError, InferenceError, refuse_pickling
from hetero_core.limits import RunLimits
from hetero_core.network.border import InputInfo, OutputInfo, describe_inputs, describe_outputs
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST
from hetero_core.profile import Profile
from hetero_core.runtime.binding import Binding, RunFunction
from hetero_core.runtime.declared_shapes import watch_shapes
from hetero_core.runtime.door import order_inputs, own_outputs
from hetero_core.runtime.executed import describe_executed
from hetero_core.runtime.forks import FORK_ADVICE, FORKS, keep_in_child
from hetero_core.runtime.load_limits import read_deadline, read_memory_limit
from hetero_core.runtime.loaded_border import add_border, check_payload, drop_specs, find_resident, keep_states
from hetero_core.runtime.output_check import OutputCheck
from hetero_core.runtime.plain_inputs import open_plain_door
from hetero_core.runtime.positions import is_by_name, name_inputs
from hetero_core.runtime.reconfiguration import MEASURING_KEY, change_config
from hetero_core.runtime.replaced import ReplacedConstants
from hetero_core.runtime.request import InferRequest
from hetero_core.runtime.run import NO_STATE, Start, end_once, measure_start
from hetero_core.runtime.states import RequestStates
from hetero_core.runtime.transfers import bring_in, take_home
from hetero_core.runtime.under_way import RunsUnderWay
from hetero_core.started import call_start

if TYPE_CHECKING:
    from hetero_core.blobs.container import BlobHeader

logger = logging.getLogger(__name__)


class ExecutableNetwork:
    """A network loaded on a device. Shared by threads; each thread or task works on a request of its own."""

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            f"network '{self.name}' on {self.device}",
            "load its path in the other process, or pass the bytes that export_network(stream) writes and import them there with "
            "Core().import_network(bytes)",
        )

    def __init__(self, name: str, fingerprint: Callable[[], str], executable: Executable, binding: Binding) -> None:
        self.name = name
        self.border = border = binding.border
        self.homes = keep_states(executable, border)  # before its specs are read
        self.all_inputs, self.all_outputs = executable.inputs, executable.outputs
        # What is tied to a state is the request's affair, not the caller's.
        self.inputs = drop_specs(self.all_inputs, [state.input for state in border.states])
        self.outputs = drop_specs(self.all_outputs, [state.output for state in border.states])
        self.output_names = tuple(spec.name for spec in self.outputs)
        # Constants that a run may be given as well; they have their values where it is not.
        self._replacements = binding.replacements
        self.replaceable = () if binding.replacements is None else binding.replacements.specs
        self.device = binding.device
        self._use_config(binding.config)
        self.executable = executable
        self.takes_tensors = executable.takes_tensors
        self.run: RunFunction = binding.run
        self.submit = binding.executor.submit
        self.to_host = binding.to_host
        self.from_host = binding.from_host
        self.late_runs = LateCalls()
        self.where = f"network '{name}' on {binding.device}"
        self._fingerprint = fingerprint
        self._binding = binding
        self.provenance = binding.provenance
        self._is_closed = False
        self._under_way = RunsUnderWay()
        self.forks = FORKS.count
        keep_in_child(self)
        is_bare = binding.run == executable.run
        self._is_host = all(spec.memory == HOST for spec in (*self.all_inputs, *self.all_outputs))
        self._take_plain = open_plain_door(self.inputs, border)
        self.resident = frozenset() if self._is_host else find_resident(border, self.all_inputs, self.all_outputs)
        self.shape_watch = watch_shapes(binding.declarations, self.all_outputs, self.where, binding.config)
        self.check_outputs = OutputCheck(self.all_outputs, self.resident, self.shape_watch, blame=binding.provenance).check
        # A device that starts runs by itself is only asked to where no wrapper stands around them, and no other network has its turn.
        self._starts = executable.start is not None and is_bare and not binding.config[EXCLUSIVE_KEY]

    @property
    def start(self) -> Start | None:
        """The function that starts a run on an asynchronous device; None where a thread of the core runs it."""
        # Not kept: a network that held its own method would wait for the garbage collector, and its device's threads with it.
        return measure_start(self._start_run) if self._starts else None

    def create_state(self, beside: object = None) -> object:
        """Returns working memory of the device for one request; `beside` is the request's first one. Raises: as `run_host` does."""
        try:
            if beside is None or beside is NO_STATE:
                return self.executable.create_state()
            return self.executable.create_spare(beside)
        except BaseException as error:  # as in run_host
            if is_interrupt(error):
                raise
            raise self.blame_device(error) from error.__cause__ if isinstance(error, HeteroError) else error

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the network that was loaded; computed on first use."""
        return self._fingerprint()

    def __call__(self, inputs: Any) -> dict[str, Any]:
        """Returns the outputs by name, as `infer` does."""
        return self.infer(inputs)

    def infer(self, inputs: Any) -> dict[str, Any]:
        """Returns the outputs by name; they belong to the caller. May be called by several threads at once.

        `inputs`: a mapping of names, or of positions, to values; a list or tuple of all values in order; the value of the only input.

        Raises: InputNameError, InputShapeError, InputTypeError; what the device raised.
        """
        if self.deadline is not None:
            # Only a request can leave a device that is late behind.
            run = InferRequest(self).infer_in_time(inputs)
            return dict(zip(run.outputs, own_outputs(tuple(run.outputs.values()), run.inputs), strict=True))
        ordered = self.order_inputs(inputs)
        state = self.create_state()
        context = RunContext(state)
        if self.measures:
            context.profile = Profile(str(self.device))
        if self.memory_limit is not None:
            context.limits = self.create_limits()
        if self.border.states:
            states = RequestStates(self)
            outputs = states.keep(self.check_outputs(self.run_host(states.join(ordered), context), context))
        else:
            outputs = self.check_outputs(self.run_host(ordered, context), context)
        return dict(zip(self.output_names, own_outputs(outputs, ordered)))  # noqa: B905  # check_outputs has; strict takes 0.13 us

    def order_inputs(self, inputs: Any) -> tuple[Any, ...]:
        """Returns the caller's values in the order of the inputs. Raises: InputNameError, InputShapeError, InputTypeError."""
        plain = None if self._take_plain is None else self._take_plain(inputs)
        if plain is None and self._replacements is not None:
            plain = self._replacements.order(inputs, len(self.inputs))
        if plain is None and not is_by_name(inputs):
            return self.order_inputs(name_inputs(inputs, self.inputs, network=self.name))
        if plain is not None:
            return plain
        return order_inputs(inputs, self.inputs, network=self.name, border=self.border, takes_tensors=self.takes_tensors)

    def create_limits(self) -> RunLimits | None:
        """Returns the limits of one run, None where neither MEMORY_LIMIT nor DEADLINE is set."""
        if self.memory_limit is None and self.deadline is None:
            return None
        return RunLimits(self.where, memory_limit=self.memory_limit)

    @property
    def input_info(self) -> Mapping[str, InputInfo]:
        """Input -> name, precision, layout and shape."""
        return describe_inputs(self.inputs, self.border)

    @property
    def output_info(self) -> Mapping[str, OutputInfo]:
        """Output -> name, precision, layout and shape, as of the network that was loaded."""
        return describe_outputs(self.outputs, self.border)

    def create_infer_request(self) -> InferRequest:
        """Returns a request with working memory of its own. Raises: ClosedError."""
        self._require_open()
        return InferRequest(self)

    def run_host(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs the device on host arrays, by position, and returns its outputs as host arrays.

        Raises: InferenceError with the device's own error as its cause; a HeteroError of the device as it is.
        """
        if self._replacements is not None and inputs and type(inputs[-1]) is ReplacedConstants:
            self._require_open()
            return inputs[-1].run(inputs, context)
        # Before the question whether it is closed: whoever closes looks at the runs after it has said so. Written out: a call costs 0.1 us.
        self._under_way.runs[context] = get_ident()
        if self._is_closed or self.forks != FORKS.count:
            self._under_way.leave(context)
            self._require_open()
        try:
            if self._is_host:
                return self.run(inputs, context)
            placed = bring_in(self, inputs, context.profile)
            return take_home(self, self.run(placed, context), context.profile, context.tensors)  # type: ignore[no-any-return]  # checked by the caller
        except BaseException as error:  # a device may raise anything; the caller meets one kind
            if is_interrupt(error):
                raise
            raise self.blame_device(error) from error.__cause__ if isinstance(error, HeteroError) else error
        finally:
            self._under_way.leave(context)

    def _start_run(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Starts a run with inputs in the device's memory; `done` gets outputs on the host. Raises: as `run_host` does."""
        if inputs and isinstance(inputs[-1], ReplacedConstants):
            self._require_open()
            self.submit(lambda: inputs[-1].tell(inputs, context, done))
            return
        start = self.executable.start
        assert start is not None
        fetch = None if self._is_host else lambda outputs: take_home(self, outputs, context.profile, context.tensors)
        where = f"{self._binding.provenance}: {self.where}"
        end = end_once(done, fetch, lambda: self._under_way.leave(context), where=where)
        dropped = f"{self._binding.provenance} had not ended a run of {self.where} when the network was closed"
        self._under_way.runs[context] = lambda: end(None, ClosedError(dropped))
        try:
            self._require_open()
            call_start(start, inputs if self._is_host else bring_in(self, inputs, context.profile), context, end, where=where)
        except BaseException as error:  # as in run_host
            self._under_way.leave(context)
            if is_interrupt(error):
                raise
            raise self.blame_device(error) from error.__cause__ if isinstance(error, HeteroError) else error

    def run_measured(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs the device as `run_host` does, and records when it began and when it was done where the run is measured."""
        profile = context.profile
        if profile is None:
            return self.run_host(inputs, context)
        profile.begin_run()
        try:
            return self.run_host(inputs, context)
        finally:
            profile.end_run()

    def blame_device(self, error: BaseException) -> HeteroError:
        """Returns the error to raise for a failed run: a HeteroError with a note added, any other error as an InferenceError."""
        where = f"on {self.device} ({self._binding.provenance})"
        if not isinstance(error, Exception):
            return describe_exit(error, blame=str(self._binding.provenance), where=f"a run of network '{self.name}'")
        if isinstance(error, HeteroError):
            error.add_note(f"while network '{self.name}' ran {where}")
            return error
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        return InferenceError(f"network '{self.name}' failed {where}: {type(error).__name__}: {error}{notes}")

    def export_network(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Writes the loaded network as a blob, to a path or a binary stream; a file appears complete or not at all.

        Raises: NotImplementedByDeviceError when the device cannot export; BlobError when the file cannot be written.
        """
        from hetero_core.runtime.exported import write_exported  # only an export needs it

        write_exported(self.name, *self.pack(), target)

    def pack(self) -> tuple[BlobHeader, Payload]:
        """Returns the header and the content of an exported blob. Raises: NotImplementedByDeviceError, ClosedError."""
        from hetero_core.runtime.exported import make_header  # as above

        self._require_open()
        provenance = self._binding.provenance
        exported = check_payload(self._binding.export(), str(provenance))
        payload = add_border(exported, self.border, self._binding.declarations, self.all_outputs, self._replacements)
        return make_header(self, provenance, payload.version, self._binding.find_architecture()), payload

    def get_runtime_model(self, profile: Profile | None = None) -> Network:
        """Returns the executed graph: the steps of its devices in order, with layouts, original names, and the times of a profile.

        Its nodes belong to the domain "hetero.executed", so it can be inspected but not loaded. Raises: ClosedError, PluginError.
        """
        self._require_open()
        return describe_executed(self, profile)

    def get_metric(self, name: str) -> Any:
        """Returns a metric of the loaded network. Raises: MetricNotFoundError with the near misses and all names."""
        self.require_process()
        metrics = self._metrics()
        value, question = find_metric(name, metrics, self.where)
        return call_plugin(value, blame=self._binding.provenance, where=question) if callable(value) else value

    def _metrics(self) -> dict[str, Any]:
        blame = str(self._binding.provenance)
        metrics = {
            "NETWORK_NAME": self.name,
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.config[STREAMS_KEY] * self.executable.pipeline_depth,
            "EXECUTION_DEVICES": (str(self.device),),
            "SUPPORTED_CONFIG_KEYS": tuple(sorted(self.config)),
            "LOADED_FROM_CACHE": self._binding.is_from_cache,
            "REFERENCE_NODES": (),
            **read_mapping(
                call_plugin(self.executable.metrics, blame=blame, where="metrics of a network"), blame=blame, where="its metrics"
            ),
        }
        return {**metrics, "SUPPORTED_METRICS": tuple(sorted((*metrics, "SUPPORTED_METRICS")))}

    def get_config(self, name: str) -> Any:
        """Returns the value of a key that the network was loaded with. Raises: ConfigKeyError with the near misses and all keys."""
        return read_value(name, resolve_key(name, self._binding.keys, device=str(self.device), where=self.where), self.config)

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Changes PERF_COUNT, DEADLINE, MEMORY_LIMIT, MODEL_PRIORITY, LOG_LEVEL, and keys that the device lets change, for the runs that
        begin from then on.

        None removes a limit, and gives another key the value back that the network was loaded with.

        Raises: ConfigKeyError, ConfigValueError, ClosedError.
        """
        self._require_open()
        self._use_config(change_config(config, self.config, self.executable, self._binding, where=self.where))

    def _use_config(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.measures = bool(config.get(MEASURING_KEY))
        self.deadline = read_deadline(config)  # seconds
        self.memory_limit = read_memory_limit(config)

    def close(self) -> None:
        """Releases what the device holds for this network; a second call, and one in a forked child, does nothing.

        Waits for the runs that are under way, and cancels those that take more than 10 seconds. If the device still computes a run after
        that, or one that was given up, its memory cannot be released safely: the device stays open, with a warning.
        """
        if not self._is_closed:
            self._is_closed = True
            if self.forks == FORKS.count and self.late_runs.count:
                logger.warning("%r is not closed: %d runs that exceeded DEADLINE have not returned", self, self.late_runs.count)
            elif self.forks == FORKS.count and (count := self._under_way.drain()):
                logger.warning("%r is not closed: %d runs have not returned after they were cancelled", self, count)
            elif self.forks == FORKS.count:
                self._binding.executor.retire()
                if self._replacements is not None:
                    self._replacements.close()
                call_named(self.executable.close, blame=self._binding.provenance, where=f"close of network '{self.name}'")

    def _require_open(self) -> None:
        self.require_process()
        if self._is_closed:
            raise ClosedError(f"network '{self.name}' on {self.device} is closed; load it again")

    def require_process(self) -> None:
        """Raises ClosedError in a forked child, where waiting for a thread would never end."""
        if self.forks != FORKS.count:
            raise ClosedError(f"network '{self.name}' on {self.device} cannot be used here: {FORK_ADVICE}")

    def __enter__(self) -> ExecutableNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ExecutableNetwork('{self.name}' on {self.device})"
