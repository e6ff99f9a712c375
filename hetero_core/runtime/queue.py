"""AsyncInferQueue: several requests of the same network that are kept busy; an idle request takes the next inputs.

A request is busy from its start until its callback has returned. Once `wait_all` has raised the error of a failed run, the queue
keeps nothing of the run.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hetero_core.errors import ConfigValueError, RequestBusyError
from hetero_core.runtime.request import InferRequest, Run

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

QueueCallback = Callable[[InferRequest, Any], None]


class AsyncInferQueue:
    """A pool of requests on a loaded network. Safe for threads; a context manager that waits for all runs.

    `queue[i]` and iteration give the requests, to read their tensors and times; start runs only through the queue.
    """

    def __init__(self, network: ExecutableNetwork, jobs: int = 0) -> None:
        """Makes `jobs` requests; 0 stands for the network's OPTIMAL_NUMBER_OF_INFER_REQUESTS."""
        if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 0:
            raise ConfigValueError(f"a queue on network '{network.name}': expected jobs of 0 or more, got {jobs!r}")
        count = jobs if jobs > 0 else max(int(network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")), 1)
        self._network = network
        self._changed = threading.Condition()
        # For each request, the number of runs with unfinished callbacks plus the number of starts in progress; 0 is idle.
        self._unfinished = [0] * count
        self._userdata: list[Any] = [None] * count
        self._errors: list[BaseException] = []
        self._callback: QueueCallback | None = None
        # `index`: the request for which the current thread runs the callback.
        self._here = threading.local()
        self._requests = tuple(_QueuedRequest(network, self, index) for index in range(count))

    def start_async(self, inputs: Any = None, userdata: Any = None) -> None:
        """Starts a run on an idle request, waiting until a request is idle; `userdata` is handed to the callback.

        `inputs` may be a function that returns them for the position of this request. Within a callback it never waits: if no second
        request is idle, it uses the request of the callback.

        Raises: InputNameError, InputShapeError, InputTypeError; RequestBusyError within a callback that has restarted its request.
        """
        index = self._wait_for_idle(takes_it=True)
        try:
            self._userdata[index] = userdata
            self._requests[index].start_async(inputs(index) if callable(inputs) else inputs)
        finally:
            self._leave(index, None)

    @property
    def userdata(self) -> tuple[Any, ...]:
        """The userdata of the last start of each request."""
        return tuple(self._userdata)

    def get_idle_request_id(self) -> int:
        """Returns the position of the first idle request, waiting until a request is idle; the next `start_async` takes it."""
        return self._wait_for_idle(takes_it=False)

    def is_ready(self) -> bool:
        """Says whether a request is idle, so that `start_async` would not wait."""
        self._requests[0].require_process()
        with self._changed:
            return 0 in self._unfinished

    def set_callback(self, callback: QueueCallback | None) -> None:
        """Sets the function that is called with the request and its userdata after each run that succeeded.

        It is not called for a failed run: `wait_all` raises the error of that run, with its userdata in a note. `wait_all` also raises an
        error of the callback itself.

        Raises: RequestBusyError while a request runs.
        """
        self._requests[0].require_process()
        with self._changed:
            if any(self._unfinished):
                raise RequestBusyError(
                    f"cannot set a callback: the queue on network '{self._network.name}' is running; wait_all first"
                )
            self._callback = callback

    def wait_all(self) -> None:
        """Waits until all requests are idle, including runs that callbacks start.

        Raises: the first error since the last call, after all runs have ended; RequestBusyError within a callback of the queue.
        """
        self._requests[0].require_process()
        if getattr(self._here, "index", None) is not None:
            raise RequestBusyError(f"wait_all within a callback of the queue on network '{self._network.name}' waits for itself")
        with self._changed:
            self._changed.wait_for(lambda: not any(self._unfinished))
            errors, self._errors = self._errors, []
        if len(errors) > 1:
            errors[0].add_note(f"{len(errors) - 1} more runs of the queue failed after this one")
        if errors:
            raise errors[0]

    def cancel_all(self) -> None:
        """Ends all runs at once with RequestCancelledError, which `wait_all` then raises unless another error came first."""
        for request in self._requests:
            request.cancel()

    def _wait_for_idle(self, *, takes_it: bool) -> int:
        self._requests[0].require_process()
        with self._changed:
            while True:
                index, own = self._unfinished.index(0) if 0 in self._unfinished else None, getattr(self._here, "index", None)
                if index is None and own is not None and not self._requests[own].is_running:
                    index = own
                if index is not None:
                    self._unfinished[index] += takes_it
                    return index
                if own is not None:
                    raise RequestBusyError(
                        f"no request of the queue on network '{self._network.name}' is idle, and its callback, which runs on the "
                        "thread that would wait, has restarted its own; give the queue more jobs or start one run per callback"
                    )
                self._changed.wait()

    def _leave(self, index: int, error: BaseException | None) -> None:
        with self._changed:
            self._unfinished[index] -= 1
            if error is not None:
                self._errors.append(error)
            self._changed.notify_all()

    def _call_back(self, index: int, request: InferRequest, error: BaseException | None) -> None:
        userdata = self._userdata[index]
        if error is not None:
            error.add_note(f"request {index} of the queue, userdata {reprlib.repr(userdata)}")
        elif self._callback is not None:
            outer, self._here.index = getattr(self._here, "index", None), index
            try:
                self._callback(request, userdata)
            finally:
                self._here.index = outer

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]

    def __enter__(self) -> AsyncInferQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for all; if the block raised an error, cancels them first, and the error propagates."""
        if kind is None:
            self.wait_all()
            return
        self.cancel_all()
        with self._changed:
            self._changed.wait_for(lambda: not any(self._unfinished))
            self._errors = []


class _QueuedRequest(InferRequest):
    """A request that tells its queue when a run begins and ends, also a run that was not started by the queue."""

    def __init__(self, network: ExecutableNetwork, queue: AsyncInferQueue, index: int) -> None:
        super().__init__(network)
        self._queue = queue
        self._index = index
        self._callback = lambda request, error: queue._call_back(index, request, error)

    def _begin(self, inputs: Any) -> Run:
        queue = self._queue
        with queue._changed:
            queue._unfinished[self._index] += 1
        try:
            return super()._begin(inputs)
        except BaseException:
            queue._leave(self._index, None)
            raise

    def _finish(self, run: Run) -> None:
        self._queue._leave(self._index, run.error if run.is_detached else None)
        super()._finish(run)
