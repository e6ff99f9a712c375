"""InferRequest: one place for inputs, outputs and working memory, run again and again; the same for every device.

States: idle -> running -> idle. Python cannot stop a thread: when a request is cancelled it is idle at once, and the context
that the device still works on is set aside; the next run gets a new one. Nothing of a failed run stays behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import CancelToken, NodeTime, Profile, RunContext
from hetero_core.errors import InferenceError, InputNameError, RequestBusyError, RequestCancelledError, enumerate_choices, suggest
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.door import convert_value, order_inputs

if TYPE_CHECKING:
    import asyncio

    from hetero_core.runtime.executable import ExecutableNetwork

_Outcome = tuple[tuple[Any, ...], BaseException | None]
Callback = Callable[["InferRequest", BaseException | None], None]


class Run:
    """One run in flight: what it needs, how it ended.

    `is_detached` says that nobody is given the error when the run ends: it is called back, and `wait` raises it. `wake` is for an event
    loop.
    """

    __slots__ = ("context", "done", "error", "inputs", "is_detached", "is_over", "outputs", "wake")

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        self.inputs = inputs
        self.context = context
        self.done = threading.Event()
        self.is_over = False
        self.is_detached = False
        self.outputs: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.wake: Callable[[], None] | None = None


class InferRequest:
    """A request on a loaded network. One thread starts it; any thread may wait for it or cancel it."""

    def __init__(self, network: ExecutableNetwork) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._inputs: dict[str, Any] = {}
        self._presets: dict[str, np.ndarray[Any, Any]] = {}
        self._outputs: dict[str, Any] = {}
        self._callback: Callback | None = None
        self._state: object = network.create_state()
        self._running: Run | None = None
        self._last: Run | None = None
        self._profile: Profile | None = None
        self._run_device = network.run_measured if network.measures else network.run_host

    def infer(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the outputs by name, valid until the next run of this request; the callback is not called.

        Raises: InputNameError, InputShapeError, InputTypeError, RequestBusyError; what the device raised.
        """
        run = self._begin(inputs)
        if self._settle(run, *self._compute(run)):
            self._finish(run)
        if run.error is not None:
            raise run.error
        return run.outputs

    async def infer_async(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the outputs by name, valid until the next run of this request; the callback is not called.

        Blocks no thread while the device works; may be awaited on any event loop. A task that is cancelled cancels the request.

        Raises: as `infer` does; RequestCancelledError when `cancel` ended the run.
        """
        import asyncio  # some 30 ms, and loaded by everybody who has a loop

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        run = self._begin(inputs)
        run.wake = lambda: _wake(loop, ended)
        self._launch_or_raise(run)
        try:
            await ended
        except BaseException:
            self._cancel_run(run)
            raise
        if run.error is not None:
            raise run.error
        return run.outputs

    def start_async(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Starts a run on a thread of the device and returns; inputs are checked before.

        Raises: as `infer` does for bad inputs and for a request that is running.
        """
        run = self._begin(inputs)
        run.is_detached = True
        self._launch_or_raise(run)

    def _launch_or_raise(self, run: Run) -> None:
        try:
            self._launch(run)
        except BaseException as error:
            run.is_detached = False
            if self._settle(run, (), error):
                self._finish(run)
            raise

    def _launch(self, run: Run) -> None:
        start = self._network.start
        if start is not None:
            start(run.inputs, run.context, lambda outputs, error: self._arrive(run, outputs, error))
            return
        future = self._network.submit(lambda: self._run_async(run))
        future.add_done_callback(lambda ended: self._end_dropped(run) if ended.cancelled() else None)

    def _arrive(self, run: Run, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        """Ends a run that the device started by itself."""
        if isinstance(error, Exception):
            blamed = self._network.blame_device(error)
            blamed.__cause__ = error.__cause__ if blamed is error else error
            self._conclude(run, (), blamed)
        elif error is not None:
            self._conclude(run, (), error)
        else:
            self._conclude(run, *self._collect(run, lambda: () if outputs is None else outputs))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the request is idle, restarts from its callback included; True when it is, False after `timeout` seconds.

        Raises: the error of the last run that `start_async` started, or of its callback; ClosedError in a forked child.
        """
        self._network.require_process()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                run = self._running or self._last
            if run is None:
                return True
            if not run.done.wait(None if deadline is None else max(deadline - monotonic(), 0)):
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
        with self._lock:
            run = self._running
        if run is not None:
            self._cancel_run(run)

    def _cancel_run(self, run: Run) -> None:
        error = RequestCancelledError(f"a request on network '{self._network.name}' was cancelled")
        # The run is over before its device is told: what the device returns then, at once and half done, must not come first.
        if self._settle(run, (), error, keeps_state=False):
            run.context.token.is_set = True
            self._call_back(run)
            self._finish(run)

    def set_callback(self, callback: Callback | None) -> None:
        """Sets the function that is called once after each asynchronous run with the request and its error or None."""
        self._require_idle("set a callback")
        self._callback = callback

    def set_tensor(self, name: str, value: Any) -> None:
        """Gives an input for the next runs, or an array that an output is written to.

        Raises: InputNameError, InputTypeError, InputShapeError, RequestBusyError.
        """
        self._require_idle("set a tensor")
        spec, is_input = self._find(name)
        if is_input:
            self._inputs[name] = convert_value(value, spec, network=self._network.name)
            return
        if not (isinstance(value, np.ndarray) and value.flags.writeable and value.flags.c_contiguous):
            raise InputNameError(
                f"output '{name}' of network '{self._network.name}': expected a writable C-contiguous NumPy array to fill"
            )
        convert_value(value, spec, network=self._network.name)
        self._presets[name] = value

    def get_tensor(self, name: str) -> Any:
        """Returns the input that was given or the output of the last run.

        Raises: InputNameError when there is none.
        """
        self._require_idle("get a tensor")
        _, is_input = self._find(name)
        held = self._inputs if is_input else {**self._presets, **self._outputs}
        if name not in held:
            raise InputNameError(f"tensor '{name}' of network '{self._network.name}' has no value yet; set it or run the request")
        return held[name]

    @property
    def is_running(self) -> bool:
        """Says whether a run has begun and not ended; the callback comes after the end."""
        return self._running is not None

    @property
    def perf_counts(self) -> tuple[NodeTime, ...]:
        """The time of every node in the last run, in order of execution; empty unless PERF_COUNT is set."""
        return () if self._profile is None else self._profile.entries

    @property
    def profile(self) -> Profile | None:
        """All times of the last run: nodes, subgraphs, transfers, the wait for the device; None unless PERF_COUNT is set."""
        return self._profile

    def _find(self, name: str) -> tuple[ValueSpec, bool]:
        for specs, is_input in ((self._network.inputs, True), (self._network.outputs, False)):
            for spec in specs:
                if spec.name == name:
                    return spec, is_input
        names = [spec.name for spec in (*self._network.inputs, *self._network.outputs)]
        raise InputNameError(
            f"network '{self._network.name}' has no input or output '{name}'{suggest(name, names) or ';'} it has {enumerate_choices(names)}"
        )

    def _require_idle(self, action: str) -> None:
        if self._running is not None:
            raise RequestBusyError(f"cannot {action}: the request on network '{self._network.name}' is running; wait for it first")

    def _begin(self, inputs: Mapping[str, Any] | None) -> Run:
        self._network.require_process()
        self._require_idle("start a run")
        # What is no mapping goes on as it is, to the check that says so.
        given = self._inputs if inputs is None else {**self._inputs, **inputs} if isinstance(inputs, Mapping) else inputs
        ordered = order_inputs(given, self._network.inputs, network=self._network.name)
        presets = [self._presets.get(spec.name) for spec in self._network.outputs] if self._presets else None
        profile = Profile(str(self._network.device)) if self._network.measures else None
        run = Run(ordered, RunContext(self._state, outputs=presets, profile=profile, token=CancelToken()))
        with self._lock:
            if self._running is not None:
                raise RequestBusyError(
                    f"cannot start a run: the request on network '{self._network.name}' is running; wait for it first"
                )
            self._running = run
            self._profile = profile
            self._outputs = {}
        return run

    def _compute(self, run: Run) -> _Outcome:
        """Runs the device; returns its outputs, or its error."""
        return self._collect(run, lambda: self._run_device(run.inputs, run.context))

    def _collect(self, run: Run, compute: Callable[[], Any]) -> _Outcome:
        try:
            return self._fill(run.context, self._network.check_outputs(compute())), None
        except BaseException as error:  # noqa: BLE001  # kept for the thread that waits, and raised there; interrupts, too
            return (), error

    def _fill(self, context: RunContext, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the outputs with the caller's own arrays, filled, in place of those that the device made itself."""
        if context.outputs is None or context.token.is_set:
            return outputs
        filled = []
        for preset, output, spec in zip(context.outputs, outputs, self._network.outputs, strict=True):
            if preset is not None and preset is not output:
                if preset.shape != output.shape:
                    raise InferenceError(
                        f"output '{spec.name}' of network '{self._network.name}' has shape {list(output.shape)}; "
                        f"the array set for it has {list(preset.shape)}"
                    )
                np.copyto(preset, output)
            filled.append(output if preset is None else preset)
        return tuple(filled)

    def _settle(self, run: Run, outputs: tuple[Any, ...], error: BaseException | None, *, keeps_state: bool = True) -> bool:
        """Makes the request idle; False when that was done before: a cancel wins over a device that comes late."""
        fresh_state = self._state if keeps_state else self._network.create_state()
        with self._lock:
            if run.is_over:
                return False
            run.is_over = True
            run.error = error
            self._state = fresh_state
            # An error is raised once to whoever ran the request; only that of a detached run stays for `wait`.
            self._running, self._last = None, run if run.is_detached else None
            if error is None:
                run.outputs = {spec.name: value for spec, value in zip(self._network.outputs, outputs, strict=True)}
                self._outputs = dict(run.outputs)
        return True

    def _conclude(self, run: Run, outputs: tuple[Any, ...], error: BaseException | None, *, keeps_state: bool = True) -> None:
        """Makes the request idle, calls back, and lets those go on who wait."""
        if self._settle(run, outputs, error, keeps_state=keeps_state):
            self._call_back(run)
            self._finish(run)

    def _finish(self, run: Run) -> None:
        """Lets those go on who wait for a run."""
        run.done.set()
        if run.wake is not None:
            run.wake()

    def _run_async(self, run: Run) -> None:
        if not run.is_over:
            self._conclude(run, *self._compute(run))

    def _call_back(self, run: Run) -> None:
        callback = self._callback
        if callback is None or not run.is_detached:
            return
        try:
            callback(self, run.error)
        except Exception as error:  # noqa: BLE001  # the caller's own function; it reaches wait
            error.add_note(f"raised by the callback of a request on network '{self._network.name}'")
            error.__context__ = run.error
            run.error = error

    def _end_dropped(self, run: Run) -> None:
        """A task that never began, because the Core closed, ends its run as cancelled."""
        error = RequestCancelledError(f"the Core was closed before a request on network '{self._network.name}' began")
        self._conclude(run, (), error)


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """Tells an event loop, from any thread, that a run has ended."""
    try:
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))
    except RuntimeError:
        # A closed loop has nobody left who awaits.
        if not loop.is_closed():
            raise
