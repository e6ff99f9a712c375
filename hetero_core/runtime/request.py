"""InferRequest: one place for inputs, outputs and working memory, run again and again; the same for every device.

States: idle -> running -> idle. Python cannot stop a thread: when a request is cancelled it is idle at once, and the context
that the device still works on is set aside; the next run gets a new one. Nothing of a failed run stays behind. With DEADLINE the
device works on a thread that can be left behind, also for the run of a caller who waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from hetero_core.contract import RunContext
from hetero_core.devices.watch import LONGEST_WAIT
from hetero_core.errors import HeteroError, RequestBusyError, RequestCancelledError, refuse_pickling
from hetero_core.profile import NodeTime, Profile
from hetero_core.runtime.door import count_copied_bytes, fill_presets
from hetero_core.runtime.forks import FORKS, keep_in_child
from hetero_core.runtime.late_runs import describe_late_run, require_room, start_thread, start_timer
from hetero_core.runtime.positions import name_inputs
from hetero_core.runtime.request_values import RequestValues
from hetero_core.runtime.run import NO_STATE, Outcome, Run, tell_end, wake_loop
from hetero_core.runtime.states import RequestStates, hold_weakly

if TYPE_CHECKING:
    import asyncio

    from hetero_core.runtime.executable import ExecutableNetwork

Callback = Callable[["InferRequest", BaseException | None], None]


class InferRequest:
    """A request on a loaded network. One thread starts it; any thread may wait for it or cancel it."""

    def __reduce__(self) -> NoReturn:
        refuse_pickling("an InferRequest", "load the network in the other process and create a request there")

    def __init__(self, network: ExecutableNetwork) -> None:
        keep_in_child(self)
        self._network = network
        self._lock = threading.Lock()
        self._values = RequestValues(network)
        self._callback: Callback | None = None
        self.states = RequestStates(network, require_idle=hold_weakly(self._require_idle))
        self._has_states = bool(self.states)
        self._state: object = self._make_state()
        self._spare: object = self._make_state(self._state) if self._has_states else None  # a run reads states that the other made
        self._running: Run | None = None
        self._last: Run | None = None
        self._profile: Profile | None = None
        self._copied_inputs = 0

    def infer(self, inputs: Any = None) -> dict[str, Any]:
        """Returns the outputs by name, valid until the next run of this request; the callback is not called.

        Raises: InputNameError, InputShapeError, InputTypeError, RequestBusyError; what the device raised.
        """
        if self._network.deadline is not None:
            return self.infer_in_time(inputs).outputs
        run = self._begin(inputs)
        if self._settle(run, *self._compute(run)):
            self._finish(run)
        if run.error is not None:
            raise run.error
        return run.outputs

    def infer_in_time(self, inputs: Any) -> Run:
        """Runs a network with DEADLINE on a thread that can be abandoned, and returns the ended run. Raises: as `infer` does."""
        run = self._begin(inputs)
        try:
            self._start_work(run)
            if not run.wait(min(self._network.deadline or 0.0, LONGEST_WAIT)):
                self._expire(run)
            run.wait()  # one that has just ended is about to say so
        except BaseException:  # an interrupt or a cancelled task ends the wait, and so the run
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
        import asyncio  # some 30 ms, and loaded by everybody who has a loop

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        run = self._begin(inputs)
        run.wake = lambda: wake_loop(loop, ended)
        self._launch_or_raise(run)
        try:
            await ended
        except BaseException:  # an interrupt or a cancelled task ends the wait, and so the run
            self._cancel_run(run)
            raise
        if run.error is not None:
            raise run.error
        return run.outputs

    def start_async(self, inputs: Any = None) -> None:
        """Starts a run on a thread of the device and returns; inputs are checked before.

        Raises: as `infer` does for bad inputs and for a request that is running.
        """
        run = self._begin(inputs)
        run.is_detached = True
        self._launch_or_raise(run)

    def _launch_or_raise(self, run: Run) -> None:
        try:
            self._launch(run)
        except BaseException as error:  # whatever keeps a run from beginning, the request is idle after it
            run.is_detached = False
            if self._settle(run, (), error):
                self._finish(run)
            raise

    def _launch(self, run: Run) -> None:
        start, deadline = self._network.start, self._network.deadline
        if deadline is not None:
            run.timer = start_timer(deadline, lambda: self._expire(run), name=f"hetero-{self._network.device} deadline")
        if start is not None:
            self._give_state(run)
            run.is_at_work = deadline is not None
            start(run.inputs, run.context, lambda outputs, error: self._arrive(run, outputs, error))
            return
        future = self._network.submit(lambda: self._run_async(run))
        future.add_done_callback(lambda ended: self._end_dropped(run) if ended.cancelled() else None)

    def _arrive(self, run: Run, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        """Ends a run that the device started by itself."""
        self._leave_work(run)
        if error is not None:
            blamed = self._network.blame_device(error)
            # A device may tell anything in place of an error; who waits must go on.
            cause: Any = error.__cause__ if blamed is error else error
            blamed.__cause__ = cause if isinstance(cause, BaseException) else None
            self._conclude(run, (), blamed)
        else:
            self._conclude(run, *self._collect(run, () if outputs is None else outputs))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the request is idle and its callback starts no further run; returns False if `timeout` seconds pass before that.

        Raises: the error of the last run that `start_async` started, or of its callback; ClosedError in a forked child.
        """
        self._network.require_process()
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
        """Ends a running request at once with RequestCancelledError; does nothing on an idle one."""
        self._network.require_process()
        run = self._running
        if run is None:
            return
        self._cancel_run(run)
        # An interrupt that came within the callback, which was on this thread.
        if isinstance(run.error, KeyboardInterrupt):
            raise run.error

    def _cancel_run(self, run: Run) -> None:
        self._set_aside(run, RequestCancelledError(f"a request on network '{self._network.name}' was cancelled"))

    def _set_aside(self, run: Run, error: HeteroError) -> None:
        """Ends a run with an error, whatever the device does; its context stays with the device."""
        # The run is over before its device is told: what the device returns then, at once and half done, must not come first.
        if self._settle(run, (), error, keeps_state=False):
            run.context.token.is_set = True
            self._call_back(run)
            self._finish(run)

    def _start_work(self, run: Run) -> None:
        def work() -> None:
            outcome = self._compute(run)
            self._leave_work(run)
            self._conclude(run, *outcome)

        run.is_at_work = True
        start_thread(work, name=f"hetero-{self._network.device} run")

    def _leave_work(self, run: Run) -> None:
        """Says that the device has returned from a run."""
        with self._lock:
            run.is_at_work = False
            if run.is_late:
                run.is_late = False
                self._network.late_runs.add(-1)

    def _expire(self, run: Run) -> None:
        """Ends a run whose time is over, if it has not ended."""
        seconds, limits = self._network.deadline, run.context.limits
        assert seconds is not None
        node = "" if limits is None else limits.node
        self._set_aside(run, describe_late_run(self._network.where, seconds, node, has_begun=run.is_at_work))

    def set_callback(self, callback: Callback | None) -> None:
        """Sets the function that is called once after each asynchronous run with the request and its error or None."""
        self._require_idle("set a callback")
        self._callback = callback

    def set_tensor(self, name: str, value: Any) -> None:
        """Sets an input for the next runs, or the array or DeviceTensor to which an output is written.

        Raises: InputNameError, InputTypeError, InputShapeError, RequestBusyError.
        """
        self._require_idle("set a tensor")
        self._values.set_tensor(name, value)

    def get_tensor(self, name: str) -> Any:
        """Returns the input that was set, or the output of the last run. Raises: InputNameError when there is none."""
        self._require_idle("get a tensor")
        return self._values.get_tensor(name)

    @property
    def is_running(self) -> bool:
        """Says whether a run has begun and not ended; the callback comes after the end."""
        return self._running is not None

    @property
    def perf_counts(self) -> tuple[NodeTime, ...]:
        """The time of every node in the last run, in order of execution; empty unless PERF_COUNT is set."""
        return () if self._profile is None else self._profile.entries

    @property
    def host_copied_bytes(self) -> int:
        """Bytes of inputs and states that the last run had to copy on the host; 0 unless PERF_COUNT is set."""
        return 0 if self._profile is None else self._copied_inputs + self.states.copied_bytes

    @property
    def latency(self) -> float | None:
        """Seconds from the call that asked for the last run until its device was done; None unless PERF_COUNT is set."""
        return None if self._profile is None else self._profile.latency

    @property
    def profile(self) -> Profile | None:
        """All times of the last run: nodes, subgraphs, transfers, the wait for the device; None unless PERF_COUNT is set."""
        return self._profile

    def _require_idle(self, action: str) -> None:
        if self._running is not None:
            raise RequestBusyError(f"cannot {action}: the request on network '{self._network.name}' is running; wait for it first")

    def _begin(self, inputs: Any) -> Run:
        network = self._network
        if network.forks != FORKS.count:
            network.require_process()
        if self._running is not None:
            self._require_idle("start a run")
        values = self._values
        merged = values.merge(inputs)
        ordered = network.order_inputs(merged)
        context = RunContext(self._state)
        if values.presets is not None:
            values.presets.enter(context)
        if network.measures:
            context.profile = Profile(str(network.device))
            named = name_inputs(merged, network.inputs, network=network.name)
            self._copied_inputs = count_copied_bytes(named, ordered[: len(network.inputs)], network.inputs)
        if network.deadline is not None:
            require_room(network.late_runs, network.where)
        if network.deadline is not None or network.memory_limit is not None:
            context.limits = network.create_limits()
        run = Run(self.states.join(ordered) if self._has_states else ordered, context)
        with self._lock:
            if self._running is not None:
                self._require_idle("start a run")
            self._running = run
            self._profile = context.profile
            values.outputs = None
        return run

    def _compute(self, run: Run) -> Outcome:
        """Runs the device; returns its outputs, or its error."""
        try:
            if run.context.state is NO_STATE:
                self._give_state(run)
            outputs = self._network.run_measured(run.inputs, run.context)
        except BaseException as error:  # noqa: BLE001  # kept for the thread that waits, and raised there; interrupts, too
            return (), error
        return self._collect(run, outputs)

    def _make_state(self, beside: object = None) -> object:
        return self._network.create_state(beside) if self._network.deadline is None else NO_STATE

    def _give_state(self, run: Run) -> None:
        """Has the device make working memory: with DEADLINE, at first and after a run that was set aside."""
        if run.context.state is NO_STATE:
            state = run.context.state = self._network.create_state(self._spare)
            with self._lock:
                if not run.is_over:
                    self._state = state

    def _collect(self, run: Run, outputs: Any) -> Outcome:
        """Returns what the device returned, checked and in the caller's arrays, or what is wrong with it."""
        try:
            outputs = self._network.check_outputs(outputs, run.context)
            if run.context.outputs is not None and not run.context.token.is_set:
                outputs = fill_presets(run.context.outputs, outputs, self._network.all_outputs, network=self._network.name)
            return self.states.check(run.inputs, outputs) if self._has_states else outputs, None
        except BaseException as error:  # noqa: BLE001  # as in _compute
            return (), error

    def _settle(self, run: Run, outputs: tuple[Any, ...], error: BaseException | None, *, keeps_state: bool = True) -> bool:
        """Makes the request idle; False when that was done before: a cancel wins over a device that comes late."""
        # With DEADLINE whoever gives up must not have to wait for the device to make working memory.
        fresh_state = self._state if keeps_state else self._make_state(self._spare)
        with self._lock:
            if run.is_over:
                return False
            run.is_over = True
            run.error = error
            self._state = fresh_state
            if run.is_at_work:
                run.is_late = True
                self._network.late_runs.add(1)
            # An error is raised once to whoever ran the request; only that of a detached run stays for `wait`.
            self._running, self._last = None, run if run.is_detached else None
            if error is None:
                if self._has_states:
                    outputs = self.states.keep(outputs)
                    self._state, self._spare = self._spare, self._state
                run.outputs = dict(zip(self._network.output_names, outputs))  # noqa: B905  # check_outputs has; 0.13 us
                self._values.outputs = outputs
        return True

    def _conclude(self, run: Run, outputs: tuple[Any, ...], error: BaseException | None, *, keeps_state: bool = True) -> None:
        """Makes the request idle, calls the callback, and wakes the threads that wait."""
        if self._settle(run, outputs, error, keeps_state=keeps_state):
            self._call_back(run)
            self._finish(run)

    def _finish(self, run: Run) -> None:
        """Wakes the threads that wait for a run."""
        timer, run.timer = run.timer, None
        if timer is not None:
            timer.cancel()
        run.open()
        if run.wake is not None:
            run.wake()

    def _run_async(self, run: Run) -> None:
        if run.is_over:
            return
        if self._network.deadline is None:
            self._conclude(run, *self._compute(run))
        else:
            # The thread of the pool is free again when the run is over, whatever the device does.
            self._start_work(run)
            run.wait()

    def _call_back(self, run: Run) -> None:
        callback = self._callback
        if callback is not None and run.is_detached:
            tell_end(run, lambda: callback(self, run.error), self._network.name)

    def _end_dropped(self, run: Run) -> None:
        """A task that never began, because the Core closed, ends its run as cancelled."""
        reason = f"the Core was closed before a request on network '{self._network.name}' began"
        self._conclude(run, (), RequestCancelledError(reason))
