"""The types that hooks exchange: arguments and results of a plugin.

A plugin author reads this file and `hookspecs.py`. Imports no array library and no onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from hetero_core.errors import BlobError, BlobMismatchError
from hetero_core.executed import ExecutedNode
from hetero_core.limits import RunLimits
from hetero_core.network.types import ValueSpec, ValueType
from hetero_core.profile import Profile

if TYPE_CHECKING:
    from hetero_core.plan import Plan

Array = Any
"""An array of the device's own library; NumPy's if the memory is the host's. A sequence is a list, an absent optional None."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A parsed device string: `GPU.1` is ("GPU", "1", ""), `HETERO:GPU.1,CPU` is ("HETERO", "", "GPU.1,CPU").

    An id stands in quotes if its case or special characters matter: `GPU."uuid-1f"` is ("GPU", "uuid-1f", "").
    """

    name: str
    id: str = ""
    arguments: str = ""

    def __str__(self) -> str:
        is_plain = self.id == self.id.upper() and not any(character in ' :,()"' for character in self.id)
        device_id = self.id if is_plain else f'"{self.id}"'
        return self.name + (f".{device_id}" if self.id else "") + (f":{self.arguments}" if self.arguments else "")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The declaration of a configuration key.

    `type` is bool, int, float, str, tuple (of texts, written with commas) or dict (of JSON values, written as a JSON object).
    `default` None means "not set". Keys with `runtime` affect only runs, so an import may change them; all remaining keys affect
    compilation. The key marked `is_arguments` is a text that replaces the arguments behind the colon of a device string. A number
    may have a `least` value. `words` are texts that are accepted in place of a value. A key that is `added_later` is missing in older
    blobs; these count as compiled with its default. `aliases` are further names of the key.
    """

    type: type
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    runtime: bool = False
    is_arguments: bool = False
    least: float | None = None
    words: tuple[str, ...] = ()
    added_later: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer of a device to a query: which nodes it takes, by their names in the network of the query.

    `supported` maps each node that the device takes to the device (with the id that it would use), `refused` maps every other node to the
    reason. Together they name every node once. `plan` is the split of a device that splits networks, else None.
    """

    supported: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """The content of an export: named sections of bytes, and the version of the plugin's own format.

    The core wraps them in the container (identity, versions, digest) and gives the same sections back, memory-mapped, at import.
    `code` names the sections that are executed in any way; they are imported only if the user trusts the blob. `spare` names
    sections of code that the plugin does not need for an import; they are left out if the blob is not trusted. `digests` has the
    digest of each section of an import (`hetero_core.blobs.container`), for a plugin that caches files beside a blob; it is empty
    for an export.
    """

    sections: Mapping[str, Any]
    version: int = 1
    code: tuple[str, ...] = ()
    digests: Mapping[str, bytes] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unmarked = [name for name in self.spare if name not in self.code]
        if unmarked:
            raise BlobError(f"a payload marks '{unmarked[0]}' as spare, which is no code; its code is {list(self.code)}")
        unknown = [name for name in self.code if name not in self.sections]
        if unknown:
            raise BlobError(f"a payload marks '{unknown[0]}' as code and has no such section; it has {sorted(self.sections)}")

    def without_spare_code(self) -> Payload:
        """Returns the payload without the sections in `spare`."""
        sections = {name: section for name, section in self.sections.items() if name not in self.spare}
        return replace(self, sections=sections, code=tuple(name for name in self.code if name not in self.spare), spare=())

    def require_version(self, *readable: int) -> None:
        """Raises BlobMismatchError unless the version of the sections is in `readable`; a plugin calls it before it reads them."""
        if self.version not in readable:
            raise BlobMismatchError(
                f"the blob's payload has version {self.version}; the plugin reads {' and '.join(map(str, readable))}; load the model again "
                "and export it"
            )

    def read_code(self, name: str) -> Any:
        """Returns a section of code; a plugin reads every section that it executes with this method.

        Raises: BlobError for a section that is missing or not marked as code: the user was not asked whether to trust it.
        """
        if name not in self.code:
            raise BlobError(
                f"section '{name}' is to be executed, but the blob does not mark it as code; it marks {list(self.code)}. "
                "The blob was changed, or its plugin does not mark what it executes; export the network again"
            )
        return self.sections[name]


BlobAnswer: TypeAlias = Literal["fits", "works after recompiling", "does not fit"]


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """The answer of a device about an import of a blob: it uses all that was compiled, compiles the network of the blob, or is an error.

    `reason` is "" for "fits". A device made of devices has `parts`; `part` is then the name of its sections, such as "stage/0".
    """

    device: str
    answer: BlobAnswer = "fits"
    reason: str = ""
    parts: tuple[BlobCheck, ...] = ()
    part: str = ""

    @classmethod
    def of_parts(cls, device: str, parts: Iterable[BlobCheck]) -> BlobCheck:
        """Returns the answer of a device made of devices: that of its worst part."""
        parts = tuple(parts)
        worst = max(parts, key=lambda check: get_args(BlobAnswer).index(check.answer), default=cls(device))
        reason = f"{worst.part} on {worst.device}: {worst.reason}" if worst.reason else ""
        return cls(device, worst.answer, reason, parts)


@dataclass(frozen=True, slots=True)
class Extension:
    """A custom operator given as a Python function.

    `function(*inputs, **attributes)` returns an array or a tuple of arrays. `infer_types(input_types, attributes)` returns the
    types of the outputs; it is required, since a network cannot be split at a value of unknown type.
    """

    domain: str
    op_type: str
    since_version: int
    function: Callable[..., Any]
    infer_types: Callable[[tuple[ValueType | None, ...], Mapping[str, Any]], tuple[ValueType, ...]]


is_candidate: ContextVar[bool] = ContextVar("hetero_is_candidate", default=False)
"""True while AUTO loads a device to compare it with others: a device then gives no advice to use another one."""


class CancelToken:
    """The flag that cancels a run: its request sets it, and everything that works for the run may poll it."""

    # A class attribute until a token is set: every run has a token, but few tokens are ever set.
    is_set = False


class OwnOutputs(tuple[Array, ...]):
    """Outputs of a run that the device guarantees to be writable, without memory shared with inputs, constants or each other.

    The core does not compare their memory then, which takes 70 us for a decoder of twelve caches. An output that `keep_states` has
    named may be a view of any strides, also a view of memory that follows the state that the run has read, if the device takes such
    a view as its input.
    """

    __slots__ = ()


@dataclass(slots=True, eq=False)
class RunContext:
    """The request's side of a run: working memory, output arrays, profile, limits and cancellation. An executable serves all
    requests; a context belongs to a single request and is never used by two threads at once.

    `state` is the value that `Executable.create_state` returned for this request. `outputs` has, for each output, the caller's array to
    fill or None; a device may fill it or return an array of its own. `profile` is None unless PERF_COUNT is set, `limits` is None unless
    MEMORY_LIMIT or DEADLINE is set. `tensors` is for the core: the caller's tensors for outputs that stay in the device's memory.

    `owns_outputs` promises that only this run uses the arrays in `outputs` until it returns, even after a cancellation, and that
    these arrays do not overlap each other or any input: a device may compute in them. Without this promise, the device computes
    elsewhere and copies at the end.
    """

    state: object = None
    outputs: Sequence[Array | None] | None = field(default=None, kw_only=True)
    profile: Profile | None = field(default=None, kw_only=True)
    token: CancelToken = field(default_factory=CancelToken, kw_only=True)
    limits: RunLimits | None = field(default=None, kw_only=True)
    tensors: Mapping[int, Any] | None = field(default=None, kw_only=True)
    owns_outputs: bool = field(default=False, kw_only=True)

    def derive(self, state: object, **changes: Any) -> RunContext:
        """Returns a context for the run of another executable within this run, with working memory of its own.

        Token, limits, profile, outputs and tensors are copied from this run, unless `changes` replaces them. `owns_outputs` is not
        passed on: a cancelled run may return while the inner run still computes.
        """
        own = {"outputs": self.outputs, "profile": self.profile, "token": self.token, "limits": self.limits}
        return type(self)(state, **{**own, "tensors": self.tensors, **changes})

    def cancelled(self) -> bool:
        """Says whether the caller has given up; a device may then return anything, at once."""
        return self.token.is_set


Done = Callable[[tuple[Array, ...] | None, BaseException | None], None]
"""The callback of a started run; the device calls it once, at the end, with the outputs, or with None and the error."""


class Executable:
    """A loaded network as a device implements it; a plugin's author derives from it.

    Set `inputs` and `outputs` (the network's inputs and outputs, in its order, each with the memory in which it lies) and implement
    `run`. Several threads use an executable at once: everything that a run changes belongs in the state of its context.
    """

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]

    start: Callable[[tuple[Array, ...], RunContext, Done], None] | None = None
    """For asynchronous devices: begins a run, returns at once, and calls `done` exactly once for each run, from any thread. Inputs and
    outputs lie in the memories that the specs name. If `start` is None, the core calls `run` on a thread of its own."""

    pipeline_depth: int = 1
    """Number of runs of a stream that may be under way at once. It is more than 1 if the next run can begin before the last run has
    ended, as on several devices in a row. The core runs NUM_STREAMS times as many asynchronous requests at once.
    """

    def run(self, inputs: tuple[Array, ...], context: RunContext) -> tuple[Array, ...]:
        """Runs the network and returns its outputs by position.

        The inputs are C-contiguous, have the declared types, and must not be written. The outputs stay valid until the next run of the
        same context. An executable with `start` need not implement `run`: it then starts the run and waits for `done`.
        """
        start = self.start
        if start is None:
            raise NotImplementedError(f"{type(self).__name__} implements neither run nor start")
        from queue import SimpleQueue  # few devices work asynchronously

        ends: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        start(inputs, context, lambda outputs, error: ends.put((outputs, error)))
        outputs, error = ends.get()
        if error is not None:
            raise error
        return outputs  # type: ignore[no-any-return]  # checked by the core, as the outputs of any run

    def create_state(self) -> object:
        """Returns the working memory of a request; None means that each run returns new arrays, which belong to the caller.

        A request with states alternates between two working memories: each run reads the results of the last run from the memory
        that is not in use. So a device with results in its working memory must not return a view of an input, unless the input is
        in the host's memory.
        """
        return None

    def create_spare(self, state: object) -> object:
        """Returns the second working memory of a request with states; `state` is the first.

        The request belongs to a single user: MULTI, which chooses among devices, creates both on the same device, and BATCH, which
        waits for every known request, counts both as a single request.
        """
        return self.create_state()

    def keep_states(self, output_of_input: Mapping[str, str]) -> Mapping[str, Any]:
        """Tells the device, once before the first run, which inputs are states: each with the output that supplies its value for
        the next run.

        Callers see only copies of these arrays. CPU then appends to a cache in place, and returns it among `OwnOutputs`. HETERO
        names the memory of a part for both in `inputs` and `outputs`, so that the value stays there; for each such input it returns
        the part; the core then uses the part's `to_host` and `from_host`.
        """
        return {}

    takes_tensors = False
    """Whether runs take a DeviceTensor of any memory for each input, and leave outputs in `context.tensors`. HETERO, MULTI, AUTO
    and BATCH do: they pass a tensor on to the part that has its memory (`hetero_core.composing.runs`).
    """

    def find_part(self, name: str) -> Any:
        """Returns the loaded part that reads an input or produces an output, so that `DeviceTensor.create` finds the memory behind
        a name of HETERO, MULTI, AUTO or BATCH; None for a device that is not composed of devices.
        """
        return None

    delegate: Any = None
    """The loaded network that computes each new run in place of this executable, without a call of it, as the device that AUTO has
    chosen; None if this executable computes. Runs with states, limits, a profile, tensors or preset outputs stay here.
    """
    delegated_runs = 0
    """The number of runs that `delegate` was given."""

    def take_back(self, error: BaseException) -> bool:
        """Is told that a run on `delegate` failed; True if this executable computes the run instead."""
        return False

    when_final: Callable[[Callable[[], object]], Callable[[], None]] | None = None
    """Calls an action, from any thread, as soon as `export_network` need not wait any more, as that of AUTO does until the device is
    chosen; returns a function that waits for the action if the network has been run. None: an export never waits.
    """

    settable_keys: tuple[str, ...] = ()
    """The configuration keys that `set_config` takes."""

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Sets `settable_keys` while the network is in use; the values are converted and checked. An error leaves all keys as they were."""

    def metrics(self) -> Mapping[str, Any]:
        """Returns metrics of this loaded network by name; each is a value or a function without arguments."""
        return {}

    def executed_nodes(self) -> tuple[ExecutedNode, ...] | None:
        """Returns the steps of a run in order, for `network.get_runtime_model`; None if the device does not report them."""
        return None

    def close(self) -> None:
        """Releases everything that the executable holds; called once."""


class DeviceHooks:
    """A base class without behaviour for device objects, so that a type checker compares the results of their hooks with the contract.

    A hook declares only the arguments that it uses; their names are checked when the device is created.
    """

    if TYPE_CHECKING:
        close_device: Callable[..., bool]
        config_keys: Callable[..., Mapping[str, ConfigKey]]
        metrics: Callable[..., Mapping[str, Any]]
        query_network: Callable[..., QueryResult]
        load_network: Callable[..., Executable]
        export_network: Callable[..., Payload]
        check_payload: Callable[..., BlobCheck]
        import_network: Callable[..., Executable]
        add_extension: Callable[..., bool]
        to_host: Callable[..., Array]
        from_host: Callable[..., Array]


def freeze_mapping(mapping: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    """Returns a read-only copy of a mapping."""
    return MappingProxyType(dict(mapping))
