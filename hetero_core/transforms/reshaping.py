"""Other shapes at the inputs of a network: all types are inferred again, and a node that refuses its new inputs is named.

The rules of `network.operators` say it for nodes that onnx's own inference lets pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.border import Border
from hetero_core.network.graph import Graph, GraphLike, Network, Node, iterate_nodes
from hetero_core.network.hints import compare_declarations, drop_hints, forget_shapes, rebuild_graph
from hetero_core.network.inference import find_contradictions, infer_types, refuses_inputs
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import Dimension, TensorType, ValueSpec, map_tensor, rank_of, shape_of
from hetero_core.transforms.chains import require_names
from hetero_core.transforms.rewrite import Replacement, replace_nodes

Size = int | str | range | None


def reshape_network(network: Network, shapes: Mapping[str, Any]) -> Network:
    """Returns the network with these shapes of inputs; by input or by the name of a size. Raises: InvalidNetworkError."""
    specs = {spec.name: spec for spec in network.inputs}
    sizes: dict[str, Size] = {}
    bounds = dict(network.border.bounds)
    for key, value in shapes.items():
        if isinstance(value, Sequence) and not isinstance(value, str | range):
            require_names(network, "input", [key], specs)
            specs[key] = _reshape_input(network, specs[key], tuple(value), bounds)
        else:
            sizes[key] = value
    named = _bind_sizes(network, sizes, bounds)

    def bind(tensor: TensorType) -> TensorType:
        shape = tensor.shape
        return tensor if shape is None else replace(tensor, shape=tuple(named.get(size, size) for size in shape))

    specs = {name: replace(spec, type=map_tensor(spec.type, bind)) for name, spec in specs.items()}
    used = {size for spec in specs.values() for size in spec.shape or ()}
    kept = MappingProxyType({name: pair for name, pair in bounds.items() if name in used})
    return _rebuild(network, tuple(specs.values()), replace(network.border, bounds=kept))


def rebatch_network(network: Network, size: Size) -> Network:
    """Returns the network with another batch size. Raises: InvalidNetworkError."""
    shapes: dict[str, Any] = {}
    batch_axes: dict[str, Dimension] = {}
    for spec in network.inputs:
        layout = network.border.layouts.get(spec.name, "N")
        if not spec.shape or "N" not in layout or any(state.input == spec.name for state in network.border.states):
            continue
        axis = layout.index("N")
        batch_axes[spec.name] = spec.shape[axis]
        shapes[spec.name] = (*spec.shape[:axis], size, *spec.shape[axis + 1 :])
    fixed = {name: batch for name, batch in batch_axes.items() if isinstance(batch, int)}
    if len(set(fixed.values())) > 1:
        shown = ", ".join(f"'{name}' {batch}" for name, batch in fixed.items())
        raise InvalidNetworkError(
            f"the inputs of network '{network.name}' have different batch sizes: {shown}; say the shape of each with with_shapes"
        )
    if not shapes:
        raise InvalidNetworkError(f"no input of network '{network.name}' has a batch axis; say the shapes with with_shapes")
    named = {batch: size for batch in batch_axes.values() if isinstance(batch, str)}
    # A named size is the batch of every input that has it, on whatever axis.
    network = reshape_network(network, named) if named else network
    open_shapes = {name: shape for name, shape in shapes.items() if not isinstance(batch_axes[name], str)}
    if not open_shapes:
        return network
    old = next(iter(fixed.values()), None)
    return reshape_network(network if old is None else free_batch(network, old), open_shapes)


def free_batch(network: Network, batch: int) -> Network:
    """Returns the network with Reshape nodes that copy the batch from their data, if their constants repeat it.

    A constant with the batch as its first element, for data with the batch as its first size, gets a 0 there: the size of the data.
    Source: ONNX Reshape, allowzero = 0.
    """

    def find(node: Node) -> Replacement | None:
        is_reshape = node.op_type == "Reshape" and not node.domain and node.since_version >= 5 and len(node.inputs) == 2
        constant = network.initializers.get(node.inputs[1]) if is_reshape and not node.attributes.get("allowzero", 0) else None
        if constant is None or (shape_of(network.type_of(node.inputs[0])) or ())[:1] != (batch,):
            return None
        if constant.array[:1].tolist() != [batch]:
            return None
        name = f"{node.inputs[1]}/any_batch"
        copied = Initializer.of_array(np.array([0, *constant.array[1:]], constant.array.dtype))
        return Replacement((replace(node, inputs=(node.inputs[0], name)),), {name: copied.type}, {name: copied})

    return replace_nodes(network, find)


def _reshape_input(network: Network, spec: ValueSpec, shape: tuple[Any, ...], bounds: dict[str, tuple[int, int]]) -> ValueSpec:
    name = spec.name
    where = f"input '{name}' of network '{network.name}'"
    if not isinstance(spec.type, TensorType) or (spec.shape is not None and len(spec.shape) != len(shape)):
        raise InvalidNetworkError(f"{where} is {spec.type}; a shape of {len(shape)} axes cannot be given to it")
    if name in network.border.defaults:
        raise InvalidNetworkError(f"{where} has a default of {spec.type}; another shape would not fit it")
    state = next((state for state in network.border.states if state.input == name), None)
    if state is not None:
        raise InvalidNetworkError(f"{where} is a state, which begins as {state.initial.type}; reshape before with_state")
    sizes = tuple(_read_size(size, f"{name}_{axis}", where, bounds) for axis, size in enumerate(shape))
    return replace(spec, type=TensorType(spec.type.dtype, sizes))


def _read_size(size: Any, name: str, where: str, bounds: dict[str, tuple[int, int]]) -> Dimension:
    """Returns a size; a range becomes a named size with bounds."""
    if size is None or isinstance(size, str):
        return size
    if isinstance(size, range):
        if size.step != 1 or not size or size.start < 0:
            raise InvalidNetworkError(
                f"{where}: bounds are {size}; expected a range of sizes from 0 on in steps of 1, as range(1, 9)"
            )
        bounds[name] = (size.start, size.stop - 1)
        return name
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidNetworkError(f"{where}: a size is {size!r}; expected an int of 0 or more, a name, None or a range")
    return size


def _bind_sizes(network: Network, sizes: Mapping[str, Any], bounds: dict[str, tuple[int, int]]) -> dict[Dimension, Dimension]:
    """Returns named size -> its new size."""
    known = {size for spec in network.inputs for size in spec.shape or () if isinstance(size, str)}
    bound: dict[Dimension, Dimension] = {}
    for name, size in sizes.items():
        if name not in known:
            raise InvalidNetworkError(
                f"network '{network.name}' has no size '{name}'{suggest(name, known) or ';'} its named sizes are "
                f"{enumerate_choices(known)}, and an input takes a shape, as in (1, 3, 224, 224)"
            )
        bounds.pop(name, None)
        bound[name] = _read_size(size, name, f"size '{name}' of network '{network.name}'", bounds)
    return bound


def _rebuild(network: Network, inputs: tuple[ValueSpec, ...], border: Border) -> Network:
    """Returns the network with these inputs and all other types inferred again from them."""
    if inputs == network.inputs:
        return replace(network, border=border)
    title = f"network '{network.name}' cannot take {'; '.join(map(str, inputs))}"
    cleared = forget_shapes(replace(drop_hints(network), inputs=inputs, border=border))
    try:
        reshaped = infer_types(cleared)
    except InvalidNetworkError as error:
        raise InvalidNetworkError(f"{title}: {error}") from error
    # Squeeze drops axes by their sizes.
    if not any(
        node.op_type == "Squeeze" and len(node.inputs) < 2 and "axes" not in node.attributes for node in iterate_nodes(network)
    ):
        reshaped = compare_declarations(_restore_ranks(reshaped, network), reshaped)
    problem = _find_failure(network, reshaped)
    if problem is not None:
        raise InvalidNetworkError(
            f"{title}: {problem}. Its weights or constants are made for other sizes; export the model with these sizes open."
        )
    return reshaped


def _restore_ranks(graph: GraphLike, before: Graph) -> GraphLike:
    """Returns the graph with the old number of axes for tensors without an inferred rank.

    A rank that only the model declares, as of the result of a custom operator, stays a hint.
    """
    types = dict(graph.types)
    for name, value_type in graph.types.items():
        rank = rank_of(before.types.get(name))
        if isinstance(value_type, TensorType) and value_type.shape is None and rank is not None:
            types[name] = TensorType(value_type.dtype, (None,) * rank)
    nodes = (
        node.with_bodies({key: _restore_ranks(body, old.bodies[key]) for key, body in node.bodies.items()})
        for node, old in zip(graph.nodes, before.nodes, strict=True)
    )
    return rebuild_graph(graph, tuple(nodes), types)


def _find_failure(before: Network, reshaped: Network) -> str | None:
    """Returns a new objection of onnx in its strict mode, or the name of an operator that refuses its inputs."""
    known = find_contradictions(before)
    for name, problem in find_contradictions(reshaped).items():
        if name not in known and name in reshaped.index_of_node:
            plain = re.sub(r".*\(op_type:[^)]*\):?", "", " ".join(problem.split()).removeprefix("[ShapeInferenceError] "))
            return f"node {reshaped.node(name).label}: {plain.strip().rstrip('.')}"
    for node in reshaped.nodes:
        if node.op_type in _CHECKED and not node.domain and refuses_inputs(node, reshaped) and not refuses_inputs(node, before):
            return f"node {node.label}: its operator does not take {'; '.join(_describe(value, reshaped) for value in node.reads)}"
    return None


# onnx's inference lets some of their nodes pass: of other channels, a window larger than its image, a state of another batch.
_CHECKED = frozenset(
    {
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GRU", "InstanceNormalization", "LSTM", "LpPool"),
        *("MaxPool", "RNN", "Reshape"),
    }
)


def _describe(value: str, network: Network) -> str:
    """Returns the name and the type of a value, or the numbers of a short constant."""
    constant = network.initializers.get(value)
    is_short = constant is not None and constant.dtype == "int64" and constant.nbytes <= 64
    return f"{value}: {constant.array.tolist() if constant is not None and is_short else network.type_of(value)}"
