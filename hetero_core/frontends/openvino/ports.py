"""Inputs and outputs of models and compiled models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from hetero_core.frontends.openvino.shapes import Layout, Listed, Shape, find_shape, find_type, with_getters
from hetero_core.network.types import ValueSpec

if TYPE_CHECKING:
    from hetero_core.frontends.openvino.model import Model

Port = TypeVar("Port", bound="ConstOutput")


@with_getters("any_name", "names", "index", "shape", "partial_shape", "element_type")
@with_getters("node", "tensor", "source_output", "friendly_name", "name", "type_name")
class ConstOutput(Listed):
    """An input or output: its name, element type and shape. Ports of the same side, index and name are equal.

    OpenVINO keeps a node, the node's input and a tensor apart from the port; here all are the port, which has the name of the value.
    """

    def __init__(self, spec: ValueSpec, index: int, bounds: Mapping[str, tuple[int, int]], *, is_input: bool) -> None:
        self._identity = (is_input, index, spec.name)
        self.spec = spec
        self.index = index
        self.any_name = spec.name
        self.names = {spec.name}
        self.element_type = find_type(spec.dtype)
        self.partial_shape = find_shape(spec, bounds)

    @property
    def shape(self) -> Shape:
        """The shape. Raises: RuntimeError if a size is open."""
        return self.partial_shape.to_shape()

    node = tensor = source_output = property(lambda self: self)
    friendly_name = name = property(attrgetter("any_name"))

    @property
    def type_name(self) -> str:
        """OpenVINO's operator of an input or output."""
        return "Parameter" if self._identity[0] else "Result"

    def input(self, _: int) -> ConstOutput:
        """Returns the port: `output.get_node().input(0).get_source_output()` is the value that an output returns."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstOutput) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: names[{self.any_name}] shape{self.partial_shape} type: {self.element_type.to_string()}>"


@with_getters("layout")
class Output(ConstOutput):
    """An input or output of a model that is not compiled yet. As in OpenVINO's parameters and results, its layout can be set."""

    def __init__(self, model: Model, spec: ValueSpec, index: int, *, is_input: bool) -> None:
        super().__init__(spec, index, model.network.border.bounds, is_input=is_input)
        self._model = model

    @property
    def layout(self) -> Layout:
        """The order of the axes, empty if it was not said. Raises: RuntimeError when it is set without a letter for each axis."""
        return Layout(self._model.network.border.layouts.get(self.any_name, ""))

    @layout.setter
    def layout(self, layout: Any) -> None:
        rank = len(self.partial_shape.require_sizes())
        letters = Layout(layout).name_axes(rank)
        if not letters.isalpha() or len(letters) != rank:
            raise RuntimeError(f"'{self.any_name}' has {rank} axes; expected a letter for each, got the layout '{letters}'")
        network = self._model.network
        layouts = MappingProxyType({**network.border.layouts, self.any_name: letters})
        self._model.network = replace(network, border=replace(network.border, layouts=layouts))

    def set_names(self, names: Set[str]) -> None:
        """Sets the name. Raises: RuntimeError for several names, and for a name that another value has."""
        if len(names) != 1:
            raise RuntimeError(f"'{self.any_name}' has one name; expected a set of one, got {sorted(names)}")
        (name,) = names
        if name != self.any_name:
            self._model.rename_value(self.any_name, name)
            self.spec, self._identity = replace(self.spec, name=name), (*self._identity[:2], name)
            self.any_name, self.names = name, {name}


def find_port(ports: Sequence[Port], key: Any, *, where: str) -> Port:
    """Returns the port of a name, an index or an equal port; of None, the only port. Raises: RuntimeError with the names."""
    if key is None and len(ports) == 1:
        return ports[0]
    name = key.any_name if isinstance(key, ConstOutput) else key
    for port in ports:
        if name in (port.index, port.any_name):
            return port
    text = "without a name or index" if key is None else f"'{name}'"
    raise RuntimeError(f"{where} {text} was not found; there are {', '.join(f'{port.index}: {port.any_name}' for port in ports)}")
