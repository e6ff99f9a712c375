"""DeviceTensor: an array in the memory of a device, given to requests as input and set as output, so that values stay where they are.

A value goes like this: `write` copies it to the device once -> each run that is given the tensor reads it there -> an output that was set
to a tensor stays in the device's memory -> the tensor is the input of the next network there, or `read` copies it to the host. A device
that is made of others takes tensors of any memory: the part that has this memory reads and makes the array there, any other one by way of
the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InputNameError, InputTypeError
from hetero_core.network.types import HOST, TensorType, ValueSpec

if TYPE_CHECKING:
    from hetero_core.contract import RunContext
    from hetero_core.runtime.executable import ExecutableNetwork


class DeviceTensor:
    """A tensor in the memory of a device. `array` is the device's own array; that of an output is valid until the next run of its
    request.

    `place` identifies the memory across plugins, because two plugins may use one name for memories that do not understand each other's
    arrays.
    """

    def __init__(self, network: ExecutableNetwork, spec: ValueSpec) -> None:
        assert spec.dtype is not None, "only tensors lie in the memory of a device"
        self.memory = spec.memory
        self.place = name_place(network, spec)
        self.device = str(network.device)
        self.dtype = numpy_dtype(spec.dtype)
        self.array: Any = None
        # Whether the array was made by `put`: that of a run may be a constant of the network.
        self._is_own = False
        self._spec = spec
        self._to_host, self._from_host = network.to_host, network.from_host

    @classmethod
    def create(cls, network: ExecutableNetwork, name: str, value: Any = None) -> DeviceTensor:
        """Returns a tensor for an input or output of a loaded network, with `value` written to it. On a device composed of devices, it
        lies in the memory of the part that reads or makes the value.

        Raises: InputNameError for a name that the network does not have, and for a value in the host's memory; errors of `write`.
        """
        from hetero_core.runtime.door import find_spec

        part = network
        while (inner := part.executable.find_part(name)) is not None:
            part = inner
        spec, _ = find_spec(name, part.all_inputs, part.all_outputs, network=network.name)
        if spec.memory == HOST or not isinstance(spec.type, TensorType) or spec.dtype is None:
            raise InputNameError(
                f"'{name}' of {network.where} lies in the host's memory; give arrays of NumPy, which are shared and not copied"
            )
        tensor = cls(part, spec)
        if value is not None:
            tensor.write(value)
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the last value that `write` or a run put here."""
        return tuple(self._require().shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def write(self, value: Any) -> None:
        """Copies a value of the host to the device, into the array of an earlier `write` where the device can fill it.

        Raises: InputTypeError, InputShapeError.
        """
        from hetero_core.runtime.door import convert_value

        host = ValueSpec(self._spec.name, self._spec.type, HOST)
        self.put(convert_value(value, host, network="its tensor"))

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        """Copies an array of its element type to the device; returns the device's array."""
        target = self.array if self._is_own and self.shape == array.shape else None
        self.array, self._is_own = self._from_host(array, self._spec, target), True
        return self.array

    def keep(self, array: Any) -> None:
        """Stores an array that a run has made in this tensor's memory; copies nothing."""
        self.array, self._is_own = array, False

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy on the host. Raises: InputNameError before anything was written."""
        array: np.ndarray[Any, Any] = self._to_host(self._require())
        return array

    def _require(self) -> Any:
        if self.array is None:
            raise InputNameError(f"the tensor for '{self._spec.name}' has no value yet; write one, or set it as output and run")
        return self.array

    def require_memory(self, spec: ValueSpec, where: str) -> DeviceTensor:
        """Returns this tensor, after a check that it lies in the memory of this spec. Raises: InputTypeError."""
        if spec.memory != self.memory:
            raise InputTypeError(f"{where}: expected an array in {spec.memory}, got a tensor in {self.memory}; give tensor.read()")
        return self


def name_place(network: ExecutableNetwork, spec: ValueSpec) -> str:
    """Returns the memory of a value as all plugins know it."""
    return spec.memory if spec.memory == HOST else f"{network.provenance.distribution}/{spec.memory}"


def check_preset(value: Any, spec: ValueSpec, *, network: str, takes_tensors: bool) -> Any:
    """Returns the array or tensor that an output is to be written to. Raises: InputNameError, InputTypeError, InputShapeError."""
    from hetero_core.runtime.door import convert_value

    where = f"output '{spec.name}' of network '{network}'"
    if isinstance(value, DeviceTensor):
        return value if takes_tensors and spec.dtype is not None else value.require_memory(spec, where)
    if not (isinstance(value, np.ndarray) and value.flags.writeable and value.flags.c_contiguous):
        raise InputNameError(f"{where}: expected a writable C-contiguous NumPy array to fill")
    convert_value(value, spec, network=network)
    return value


class OrderedPresets:
    """The presets of a request by position: the caller's arrays, for the device, and the tensors, whose values stay in its memory."""

    def __init__(self, presets: Mapping[str, Any], outputs: Sequence[ValueSpec]) -> None:
        ordered = [presets.get(spec.name) for spec in outputs]
        self._tensors = {index: value for index, value in enumerate(ordered) if isinstance(value, DeviceTensor)}
        arrays = [None if index in self._tensors else value for index, value in enumerate(ordered)]
        self._arrays = arrays if any(value is not None for value in arrays) else []
        self._clash = next(
            (
                f"outputs '{outputs[other].name}' and '{outputs[index].name}' would be written to the same memory, and one of them lost; "
                "set an array or tensor of its own for each"
                for index, value in enumerate(ordered)
                for other in range(index)
                if _share_memory(value, ordered[other])
            ),
            None,
        )

    def enter(self, context: RunContext) -> None:
        """Puts the presets into the context of a run. Raises: InputNameError where two of them share memory."""
        if self._clash is not None:
            raise InputNameError(self._clash)
        if self._arrays:
            context.outputs = self._arrays.copy()
        if self._tensors:
            context.tensors = self._tensors


def _share_memory(value: Any, other: Any) -> bool:
    is_in_memory = isinstance(value, np.ndarray) and isinstance(other, np.ndarray)
    return np.may_share_memory(value, other) if is_in_memory else value is other and value is not None
