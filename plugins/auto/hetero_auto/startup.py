"""AutoExecutable: a pool with members that change while the best device is chosen.

```text
quick device answers ──> each other device loads, is timed in turns with the best so far ──> a faster one takes over, the other closes
                    └──> or the device of the list's order, or of a kept choice, loads and takes over
the choice is made ──> runs go to the chosen device's network without AUTO; a run that fails there comes back to the pool
```

A thread of the Core loads and measures, and ends with that; it holds the source and the pool, not the executable. A request from
before a take-over is answered by its device or by the next device, whichever is ready first: the two runs race. A request races if
it may be computed twice: it has no states, preset outputs, profile or limits, and its network has standard operators only, without
random numbers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain, takewhile
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from hetero_auto.candidates import Candidates
from hetero_auto.executable import MemberSource, PoolExecutable, StartedTicket
from hetero_auto.measuring import Choice, Requests, await_kernels, beats, describe_device, write_choice
from hetero_auto.pool import POLICIES, POLICY_KEY, Member, MemberMemory, Pool, ends_request
from hetero_core.composing.runs import is_ready
from hetero_core.contract import CancelToken, Done, Executable, RunContext, is_candidate
from hetero_core.devices.processors import read_host_memory
from hetero_core.devices.threads import HINT_KEY
from hetero_core.devices.watch import OutOfTimeError, call_within
from hetero_core.errors import ClosedError, DeviceTimeoutError, HeteroError
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.executors import Executor
from hetero_core.runtime.first_runs import FIRST_RUNS
from hetero_core.transforms.constants import RANDOM_OPERATORS

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def may_repeat_network(network: Network) -> bool:
    """Says whether a second run of a network has the same answer and no other effect."""
    return not network.border.states and may_repeat_nodes(network.nodes)


def may_repeat_nodes(nodes: Iterable[Node]) -> bool:
    """Says whether nodes have no other effect than their results: none draws numbers or is an operator of the user."""
    return all(
        (node.op_type not in RANDOM_OPERATORS or (node.op_type == "Dropout" and node.since_version >= 7 and len(node.inputs) < 3))
        and node.domain in _DOMAINS
        and all(may_repeat_nodes(body.nodes) for body in node.bodies.values())
        for node in nodes
    )


def may_repeat_run(context: RunContext) -> bool:
    """Says whether nothing of a run's context is changed by a second run beside it."""
    presets = context.outputs is not None and any(array is not None for array in context.outputs)
    return not (presets or context.tensors or context.profile is not None or context.limits is not None)


class _RunToken(CancelToken):
    """Cancels a run of a race; it is cancelled with the request, too."""

    def __init__(self, of_request: CancelToken) -> None:
        self._of_request, self._is_set = of_request, False

    @property
    def is_set(self) -> bool:
        return self._is_set or self._of_request.is_set

    @is_set.setter
    def is_set(self, value: bool) -> None:
        self._is_set = value


class _Race:
    """A request that races, and its runs, each with a working memory and a token of its own. Holds the pool, not the executable. Safe for
    threads.
    """

    def __init__(self, pool: Pool, races: set[_Race], inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """`races` holds those that have no answer yet; `done` gets the first answer."""
        self._pool, self._races, self._done = pool, races, done
        # The caller may write over its inputs as soon as it has an answer, while the slower device still reads them.
        self._inputs = tuple(each.copy() if isinstance(each, np.ndarray) else each for each in inputs)
        self._context = context
        self._lock = threading.Lock()
        self._tickets: list[StartedTicket] = []
        self._under_way = 0
        self._is_over = False
        self._error: BaseException | None = None

    def start(self) -> None:
        """Starts the first run."""
        # In this order no race is missed: the set has it before the pool is read, and the pool changes before the set is read.
        self._races.add(self)
        self.repeat()

    def repeat(self) -> None:
        """Starts a run if there is none, or if the latest run is on a device that has left the pool; another call does nothing."""
        with self._lock:
            waits_or_runs = any(ticket.member is None or ticket.member in self._pool.members for ticket in self._tickets[-1:])
            if self._is_over or waits_or_runs:
                return
            # An answer of the caller's own arrays and tensors comes from the race, not from a run that may lose it.
            own = {"token": _RunToken(self._context.token), "outputs": None, "tensors": None, "profile": None, "limits": None}
            context = self._context.derive(MemberMemory(), **own)
            ticket = StartedTicket(self._inputs, context, self._end, self._pool.leave)
            self._tickets.append(ticket)
            self._under_way += 1
        try:
            self._pool.enter(ticket)
        except Exception as error:  # noqa: BLE001  # the requests behind this one are repeated, too
            self._end(None, error)

    def _end(self, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        with self._lock:
            self._under_way -= 1
            if self._is_over:
                return
            if error is not None:
                self._error = self._error or error
                if self._under_way:
                    return
            self._is_over = True
            tickets = list(self._tickets)
        for ticket in tickets:
            # A device that looks ends the slower run; the pool does not give it to another device.
            ticket.context.token.is_set = True
        self._races.discard(self)
        self._done(outputs, None if error is None else self._error)


logger = logging.getLogger(__name__)

MEASURE_KEY, RUNTIME_KEY = "AUTO_MEASURE", "ENABLE_RUNTIME_FALLBACK"
CUMULATIVE = "CUMULATIVE_THROUGHPUT"
_UNASKED_SECONDS, _FIRST_SECONDS, _MEASURE_SECONDS = 1.0, 1.0, 3.0
"""Seconds that the further devices wait for a first request, and then for the first runs of the process; those that are measured wait
longer, as that takes longer.
"""
_PAUSE_SECONDS = 0.5
"""Seconds after a first answer in which an application mostly makes its first result, which a measurement does not disturb."""
_LOAD_SECONDS, _RUN_SECONDS = 300.0, 60.0
"""Seconds in which a further device must load the network, and in which it must answer a query and two devices be compared on one size of
requests, before the choice goes on without the device that hangs.
"""
_TURN_SECONDS, _POLL_SECONDS = 30.0, 0.1
"""Seconds that a choice waits for the choices of other networks, and between two looks at its network, which may be closed."""
_SIZE_RATIO = 4
"""A choice for open sizes holds for inputs of up to so many times more or fewer elements."""
_MEMORY_SHARE = 4
"""A device is measured only if the constants of the network fit this many times into the free memory."""


_turn = threading.Lock()
"""Held by the choice that is being made: the networks of a process are given a device one after another."""


class AutoExecutable(PoolExecutable):
    """A network on the device that was chosen for it, or on its way there."""

    def __init__(
        self, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], pool: Pool, source: MemberSource | None = None
    ) -> None:
        super().__init__(inputs, outputs, pool)
        self.source = source
        self._loader: Loader | None = None
        # The choice may end while it is being started, on the same thread.
        self._lock, self._is_handed_over = threading.RLock(), False
        self._settled: Future[None] | None = None
        self._actions: list[Callable[[], object]] = []

    @staticmethod
    def load(loader: Loader) -> AutoExecutable:
        """Returns the executable, ready for its first request. Raises: the error of the last device, if no device can load the network."""
        source, pool = loader.source, loader.pool
        executable = AutoExecutable(source.network.inputs, source.network.outputs, pool, source)
        if source.config[HINT_KEY] == CUMULATIVE:
            pool.set_members(list(loader.load_each(loader.candidates)))
            return executable
        if loader.quick is not None:
            pool.set_members([loader.load_quick(loader.quick)])
        else:
            pool.set_members([next(loader.load_each(loader.candidates))])
            if loader.measures:
                loader.settle()
        if loader.quick is None or loader.is_settled():
            executable.hand_over()
            return executable
        executable._loader, executable.when_final = loader, executable._call_later
        # A measurement is of the first request's sizes, and its work would be in the way of an application that still starts.
        if not loader.measures or (loader.choice is not None and not loader.is_open):
            executable._open_settling()
        return executable

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; until the choice is made another thread runs, so that the chosen device can answer before it."""
        if self._find_races(context) is not None:
            return Executable.run(self, inputs, context)
        self._note_request(inputs, context)
        return super().run(inputs, context)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Begins a run on a free member, now or as soon as a member is free."""
        self._note_request(inputs, context)
        races = self._find_races(context)
        if races is not None:
            _Race(self.pool, races, inputs, context, done).start()
        else:
            super().start(inputs, context, done)

    def _find_races(self, context: RunContext) -> set[_Race] | None:
        """Returns the races that a run may join; None after the choice of the device, and for a run that must not be repeated."""
        loader = self._loader
        return None if loader is None or not may_repeat_run(context) else loader.races

    def _note_request(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        """Begins the choice with the first request, and counts the request for measurements."""
        loader = self._loader
        if loader is None:
            return
        state = context.state
        assert isinstance(state, MemberMemory), "a request runs with the state that its executable made"
        loader.requests.note(inputs, repeats=state.has_run)
        state.has_run = True
        self._open_settling()

    def _open_settling(self) -> Future[None] | None:
        """Returns the choice that is under way, which begins with the first call; None if the device was chosen at load."""
        with self._lock:
            if self._settled is None and self._loader is not None:
                reference = weakref.ref(self)
                with suppress(ClosedError):  # the Core ends
                    self._settled = self._loader.begin()
                    self._settled.add_done_callback(lambda _: None if (settling := reference()) is None else settling.hand_over())
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
            if self._loader is not None:
                self._loader.requests.forget()
            self._loader = self.when_final = None
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


class Loader:
    """Loads members of a network and chooses among them; a load that failed is not tried again."""

    executor: Executor | None = None

    def __init__(self, candidates: Candidates, quick: str | None, entry: str, choice: Choice | None, *, measures: bool) -> None:
        """`quick` serves until the choice is made; None: a load waits for it. With `measures` the fastest device is chosen, else the
        first of the order. `entry` is the name of the kept choice in the private store, "" if none is kept, and `choice` its content.
        """
        source = candidates.source
        replace_failed = self.replace_failed if source.config[RUNTIME_KEY] else lambda _: None
        self.pool = Pool(source.owner, POLICIES[source.config[POLICY_KEY]](), replace_failed)
        self.requests = Requests()
        self.races: set[_Race] | None = set() if may_repeat_network(source.network) else None
        self.source, self.candidates = source, candidates
        self.quick, self.entry, self.choice, self.measures = quick, entry, choice, measures
        self._seconds: dict[str, float] = {}
        self.is_open = any(not isinstance(size, int) for spec in source.network.inputs for size in spec.shape or (None,))
        self._lock = threading.RLock()
        self._used: set[str] = set()
        self._is_part = is_candidate.get()
        self._abandoned: set[Member] = set()
        self._is_late = False

    def load_each(self, names: Iterable[str], seconds: float | None = None) -> Iterator[Member]:
        """Yields a member on each of these devices that can load the network, within `seconds` each; failures are named in warnings.

        Raises: ClosedError; at the end the last error if no device could load the network.
        """
        failure: HeteroError | None = None
        is_loaded = False
        for name in names:
            try:
                member = self._load(name, seconds)
            except ClosedError:
                raise
            except HeteroError as error:
                logger.warning("%s goes on without %s, which failed to load the network: %s", self.source.owner, name, error)
                failure = error
            else:
                is_loaded = True
                yield member
        if failure is not None and not is_loaded:
            raise failure

    def load_first(self, names: Iterable[str], seconds: float | None = None) -> Member | None:
        """Returns a member on the first of these devices that can load the network; None if all fail. Raises: ClosedError."""
        try:
            return next(self.load_each(names, seconds), None)
        except ClosedError:
            raise
        except HeteroError:  # each has its warning
            return None

    def load_quick(self, quick: str) -> Member:
        """Returns the member that answers first: another than `quick` if the nodes that take most of its runs are slow on it.

        Raises: as `load_each`.
        """
        names = chain([quick], (name for name in self.candidates if name != quick))
        member = next(self.load_each(names))
        if not self.measures or self.choice is not None or not member.loaded.get_metric("SLOW_NODES"):
            return member
        other = self.load_first(name for name in names if not self.candidates.holds_lock(name))
        if other is None:
            return member
        self.close_member(member)
        return other

    def close_member(self, member: Member) -> None:
        """Closes a member that is not in the pool; its device may be loaded again."""
        self._used.discard(member.name)
        self.pool.release(member)

    def is_settled(self) -> bool:
        """Says whether the device that was loaded first is the chosen device."""
        name = self.pool.members[0].name
        if self.choice is not None:
            return name == self.choice.device and not self.is_open and self._is_current(self.choice)
        if self.measures:
            return {name}.issuperset(self.candidates.names)
        return name == self.candidates.names[0]

    def begin(self) -> Future[None]:
        """Starts the choice on a thread of the Core, which waits for the threads of executors that are referenced."""
        self.executor = self.source.core.create_executor(self.source.owner, workers=1)
        return self.executor.submit(self.settle_meanwhile)

    def settle_meanwhile(self) -> None:
        """As `settle`, while requests run; if the choice fails, the device that serves stays, with a warning.

        The first requests of all networks come first: a load beside them would take processors from them.
        """
        if self.pool.has_entered.wait(_UNASKED_SECONDS):
            FIRST_RUNS.expect(self.pool.has_answered)
        is_measured = self.measures and self.choice is None
        if is_measured:
            self.pool.has_answered.wait(_MEASURE_SECONDS)
            self.pool.is_awaited.wait(_PAUSE_SECONDS)
        # The choice of a part is made within the choice of the whole.
        latest, is_held = monotonic() + _TURN_SECONDS, False
        while not (self._is_part or is_held or self._is_over()) and monotonic() < latest:
            is_held = _turn.acquire(timeout=_POLL_SECONDS)
        try:
            self._await_first_runs(_MEASURE_SECONDS if is_measured else _FIRST_SECONDS)
            self.settle()
        except ClosedError:
            return
        except Exception as error:  # noqa: BLE001  # nobody waits for this thread: an unknown error would be lost, and the choice with it
            serving = ", ".join(member.name for member in self.pool.members)
            logger.warning("%s stays on %s, as its choice of a device failed: %s", self.source.owner, serving, error)
        finally:
            if is_held:
                _turn.release()

    def _await_first_runs(self, seconds: float) -> None:
        FIRST_RUNS.wait(monotonic() + seconds, self._is_over)
        if self._is_over():
            raise ClosedError(f"{self.source.owner}: nothing needs the choice of a device any more")

    def _is_over(self) -> bool:
        is_closing = self.executor is not None and self.executor.is_closed
        return is_closing or self.pool.is_closed or not threading.main_thread().is_alive()

    def settle(self) -> None:
        """Loads the chosen device, which takes over from the members that serve meanwhile; if no device can load, these stay.

        Raises: ClosedError; if nothing serves, the last error of a device.
        """
        serving, choice = self.pool.members[0].name, self.choice
        # The device of a kept choice may have changed since, or fail to load the network.
        is_current = choice is not None and self.candidates.takes_all(choice.device) and self._is_current(choice)
        if choice is not None and is_current and (serving == choice.device or self._hand_to_first([choice.device])):
            return
        if self.measures:
            self._settle_measured()
        else:
            self._hand_to_first(takewhile(lambda name: name != serving, self.candidates))

    def _hand_to_first(self, names: Iterable[str]) -> bool:
        """Has the first of these devices that can load the network take over; says whether there is one."""
        chosen = self.load_first(names, _LOAD_SECONDS)
        if chosen is not None:
            self._take_over(chosen)
        return chosen is not None

    def _is_current(self, choice: Choice) -> bool:
        """Says whether a kept choice is of this version of its device, and of inputs of a similar size."""
        elements = self.requests.elements
        if not choice.elements <= _SIZE_RATIO * elements <= _SIZE_RATIO**2 * choice.elements and self.is_open:
            return False
        return describe_device(self.source.core, choice.device) == choice.identity

    def _take_over(self, member: Member) -> None:
        with self._lock:
            # A device that leaves may be the next one again.
            self._used -= {other.name for other in self.pool.members if other is not member}
            self.pool.set_members([member])
        # Each request that runs on a device which has left the pool starts again, on a device that is in it.
        for race in list(self.races or ()):
            race.repeat()

    def _settle_measured(self) -> None:
        """Has each device that can load the network take over if it is faster than the device that serves.

        A challenger is timed with its final kernels. If the device that serves loses while its own are still being compiled, it stays
        open and is a challenger at the end, once.
        """
        best = self.pool.members[0]
        seconds: dict[str, float] = {}
        again: list[Member] = []
        challenger: Member | None = None
        is_sure = True
        try:
            for challenger in self._load_challengers(best, again):
                is_faster = self._has_kernels(challenger) and self._call(
                    challenger, best, partial(beats, challenger, best, self.pool)
                )
                for member in {challenger, best} - self._abandoned:
                    seconds[member.name] = self.candidates.query_seconds[member.name] + self._seconds[member.name] + member.first
                winner, loser = (challenger, best) if is_faster else (best, challenger)
                is_early = loser is best and not best.is_final and best not in self._abandoned
                if is_early:
                    again.append(best)
                elif not (challenger.is_final and challenger.is_confirmed and best.is_confirmed) or loser in self._abandoned:
                    is_sure = False
                loser.stays_open = is_early or loser in self._abandoned
                if is_faster:
                    self._take_over(challenger)
                if not loser.stays_open:
                    self.close_member(loser)
                best = winner
        finally:
            for member in again if challenger is None else [*again, challenger]:
                if member not in self._abandoned and member not in self.pool.members:
                    self.close_member(member)
        if len(self.pool.members) > 1:
            # A failed run has brought a further device.
            self._take_over(best)
        if len(seconds) < 2:
            self._warn_of_slow_nodes(best)
        if self.entry and best.least and is_sure and not self._is_late:
            write_choice(self.entry, self.source.core, best, seconds, self.requests.elements)

    def _load_challengers(self, best: Member, again: Sequence[Member]) -> Iterator[Member]:
        """Yields a member on each further device, in order, then those that are timed `again`; devices that hold the interpreter's lock
        only if the user has asked for a measurement.
        """
        for name in self.candidates.names:
            member = next((present for present in self.pool.members if present.name == name), None)
            if name == best.name or (name in self._used and member is None):
                continue
            if (self.entry and self.candidates.holds_lock(name)) or not self._takes_all(name):
                continue
            # The constants of the network have to fit into memory a few times.
            memory, constants = read_host_memory(), self.source.network.initializers.values()
            if memory is not None and _MEMORY_SHARE * sum(constant.nbytes for constant in constants) > memory[1]:
                logger.info("%s measures no further device: the network needs too much memory", self.source.owner)
                break
            self._await_first_runs(_FIRST_SECONDS)
            challenger = member or self.load_first([name], _LOAD_SECONDS)
            if challenger is not None:
                yield challenger
        yield from tuple(again)

    def _warn_of_slow_nodes(self, member: Member) -> None:
        """Warns if the only device that can be measured has slow nodes; waits for its kernels."""
        if not is_ready(member.loaded):
            self._has_kernels(member)
        slow = member.loaded.get_metric("SLOW_NODES")
        if slow:
            logger.warning(
                "network '%s': %s has no fast kernel for %s (SLOW_NODES names all), and most of a run is spent there; %s has no other "
                "device to compare", self.source.network.name, member.name, ", ".join(map(repr, slow[:3])), self.source.owner,
            )  # fmt: skip

    def _takes_all(self, name: str) -> bool:
        """As `Candidates.takes_all`; a device that hangs while it starts or is asked takes nothing, with a warning."""
        try:
            call, thread = partial(self.candidates.takes_all, name), f"hetero-{name} query"
            return call_within(_RUN_SECONDS, call, thread=thread, is_budget=True, is_over=self._is_over)
        except OutOfTimeError:
            self._is_late = True
            logger.warning("%s goes on without %s, which has not answered whether it takes the network", self.source.owner, name)
            return False

    def _has_kernels(self, member: Member) -> bool:
        """Waits for the final kernels of a member; False if it fails or hangs in a run."""
        return self._call(member, member, partial(await_kernels, member))

    def _call(self, challenger: Member, best: Member, measure: Callable[..., bool]) -> bool:
        """Returns the result of a measurement on the requests so far. If it takes too long, the member whose run does not end, or else the
        challenger, is left out and stays open; the result is then True if the best member was left out.
        """
        names, owner = [spec.name for spec in self.source.network.inputs], self.source.owner
        mix = self.requests.find_mix(names, best.loaded.inputs)
        measure = partial(measure, mix=mix, repeats=self.requests.repeats, title=owner)
        try:
            thread = f"hetero-{owner} measures {challenger.name}"
            return call_within(_RUN_SECONDS * len(mix), measure, thread=thread, is_budget=True, is_over=self._is_over)
        except OutOfTimeError:
            since = monotonic() - _RUN_SECONDS / 2
            hanging = best if best.timed_since is not None and best.timed_since < since else challenger
            self._abandoned.add(hanging)
            logger.warning("%s goes on without %s, whose measurement has not ended", owner, hanging.name)
            return hanging is not challenger

    def replace_failed(self, failed: Member) -> Member | None:
        """Returns a member on the next device that can load the network, if any is left; it is placed behind the present members."""
        with self._lock:
            others = [member for member in self.pool.members if member is not failed]
            if others:
                return others[0]
            names = (name for name in self.candidates if name not in self._used)
            following = next(names, None)
            if following is None:
                return None
            logger.warning("%s: %s failed in a run; the next device is loaded", self.source.owner, failed.name)
            with suppress(ClosedError):
                member = self.load_first(chain([following], names))
                if member is not None:
                    self.pool.set_members([*self.pool.members, member])
                return member
            return None

    def _load(self, name: str, seconds: float | None) -> Member:
        self._used.add(name)
        began = perf_counter()
        token = is_candidate.set(self.measures and len(self.candidates.names) > 1)
        load = partial(self.source.load, name)
        try:
            member = (
                load()
                if seconds is None
                else call_within(
                    seconds,
                    load,
                    thread=f"hetero-{name} load",
                    is_budget=True,
                    is_over=self._is_over,
                    on_late_result=lambda late: late.loaded.close(),
                )
            )
        except OutOfTimeError:
            self._is_late = True
            raise DeviceTimeoutError(f"device {name} has not loaded it within {seconds:g} s; its thread goes on") from None
        finally:
            is_candidate.reset(token)
        self._seconds[name] = perf_counter() - began
        return member
