"""Inputs with a value of their own: constants that a model lists among its inputs, and states, the outputs of the run before.

Such a constant becomes an input with a default, or is replaced by another constant. Source: ONNX IR 4. Of states: which pairs of an
output and an input may be tied, and the initial values of the first run. The network's nodes stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.border import State
from hetero_core.network.graph import Network
from hetero_core.network.hints import drop_hints, forget_shapes
from hetero_core.network.inference import LARGEST_READ_CONSTANT, infer_types
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec, fixed_sizes, merge_types
from hetero_core.transforms.chains import require_names


def free_constants(network: Network, names: Sequence[str]) -> Network:
    """Returns the network with these constants as inputs behind the present inputs, each with the constant as its default.

    Raises: InvalidNetworkError for names that the model does not list among its inputs.
    """
    border = network.border
    replaceable_names = [name for name in border.replaceable if name in network.initializers]
    for name in names:
        if name not in replaceable_names:
            hint = suggest(name, replaceable_names) or ";"
            raise InvalidNetworkError(
                f"network '{network.name}' has no replaceable constant '{name}'{hint} the model lists "
                f"{enumerate_choices(replaceable_names)} among its inputs"
            )
    freed = list(dict.fromkeys(names))
    changed = replace(
        drop_hints(network),
        inputs=(*network.inputs, *(ValueSpec(name, network.initializers[name].type) for name in freed)),
        initializers=MappingProxyType({name: constant for name, constant in network.initializers.items() if name not in freed}),
        border=replace(
            border,
            defaults=MappingProxyType({**border.defaults, **{name: network.initializers[name] for name in freed}}),
            replaceable=tuple(name for name in border.replaceable if name not in freed),
        ),
    )
    # Types that were inferred from these shapes, axes and the like hold for these values alone.
    is_read = any(network.initializers[name].nbytes <= LARGEST_READ_CONSTANT for name in freed)
    return infer_types(forget_shapes(changed)) if is_read else changed


def fix_constants(network: Network, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Network:
    """Returns the network with these arrays in place of its constants of these names, and no constant that may be replaced."""
    constants = dict(network.initializers)
    for name, array in arrays.items():
        constants[name] = Initializer(constants[name].dtype, array.shape, array.view)
    border = replace(network.border, replaceable=())
    changed = replace(drop_hints(network), initializers=MappingProxyType(constants), border=border)
    return infer_types(forget_shapes(changed))


def tie_states(network: Network, ties: Mapping[str, str], initial: Mapping[str, Any]) -> Network:
    """Returns the network with these ties added to those that it has. Raises: InvalidNetworkError."""
    inputs = {spec.name: spec for spec in network.inputs}
    outputs = {spec.name: spec for spec in network.outputs}
    states = list(network.border.states)
    for name in initial:
        if name not in ties.values():
            raise InvalidNetworkError(
                f"network '{network.name}': there is an initial value for '{name}'{suggest(name, ties.values()) or ';'} the inputs "
                f"that are tied are {enumerate_choices(ties.values())}"
            )
    require_names(network, "output", ties, outputs)
    require_names(network, "input", ties.values(), inputs)
    for output, name in ties.items():
        where = f"output '{output}' of network '{network.name}' cannot be the state of input '{name}'"
        earlier = [state for state in states if state.output == output or state.input == name]
        if earlier:
            raise InvalidNetworkError(f"{where}: '{earlier[0].output}' is tied to '{earlier[0].input}' already")
        if name in network.border.defaults:
            raise InvalidNetworkError(
                f"{where}: the input has a default; give it as the initial value, and tie the input before it gets one"
            )
        _check_types(outputs[output], inputs[name], where)
        states.append(State(output, name, _read_initial(inputs[name], initial.get(name), network)))
    return replace(network, border=replace(network.border, states=tuple(states)))


def _check_types(output: ValueSpec, source: ValueSpec, where: str) -> None:
    if not isinstance(source.type, TensorType) or not isinstance(output.type, TensorType):
        raise InvalidNetworkError(f"{where}: a state is a tensor; these are {output} and {source}")
    if merge_types(output.type, source.type) is None or output.dtype is None:
        raise InvalidNetworkError(
            f"{where}: the output is {output.type}, the input {source.type}; a state that grows needs an open size, by with_shapes"
        )


def _read_initial(spec: ValueSpec, value: Any, network: Network) -> Initializer:
    assert isinstance(spec.type, TensorType)
    assert spec.dtype is not None
    where = f"state '{spec.name}' of network '{network.name}'"
    dtype, shape = numpy_dtype(spec.dtype), spec.shape
    if value is None:
        sizes = fixed_sizes(shape)
        if sizes is None:
            example = "(...)" if shape is None else tuple(size if isinstance(size, int) else 0 for size in shape)
            raise InvalidNetworkError(
                f"{where} is {spec.type}, which has open sizes; say what the first run reads, as in "
                f"initial={{'{spec.name}': np.zeros({example}, np.{dtype.name})}}"
            )
        return Initializer(spec.dtype, sizes, lambda: np.zeros(sizes, dtype))
    array = np.asarray(value)
    if array.dtype != dtype or merge_types(spec.type, TensorType(spec.dtype, tuple(array.shape))) is None:
        raise InvalidNetworkError(
            f"{where}: expected an initial value of {spec.type}, got {TensorType(array.dtype.name, array.shape)}"
        )
    return Initializer.of_array(array.copy())
