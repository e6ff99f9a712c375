"""The compiled form of a session: the model as ONNX Runtime has optimized it, and beside it its weights, which stay in a blob's memory.

The engine rewrites the model, folds constants and orders weights for the processor once, when the form is stored.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.executed import ExecutedNode
from hetero_core.network.arrays import array_of_bytes
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_onnxruntime.engine import OrtEngine, find_turn, open_session
from hetero_onnxruntime.session import Loaded, Settings, build_session, make_session_options, refer

MODEL, _WEIGHTS = "model", "weights"
_SMALLEST_OUTSIDE = 1024
"""Bytes; smaller constants stay in the model."""


def store_session(engine: OrtEngine, stamped: Network, settings: Settings) -> Mapping[str, bytes]:
    """Returns the optimized model and its weights; costs a load."""
    with find_turn(settings.provider), tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
        path = os.path.join(folder, MODEL)
        entries = {
            "session.optimized_model_external_initializers_file_name": _WEIGHTS,
            "session.optimized_model_external_initializers_min_size_in_bytes": str(_SMALLEST_OUTSIDE),
        }
        build_session(engine, stamped, settings, entries=entries, optimized_model_filepath=path)
        files = [Path(folder, name) for name in (MODEL, _WEIGHTS)]
        return {file.name: file.read_bytes() for file in files if file.exists()}


def restore_session(engine: OrtEngine, stored: Mapping[str, memoryview], settings: Settings) -> Loaded:
    """Returns a session of an optimized model. Raises: any error of the engine."""
    import onnx  # heavy, and loaded already with the network

    model = onnx.load_model_from_string(bytes(stored[MODEL]))
    values, arrays = {}, []
    for tensor in model.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if not place:
            continue
        section = stored[_WEIGHTS][int(place["offset"]) : int(place["offset"]) + int(place["length"])]
        constant = Initializer.of_array(
            array_of_bytes(np.frombuffer(section, np.uint8), str(dtype_of_onnx(tensor.data_type)), tuple(tensor.dims))
        )
        value = refer(engine.module, constant)
        if value is None:
            tensor.raw_data = bytes(section)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
        else:
            values[tensor.name] = value
            arrays.append(constant.array)
    options = make_session_options(engine, replace(settings, level="NONE"))
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    return Loaded(open_session(engine.module, model.SerializeToString(), options, settings.provider), (values, arrays))


def list_optimized(engine: OrtEngine, stamped: Network, settings: Settings, network: Network) -> tuple[ExecutedNode, ...]:
    """Returns the nodes in order. A fused kernel stands for the node of its name and for the nodes that make its outputs; costs a load."""
    import onnx  # heavy, and loaded already with the network

    model = onnx.load_model_from_string(store_session(engine, stamped, settings)[MODEL])
    constants = {tensor.name for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        makers = [index for value in node.output if (index := network.index_of_producer.get(value)) is not None]
        named = network.index_of_node.get(node.name)
        indices = sorted({*makers, *([] if named is None else [named])})
        nodes.append(
            ExecutedNode(
                node.name,
                node.op_type,
                tuple(network.nodes[index].name for index in indices),
                tuple(value for value in node.input if value and value not in constants),
                tuple(filter(None, node.output)),
                node.domain,
                types=tuple(map(network.types.get, filter(None, node.output))),
            )
        )
    return tuple(nodes)
