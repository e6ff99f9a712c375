"""Convolution by cuDNN's graph API, from nvidia-cudnn-frontend. Nothing of this file has run on a card: its graphs were built, no more.

One graph for each signature of inputs, kept with its plan; what cuDNN has no plan for is computed as columns and GEMM. float32 without
TF32 is left to that, too, since cuDNN's plans for float32 may round to TF32.
"""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from hetero_core.dtypes import dtype_of_numpy
from hetero_core.kernels.windows import Windows
from hetero_core.records import record

_KINDS = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT"}


@record(frozen=True, slots=True)
class ConvolutionGraph:
    """A graph of cuDNN, and its three tensors."""

    graph: Any
    x: Any
    w: Any
    y: Any


@record(frozen=True, slots=True)
class _Buffer:
    """Memory on the card as cuDNN takes it: by its address, so that the element type needs no name in CuPy."""

    address: int

    def data_ptr(self) -> int:
        """Returns the address."""
        return self.address


def open_cudnn(cupy: Any) -> CudnnConvolutions | None:
    """Returns cuDNN's convolutions, None where nvidia-cudnn-frontend is not installed."""
    return None if find_spec("cudnn") is None else CudnnConvolutions(import_module("cudnn"), cupy)


def build_graph(cudnn: Any, dtype: str, *, shape: tuple[int, ...], filters: tuple[int, ...], windows: Windows) -> ConvolutionGraph:
    """Returns the graph of a convolution of C-contiguous arrays, with float32 sums; the groups follow from the channels."""
    kind = getattr(cudnn.data_type, _KINDS[dtype])
    wide = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide)
    x, w = (
        graph.tensor(name=name, dim=list(sizes), stride=find_strides(sizes), data_type=kind)
        for name, sizes in (("x", shape), ("w", filters))
    )
    y = graph.conv_fprop(
        image=x,
        weight=w,
        pre_padding=[begin for begin, _ in windows.pads],
        post_padding=[end for _, end in windows.pads],
        stride=list(windows.strides),
        dilation=list(windows.dilations),
    )
    y.set_output(True).set_data_type(kind)
    output_shape = (shape[0], filters[0], *windows.outputs)
    y.set_dim(list(output_shape)).set_stride(find_strides(output_shape))
    return ConvolutionGraph(graph, x, w, y)


def find_strides(sizes: tuple[int, ...]) -> list[int]:
    """Returns the elements from one to the next along each axis of a C-contiguous array."""
    return list(accumulate(reversed(sizes[1:]), lambda step, size: step * size, initial=1))[::-1]


class CudnnConvolutions:
    """The plans that were made so far. Safe for threads: each has a handle of its own."""

    def __init__(self, cudnn: Any, cupy: Any) -> None:
        self._cudnn = cudnn
        self._cupy = cupy
        self._own = threading.local()
        self._graphs: dict[Any, ConvolutionGraph | None] = {}

    def convolve(self, x: Any, w: Any, windows: Windows, *, uses_tf32: bool) -> Any:
        """Returns the convolution without bias, None where cuDNN has no plan for it, or none that keeps float32."""
        dtype = str(dtype_of_numpy(x.dtype))
        if dtype == "float32" and not uses_tf32:
            return None
        key = dtype, x.shape, w.shape, windows
        if key not in self._graphs:
            self._graphs[key] = self._plan(dtype, x.shape, w.shape, windows=windows)
        graph = self._graphs[key]
        if graph is None:
            return None
        handle = getattr(self._own, "handle", None)
        if handle is None:
            handle = self._own.handle = self._cudnn.create_handle()
        self._cudnn.set_stream(handle=handle, stream=self._cupy.cuda.get_current_stream().ptr)
        x, w = (self._cupy.ascontiguousarray(array) for array in (x, w))
        y = self._cupy.empty((x.shape[0], w.shape[0], *windows.outputs), dtype=x.dtype)
        workspace = self._cupy.empty(max(graph.graph.get_workspace_size(), 1), dtype="uint8")
        places = {graph.x: x, graph.w: w, graph.y: y}
        tensors = {tensor: _Buffer(array.data.ptr) for tensor, array in places.items()}
        graph.graph.execute(tensors, _Buffer(workspace.data.ptr), handle=handle)
        return y

    def _plan(self, dtype: str, shape: tuple[int, ...], filters: tuple[int, ...], *, windows: Windows) -> ConvolutionGraph | None:
        graph = build_graph(self._cudnn, dtype, shape=shape, filters=filters, windows=windows)
        try:
            graph.graph.build([self._cudnn.heur_mode.A, self._cudnn.heur_mode.FALLBACK])
        except self._cudnn.cudnnGraphNotSupportedError:
            return None
        return graph
