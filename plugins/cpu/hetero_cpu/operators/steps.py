"""The step functions of machine code, asked in order: the first that takes a group of nodes plans it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache

from hetero_core.network.operators import STANDARD_DOMAINS
from hetero_cpu.operators.recipe import Choice, Site

logger = logging.getLogger(__name__)

ALL = "all"

NATIVE_STEPS = (
    ("attention", "plan_native_attention", "Attention"),
    ("blocks", "plan_block_product", "com.microsoft:MatMulNBits"),
    ("narrow_product", "plan_narrow_product", "Gemm MatMul chained:Gemm chained:MatMul"),
    ("narrow_product", "plan_narrow_convolution", "Conv chained:Conv"),
    ("narrow_product", "plan_narrow_transposed_convolution", "ConvTranspose chained:ConvTranspose"),
    ("batched", "plan_native_batched_mat_mul", "Gemm MatMul"),
    ("depthwise", "plan_depthwise", "Conv chained:Conv"),
    ("convolution", "plan_product_convolution", "Conv"),
    ("elementwise", "plan_native_expression", ALL),
    (
        "elements",
        "plan_elements",
        "Abs Add And Cast Div Equal Exp Greater GreaterOrEqual IsNaN Less LessOrEqual Mul Neg Not Or Reciprocal Relu Sigmoid Sqrt Sub "
        "Sum Where Xor",
    ),
    ("elements", "plan_lookup", "LabelEncoder"),
    ("elements", "plan_running_sum", "CumSum"),
    ("elements", "plan_rows", "ArgMax ArgMin ReduceSum ReduceSumSquare Softmax"),
    ("indexing", "plan_native_gather", "ArrayFeatureExtractor Gather"),
    ("indexing", "plan_indexed_read", "GatherElements GatherND"),
    ("indexing", "plan_indexed_write", "Scatter ScatterElements ScatterND"),
    ("layout", "plan_shuffle", "Reshape"),
    ("layout", "plan_transpose", "Transpose"),
    ("layout", "plan_reshape", "Reshape Flatten Squeeze Unsqueeze Identity"),
    ("layout", "plan_expand", "Expand"),
    ("elements", "plan_moved_elements", "Expand Transpose"),
    ("layout", "plan_split", "Split"),
    ("layout", "plan_slice", "Slice"),
    ("layout", "plan_concat", "Concat"),
    ("layout", "plan_pad", "Pad"),
    ("layout", "plan_gather", "Gather"),
    ("product", "plan_native_product", "Gemm MatMul"),
    ("normalization", "plan_native_softmax", "Softmax LogSoftmax"),
    ("normalization", "plan_native_layer_norm", "LayerNormalization SimplifiedLayerNormalization RMSNormalization"),
    ("normalization", "plan_native_instance_norm", "InstanceNormalization"),
    ("normalization", "plan_native_neighbour_norm", "LRN"),
    ("normalization", "plan_normalizer", "LpNormalization Normalizer"),
    ("pooling", "plan_pool", "AveragePool MaxPool"),
    (
        "pooling",
        "plan_reduction",
        "GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceSum ReduceSumSquare",
    ),
    ("recurrent", "plan_recurrence", "GRU LSTM RNN com.microsoft:DynamicQuantizeLSTM"),
    ("resize", "plan_resize", "Resize Upsample"),
    ("sampling", "plan_grid_sample", "GridSample com.microsoft:GridSample"),
    ("search", "plan_top", "TopK"),
    ("convolution", "plan_transposed_convolution", "ConvTranspose"),
    ("scores", "plan_trees", "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor"),
    ("scores", "plan_linear_model", "LinearClassifier LinearRegressor"),
    ("scores", "plan_double_product", "MatMul"),
    ("scores", "plan_coupling", "CouplePairs"),
    ("scores", "plan_distances", "com.microsoft:CDist"),
)
"""Module, function Site -> Recipe (with `kernels`) or None, and the operators of ONNX's two domains that it is asked about, in order;
those of another domain are written `domain:operator`, and a product with an expression behind it `chained:operator`.

A network imports the modules that it needs.
"""


@cache
def list_native_steps(operator: str) -> tuple[Callable[[Site], Choice | None], ...]:
    """Returns the functions that are asked about an operator, in order."""
    return tuple(
        getattr(importlib.import_module(f"hetero_cpu.operators.{module}"), name)
        for module, name, operators in NATIVE_STEPS
        if (operator in operators.split() if operators is not ALL else ":" not in operator)
    )


def choose_step(site: Site) -> Choice | None:
    """Returns the choice of the first step function that takes the group; None leaves it to the toolkit."""
    is_standard = site.node.domain in STANDARD_DOMAINS
    operator = site.node.op_type if is_standard else f"{site.node.domain}:{site.node.op_type}"
    operator = f"chained:{operator}" if site.group.chained else operator
    try:
        choices = (function(site) for function in list_native_steps(operator))
        return next((choice for choice in choices if choice is not None), None)
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        # Attributes that contradict each other or the types: the toolkit's kernel says so when the node runs.
        logger.debug("node %s has no step: %s", site.node.label, error)
        return None
