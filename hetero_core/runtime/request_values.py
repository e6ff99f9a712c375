"""The values of one request between its runs: inputs that the caller has set, places for outputs, and the outputs of the last run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetero_core.errors import InputNameError
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.device_tensor import OrderedPresets, check_preset
from hetero_core.runtime.door import convert_value, find_spec
from hetero_core.runtime.positions import name_inputs

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork


class RequestValues:
    """`outputs` are those of the last run, by position; `presets` are the places that the caller has set for outputs."""

    def __init__(self, network: ExecutableNetwork) -> None:
        self._network = network
        self._inputs: dict[str, Any] = {}
        self._preset_of_name: dict[str, Any] = {}
        self.presets: OrderedPresets | None = None
        self.outputs: tuple[Any, ...] | None = None

    def set_tensor(self, name: str, value: Any) -> None:
        """Sets an input, or the place for an output. Raises: InputNameError, InputTypeError, InputShapeError."""
        network = self._network
        spec, is_input = self._find_spec(name)
        if is_input:
            self._inputs[name] = convert_value(value, spec, network=network.name, takes_tensors=network.takes_tensors)
            return
        self._preset_of_name[name] = check_preset(value, spec, network=network.name, takes_tensors=network.takes_tensors)
        self.presets = OrderedPresets(self._preset_of_name, network.all_outputs)

    def get_tensor(self, name: str) -> Any:
        """Returns an input that was set, or an output of the last run. Raises: InputNameError when there is none."""
        network = self._network
        _, is_input = self._find_spec(name)
        output_of_name = {} if self.outputs is None else dict(zip(network.output_names, self.outputs, strict=True))
        values = self._inputs if is_input else {**self._preset_of_name, **output_of_name}
        if name not in values:
            raise InputNameError(f"tensor '{name}' of network '{network.name}' has no value yet; set it or run the request")
        return values[name]

    def _find_spec(self, name: str) -> tuple[ValueSpec, bool]:
        network = self._network
        return find_spec(name, (*network.inputs, *network.replaceable), network.outputs, network=network.name)

    def merge(self, inputs: Any) -> Any:
        """Returns the inputs of a run: those that are passed for it, and those that were set."""
        if inputs is None:
            return self._inputs
        if type(inputs) is dict and not self._inputs:
            return inputs
        return {**self._inputs, **name_inputs(inputs, self._network.inputs, network=self._network.name)}
