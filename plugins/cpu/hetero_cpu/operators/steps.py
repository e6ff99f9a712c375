"""The step functions of machine code, asked in order: the first that takes a group of nodes plans it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from hetero_cpu.operators.recipe import Choice, Site

logger = logging.getLogger(__name__)

ALL = "all"


NATIVE_STEPS = {
    "attention": "Attention",
    "batched": "Gemm MatMul",
    "convolution": "Conv",
    "depthwise": "Conv",
    "elementwise": ALL,
    "gather": "Gather",
    "grouped": "Conv",
    # Asked before the copies of layout.
    "shuffle": "Reshape Transpose",
    "layout": "Concat Expand Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze",
    "product": "Gemm MatMul",
    "normalization": "InstanceNormalization LRN LayerNormalization LogSoftmax RMSNormalization SimplifiedLayerNormalization Softmax",
    "pooling": "AveragePool GlobalAveragePool GlobalMaxPool MaxPool ReduceMax ReduceMean",
    "resize": "Resize Upsample",
    "transposed": "ConvTranspose",
}
"""Module -> the operators that it has steps for, in the order in which they are asked. A network imports those that it needs."""


NativeStepFunction = Callable[[Any], Any]


NATIVE_STEP_FUNCTIONS: dict[str, list[NativeStepFunction]] = {}


def native_step(*op_types: str) -> Callable[[NativeStepFunction], NativeStepFunction]:
    """Registers a function Site -> Recipe (with `kernels`) or None for operators of ONNX's own domain, as `recipe.step` does."""

    def register(function: NativeStepFunction) -> NativeStepFunction:
        for op_type in op_types:
            NATIVE_STEP_FUNCTIONS.setdefault(op_type, []).append(function)
        return function

    return register


@cache
def _list_native_steps(op_type: str) -> tuple[NativeStepFunction, ...]:
    """Returns the functions that are asked about an operator, in order."""
    modules = [
        f"hetero_cpu.operators.{folder}"
        for folder, operators in NATIVE_STEPS.items()
        if operators is ALL or op_type in operators.split()
    ]
    for module in modules:
        importlib.import_module(module)
    # Another operator may have had them imported in another order.
    return tuple(sorted(NATIVE_STEP_FUNCTIONS.get(op_type, ()), key=lambda function: modules.index(function.__module__)))


def choose_step(site: Site) -> Choice | None:
    """Returns the choice of the first step function that takes the group; None leaves it to the toolkit."""
    if site.node.domain:
        return None
    try:
        choices = (function(site) for function in _list_native_steps(site.node.op_type))
        return next((choice for choice in choices if choice is not None), None)
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        # Attributes that contradict each other or the types: the toolkit's kernel says so when the node runs.
        logger.debug("node %s has no step: %s", site.node.label, error)
        return None
