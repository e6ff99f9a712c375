"""Arrays of NumPy as tensors and back: on the processor the same memory, on an accelerator a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hetero_core.dtypes import numpy_dtype

DTYPES = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"})
"""The element types that PyTorch computes with in most of its functions."""


def to_tensor(array: Any, place: torch.device) -> torch.Tensor:
    """Returns an array as a tensor on a device; on the processor a view of the array's memory, which must not be written."""
    array = np.asarray(array)
    # PyTorch does not know the types of ml_dtypes, which NumPy numbers from 256 on; their bits pass as integers.
    is_bfloat16 = array.dtype.num >= 256 and array.dtype.name == "bfloat16"
    tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)
    return tensor if place.type == "cpu" else tensor.to(place)


def to_array(tensor: torch.Tensor) -> Any:
    """Returns a tensor as a C-contiguous array; a view of a contiguous tensor of the processor."""
    tensor = tensor.cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return tensor.numpy()


def torch_dtype(name: str) -> torch.dtype:
    """Returns PyTorch's type of an element type of ONNX; the names are the same."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype
