"""Inputs and outputs of models and compiled models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from hetero_core.frontends.openvino.shapes import Shape, find_shape, find_type, with_getters
from hetero_core.network.types import ValueSpec


@with_getters("any_name", "names", "index", "shape", "partial_shape", "element_type")
@with_getters("node", "tensor", "friendly_name", "name", "type_name")
class ConstOutput:
    """An input or output: its name, element type and shape. Ports of the same side, index and name are equal.

    OpenVINO keeps a node and a tensor apart from the port; here all three are the port, which has the name of the value.
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

    node = tensor = property(lambda self: self)
    friendly_name = name = property(attrgetter("any_name"))

    @property
    def type_name(self) -> str:
        """OpenVINO's operator of an input or output."""
        return "Parameter" if self._identity[0] else "Result"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstOutput) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: names[{self.any_name}] shape{self.partial_shape} type: {self.element_type.to_string()}>"


class Output(ConstOutput):
    """An input or output of a model that is not compiled yet."""


def find_port(ports: Sequence[ConstOutput], key: Any, *, where: str) -> ConstOutput:
    """Returns the port of a name, an index or an equal port; of None, the only port. Raises: RuntimeError with the names."""
    if key is None and len(ports) == 1:
        return ports[0]
    name = key.any_name if isinstance(key, ConstOutput) else key
    for port in ports:
        if name in (port.index, port.any_name):
            return port
    text = "without a name or index" if key is None else f"'{name}'"
    raise RuntimeError(f"{where} {text} was not found; there are {', '.join(f'{port.index}: {port.any_name}' for port in ports)}")
