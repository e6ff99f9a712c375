"""From a network to a session of the engine: weights by reference, options from the configuration, nothing that falls back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_core.contract import ConfigKey
from hetero_core.dtypes import bits_of_dtype, onnx_of_dtype
from hetero_core.engines.inspection import dtype_of_input, dtype_of_value, find_shape, has_input
from hetero_core.engines.known_errors import Condition
from hetero_core.errors import LoadError
from hetero_core.network.graph import EMPTY, Graph, Network, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.network.writer import network_to_bytes, network_to_skeleton
from hetero_onnxruntime.corrections import correct_network, has_int8
from hetero_onnxruntime.custom_operators import find_libraries
from hetero_onnxruntime.engine import CPU_PROVIDER, OrtEngine, make_options, open_session, saturates_products
from hetero_onnxruntime.probing import retry_with_open_sizes, shorten_message

logger = logging.getLogger(__name__)

OPTIMIZATION_KEY = "ORT_GRAPH_OPTIMIZATION"
SPINNING_KEY = "ORT_ALLOW_SPINNING"
LEVELS = {"NONE": "ORT_DISABLE_ALL", "BASIC": "ORT_ENABLE_BASIC", "EXTENDED": "ORT_ENABLE_EXTENDED", "ALL": "ORT_ENABLE_ALL"}

CONFIG_KEYS: Mapping[str, ConfigKey] = {
    OPTIMIZATION_KEY: ConfigKey(str, "ALL", "How far ONNX Runtime rewrites the graph when it loads it.", choices=tuple(LEVELS)),
    SPINNING_KEY: ConfigKey(
        bool,
        False,
        "Let the engine's threads spin between runs. Faster where ONNX Runtime has the process to itself; it slows every other engine.",
    ),
}

# Types that NumPy lacks, by the type of the same size that carries their bytes to the engine.
_CARRIERS = {
    "bfloat16": np.uint16,
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"), np.uint8),
}


@dataclass(frozen=True)
class Settings:
    """The settings of a session. `threads` 0 leaves their number to the engine; `libraries` are those of custom operators.

    With `widens`, float32 is added up in float64 along axes of open size.
    """

    provider: str
    level: str
    spins: bool
    threads: int
    libraries: tuple[str, ...] = ()
    widens: bool = False

    @classmethod
    def of_config(cls, provider: str, config: Mapping[str, Any], network: Network) -> Settings:
        """Returns the settings of a complete configuration for a network."""
        threads = config.get("INFERENCE_NUM_THREADS")
        libraries = find_libraries(network.nodes)
        return cls(provider, config[OPTIMIZATION_KEY], config[SPINNING_KEY], 0 if threads is None else threads, libraries)


@dataclass(frozen=True)
class Loaded:
    """A session and the owners of memory that it reads: `kept` must live as long as the session."""

    session: Any
    kept: tuple[Any, ...]


def build_session(
    engine: OrtEngine, network: Network, settings: Settings, *, entries: Mapping[str, str] = EMPTY, **more: Any
) -> Loaded:
    """Returns a session on a stamped network; `entries` and `more` are further options, such as `enable_profiling`.

    Raises: LoadError with the engine's own words.
    """

    saturates = settings.provider == CPU_PROVIDER and has_int8(network) and saturates_products()
    if settings.provider == CPU_PROVIDER:
        network = correct_network(network, saturates=saturates, widens=settings.widens)
    if not network.inputs and not network.outputs and network.nodes:
        # Constants alone that nobody reads, as a part of a network may hold: the engine refuses a session without any value.
        value = network.nodes[-1].writes[0]
        network = replace(network, outputs=(ValueSpec(value, network.types.get(value, TensorType(None, None))),))

    def open_network(network: Network) -> Loaded:
        options = make_session_options(engine, settings, entries, **more)
        model, arrays = _write_model(engine, network, options)
        nodes = [(node, graph) for graph in iterate_graphs(network) for node in graph.nodes]
        disabled = ["QDQS8ToU8Transformer"] if saturates else []  # makes uint8 of int8 in front of int8 weights
        for name, (operators, is_wrong) in _REWRITES.items():
            if any(node.op_type in operators and is_wrong(node, graph) for node, graph in nodes):
                disabled.append(name)
        return Loaded(open_session(engine.module, model, options, settings.provider, disabled=disabled), arrays)

    try:
        loaded = retry_with_open_sizes(network, open_network)
    except Exception as error:
        raise LoadError(
            f"ONNX Runtime {engine.version} cannot load network '{network.name}' on {settings.provider}: {shorten_message(str(error))}"
        ) from error
    providers = loaded.session.get_providers()
    if settings.provider not in providers or (settings.provider != CPU_PROVIDER and providers[0] != settings.provider):
        raise LoadError(f"ONNX Runtime put network '{network.name}' on {', '.join(providers)}; expected {settings.provider} alone")
    return loaded


def make_session_options(engine: OrtEngine, settings: Settings, entries: Mapping[str, str] = EMPTY, **more: Any) -> Any:
    """Returns the options of a session with these settings; `entries` are texts that the engine knows, `more` attributes."""
    options = make_options(engine.module, settings.provider, spins=settings.spins, libraries=settings.libraries)
    options.graph_optimization_level = getattr(engine.module.GraphOptimizationLevel, LEVELS[settings.level])
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    for name, text in entries.items():
        options.add_session_config_entry(name, text)
    for name, value in more.items():
        setattr(options, name, value)
    return options


def _moves_wrongly(node: Node, graph: Graph) -> bool:
    """Says whether the engine moves a dequantization wrongly.

    ONNX Runtime 1.32 repeats a dequantization behind a node that moves its values (Transpose, Reshape, Slice), with a QuantizeLinear before
    it. That QuantizeLinear silently makes uint8 without a zero point, from opset 21 also with a zero point of int8, and does not take
    int32.
    """
    dtype = dtype_of_input(node, graph)
    is_wrong = dtype == "int32" or (dtype != "uint8" and (not has_input(node, 2) or node.opset >= 21))
    return is_wrong and node.inputs[0] not in graph.initializers


_REWRITES: Mapping[str, tuple[tuple[str, ...], Condition]] = {
    "QDQPropagationTransformer": (("DequantizeLinear",), _moves_wrongly),
    # Behind an Add, ONNX Runtime 1.32 fuses a normalization with a single scale and fails in a run.
    "SkipLayerNormFusion": (
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        lambda node, graph: all(size == 1 for size in find_shape(node, graph, 1) or ()),
    ),
    # ONNX Runtime 1.32 takes a size of 0 for the size that is there, and removes the node; a computed size may become a constant.
    "ExpandElimination": (
        ("Expand",),
        lambda node, graph: 0 in getattr(graph.initializers.get(node.inputs[1]), "array", (0,)),
    ),
    # ONNX Runtime 1.32 may end the process at a float16 product with a batch that a Transpose moved from the front.
    "MatmulTransposeFusion": (
        ("MatMul",),
        lambda node, graph: (
            dtype_of_value(node.outputs[0], graph) == "float16" and any(each.op_type == "Transpose" for each in graph.nodes)
        ),
    ),
}
"""Rewrite of the engine -> operators, and the condition of a node under which it is wrong and therefore disabled."""


def _write_model(engine: OrtEngine, network: Network, options: Any) -> tuple[bytes, tuple[Any, ...]]:
    """Returns the model, and the weights that the engine gets by reference, the only way for models above 2 GB."""
    skeleton, left_out = network_to_skeleton(network)
    values = [refer(engine.module, constant) for constant in left_out.values()]
    if any(value is None for value in values):
        return network_to_bytes(network), ()
    if values:
        options.add_external_initializers(list(left_out), values)
    return skeleton.SerializeToString(), (values, tuple(constant.array for constant in left_out.values()))


def refer(module: Any, constant: Initializer) -> Any:
    """Returns the engine's value over a constant's own memory; None for types that the engine packs."""
    if constant.dtype in _CARRIERS:
        carried = constant.array.view(_CARRIERS[constant.dtype])
        return module.OrtValue.ortvalue_from_numpy_with_onnx_type(carried, onnx_of_dtype(constant.dtype))
    if bits_of_dtype(constant.dtype) not in (8, 16, 32, 64):
        return None
    return module.OrtValue.ortvalue_from_numpy(constant.array)
