"""In which memory each input and output of a network lies: on the card, or on the host where only the host looks at it."""

from __future__ import annotations

from hetero_core.kernels.registry import find_kernel
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, MapType, TensorType, ValueSpec, ValueType
from hetero_cupy.refusals import DTYPES


def find_host_inputs(network: Network) -> frozenset[str]:
    """Returns the inputs that every reader wants on the host, as shapes and axes: they never go to the card."""
    names = {spec.name for spec in network.inputs}
    host_inputs: set[str] = set()
    elsewhere = {spec.name for spec in network.outputs}
    for node in network.nodes:
        record = find_kernel(node)
        elsewhere.update(node.captures)
        for index, name in enumerate(node.inputs):
            (host_inputs if record is not None and index in record.host else elsewhere).add(name)
    return frozenset((names & host_inputs) - elsewhere)


def place_value(spec: ValueSpec, memory: str) -> ValueSpec:
    """Returns the spec with its memory: the host for texts, maps and element types that a card does not have."""
    return ValueSpec(spec.name, spec.type, memory if _fits_card(spec.type) else HOST)


def _fits_card(value_type: ValueType) -> bool:
    if isinstance(value_type, MapType):
        return False
    if isinstance(value_type, TensorType):
        return value_type.dtype is None or value_type.dtype in DTYPES
    return _fits_card(value_type.element)
