"""ConvertPrecision: a network that computes in another float type, with Casts at its border. Source: the plugin guide's TransformNetwork.

It is asked for by name, never done on the way: another precision gives other last digits.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES, dtype_of_onnx, numpy_dtype, onnx_of_dtype, spell_dtype
from hetero_core.errors import InvalidNetworkError
from hetero_core.network.border import dtype_of_precision, precision_of_dtype
from hetero_core.network.graph import EMPTY, Graph, GraphLike, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueSpec, map_tensor
from hetero_core.transforms.chains import Chain, splice


def convert_precision(network: Network, source: str, target: str) -> Network:
    """Returns the network with values of `source` computed in `target`; its inputs and outputs keep their types.

    Raises: InvalidNetworkError.
    """
    where = f"network '{network.name}'"
    old, new = dtype_of_precision(source, where), dtype_of_precision(target, where)
    for dtype in (old, new):
        if dtype not in FLOAT_DTYPES:
            raise InvalidNetworkError(
                f"{where}: {precision_of_dtype(dtype)} is no float precision; a network is converted between those"
            )
    if old == new:
        return network
    names = FreshNames(network)

    def cast(spec: ValueSpec, value: str, source: str, result: str, target: str) -> Chain:
        chain = Chain(network, names, base=spec.name, value=value, value_type=TensorType(source, spec.shape))
        chain.cast(target)
        chain.rename_end(result)
        return chain

    inputs = [spec for spec in network.inputs if spec.dtype == old]
    outputs = [spec for spec in network.outputs if spec.dtype == old and spec.name not in network.index_of_input]
    before = [cast(spec, spec.name, old, names.value(f"{spec.name}/{new}"), new) for spec in inputs]
    after = [cast(spec, names.value(f"{spec.name}/{new}"), new, spec.name, old) for spec in outputs]
    return splice(_convert_graph(network, old, new), before, after, inputs=network.inputs, outputs=network.outputs)


def _convert_graph(graph: GraphLike, old: str, new: str) -> GraphLike:
    def convert(tensor: TensorType) -> TensorType:
        return TensorType(new, tensor.shape) if tensor.dtype == old else tensor

    return replace(
        graph,
        inputs=tuple(replace(spec, type=map_tensor(spec.type, convert)) for spec in graph.inputs),
        outputs=tuple(replace(spec, type=map_tensor(spec.type, convert)) for spec in graph.outputs),
        nodes=tuple(_convert_node(node, graph, old, new) for node in graph.nodes),
        initializers=MappingProxyType({name: _convert_constant(entry, old, new) for name, entry in graph.initializers.items()}),
        types=MappingProxyType({name: map_tensor(entry, convert) for name, entry in graph.types.items()}),
    )


def _convert_constant(constant: Initializer, old: str, new: str) -> Initializer:
    if constant.dtype != old:
        return constant
    return Initializer(new, constant.shape, lambda: constant.array.astype(numpy_dtype(new)))


def _convert_node(node: Node, graph: Graph, old: str, new: str) -> Node:
    value_types = [graph.type_of(value) for value in (*node.reads, *node.writes)]
    if node.since_version == 0 and any(isinstance(each, TensorType) and each.dtype == old for each in value_types):
        raise InvalidNetworkError(
            f"node {node.label} reads or makes {precision_of_dtype(old)}, and what it does with another precision is not known; "
            "convert the model where it was made"
        )
    attributes = {key: _convert_attribute(node, key, value, old, new) for key, value in node.attributes.items()}
    if all(attributes[key] is value for key, value in node.attributes.items()):
        return node
    return replace(node, attributes=MappingProxyType(attributes) if attributes else EMPTY)


def _convert_attribute(node: Node, key: str, value: Any, old: str, new: str) -> Any:
    if isinstance(value, Graph):
        return _convert_graph(value, old, new)
    # Cast, Bernoulli, EyeLike, SequenceEmpty, ...: the attribute is the number of an element type, or in Cast-1 its name.
    if key in ("to", "dtype") and not node.domain and isinstance(value, int | str) and dtype_of_onnx(value) == old:
        return onnx_of_dtype(new) if isinstance(value, int) else spell_dtype(new)
    if isinstance(value, np.ndarray) and value.dtype == numpy_dtype(old):
        return value.astype(numpy_dtype(new))
    return value
