"""Room for a result before it is made: which operators may make more than they are given, and the rule of each.

An operator that is not in the table makes results of a size that its inputs bound: as many elements, in a type of at most 8 bytes. What
it makes is counted after it was made. So are the trips of a Loop, each node of a body by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_core.kernels import size_rules as rules
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Node

SIZE_RULES: Mapping[str, rules.Rule] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Mean", "Sum", "PRelu", "BitShift"), rules.elementwise
    ),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), rules.elementwise),
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), rules.comparing),
    "Where": rules.choosing,
    "StringConcat": rules.concatenating_strings,
    "StringSplit": rules.splitting_strings,
    "Expand": rules.expanding,
    "Tile": rules.tiling,
    "ConstantOfShape": rules.filling,
    "Range": rules.counting,
    **dict.fromkeys(("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"), rules.marking),
    "OneHot": rules.one_hot,
    **dict.fromkeys(("RandomNormal", "RandomUniform"), rules.drawing),
    "Multinomial": rules.sampling,
    "Pad": rules.padding,
    "CenterCropPad": rules.center_padding,
    **dict.fromkeys(("Resize", "Upsample"), rules.resizing),
    "Gather": rules.gathering,
    "GatherND": rules.gathering_slices,
    **dict.fromkeys(("Concat", "ConcatFromSequence"), rules.concatenating),
    "MatMul": rules.multiplying,
    "MatMulInteger": rules.multiplying_integers,
    "QLinearMatMul": rules.multiplying_quantized,
    "Gemm": rules.multiplying_matrices,
    "Einsum": rules.summing_products,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), rules.recurring),
    "Attention": rules.attending,
    "Conv": rules.convolving,
    "ConvInteger": rules.convolving_integers,
    "QLinearConv": rules.convolving_quantized,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), rules.pooling),
    "ConvTranspose": rules.spreading,
    "MaxUnpool": rules.unpooling,
    "Col2Im": rules.laying_columns,
    "AffineGrid": rules.laying_grid,
    "GridSample": rules.sampling_grid,
    "RoiAlign": rules.aligning_regions,
    "MaxRoiPool": rules.pooling_regions,
    "DFT": rules.transforming,
    "STFT": rules.transforming_frames,
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), rules.windowing),
    "MelWeightMatrix": rules.weighing_mels,
    "TfIdfVectorizer": rules.counting_grams,
}
"""ONNX operator, in all of its versions -> its rule."""

_MICROSOFT_RULES: Mapping[str, rules.Rule] = {
    "FusedConv": rules.convolving,
    "GatherND": rules.gathering_slices,
    "GridSample": rules.sampling_grid,
    "Pad": rules.padding,
    "Range": lambda inputs, attributes: rules.counting(
        (*inputs[:2], 1 if len(inputs) < 3 or inputs[2] is None else inputs[2]), attributes
    ),
}
"""Operators of com.microsoft whose inputs stand as those of ONNX's own."""

_MISFITS = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)


def estimate_bytes(node: Node, inputs: Sequence[Any]) -> int:
    """Returns the bytes that a node is about to make; 0 where its inputs bound them, and for inputs that do not fit together."""
    table = SIZE_RULES if not node.domain else _MICROSOFT_RULES if node.domain == "com.microsoft" else {}
    rule = table.get(node.op_type)
    if rule is None:
        return 0
    try:
        return max(int(rule(inputs, node.attributes)), 0)
    except _MISFITS:
        # The kernel that is called next refuses what does not fit, with the right words.
        return 0


def require_room(limits: RunLimits, node: Node, inputs: Sequence[Any]) -> None:
    """Says that a node begins, and asks for the room of its results. To be called before each node of a run that has limits.

    Raises: MemoryLimitError that names the node.
    """
    limits.enter(node.label)
    if limits.memory_limit is not None:
        limits.require(estimate_bytes(node, inputs))
