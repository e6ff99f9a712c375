"""Model, an ONNX model before it is compiled, with its ports, nodes and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hetero_core.errors import InvalidNetworkError
from hetero_core.frontends.openvino.ports import Output, find_port
from hetero_core.frontends.openvino.shapes import Dimension, Listed, PartialShape, translated, with_getters
from hetero_core.network.graph import Node as NetworkNode
from hetero_core.network.renaming import FreshNames, rename_values
from hetero_core.transforms.editing import EditableNetwork, edit


@dataclass
class OVAny:
    """A value of metadata or of a property."""

    value: Any

    def astype(self, kind: type) -> Any:
        """Returns the value as a Python type."""
        return kind(self.value)


@with_getters("friendly_name", "name", "type_name", "rt_info")
class Node(Listed):
    """A node of a model. Its type is that of ONNX: `Sub`, not OpenVINO's `Subtract`. `rt_info["affinity"]` pins it to a device."""

    def __init__(self, node: NetworkNode, rt_info: dict[str, Any]) -> None:
        self.friendly_name = self.name = node.name
        self.type_name = node.op_type
        self.rt_info = rt_info

    def __repr__(self) -> str:
        return f"<{self.type_name}: '{self.name}'>"


@with_getters("name", "friendly_name", "ordered_ops", "parameters", "results")
class Model(Listed):
    """A model that `read_model` has read. As in OpenVINO, `reshape` and a PrePostProcessor change it in place."""

    def __init__(self, network: EditableNetwork) -> None:
        if not isinstance(network, EditableNetwork):
            raise TypeError(f"a Model is read from ONNX, not built of operators: see Core.read_model; got {type(network).__name__}")
        self.network = network
        self.name = self.friendly_name = network.name
        self.rt_info: dict[str, Any] = {"framework": {key: OVAny(value) for key, value in network.metadata.items()}}
        self._rt_info_of_node: dict[str, dict[str, Any]] = {}

    def pinned_network(self) -> EditableNetwork:
        """Returns the network in which the nodes are pinned to their `rt_info["affinity"]`."""
        known = {node.name for node in self.network.nodes}
        affinities = {name: values.get("affinity") for name, values in self._rt_info_of_node.items()}
        pins = {name: str(device) for name, device in affinities.items() if name in known and device}
        return self.network.with_affinity(pins) if pins else self.network

    @property
    def inputs(self) -> list[Output]:
        """The inputs in order."""
        return [Output(self, spec, index, is_input=True) for index, spec in enumerate(self.network.inputs)]

    @property
    def outputs(self) -> list[Output]:
        """The outputs in order."""
        return [Output(self, spec, index, is_input=False) for index, spec in enumerate(self.network.outputs)]

    parameters, results = inputs, outputs

    def input(self, key: Any = None) -> Output:
        """Returns an input by name or index; the only one without. Raises: RuntimeError."""
        return find_port(self.inputs, key, where="the input")

    def output(self, key: Any = None) -> Output:
        """Returns an output by name or index; the only one without. Raises: RuntimeError."""
        return find_port(self.outputs, key, where="the output")

    def is_dynamic(self) -> bool:
        """Says whether the shape of an input or output is open."""
        return any(port.partial_shape.is_dynamic for port in (*self.inputs, *self.outputs))

    dynamic = property(is_dynamic)

    @translated
    def reshape(self, partial_shape: Any) -> None:
        """Sets the shape of the only input, or those of a mapping of names, indexes or ports; -1, `?` and `1..5` are open sizes.

        Raises: RuntimeError for unknown inputs, and for shapes that a node does not take: it names the node.
        """
        shapes = partial_shape if isinstance(partial_shape, Mapping) else {None: partial_shape}
        sizes = {self.input(key).any_name: [size.to_size() for size in PartialShape(shape)] for key, shape in shapes.items()}
        self.network = self.network.with_shapes(sizes)

    @translated
    def add_outputs(self, outputs: str | Sequence[str]) -> list[Output]:
        """Makes inner values outputs, by the names of the values; returns the new ports. Raises: RuntimeError."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.network = self.network.with_outputs(add=names)
        return [self.output(name) for name in names]

    @translated
    def rename_value(self, name: str, new_name: str) -> None:
        """Gives an input or output another name. Raises: RuntimeError for a name that another value has."""
        network, names = self.network, {name: new_name}
        if FreshNames(network).value(new_name) != new_name:
            reason = f"another value of network '{network.name}' has that name"
            raise InvalidNetworkError(f"'{name}' cannot be named '{new_name}': {reason}")
        border = network.border
        if border.states or name in border.defaults:
            raise InvalidNetworkError(f"'{name}' of network '{network.name}' cannot be renamed: it has a state or a default")
        sides = (network.inputs, network.outputs)
        inputs, outputs = (tuple(replace(spec, name=names.get(spec.name, spec.name)) for spec in specs) for specs in sides)
        layouts = MappingProxyType({names.get(key, key): value for key, value in border.layouts.items()})
        renamed = rename_values(network, names)
        self.network = edit(replace(renamed, inputs=inputs, outputs=outputs, border=replace(border, layouts=layouts)))

    def clone(self) -> Model:
        """Returns a second model, which shares nodes and weights with this."""
        return Model(self.pinned_network())

    def __deepcopy__(self, memo: Any) -> Model:
        return self.clone()

    def get_ops(self) -> list[Node]:
        """Returns the nodes in topological order, without inputs, outputs and constants."""
        affinity = self.network.affinity
        infos = self._rt_info_of_node
        for node in self.network.nodes:
            infos.setdefault(node.name, {"affinity": affinity[node.name]} if node.name in affinity else {})
        return [Node(node, infos[node.name]) for node in self.network.nodes]

    ordered_ops = property(get_ops)

    def get_rt_info(self, path: str | Sequence[str] | None = None) -> Any:
        """Returns all metadata, those of the ONNX file under "framework", or the entry of a path of keys. Raises: RuntimeError."""
        entry: Any = self.rt_info
        for key in [] if path is None else [path] if isinstance(path, str) else path:
            entry = entry.value if isinstance(entry, OVAny) else entry  # a mapping that was set
            if not isinstance(entry, Mapping) or key not in entry:
                there = sorted(entry) if isinstance(entry, Mapping) else "none"
                raise RuntimeError(f"the model has no metadata {path!r}; at '{key}' there are {there}")
            entry = entry[key]
        return entry if path is None or isinstance(entry, OVAny) else OVAny(entry)

    def set_rt_info(self, value: Any, path: str | Sequence[str]) -> None:
        """Sets the entry of a path of keys; a file that is written has the metadata that were read."""
        *outer, last = [path] if isinstance(path, str) else path
        entry = self.rt_info
        for key in outer:
            entry = entry.setdefault(key, {})
        entry[last] = OVAny(value)

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        """Says whether metadata has an entry."""
        try:
            return self.get_rt_info(path) is not None
        except RuntimeError:
            return False

    def __repr__(self) -> str:
        return f"<Model: '{self.friendly_name}'\ninputs{self.inputs}\noutputs{self.outputs}>"


def get_batch(model: Model) -> Dimension:
    """Returns the batch size: axis N of the first input with a layout, else its first axis."""
    port = model.inputs[0]
    axis = 0 if port.layout.empty else port.layout.get_index_by_name("N")
    return port.partial_shape.require_sizes()[axis]


@translated
def set_batch(model: Model, batch_size: Any = -1) -> None:
    """Sets the batch size of all inputs of a model. Raises: RuntimeError if the model cannot take it."""
    model.network = model.network.with_batch(Dimension(batch_size).to_size())
