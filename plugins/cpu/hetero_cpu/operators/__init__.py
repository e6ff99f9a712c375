"""Which folder computes which operator: NumPy's steps in its `numpy_steps.py`, those of machine code in its `native_steps.py`."""

from __future__ import annotations

ALL = "all"

NUMPY_STEPS = {
    "attention": "Attention",
    "convolution": "Conv",
    "elementwise": "Abs Add Clip Div Elu Exp Gelu HardSigmoid HardSwish LeakyRelu Log Max Min Mul Neg Reciprocal Relu Sigmoid Sqrt "
    "Sub Sum Swish Tanh",
    "layout": "Concat Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze",
    "product": "Gemm MatMul",
    "normalization": "BatchNormalization LRN LayerNormalization RMSNormalization Softmax",
    "pooling": "AveragePool GlobalAveragePool MaxPool",
    "transposed": "ConvTranspose",
}
"""Folder -> the operators that it has steps for. A network imports those that it needs."""

NATIVE_STEPS = {
    "attention": "Attention",
    "batched": "MatMul",
    "convolution": "Conv",
    "depthwise": "Conv",
    "elementwise": ALL,
    "gather": "Gather",
    "grouped": "Conv",
    # Asked before the copies of layout.
    "shuffle": "Reshape Transpose",
    "layout": "Expand Flatten Reshape Squeeze Transpose Unsqueeze",
    "product": "Gemm MatMul",
    "normalization": "InstanceNormalization LRN LayerNormalization LogSoftmax RMSNormalization SimplifiedLayerNormalization Softmax",
    "pooling": "AveragePool GlobalAveragePool GlobalMaxPool MaxPool ReduceMax ReduceMean",
    "resize": "Resize Upsample",
    "transposed": "ConvTranspose",
}
"""Folder -> the operators that it has steps for, in the order in which they are asked. A network imports those that it needs."""
