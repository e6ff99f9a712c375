"""The executed graph of a session: the nodes of the model as ONNX Runtime has optimized it."""

from __future__ import annotations

from hetero_core.executed import ExecutedNode
from hetero_core.network.graph import Network
from hetero_onnxruntime.compiled import MODEL, store_session
from hetero_onnxruntime.engine import OrtEngine
from hetero_onnxruntime.session import Settings


def list_optimized(engine: OrtEngine, stamped: Network, settings: Settings, network: Network) -> tuple[ExecutedNode, ...]:
    """Returns the nodes in order. A fused kernel stands for the node of its name and for the nodes that make its outputs; costs a load."""
    import onnx  # heavy, and loaded already where there is a network

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
