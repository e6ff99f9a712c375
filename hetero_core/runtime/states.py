"""The states of a request: values that an output gives to an input of the next run, kept in the device's memory.

Rules: a state is copied between two runs only if it shares memory with an array that may change. A device's outputs stay valid until
the next run of the same context; so a request with states alternates between two contexts, and a run reads the states of the
previous run from the idle context. A failed or cancelled run changes no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

import numpy as np

from hetero_core.contract import OwnOutputs
from hetero_core.errors import InferenceError, InputNameError, word_missing
from hetero_core.network.border import State
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_core.runtime.inputs import convert_value, fits_shape
from hetero_core.runtime.outputs import find_shared

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.request import InferRequest


class RequestState:
    """A state of a request, by the name of the input that reads it."""

    def __init__(
        self, network: ExecutableNetwork, tie: State, places: tuple[int, int], require_idle: Callable[[str], None]
    ) -> None:
        """`places`: the positions of the input and the output."""
        self._network = network
        # Moves the value: the network, or the part of its device that keeps the value.
        self._home = network.homes.get(tie.input, network)
        self._require_idle = require_idle
        self.name, self.output = tie.input, tie.output
        """The input that reads the state, and the output that makes it."""
        self._initial = tie.initial
        self.position_in, self.position_out = places
        self.spec: ValueSpec = network.all_inputs[self.position_in]
        self.is_resident = tie.input in network.resident
        self._array: Any = None

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """A copy of the value that the next run reads. Raises: RequestBusyError while the request runs, for reading and for setting."""
        self._require_idle(f"read state '{self.name}'")
        array = self.array
        return np.array(array if self.spec.memory == HOST else self._home.to_host(array))

    @value.setter
    def value(self, value: Any) -> None:
        self._require_idle(f"set state '{self.name}'")
        array = convert_value(value, ValueSpec(self.name, self.spec.type), network=self._network.name)
        # The caller may write to it later.
        self._array = self.place(np.array(array))

    def reset(self) -> None:
        """Lets the next run read the initial value again. Raises: RequestBusyError."""
        self._require_idle(f"reset state '{self.name}'")
        self._array = None

    @property
    def array(self) -> Any:
        """The array itself, in the memory of the input."""
        if self._array is None:
            self._array = self.place(self._initial.array)
        return self._array

    def place(self, array: np.ndarray[Any, Any]) -> Any:
        """Returns an array in the memory of the input."""
        return array if self.spec.memory == HOST else self._home.from_host(array, self.spec)

    def require_shape(self, result: Any) -> None:
        """Raises InferenceError if the input does not take the shape of a run's result."""
        declared_type = self.spec.type
        assert isinstance(declared_type, TensorType)
        if not fits_shape(result.shape, result.shape if declared_type.shape is None else declared_type.shape):
            raise InferenceError(
                f"output '{self.output}' of network '{self._network.name}' has shape {list(result.shape)}, and as state '{self.name}' the "
                f"next run takes {declared_type}; open the size with with_shapes before with_state"
            )


class RequestStates(dict[str, RequestState]):
    """All states of a request, by the name of the input, in the order in which they were tied."""

    def __init__(self, network: ExecutableNetwork, request: InferRequest) -> None:
        self._network = network
        # Weak: a reference cycle would keep the request and its network until the garbage collector runs.
        self._request = ref(request)
        position_in = {spec.name: index for index, spec in enumerate(network.all_inputs)}
        position_out = {spec.name: index for index, spec in enumerate(network.all_outputs)}
        for tie in network.border.states:
            places = position_in[tie.input], position_out[tie.output]
            self[tie.input] = RequestState(network, tie, places, self._require_idle)
        self.copied_bytes = 0
        """Bytes of state that the last run copied."""

    def _require_idle(self, action: str) -> None:
        request = self._request()
        if request is not None:  # without a request there is no run
            request.require_idle(action)

    def reset(self) -> None:
        """Lets the next run read all initial values again. Raises: RequestBusyError."""
        self._require_idle("reset the states")
        for state in self.values():
            state.reset()

    def join(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the inputs of the device: the caller's inputs in order, with the states inserted at their positions."""
        rest = iter(inputs)
        arrays = {state.position_in: state.array for state in self.values()}
        places = range(len(self._network.all_inputs))
        # Replaced constants may follow.
        return (*(arrays[index] if index in arrays else next(rest) for index in places), *rest)

    def check(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the outputs of a run, with state outputs in a form that the next run may read.

        A state that shares memory with an input or another output, or that is a constant, is copied; `copied_bytes` counts it.
        Nothing is copied if the device returns `OwnOutputs`.

        Raises: InferenceError.
        """
        is_own = type(outputs) is OwnOutputs
        shared = set() if is_own else find_shared((*outputs, *inputs))
        checked = list(outputs)
        self.copied_bytes = 0
        for state in self.values():
            value = outputs[state.position_out]
            if state.is_resident:
                continue
            state.require_shape(value)
            if is_own and state.spec.memory == HOST:  # the device takes states that are not C-contiguous
                continue
            if not is_own and (id(value) in shared or not value.flags.writeable):
                value = value.copy()
                self.copied_bytes += value.nbytes
            checked[state.position_out] = state.place(np.ascontiguousarray(value) if value.ndim else value)
        return tuple(checked)

    def keep(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Takes the new states out of checked outputs; returns the caller's outputs."""
        for state in self.values():
            state._array = outputs[state.position_out]
        tied = {state.position_out for state in self.values()}
        return tuple(value for index, value in enumerate(outputs) if index not in tied)

    def __missing__(self, name: str) -> NoReturn:
        raise InputNameError(word_missing(f"network '{self._network.name}'", "state", name, self))
