"""Constants that a model lists among its inputs, so that they may be replaced: as inputs with a default, or by other constants.

Source: ONNX IR 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.graph import Network
from hetero_core.network.hints import drop_hints, forget_shapes
from hetero_core.network.inference import LARGEST_READ_CONSTANT, infer_types
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec


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
