"""Which folder computes which operator: the steps of a plan are made by its `native_steps.py`."""

from __future__ import annotations

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
"""Folder -> the operators that it has steps for, in the order in which they are asked. A network imports those that it needs."""
