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
from functools import partial

import ml_dtypes

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_cpu.machine.compiler import find_half_products
from hetero_cpu.operators.images import is_whole
from hetero_cpu.transforms.precision import convert_constant
from hetero_cpu.transforms.writer import Writer, rewrite_operators

logger = logging.getLogger(__name__)


def narrow_products(network: Network) -> Network:
    """Returns the network with the operands of its products with constant weights rounded to bfloat16, if the processor multiplies these.

    Weights of whole numbers, as quantized networks have, stay as they are.
    """
    if not find_half_products():
        logger.warning("CPU does not multiply bfloat16 on this processor; network '%s' is computed in float32", network.name)
        return network
    narrow = partial(_narrow, dict[str, str]())
    return rewrite_operators(network, {("", op_type): narrow for op_type in ("Conv", "Gemm", "MatMul")})


def _narrow(narrowed: dict[str, str], network: Network, node: Node, writer: Writer) -> bool:
    """Adds a product of rounded operands; `narrowed` has those that there are."""
    if not _is_narrowed(node, network):
        return False
    x, w, *others = node.inputs
    if x not in narrowed:
        rounded = writer.add("Cast", x, to=onnx_of_dtype("bfloat16"))
        narrowed[x] = writer.add("Cast", rounded, to=onnx_of_dtype("float32"))
    if w not in narrowed:
        constant = convert_constant(network.initializers[w], lambda own: own.astype(ml_dtypes.bfloat16).astype("f4"))
        narrowed[w] = writer.hold(constant, writer.name("bfloat16"))
    writer.nodes.append(replace(node, inputs=(narrowed[x], narrowed[w], *others)))
    return True


def _is_narrowed(node: Node, network: Network) -> bool:
    if len(node.inputs) < 2 or node.attributes.get("group", 1) != 1:
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
