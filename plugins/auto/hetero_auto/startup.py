"""AutoExecutable: a pool with members that change while the best device is chosen.

```text
quick device answers ──> each other device loads, is timed in turns with the best so far ──> a faster one takes over, the other closes
                    └──> or the device of the list's order, or of a kept choice, loads and takes over
the choice is made ──> runs go to the chosen device's network without AUTO; a run that fails there comes back to the pool
```

A thread of the Core loads and measures, and ends with that; it holds the source and the pool, not the executable. A request from
before a take-over ends on the device that has it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from time import monotonic, perf_counter
from typing import Any, TypeVar

from hetero_auto.candidates import Candidates
from hetero_auto.executable import PoolExecutable
from hetero_auto.loading import MemberSource
from hetero_auto.measuring import (
    Choice,
    Mix,
    Requests,
    await_kernels,
    beats,
    describe_device,
    make_inputs,
    write_choice,
)
from hetero_auto.pool import POLICIES, POLICY_KEY, Member, MemberMemory, Pool, ends_request
from hetero_core.composing.runs import is_ready
from hetero_core.contract import Done, RunContext, is_candidate
from hetero_core.devices.processors import read_host_memory
from hetero_core.devices.threads import HINT_KEY
from hetero_core.errors import (
    ClosedError,
    DeviceTimeoutError,
    HeteroError,
)
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.executors import Executor, call_in_child
from hetero_core.runtime.first_runs import FIRST_RUNS
from hetero_core.transforms.constants import RANDOM_OPERATORS

Result = TypeVar("Result")

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def may_repeat_nodes(nodes: Iterable[Node]) -> bool:
    """Says whether nodes have no other effect than their results: none draws numbers or is an operator of the user."""
    for node in nodes:
        is_idle = node.op_type == "Dropout" and node.since_version >= 7 and len(node.inputs) < 3
        if (
            (node.op_type in RANDOM_OPERATORS and not is_idle)
            or node.domain not in _DOMAINS
            or not all(may_repeat_nodes(body.nodes) for body in node.bodies.values())
        ):
            return False
    return True


logger = logging.getLogger(__name__)

MEASURE_KEY, RUNTIME_KEY = "AUTO_MEASURE", "ENABLE_RUNTIME_FALLBACK"
CUMULATIVE = "CUMULATIVE_THROUGHPUT"
_UNASKED_SECONDS, _FIRST_SECONDS, _MEASURE_SECONDS = 1.0, 1.0, 3.0
"""Seconds that the further devices wait for a first request, and then for the first runs of the process; those that are measured wait
longer, as that takes longer.
"""
_PAUSE_SECONDS = 0.5
"""Seconds after a first answer in which an application mostly makes its first result, which a measurement does not disturb."""
_DEVICE_SECONDS = 300.0
"""Seconds in which a further device must take, load and run the network, before the choice goes on without it."""
_CLOSING_SECONDS = 10.0
"""Seconds that the end of a network or process waits at most for a load or run of the choice."""
_TURN_SECONDS, _POLL_SECONDS = 30.0, 0.1
"""Seconds that a choice waits for the choices of other networks, and between two looks at its network, which may be closed."""
_SIZE_RATIO = 4
"""A choice for open sizes holds for inputs of up to so many times more or fewer elements."""
_MEMORY_SHARE = 4
"""A device is measured only if the constants of the network fit this many times into the free memory."""


class _Turn:
    """Lets the networks of a process be given a device one after another."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Starts anew, in a forked child, which has no thread that would give the turn back."""
        self._lock = threading.Lock()

    @contextmanager
    def take(self, is_over: Callable[[], bool]) -> Iterator[None]:
        """Waits until the choice before this one is made, at most _TURN_SECONDS seconds."""
        lock, latest = self._lock, monotonic() + _TURN_SECONDS
        while not (is_held := lock.acquire(timeout=_POLL_SECONDS)) and monotonic() < latest and not is_over():
            pass
        try:
            yield
        finally:
            if is_held:
                lock.release()


_turn = _Turn()
call_in_child(_turn.forget)


@dataclass(frozen=True, slots=True)
class Way:
    """How a device is chosen. `quick` serves until then; None: a load waits for the choice. `measures`: the fastest device, else the
    first of the order. `entry`: the name of the kept choice in the private store, "" if none is kept; `choice`: its content.
    """

    quick: str | None
    measures: bool
    entry: str = ""
    choice: Choice | None = None


class AutoExecutable(PoolExecutable):
    """A network on the device that was chosen for it, or on its way there."""

    def __init__(
        self, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], pool: Pool, source: MemberSource | None = None
    ) -> None:
        super().__init__(inputs, outputs, pool)
        self.source = source
        self.requests = Requests()
        self._begin: Callable[[], Future[None]] | None = None
        # The choice may end while it is being started, on the same thread.
        self._lock, self._is_handed_over = threading.RLock(), False
        self._settled: Future[None] | None = None
        self._actions: list[Callable[[], object]] = []

    @staticmethod
    def load(source: MemberSource, candidates: Candidates, way: Way) -> AutoExecutable:
        """Returns the executable, ready for its first request.

        Raises: the error of the last device, if no device can load the network.
        """
        loader = _Loader(source, candidates, way)
        falls_back = source.config[RUNTIME_KEY]
        pool = Pool(source.owner, POLICIES[source.config[POLICY_KEY]](), loader.replace_failed if falls_back else lambda _: None)
        loader.pool = pool
        executable = AutoExecutable(source.network.inputs, source.network.outputs, pool, source)
        loader.requests = executable.requests
        if source.config[HINT_KEY] == CUMULATIVE:
            pool.set_members(list(loader.load_each(candidates)))
            return executable
        if way.quick is not None:
            pool.set_members([loader.load_quick(way.quick)])
        else:
            pool.set_members([next(loader.load_each(candidates))])
            if way.measures:
                loader.settle()
        if way.quick is None or loader.is_settled():
            executable.hand_over()
            return executable
        # The loader holds its executor: the Core waits for the threads of referenced executors.
        loader.executor = source.core.create_executor(source.owner, workers=1)
        reference = weakref.ref(executable)

        def begin() -> Future[None]:
            assert loader.executor is not None
            settled = loader.executor.submit(loader.settle_meanwhile)
            settled.add_done_callback(lambda _: None if (settling := reference()) is None else settling.hand_over())
            return settled

        executable._begin, executable.when_final = begin, executable._call_later
        # A measurement is of the first request's sizes, and its work would be in the way of an application that still starts.
        if not way.measures or (way.choice is not None and not loader.is_open):
            executable._open_settling()
        return executable

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; waits for a free member and runs on this thread."""
        self._note_request(inputs, context)
        return super().run(inputs, context)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Begins a run on a free member, now or as soon as a member is free."""
        self._note_request(inputs, context)
        super().start(inputs, context, done)

    def _note_request(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        """Begins the choice with the first request, and counts the request for measurements."""
        if self._begin is None:
            return
        state = context.state
        assert isinstance(state, MemberMemory), "a request runs with the state that its executable made"
        self.requests.note(inputs, repeats=state.has_run)
        state.has_run = True
        self._open_settling()

    def _open_settling(self) -> Future[None] | None:
        """Returns the choice that is under way, which begins with the first call; None if the device was chosen at load."""
        with self._lock:
            if self._settled is None and self._begin is not None:
                with suppress(ClosedError):  # the Core ends
                    self._settled = self._begin()
            return self._settled

    def _call_later(self, action: Callable[[], object]) -> Callable[[], None]:
        """Has an action called when the choice is made; returns a function that waits for it, if there has been a request."""
        with self._lock:
            if not self._is_handed_over:
                self._actions.append(action)
                return lambda: self.wait_until_settled() if self.pool.has_entered.is_set() else None
        action()
        return lambda: None

    def wait_until_settled(self) -> None:
        """Returns when the chosen device is loaded, or cannot be."""
        settled = self._open_settling()
        if settled is not None:
            # The loader need not wait for a first answer now.
            for event in (self.pool.has_entered, self.pool.has_answered, self.pool.is_awaited):
                event.set()
            settled.result()
            self.hand_over()

    def hand_over(self) -> None:
        """Lets the chosen device's network compute all further runs; does nothing the second time."""
        with self._lock:
            if self._is_handed_over:
                return
            self._is_handed_over = True
            self._begin, self.when_final = None, None
            self.requests.forget()
            members = self.pool.members
            if len(members) == 1:
                self.delegate = members[0].loaded
            # Under the lock: a thread that waits for the choice returns after them.
            while self._actions:
                self._actions.pop()()

    def take_back(self, error: BaseException) -> bool:
        """True if the pool repeats a run that has failed: on the same device, then on the next devices."""
        if ends_request(error):
            return False
        if not isinstance(error, ClosedError) and (self.source is None or not self.source.config[RUNTIME_KEY]):
            return False
        with self._lock:
            delegate, self.delegate = self.delegate, None
            if delegate is not None:
                self.pool.served[str(delegate.device)] += self.delegated_runs
                self.delegated_runs = 0
        return True

    def metrics(self) -> Mapping[str, Any]:
        """As of every pool, with the runs that went to the chosen device without it."""
        metrics = dict(super().metrics())
        members = self.pool.members
        if members and self.delegated_runs:
            served = metrics["REQUESTS_OF_DEVICES"]
            served[members[0].name] = served.get(members[0].name, 0) + self.delegated_runs
        return metrics

    def close(self) -> None:
        """As of every pool."""
        self.delegate = None
        super().close()


class _Loader:
    """Loads members of a network and chooses among them; a load that failed is not tried again."""

    pool: Pool
    requests: Requests
    executor: Executor | None = None

    def __init__(self, source: MemberSource, candidates: Candidates, way: Way) -> None:
        self._source = source
        self._candidates = candidates
        self._seconds: dict[str, float] = {}
        self._way = way
        self.is_open = any(not isinstance(size, int) for spec in source.network.inputs for size in spec.shape or (None,))
        self._lock = threading.RLock()
        self._used: set[str] = set()
        self._is_part = is_candidate.get()

    def load_each(self, names: Iterable[str], *, may_hang: bool = True) -> Iterator[Member]:
        """Yields a member on each of these devices that can load the network; failures are named in warnings. A device that hangs is
        left if it may not.

        Raises: ClosedError; at the end the last error if no device could load the network.
        """
        failure: HeteroError | None = None
        is_loaded = False
        for name in names:
            try:
                member = self._load(name, may_hang=may_hang)
            except ClosedError:
                raise
            except HeteroError as error:
                logger.warning("%s goes on without %s, which failed to load the network: %s", self._source.owner, name, error)
                failure = error
            else:
                is_loaded = True
                yield member
        if failure is not None and not is_loaded:
            raise failure

    def load_quick(self, quick: str) -> Member:
        """Returns the member that answers first: another than `quick` if the nodes that take most of its runs are slow on it.

        Raises: as `load_each`.
        """
        names = chain([quick], (name for name in self._candidates if name != quick))
        member = next(self.load_each(names))
        if not self._way.measures or self._way.choice is not None or not member.loaded.get_metric("SLOW_NODES"):
            return member
        with suppress(HeteroError):
            other = next(self.load_each(name for name in names if not self._candidates.holds_lock(name)), None)
            if other is not None:
                self.close_member(member)
                return other
        return member

    def close_member(self, member: Member) -> None:
        """Closes a member that is not in the pool; its device may be loaded again."""
        self._used.discard(member.name)
        self.pool.release(member)

    def is_settled(self) -> bool:
        """Says whether the device that was loaded first is the chosen device."""
        name, way = self.pool.members[0].name, self._way
        if way.choice is not None:
            return name == way.choice.device and not self.is_open and self._is_current(way.choice)
        if way.measures:
            return next((other for other in self._candidates.names if other != name), None) is None
        return name == self._candidates.names[0]

    def settle_meanwhile(self) -> None:
        """As `settle`, while requests run; if the choice fails, the device that serves stays, with a warning.

        The first requests of all networks come first: a load beside them would take processors from them.
        """
        if self.pool.has_entered.wait(_UNASKED_SECONDS):
            FIRST_RUNS.expect(self.pool.has_answered)
        is_measured = self._way.measures and self._way.choice is None
        if is_measured:
            self.pool.has_answered.wait(_MEASURE_SECONDS)
            self.pool.is_awaited.wait(_PAUSE_SECONDS)
        # The choice of a part is made within the choice of the whole.
        turn = nullcontext() if self._is_part else _turn.take(self._is_over)
        try:
            with turn:
                self._await_first_runs(_MEASURE_SECONDS if is_measured else _FIRST_SECONDS)
                self.settle()
        except ClosedError:
            return
        except Exception as error:  # noqa: BLE001  # nobody waits for this thread: an unknown error would be lost, and the choice with it
            serving = ", ".join(member.name for member in self.pool.members)
            logger.warning("%s stays on %s, as its choice of a device failed: %s", self._source.owner, serving, error)

    def _await_first_runs(self, seconds: float) -> None:
        FIRST_RUNS.wait(monotonic() + seconds, self._is_over)
        if self._is_over():
            raise ClosedError(f"{self._source.owner}: nothing needs the choice of a device any more")

    def _is_over(self) -> bool:
        is_closing = self.executor is not None and self.executor.is_closed
        return is_closing or self.pool.is_closed or not threading.main_thread().is_alive()

    def settle(self) -> None:
        """Loads the chosen device, which takes over from the members that serve meanwhile; if no device can load, these stay.

        Raises: ClosedError; if nothing serves, the last error of a device.
        """
        choice = self._way.choice
        if choice is not None and self._settle_as_kept(choice):
            return
        if self._way.measures:
            self._settle_measured()
            return
        serving = self.pool.members[0].name
        with suppress(HeteroError):
            chosen = next(self.load_each(takewhile(lambda name: name != serving, self._candidates), may_hang=False), None)
            if chosen is not None:
                self._take_over(chosen)

    def _settle_as_kept(self, choice: Choice) -> bool:
        """Says whether the device of a kept choice has taken over; False if it has changed since, or cannot load the network."""
        if not self._candidates.takes_all(choice.device) or not self._is_current(choice):
            return False
        if self.pool.members[0].name != choice.device:
            try:
                self._take_over(next(self.load_each([choice.device], may_hang=False)))
            except ClosedError:
                raise
            except HeteroError:
                return False
        return True

    def _is_current(self, choice: Choice) -> bool:
        """Says whether a kept choice is of this version of its device, and of inputs of a similar size."""
        elements = self.requests.elements
        if not choice.elements <= _SIZE_RATIO * elements <= _SIZE_RATIO**2 * choice.elements and self.is_open:
            return False
        return describe_device(self._source.core, choice.device) == choice.identity

    def _take_over(self, member: Member) -> None:
        with self._lock:
            # A device that leaves may be the next one again.
            self._used -= {other.name for other in self.pool.members if other is not member}
            self.pool.set_members([member])

    def _settle_measured(self) -> None:
        """Has each device that can load the network take over if it is faster than the device that serves.

        Devices that hold the interpreter's lock are only measured if the user has asked for it.
        """
        best = first = self.pool.members[0]
        seconds: dict[str, float] = {}
        is_sure = True
        for name in self._candidates.names:
            if name == first.name or (name in self._used and self._find_present(name) is None):
                continue
            if self._way.entry and self._candidates.holds_lock(name):
                continue
            if not self._has_room():
                logger.info("%s measures no further device: the network needs too much memory", self._source.owner)
                break
            self._await_first_runs(_FIRST_SECONDS)
            challenge = partial(self._challenge, name, best)
            try:
                challenger, is_faster = self._call_within(
                    challenge, name, lambda late: None if late[0] is None else late[0].loaded.close()
                )
            except DeviceTimeoutError as error:
                logger.warning("%s goes on without %s: %s", self._source.owner, name, error)
                is_sure = False
                continue
            if challenger is None:
                continue
            for member in (challenger, best):
                seconds[member.name] = self._candidates.query_seconds[member.name] + self._seconds[member.name] + member.first
                is_sure = is_sure and member.is_final and member.is_confirmed
            if is_faster:
                self._take_over(challenger)
                best = challenger
            else:
                self.close_member(challenger)
        if len(self.pool.members) > 1:
            # A failed run has brought a further device.
            self._take_over(best)
        if not seconds:
            self._warn_of_slow_nodes(best)
        if self._way.entry and best.least and is_sure:
            write_choice(self._way.entry, self._source.core, best, seconds, self.requests.elements)

    def _challenge(self, name: str, best: Member) -> tuple[Member | None, bool]:
        """Returns the member of a device, None if it cannot load the network, and whether it is faster than the best, on the requests so
        far. Both are timed with their final kernels.
        """
        if not self._candidates.takes_all(name):
            return None, False
        member = self._find_present(name)
        if member is None:
            try:
                member = next(self.load_each([name]))
            except ClosedError:
                raise
            except HeteroError:
                return None, False
        timing: dict[str, Any] = {"mix": self._make_mix(best), "repeats": self.requests.repeats, "title": self._source.owner}
        try:
            if not await_kernels(member, **timing):
                return member, False
            if not is_ready(best.loaded):
                await_kernels(best, **timing)
            return member, beats(member, best, self.pool, **timing)
        except BaseException:
            self.close_member(member)
            raise

    def _warn_of_slow_nodes(self, member: Member) -> None:
        """Warns if the only device that can be measured has slow nodes; waits for its kernels."""
        if not is_ready(member.loaded):
            await_kernels(member, mix=self._make_mix(member), repeats=self.requests.repeats, title=self._source.owner)
        slow = member.loaded.get_metric("SLOW_NODES")
        if slow:
            logger.warning(
                "network '%s': %s has no fast kernel for %s (SLOW_NODES names all), and most of a run is spent there; %s has no other "
                "device to compare", self._source.network.name, member.name, ", ".join(map(repr, slow[:3])), self._source.owner,
            )  # fmt: skip

    def _find_present(self, name: str) -> Member | None:
        """Returns the member of a device in the pool."""
        return next((member for member in self.pool.members if member.name == name), None)

    def _has_room(self) -> bool:
        """Says whether the constants of the network fit into memory a few times."""
        memory = read_host_memory()
        nbytes = sum(constant.nbytes for constant in self._source.network.initializers.values())
        return memory is None or _MEMORY_SHARE * nbytes <= memory[1]

    def _call_within(self, call: Callable[[], Result], name: str, late: Callable[[Result], None]) -> Result:
        """Returns the result of a call about a device on a daemon thread, which gets less time once nothing needs the choice any more.
        `late` gets a result that comes too late. Raises: DeviceTimeoutError; errors of the call.
        """
        answer: Future[Result] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001  # raised on the thread that waits
                answer.set_exception(error)

        latest = monotonic() + _DEVICE_SECONDS
        threading.Thread(target=copy_context().run, args=(work,), name=f"hetero-{name} challenge", daemon=True).start()
        while wait([answer], _POLL_SECONDS).not_done:
            if self._is_over():
                latest = min(latest, monotonic() + _CLOSING_SECONDS)
            if monotonic() >= latest:
                answer.add_done_callback(lambda ended: None if ended.exception() else late(ended.result()))
                raise DeviceTimeoutError(f"device {name} has not answered within {_DEVICE_SECONDS:g} s; its thread goes on")
        return answer.result()

    def _make_mix(self, member: Member) -> Mix:
        """Returns the mix of the requests so far; arrays of ones if there was no request."""
        names, specs = [spec.name for spec in self._source.network.inputs], member.loaded.inputs
        own = {spec.name for spec in specs}
        mix = [
            (share, changes, {name: array for name, array in zip(names, inputs, strict=False) if name in own})
            for share, changes, inputs in self.requests.find_mix()
        ]
        return mix or [(1.0, 0.0, make_inputs(specs))]

    def replace_failed(self, failed: Member) -> Member | None:
        """Returns a member on the next device that can load the network, if any is left; it is placed behind the present members."""
        with self._lock:
            others = [member for member in self.pool.members if member is not failed]
            if others:
                return others[0]
            names = (name for name in self._candidates if name not in self._used)
            following = next(names, None)
            if following is None:
                return None
            logger.warning("%s: %s failed in a run; the next device is loaded", self._source.owner, failed.name)
            try:
                member = next(self.load_each(chain([following], names)))
            except HeteroError as error:
                logger.warning("%s: no other device can load the network: %s", self._source.owner, error)
                return None
            self.pool.set_members([*self.pool.members, member])
            return member

    def _load(self, name: str, *, may_hang: bool) -> Member:
        self._used.add(name)
        began = perf_counter()
        token = is_candidate.set(self._way.measures and len(self._candidates.names) > 1)
        load = partial(self._source.load, name)
        try:
            member = load() if may_hang else self._call_within(load, name, lambda late: late.loaded.close())
        finally:
            is_candidate.reset(token)
        self._seconds[name] = perf_counter() - began
        return member
