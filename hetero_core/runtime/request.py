"""InferRequest: inputs, outputs and working memory of repeated runs; the same for every device.

States: idle -> running -> idle. Every run is begun by `_begin`, computed by `_compute` or by the device's own `start`, and ended by `_end`;
`infer`, `infer_async` and `start_async` differ only in the thread or task that waits for the end. Python cannot stop a thread: when a
request is cancelled it is idle at once, and the context that the device still works on is set aside; the next run gets a new context.
Nothing of a failed run stays behind. With DEADLINE the device works on a thread that can be abandoned, also for `infer`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from math import inf
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any, NoReturn

from hetero_core.contract import Array, Done, RunContext
from hetero_core.devices.watch import LONGEST_WAIT
from hetero_core.errors import (
    ClosedError,
    DeadlineExceededError,
    InputNameError,
    RequestBusyError,
    RequestCancelledError,
    refuse_pickling,
)
from hetero_core.network.types import ValueSpec
from hetero_core.profile import NodeTime, Profile
from hetero_core.runtime import executors
from hetero_core.runtime.executors import keep_in_child
from hetero_core.runtime.inputs import OrderedPresets, check_preset, convert_value, count_copied_bytes, find_spec, name_inputs
from hetero_core.runtime.outputs import fill_presets
from hetero_core.runtime.states import RequestStates

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

CLOSE_SECONDS = 10.0
"""Seconds that closing a network waits for its runs before it cancels them."""
CANCEL_SECONDS = 1.0
"""Seconds that it then waits for devices that check for cancellation."""
_POLL_SECONDS = 0.005
NO_STATE: Any = object()
"""Stands for working memory that the device has not made yet."""

Callback = Callable[["InferRequest", BaseException | None], None]
Start = Callable[[tuple[Array, ...], RunContext, Done], None]
Outcome = tuple[tuple[Any, ...], BaseException | None]


class Run:
    """A run in flight, computed by `network`.

    No thread waits for a run that `is_detached`: the callback gets its error, and `wait` of the request raises it. `wake` tells an
    event loop of the end.
    """

    # Class attributes until they are set: every run has them, and most runs set few of them.
    outputs: tuple[Any, ...] = ()
    error: BaseException | None = None
    is_over = is_detached = is_delegated = False
    wake: Callable[[], None] | None = None
    timer: threading.Timer | None = None  # ends a run with DEADLINE

    def __init__(self, network: ExecutableNetwork, inputs: tuple[Any, ...], context: RunContext, deadline: float | None) -> None:
        self.network = network
        self.inputs = inputs
        self.context = context
        self.deadline = deadline  # seconds
        # A lock that is held until the end; an event would cost 5 us in every run.
        self.gate = threading.Lock()
        self.gate.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end; returns False if `timeout` seconds pass before."""
        has_ended = self.gate.acquire(timeout=-1 if timeout is None else min(timeout, LONGEST_WAIT))
        if has_ended:
            self.gate.release()
        return has_ended


class InferRequest:
    """A request on a loaded network. A single thread starts it; any thread may wait for it or cancel it."""

    # Class attributes as those of Run: `infer` of a network makes a request for each run.
    _presets: OrderedPresets | None = None
    _outputs: tuple[Any, ...] | None = None
    _callback: Callback | None = None
    _state: object = NO_STATE
    # A run with states reads the results of the last run in the spare working memory; the two take turns.
    _spare: object = NO_STATE
    # The network that computes in place of this one, and the working memory of its runs.
    _delegate: ExecutableNetwork | None = None
    _delegate_state: object = NO_STATE
    _running: Run | None = None
    _last: Run | None = None
    profile: Profile | None = None
    """All times of the last run: nodes, subgraphs, transfers, the wait for the device; None unless PERF_COUNT is set."""
    _copied_inputs = 0
    seconds = inf
    """Seconds in which a thread of the core has computed the last run; infinite if the device started it by itself."""

    def __reduce__(self) -> NoReturn:
        refuse_pickling("an InferRequest", "load the network in the other process and create a request there")

    def __init__(self, network: ExecutableNetwork) -> None:
        self._network = network
        self._process = network.process
        self._lock = threading.Lock()
        self._input_of_name: dict[str, Any] = {}
        self._preset_of_name: dict[str, Any] = {}
        self._has_states = bool(network.border.states)
        # With a deadline, the run makes its working memory, since it may be abandoned.
        if network.deadline is None and network.find_delegate() is None:
            self._state = network.create_state()
            if self._has_states:
                self._spare = network.create_state(self._state)
        if self._state is not None:
            keep_in_child(self)

    @cached_property
    def states(self) -> RequestStates:
        """The states by the name of the input that reads them."""
        return RequestStates(self._network, self)

    # Runs: on this thread, in an event loop, and detached

    def infer(self, inputs: Any = None) -> dict[str, Any]:
        """Returns the outputs by name, valid until the next run of this request; the callback is not called.

        Raises: InputNameError, InputShapeError, InputTypeError, RequestBusyError; errors of the device.
        """
        return self._name_outputs(self.run(inputs))

    def run(self, inputs: Any = None) -> Run:
        """Runs on the calling thread and returns the ended run. Raises: as `infer` does."""
        run = self._begin(inputs)
        try:
            if run.deadline is None:
                self._compute(run)
            else:
                self._work(run, run.deadline)
        except BaseException:  # an interrupt ends the wait, and so the run
            self._cancel_run(run)
            raise
        if run.error is not None:
            raise run.error
        return run

    async def infer_async(self, inputs: Any = None) -> dict[str, Any]:
        """Returns the outputs by name, valid until the next run of this request; the callback is not called.

        Blocks no thread while the device works; may be awaited on any event loop. A task that is cancelled cancels the request.

        Raises: as `infer` does; RequestCancelledError when `cancel` ended the run.
        """
        import asyncio  # some 30 ms; a program with a loop has it

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        run = self._begin(inputs)

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))
            except RuntimeError:
                # A closed loop has no waiting tasks.
                if not loop.is_closed():
                    raise

        run.wake = wake
        self._launch(run)
        try:
            await ended
        except BaseException:  # an interrupt or a cancelled task ends the wait, and so the run
            self._cancel_run(run)
            raise
        if run.error is not None:
            raise run.error
        return self._name_outputs(run)

    def start_async(self, inputs: Any = None) -> None:
        """Starts a run on a thread of the device and returns; inputs are checked before.

        Raises: as `infer` does for bad inputs and for a request that is running.
        """
        run = self._begin(inputs)
        run.is_detached = True
        self._launch(run)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the request is idle and its callback starts no further run; returns False if `timeout` seconds pass before that.

        Raises: the error of the last run that `start_async` started, or of its callback; ClosedError in a forked child.
        """
        self.require_process()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                run = self._running or self._last
            if run is None:
                return True
            if not run.wait(None if deadline is None else max(deadline - monotonic(), 0)):
                return False
            with self._lock:
                is_last = self._running is None and (self._last is run or self._last is None)
            if is_last:
                if run.error is not None:
                    raise run.error
                return True

    def cancel(self) -> None:
        """Ends a running request at once with RequestCancelledError; does nothing on an idle request."""
        self.require_process()
        run = self._running
        if run is None:
            return
        self._cancel_run(run)
        # An interrupt within the callback, which ran on this thread.
        if isinstance(run.error, KeyboardInterrupt):
            raise run.error

    # Begin

    def _begin(self, inputs: Any) -> Run:
        network = self._network
        if self._process != executors.process:
            self.require_process()
        if self._running is not None:
            self.require_idle("start a run")
        merged = self._input_of_name if inputs is None else inputs
        if self._input_of_name and inputs is not None:  # values of this run override those that were set
            merged = {**self._input_of_name, **name_inputs(inputs, network.inputs, network=network.name)}
        # If constants are replaced, a second network computes, in working memory of its own.
        computing, ordered = network.route_inputs(merged)
        state, delegate = self._state, None
        if computing is not network:
            state = NO_STATE
        elif network.executable.delegate is not None and self._presets is None:
            delegate = network.find_delegate(ordered)
        if delegate is not None:
            if delegate is not self._delegate:
                self._delegate, self._delegate_state = delegate, NO_STATE
            computing, state = delegate, self._delegate_state
            network.executable.delegated_runs += 1
        context = network.open_context(state)
        if self._presets is not None:
            self._presets.enter(context)
        if context.profile is not None:
            named = name_inputs(merged, network.inputs, network=network.name)
            self._copied_inputs = count_copied_bytes(named, ordered[: len(network.inputs)], network.inputs)
        run = Run(computing, self.states.join(ordered) if self._has_states else ordered, context, network.deadline)
        if delegate is not None:
            run.is_delegated = True
        self.seconds = inf
        self._lock.acquire()  # `with` takes 0.1 us longer
        try:
            if self._running is not None:  # of another thread
                self.require_idle("start a run")
            self._running = run
            self.profile = context.profile
            self._outputs = None
        finally:
            self._lock.release()
        return run

    # Compute

    def _work(self, run: Run, seconds: float | None = None) -> None:
        """Computes a run and ends it. With DEADLINE a second thread computes, which can be abandoned; the current thread waits for
        it, and ends the run after `seconds`. None leaves that to the timer of the run.
        """
        if run.is_over:  # cancelled before a thread came to it
            return
        if run.deadline is None:
            self._compute(run)
            return
        # A daemon: stuck in a device, it keeps neither the interpreter nor a pool of the Core from ending.
        threading.Thread(target=self._compute, args=(run,), name=f"hetero-{self._network.device} run", daemon=True).start()
        if not run.wait(seconds):
            self._expire(run)
            run.wait()  # it may have ended just now, before its end was reported

    def _launch(self, run: Run) -> None:
        """Lets the device start a run, or a thread compute it. Raises: an error that keeps the run from beginning, and ends it."""
        try:
            if run.deadline is not None:
                run.timer = threading.Timer(min(run.deadline, LONGEST_WAIT), lambda: self._expire(run))
                run.timer.name, run.timer.daemon = f"hetero-{self._network.device} deadline", True
                run.timer.start()
            start = run.network.start
            if start is None:
                future = run.network.submit(lambda: self._work(run))
                future.add_done_callback(lambda ended: self._end_dropped(run) if ended.cancelled() else None)
                return
            if run.context.state is NO_STATE:
                self._give_state(run)
            start(run.inputs, run.context, lambda outputs, error: self._arrive(run, outputs, error))
        except BaseException as error:
            if self._take_back(run, error):
                self._launch(run)
                return
            run.is_detached = False
            self._end(run, (), error)
            raise

    def _compute(self, run: Run) -> None:
        """Runs the device, and ends the run with its outputs or its error."""
        try:
            if run.context.state is NO_STATE:
                self._give_state(run)
            start = perf_counter()
            outputs = run.network.run_host(run.inputs, run.context)
            self.seconds = perf_counter() - start
        except BaseException as error:  # noqa: BLE001  # kept for the thread that waits, and raised there; interrupts, too
            if self._take_back(run, error):
                self._compute(run)
            else:
                self._end(run, (), error)
            return
        self._end(run, *self._collect(run, outputs))

    def _take_back(self, run: Run, error: BaseException) -> bool:
        """Says whether the network itself computes a run that has failed on its delegate."""
        if not run.is_delegated or not isinstance(error, Exception) or run.context.token.is_set or run.is_over:
            return False
        executable = self._network.executable
        executable.delegated_runs -= 1
        if not executable.take_back(error):
            return False
        run.network, run.is_delegated, run.context.state = self._network, False, self._state
        return True

    def _give_state(self, run: Run) -> None:
        """Lets the device make working memory."""
        run.context.state = state = run.network.create_state(self._spare)
        with self._lock:
            if not run.is_over and run.network is self._network:
                self._state = state
            elif not run.is_over and run.is_delegated and run.network is self._delegate:
                self._delegate_state = state

    def _collect(self, run: Run, outputs: Any) -> Outcome:
        """Returns the outputs, checked and in the caller's arrays, or the error of the check."""
        try:
            outputs = run.network.check_outputs(outputs, run.context)
            if run.context.outputs is not None and not run.context.token.is_set:
                outputs = fill_presets(run.context.outputs, outputs, self._network.all_outputs, network=self._network.name)
            return self.states.check(run.inputs, outputs) if self._has_states else outputs, None
        except BaseException as error:  # noqa: BLE001  # as in _compute
            return (), error

    def _arrive(self, run: Run, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        """Ends a run that the device started by itself."""
        if error is None:
            self._end(run, *self._collect(run, outputs))
        elif not self._launch_again(run, error):
            self._end(run, (), run.network.blame_device(error))

    def _launch_again(self, run: Run, error: BaseException) -> bool:
        """Launches a run that has failed on its delegate on the network itself; says whether it did."""
        is_taken_back = self._take_back(run, error)
        if is_taken_back:
            with suppress(BaseException):  # the run has ended with it
                self._launch(run)
        return is_taken_back

    # End

    def _end(self, run: Run, outputs: tuple[Any, ...], error: BaseException | None, *, is_abandoned: bool = False) -> None:
        """Makes the request idle, calls the callback, and wakes the threads that wait.

        Does nothing to a run that has ended: a cancellation takes precedence over a late result of the device. `is_abandoned`
        leaves the context to the device.
        """
        self._lock.acquire()
        try:
            if run.is_over:
                return
            run.is_over = True
            run.error = error
            if is_abandoned:
                self._state = self._delegate_state = NO_STATE
            # A waiting caller gets the error once; the error of a detached run stays for `wait`.
            self._running, self._last = None, run if run.is_detached else None
            if error is None:
                if self._has_states:
                    outputs = self.states.keep(outputs)
                    self._state, self._spare = self._spare, self._state
                run.outputs = self._outputs = outputs
        finally:
            self._lock.release()
        if is_abandoned:
            # After the end, since a device may return a partial result at once, which must not end the run first.
            run.context.token.is_set = True
        if run.is_detached and self._callback is not None:
            self._call_back(run, self._callback)
        self._finish(run)

    def _finish(self, run: Run) -> None:
        """Wakes the threads that wait for a run."""
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None  # it refers to the run
        run.gate.release()
        if run.wake is not None:
            run.wake()

    def _call_back(self, run: Run, callback: Callback) -> None:
        """Calls the caller's own function; its exception becomes the run's error, so that waiting threads go on."""
        try:
            callback(self, run.error)
        except BaseException as error:  # noqa: BLE001  # an exit or an interrupt within a callback, too: it is raised in `wait`
            error.add_note(f"raised by the callback of a request on network '{self._network.name}'")
            error.__context__ = run.error
            run.error = error

    def _cancel_run(self, run: Run) -> None:
        error = RequestCancelledError(f"a request on network '{self._network.name}' was cancelled")
        self._end(run, (), error, is_abandoned=True)

    def _expire(self, run: Run) -> None:
        """Ends a late run, if it has not ended."""
        limits = run.context.limits
        node = "" if limits is None else limits.node
        place = f"it was in node {node}" if node else "the device was at work"
        if run.context not in run.network.thread_of_run:
            place = "it had not begun, the device was busy"
        error = DeadlineExceededError(
            f"a run of {self._network.where} has not ended within DEADLINE={run.deadline:g} s: {place}. It was set aside with its working "
            "memory, and what the device returns is dropped; give it more time, or smaller inputs"
        )
        self._end(run, (), error, is_abandoned=True)

    def _end_dropped(self, run: Run) -> None:
        """A task that never began, because the Core closed, ends its run as cancelled."""
        reason = f"the Core was closed before a request on network '{self._network.name}' began"
        if not self._launch_again(run, ClosedError(reason)):
            self._end(run, (), RequestCancelledError(reason))

    def _name_outputs(self, run: Run) -> dict[str, Any]:
        return dict(zip(self._network.output_names, run.outputs))  # noqa: B905  # of one length, as check_outputs says; 0.13 us

    # Values between runs

    def set_callback(self, callback: Callback | None) -> None:
        """Sets the function that is called once after each asynchronous run with the request and its error or None."""
        self.require_idle("set a callback")
        self._callback = callback

    def set_tensor(self, name: str, value: Any) -> None:
        """Sets an input for the next runs, or the array or DeviceTensor to which an output is written.

        Raises: InputNameError, InputTypeError, InputShapeError, RequestBusyError.
        """
        self.require_idle("set a tensor")
        network = self._network
        spec, is_input = self._find_spec(name)
        if is_input:
            self._input_of_name[name] = convert_value(value, spec, network=network.name, takes_tensors=network.takes_tensors)
            return
        self._preset_of_name[name] = check_preset(value, spec, network=network.name, takes_tensors=network.takes_tensors)
        self._presets = OrderedPresets(self._preset_of_name, network.all_outputs)

    def get_tensor(self, name: str) -> Any:
        """Returns the input that was set, or the output of the last run. Raises: InputNameError if no input or output has this name
        or it has no value yet.
        """
        self.require_idle("get a tensor")
        network = self._network
        _, is_input = self._find_spec(name)
        outputs = zip(network.output_names, self._outputs or (), strict=False)
        # An output may be an input, which is then passed with a run rather than set.
        values = {**self._preset_of_name, **dict(outputs), **(self._input_of_name if is_input else {})}
        if name not in values:
            raise InputNameError(f"tensor '{name}' of network '{network.name}' has no value yet; set it or run the request")
        return values[name]

    def _find_spec(self, name: str) -> tuple[ValueSpec, bool]:
        network = self._network
        return find_spec(name, (*network.inputs, *network.replaceable), network.outputs, network=network.name)

    def require_process(self) -> None:
        """Raises ClosedError in a forked child, also if the network is opened again there: the state of the request is the parent's."""
        self._network.require_process()
        if self._process != self._network.process:
            raise ClosedError(
                f"a request on network '{self._network.name}' was created before this process was forked; create one in the child"
            )

    def require_idle(self, action: str) -> None:
        """Raises RequestBusyError while a run is on; `action` is the verb of the message."""
        if self._running is not None:
            raise RequestBusyError(f"cannot {action}: the request on network '{self._network.name}' is running; wait for it first")

    # The last run

    @property
    def is_running(self) -> bool:
        """Says whether a run has begun and not ended; the callback comes after the end."""
        return self._running is not None

    @property
    def perf_counts(self) -> tuple[NodeTime, ...]:
        """The time of every node in the last run, in order of execution; empty unless PERF_COUNT is set."""
        return () if self.profile is None else self.profile.entries

    @property
    def host_copied_bytes(self) -> int:
        """Bytes of inputs and states that the last run had to copy on the host; 0 unless PERF_COUNT is set."""
        return 0 if self.profile is None else self._copied_inputs + self.states.copied_bytes

    @property
    def latency(self) -> float | None:
        """Seconds from the call that requested the last run until its device had finished; None unless PERF_COUNT is set."""
        return None if self.profile is None else self.profile.latency


def wait_for_runs(thread_of_run: Mapping[RunContext, int]) -> int:
    """Waits for the runs of other threads, and cancels runs that take more than CLOSE_SECONDS; returns the number of runs that are
    still under way.
    """
    here = threading.get_ident()
    end = monotonic() + CLOSE_SECONDS
    while runs := [context for context, thread in list(thread_of_run.items()) if thread != here]:
        now = monotonic()
        if now > end or all(context.token.is_set for context in runs):
            end = min(end, now)
            for context in runs:
                context.token.is_set = True
        if now > end + CANCEL_SECONDS:
            return len(runs)
        sleep(_POLL_SECONDS)
    return 0
