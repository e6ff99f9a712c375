"""EditableNetwork: a network with methods for the changes of a user. Each calls a pass; the file computes nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core.network.border import InputInfo, OutputInfo
from hetero_core.network.graph import Network
from hetero_core.transforms.optional_inputs import free_constants, tie_states
from hetero_core.transforms.postprocessing import change_outputs
from hetero_core.transforms.precision import convert_precision
from hetero_core.transforms.preprocessing import add_preprocessing
from hetero_core.transforms.reshaping import rebatch_network, reshape_network


def edit(network: Network) -> EditableNetwork:
    """Returns the same network with the methods of an `EditableNetwork`; nothing is copied."""
    if isinstance(network, EditableNetwork):
        return network
    editable = object.__new__(EditableNetwork)
    # All fields, and all cached properties: a frozen dataclass has no other way to be filled without computing it anew.
    editable.__dict__.update(network.__dict__)
    return editable


@dataclass(frozen=True, eq=False, repr=False)
class EditableNetwork(Network):
    """A network as `Core.read_network` returns it. Every method returns a new network, which shares nodes and weights with this network."""

    def with_affinity(self, pins: Mapping[str, str]) -> EditableNetwork:
        """Returns this network with more nodes pinned to devices; see `Network.with_affinity`."""
        return edit(super().with_affinity(pins))

    def with_shapes(self, shapes: Mapping[str, Any]) -> EditableNetwork:
        """Returns this network for other shapes: by input ({"x": (1, 3, 160, 160)}) or by the name of a size ({"batch": 4}).

        A size is an int, a name, None (open) or a range (open, within bounds: range(1, 9) is 1 to 8). All types are inferred again.

        Raises: InvalidNetworkError for unknown names, another rank, and a model that cannot take the shapes: it names the node.
        """
        return edit(reshape_network(self, shapes))

    def with_batch(self, size: int | str | range | None) -> EditableNetwork:
        """Returns this network for another batch size: the size of axis N of each input with a known layout, else of the first
        axis.

        Raises: InvalidNetworkError as `with_shapes`, and if inputs have different batch sizes now.
        """
        return edit(rebatch_network(self, size))

    def with_inputs(self, inputs: Mapping[str, InputInfo]) -> EditableNetwork:
        """Returns this network for inputs as they are described; the conversions to the model's own inputs become nodes.

        Raises: InvalidNetworkError for unknown names, and for descriptions that do not fit the model's inputs or each other.
        """
        return edit(add_preprocessing(self, inputs))

    def with_outputs(
        self, outputs: Mapping[str, OutputInfo] | None = None, *, add: Sequence[str] = (), only: Sequence[str] | None = None
    ) -> EditableNetwork:
        """Returns this network with other outputs: converted outputs, inner values that `add` names, or only the outputs in `only`.

        Raises: InvalidNetworkError for unknown names, values without element type, and conversions that would lose values.
        """
        return edit(change_outputs(self, {} if outputs is None else outputs, add=add, only=only))

    def with_optional_inputs(self, names: Sequence[str]) -> EditableNetwork:
        """Returns this network with constants as inputs that may be left out; the model must list them among its inputs.

        Raises: InvalidNetworkError for names that it does not list.
        """
        return edit(free_constants(self, names))

    def with_state(self, ties: Mapping[str, str], *, initial: Mapping[str, Any] | None = None) -> EditableNetwork:
        """Returns this network with states, {output: input}: each request keeps an output and passes it to the input in the next run.

        The first run reads `initial` (input: array), and zeros for states without an entry.

        Raises: InvalidNetworkError for unknown names, types that differ, and an open size without an initial value.
        """
        return edit(tie_states(self, ties, {} if initial is None else initial))

    def with_precision(self, source: str, target: str) -> EditableNetwork:
        """Returns this network with values of `source` ("FP16") computed in `target` ("FP32"); its inputs and outputs keep their types.

        Raises: InvalidNetworkError for precisions that are no floats, and for nodes that name the type in a way that is not known.
        """
        return edit(convert_precision(self, source, target))
