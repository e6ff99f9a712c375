"""The pass that has products computed in bfloat16, for INFERENCE_PRECISION_HINT=bf16.

```text
x ── Cast to bfloat16 ── Cast to float32 ──> Conv, MatMul, Gemm ──> y
w, rounded to bfloat16 ───────────────────────^
```

A product of two bfloat16 is exact in float32, and so the network says what is computed, whichever kernels do it.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import ml_dtypes

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import drop_unread
from hetero_cpu.machine.compiler import find_half_products
from hetero_cpu.operators.images import is_whole
from hetero_cpu.transforms.precision import convert_constant
from hetero_cpu.transforms.writer import Writer

logger = logging.getLogger(__name__)

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


def narrow_products(network: Network) -> Network:
    """Returns the network with the operands of its products with constant weights rounded to bfloat16, if the processor multiplies these.

    Weights of whole numbers, as quantized networks have, stay as they are.
    """
    if not find_half_products():
        logger.warning("CPU does not multiply bfloat16 on this processor; network '%s' is computed in float32", network.name)
        return network
    writer, narrowed = Writer(network), dict[str, str]()
    for node in network.nodes:
        if not _is_narrowed(node, network):
            writer.nodes.append(node)
            continue
        (x, w), writer.origins = node.inputs[:2], node.origins
        if x not in narrowed:
            source = network.types[x]
            narrowed[x] = x
            for dtype in ("bfloat16", "float32"):
                value = writer.names.value(f"{x}/{dtype}")
                writer.nodes.append(writer.make_node("Cast", (narrowed[x],), (value,), {"to": onnx_of_dtype(dtype)}))
                writer.types[value] = TensorType(dtype, source.shape if isinstance(source, TensorType) else None)
                narrowed[x] = value
        if w not in narrowed:
            rounded = convert_constant(network.initializers[w], lambda own: own.astype(ml_dtypes.bfloat16).astype("f4"))
            narrowed[w] = writer.hold(rounded, writer.names.value(f"{w}/bfloat16"))
        writer.nodes.append(replace(node, inputs=(narrowed[x], narrowed[w], *node.inputs[2:])))
    return drop_unread(writer.write_network()) if narrowed else network


def _is_narrowed(node: Node, network: Network) -> bool:
    if node.op_type not in _PRODUCTS or node.domain or len(node.inputs) < 2 or node.attributes.get("group", 1) != 1:
        return False
    source, weight = network.types.get(node.inputs[0]), network.initializers.get(node.inputs[1])
    if not isinstance(source, TensorType) or source.dtype != "float32" or node.inputs[0] in network.initializers:
        return False
    if weight is None or weight.dtype != "float32" or len(weight.shape) < 2 or is_whole(weight.array):
        return False
    # What is narrow already stays, as in a blob.
    maker = network.find_producer(node.inputs[0])
    made_of = None if maker is None or maker.op_type != "Cast" else network.types.get(maker.inputs[0])
    return not isinstance(made_of, TensorType) or made_of.dtype != "bfloat16"
