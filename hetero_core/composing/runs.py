"""Runs of a child, started by its composer: no call goes through pluggy, and only a device without `start` needs a thread.

The child's own outputs are checked under its name, so that a device which breaks the contract is named, not its composer. A tensor of the
caller is handed on if the child's memory is its own, else copied by way of the host and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

from hetero_core.contract import Array, Done, RunContext
from hetero_core.errors import ClosedError, DeadlineExceededError, MemoryLimitError, RequestCancelledError
from hetero_core.profile import Profile
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.inputs import DeviceTensor, name_place
from hetero_core.runtime.transfers import move_value

FINAL = (RequestCancelledError, DeadlineExceededError, MemoryLimitError)
"""Errors of a run after which no other device is tried."""


class RequestMemory:
    """The working memory of a request on each of the networks that may run it, made on first use.

    `first` is the first working memory of a request with states, which has two; None for any other request.
    """

    def __init__(self, first: RequestMemory | None = None) -> None:
        self.first = first
        self._state_of_network: dict[ExecutableNetwork, object] = {}

    def create_spare(self) -> RequestMemory:
        """Returns the second working memory of the same request."""
        self.first = self
        return type(self)(self)

    def on(self, network: ExecutableNetwork) -> object:
        """Returns the working memory for a run on a network. Raises: errors of its device."""
        if network not in self._state_of_network:
            beside = None if self.first is None else self.first._state_of_network.get(network)
            self._state_of_network[network] = network.create_state(beside)
        return self._state_of_network[network]


def run_child(child: ExecutableNetwork, inputs: tuple[Array, ...], context: RunContext) -> tuple[Any, ...]:
    """Returns the outputs of a child's run on this thread, in host memory. Raises: errors of the child; PluginError."""
    outputs = child.run_host(fit_tensors(child, inputs, context.profile), context)
    return outputs if context.token.is_set else fill_tensors(child.check_outputs(outputs, context), context, child)


def start_child(child: ExecutableNetwork, inputs: tuple[Array, ...], context: RunContext, done: Done) -> None:
    """Begins a run of a child and returns; `done` is called once, from any thread, with the result or the error of `run_child`."""

    def settle(make: Callable[[], tuple[Any, ...]]) -> None:
        outputs, error = None, None
        try:
            outputs = make()
        except BaseException as failure:  # noqa: BLE001  # passed to the waiting caller
            error = failure
        done(outputs, error)

    def end(outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        if error is not None:
            done(None, child.blame_device(error))
        else:
            settle(lambda: () if context.token.is_set else fill_tensors(child.check_outputs(outputs, context), context, child))

    start = child.start
    if start is not None:
        start(fit_tensors(child, inputs, context.profile), context, end)
        return

    dropped = f"the Core was closed before a run on {child.device} began"
    try:
        future = child.submit(lambda: settle(lambda: run_child(child, inputs, context)))
    except ClosedError as error:
        done(None, error)
        return
    future.add_done_callback(lambda ended: done(None, RequestCancelledError(dropped)) if ended.cancelled() else None)


def fit_tensors(child: ExecutableNetwork, inputs: tuple[Any, ...], profile: Profile | None) -> tuple[Any, ...]:
    """Returns the inputs as a child takes them: each tensor that lies in another memory as an array of the host."""
    if DeviceTensor not in map(type, inputs) or child.takes_tensors:
        return inputs
    return tuple(
        read_tensor(value, profile, spec.name, str(child.device))
        if isinstance(value, DeviceTensor) and value.place != name_place(child, spec)
        else value
        for value, spec in zip(inputs, child.all_inputs, strict=True)
    )


def read_tensor(tensor: DeviceTensor, profile: Profile | None, name: str, *readers: str) -> Any:
    """Returns a tensor as an array of the host."""
    return move_value(tensor, lambda source: source.read(), profile, name, tensor.device, readers)


def fill_tensors(outputs: tuple[Any, ...], context: RunContext, child: ExecutableNetwork) -> tuple[Any, ...]:
    """Returns the outputs of a child with the caller's tensors in place of arrays of the host, which are copied into them."""
    tensors = context.tensors
    if not tensors:
        return outputs
    return tuple(
        fill_tensor(tensors[index], value, context.profile, spec.name, str(child.device)) if index in tensors else value
        for index, (value, spec) in enumerate(zip(outputs, child.all_outputs, strict=True))
    )


def fill_tensor(tensor: DeviceTensor, value: Any, profile: Profile | None, name: str, maker: str) -> DeviceTensor:
    """Returns the tensor with a value of the host; its own value stays."""
    if value is not tensor:
        move_value(value, tensor.put, profile, name, maker, (tensor.device,))
    return tensor


READY_METRIC = "KERNELS_READY"
"""The suffix of the metric by which a device reports that its compiled kernels are ready; it begins to run without them."""
_POLL_SECONDS = 0.005


def is_ready(loaded: ExecutableNetwork) -> bool:
    """Says whether all devices of a loaded network have compiled their final kernels."""
    stages = getattr(loaded.executable, "stages", ())
    if stages:
        return all(is_ready(stage) for stage in stages)
    names = [name for name in loaded.get_metric("SUPPORTED_METRICS") if name.endswith(READY_METRIC)]
    return all(loaded.get_metric(name) for name in names)


def warm_up(loaded: ExecutableNetwork, run: Callable[[], object], seconds: float) -> None:
    """Runs until a run has begun and ended with all compiled kernels, at least twice, at most for `seconds`."""
    deadline, was_ready = perf_counter() + seconds, False
    run()
    while not was_ready and perf_counter() < deadline:
        # A run may order kernels for its own sizes when those for others are ready.
        was_ready = is_ready(loaded)
        if not was_ready:
            sleep(_POLL_SECONDS)
        run()
        was_ready = was_ready and is_ready(loaded)
