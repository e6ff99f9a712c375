"""Nodes that the engine computes wrongly or fails at when it runs; they are refused, so that nobody gets a wrong answer or a late error.

Each entry was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, or by a comparison with NumPy; it goes when
a newer engine is right. `frontend_errors` has what the engine reads in another way, `fatal_nodes` what ends the process, `pooling_errors`
and `layout_errors` what is wrong with windows and with channels; `arithmetic` has integers. What can be put right is in `corrections`.
"""

from __future__ import annotations

from hetero_core.engines.known_errors import Check, find_error, refuse, tabulate
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_openvino.arithmetic import find_arithmetic_error
from hetero_openvino.channels import find_channel_error
from hetero_openvino.contrib import find_contrib_error
from hetero_openvino.fatal_nodes import FATAL_NODES
from hetero_openvino.flags import find_flag_error
from hetero_openvino.frontend_errors import FRONTEND_ERRORS
from hetero_openvino.groups import find_group_error
from hetero_openvino.hazards import HALF_ROWS, QUANTIZED_ROWS, ROWS
from hetero_openvino.layout_errors import LAYOUT_ERRORS
from hetero_openvino.pooling_errors import POOLING_ERRORS
from hetero_openvino.quantizing import QUANTIZING, find_quantizing_error
from hetero_openvino.strides import find_placement_error, find_stride_error

QUANTIZED_KEY = "OPENVINO_QUANTIZED"


def find_known_error(node: Node, graph: Graph, *, takes_quantized: bool = False) -> str | None:
    """Returns what the engine gets wrong about a node of a network, or about one in its bodies, in words, or None.

    With `takes_quantized` a result that is one step of a quantization away from the right one is not wrong.
    """

    def check(node: Node, graph: Graph) -> str | None:
        return _check_node(node, graph, takes_quantized)

    return find_error(node, graph, check)


def _check_node(node: Node, graph: Graph, takes_quantized: bool) -> str | None:
    if takes_quantized and node.op_type in QUANTIZING and node.domain in ("", MICROSOFT):
        return find_quantizing_error(node, graph)
    if node.domain == MICROSOFT:
        return _HALVES if node.op_type in QUANTIZING else find_contrib_error(node)
    if node.domain:
        return None
    own = (table[node.op_type] for table in _TABLES if node.op_type in table)
    checks = (
        *own,
        _check_quantized if takes_quantized else _check_halves,
        _check_rows,
        find_flag_error,
        find_arithmetic_error,
        find_channel_error,
    )
    return next((reason for check in checks if (reason := check(node, graph)) is not None), None)


def _check_if(node: Node, graph: Graph) -> str | None:
    # No case: an If of (N, L, 24), and a product of two others that is computed before the result of the If is read.
    if node.inputs[0] in graph.initializers:
        return None
    types = [graph.type_of(name) for name in node.outputs if name]
    is_fixed = all(
        isinstance(value, TensorType) and value.shape is not None and all(isinstance(size, int) for size in value.shape)
        for value in types
    )
    return None if is_fixed else "OpenVINO lets other values overwrite what an If with open sizes returns"


def _check_round(node: Node, graph: Graph) -> str | None:
    # dynamicquantizelinear_expanded
    producer = graph.find_producer(node.inputs[0])
    is_quotient = producer is not None and producer.op_type == "Div"
    return "OpenVINO divides by a multiplication, so that a quotient may be on the other side of a half" if is_quotient else None


_HALVES = (
    "OpenVINO multiplies by the reciprocal of the scale, so that a quotient may be on the other side of a half; "
    f"{QUANTIZED_KEY}=YES takes it all the same"
)

_UNWRITTEN = "OpenVINO returns what it has not written where repeats are no constant"

_CHECKS: dict[str, Check] = {
    "Concat": find_group_error,
    "Conv": find_stride_error,
    "ConvTranspose": find_placement_error,
    # dynamicquantizelinear, quantizelinear_uint16
    **dict.fromkeys(QUANTIZING, refuse(_HALVES)),
    "If": _check_if,
    # No case: values of 1e-3 along an axis of 3 are off by 0.1.
    "LpNormalization": refuse("OpenVINO adds to the norm that LpNormalization divides by"),
    "Round": _check_round,
    **dict.fromkeys(("Shrink", "ThresholdedRelu"), refuse("OpenVINO multiplies by 0 what it drops, so that infinities become NaN")),
    # tile
    "Tile": lambda node, graph: None if node.inputs[1] in graph.initializers else _UNWRITTEN,
}
_TABLES = (FATAL_NODES, FRONTEND_ERRORS, POOLING_ERRORS, _CHECKS, LAYOUT_ERRORS)
_check_rows = tabulate(ROWS)
_check_halves, _check_quantized = tabulate(HALF_ROWS), tabulate(QUANTIZED_ROWS)
