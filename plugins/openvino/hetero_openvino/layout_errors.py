"""Images of one pixel that are repeated: the engine is wrong where it puts channels last. Found on OpenVINO 2026.4."""

from __future__ import annotations

from hetero_core.engines.inspection import find_shape
from hetero_core.engines.known_errors import Check
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType


def _check_pixel(node: Node, graph: Graph) -> str | None:
    # No case: float32[1,8,1,1] of a pooling, read by a Relu and by a Concat of it and itself along axis 3, a Tile or an Expand. Right
    # with one reader, behind other operators and with open sizes.
    if node.op_type == "Concat" and len(set(node.inputs)) != 1:
        return None
    shape, result = find_shape(node, graph), graph.type_of(node.outputs[0])
    sizes = result.shape if isinstance(result, TensorType) else None
    is_pixel = shape is not None and len(shape) >= 4 and all(size == 1 for size in shape[2:])
    readers = set(graph.index_of_consumers.get(node.inputs[0], ()))
    is_pooled = any(other.op_type in ("AveragePool", "MaxPool") and node.inputs[0] in other.outputs for other in graph.nodes)
    if not (is_pixel and is_pooled and len(readers) > 1 and (sizes is None or any(size != 1 for size in sizes[2:]))):
        return None
    return f"OpenVINO's {node.op_type} of images of one pixel that another node reads is wrong where channels are last"


LAYOUT_ERRORS: dict[str, Check] = dict.fromkeys(("Concat", "Expand", "Tile"), _check_pixel)
