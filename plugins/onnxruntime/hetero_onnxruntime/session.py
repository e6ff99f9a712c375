"""From a network to a session of the engine: weights by reference, options from the configuration, nothing that falls back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.contract import ConfigKey
from hetero_core.dtypes import bits_of_dtype, onnx_of_dtype
from hetero_core.errors import LoadError
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.writer import network_to_bytes, network_to_skeleton
from hetero_core.transforms.constants import limit_folding
from hetero_core.transforms.folding import measure_folding
from hetero_onnxruntime.engine import CPU_PROVIDER, Engine, make_options, open_session
from hetero_onnxruntime.probing import shorten_message

OPTIMIZATION_KEY = "ORT_GRAPH_OPTIMIZATION"
SPINNING_KEY = "ORT_ALLOW_SPINNING"
_FOLDED_KEY = "optimization.constant_folding_max_output_size_in_bytes"
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
    "float8e4m3fn": np.uint8,
    "float8e4m3fnuz": np.uint8,
    "float8e5m2": np.uint8,
    "float8e5m2fnuz": np.uint8,
    "float8e8m0": np.uint8,
}


@dataclass(frozen=True)
class Settings:
    """What shapes a session. `threads` 0 leaves their number to the engine."""

    provider: str
    level: str
    spins: bool
    threads: int

    @classmethod
    def of_config(cls, provider: str, config: Mapping[str, Any]) -> Settings:
        """Returns the settings of a complete configuration."""
        threads = config.get("INFERENCE_NUM_THREADS")
        return cls(provider, config[OPTIMIZATION_KEY], config[SPINNING_KEY], 0 if threads is None else threads)


@dataclass(frozen=True)
class Loaded:
    """A session with everything whose memory it uses; `kept` lives as long as the session, or the engine reads freed memory."""

    session: Any
    kept: tuple[Any, ...]


def build_session(engine: Engine, network: Network, settings: Settings, **more: Any) -> Loaded:
    """Returns a session on a stamped network; `more` are further attributes of its options, as `enable_profiling`.

    Raises: LoadError with the engine's own words.
    """
    options = make_options(engine.module, settings.provider)
    options.graph_optimization_level = getattr(engine.module.GraphOptimizationLevel, LEVELS[settings.level])
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    folded = measure_folding(network)
    if sum(folded.values()) > limit_folding(network):
        # The engine has a limit for each result, 1 GiB, and none for all of them; what it does not fold it computes in each run.
        options.add_session_config_entry(_FOLDED_KEY, str(limit_folding(network) // len(folded)))
    if settings.spins:
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    for name, value in more.items():
        setattr(options, name, value)
    model, kept = _write_model(engine, network, options)
    try:
        disabled = ["QDQPropagationTransformer"] if _loses_zero_points(network) else []
        disabled += ["MatmulTransposeFusion"] if _may_turn_halves(network) else []
        session = open_session(engine.module, model, options, settings.provider, disabled=disabled)
    except Exception as error:
        raise LoadError(
            f"ONNX Runtime {engine.version} cannot load network '{network.name}' on {settings.provider}: {shorten_message(str(error))}"
        ) from error
    _require_provider(session, network, settings.provider)
    return Loaded(session, kept)


def _loses_zero_points(network: Network) -> bool:
    """Says whether the engine may fail to move a dequantization: ONNX Runtime 1.32 makes a QuantizeLinear-21 with a zero point of uint8."""
    return any(
        node.op_type == "DequantizeLinear"
        and not node.domain
        and node.opset >= 21
        and node.inputs[0] not in network.initializers
        and len(node.inputs) > 2
        and getattr(network.type_of(node.inputs[2]), "dtype", None) != "uint8"
        for node in network.nodes
    )


def _may_turn_halves(network: Network) -> bool:
    """Says whether the engine may end the process: ONNX Runtime 1.32 does where it reads a batch that is not first in a float16 product."""
    products = (node for node in network.nodes if node.op_type == "MatMul" and not node.domain)
    has_halves = any(getattr(network.type_of(node.outputs[0]), "dtype", None) == "float16" for node in products)
    return has_halves and any(node.op_type == "Transpose" for node in network.nodes)


def _write_model(engine: Engine, network: Network, options: Any) -> tuple[bytes, tuple[Any, ...]]:
    """Returns the model for the engine, and the weights that it is given by reference; models above 2 GB have no other way."""
    skeleton, left_out = network_to_skeleton(network)
    values = [_refer(engine.module, constant) for constant in left_out.values()]
    if any(value is None for value in values):
        return network_to_bytes(network), ()
    if values:
        options.add_external_initializers(list(left_out), values)
    return skeleton.SerializeToString(), (values, tuple(constant.array for constant in left_out.values()))


def _refer(module: Any, constant: Initializer) -> Any:
    """Returns the engine's value over a constant's own memory; None for types that the engine packs."""
    if constant.dtype in _CARRIERS:
        carried = constant.array.view(_CARRIERS[constant.dtype])
        return module.OrtValue.ortvalue_from_numpy_with_onnx_type(carried, onnx_of_dtype(constant.dtype))
    if bits_of_dtype(constant.dtype) not in (8, 16, 32, 64):
        return None
    return module.OrtValue.ortvalue_from_numpy(constant.array)


def _require_provider(session: Any, network: Network, provider: str) -> None:
    """A session that was to run elsewhere and says that it runs on the CPU has fallen back."""
    found = session.get_providers()
    if provider not in found or (provider != CPU_PROVIDER and found[0] != provider):
        raise LoadError(f"ONNX Runtime put network '{network.name}' on {', '.join(found)}; expected {provider} alone")
