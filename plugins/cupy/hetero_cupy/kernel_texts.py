"""Hand-made kernels as text: columns of a convolution, depthwise convolution, softmax and layer normalization of rows.

Each is a pure function from element types and sizes to CUDA C++, so that any compiler can check it: the geometry of a convolution is
part of the text, the sizes of the tensors are arguments. All arithmetic is float32. Imports no array library.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from hetero_cupy.conversions import CONVERSIONS, ROUNDING, STORAGE, write_load, write_store

THREADS = 256
"""Threads of a block, in every kernel of this file."""

_ROWS = f"""
__device__ inline float hetero_add(float a, float b) {{ return a + b; }}
__device__ inline float hetero_most(float a, float b) {{ return fmaxf(a, b); }}
#define HETERO_REDUCE(name, join) \\
__device__ inline float name(float* shared, float value) {{ \\
  shared[threadIdx.x] = value; \\
  __syncthreads(); \\
  for (int half = {THREADS // 2}; half > 0; half /= 2) {{ \\
    if ((int)threadIdx.x < half) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]); \\
    __syncthreads(); \\
  }} \\
  float result = shared[0]; \\
  __syncthreads(); \\
  return result; \\
}}
HETERO_REDUCE(hetero_sum_block, hetero_add)
HETERO_REDUCE(hetero_most_of_block, hetero_most)
"""
"""Reductions over the threads of a block, by a tree in shared memory: the same order, and so the same sum, in every run."""

_EACH = "for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x)"


@dataclass(frozen=True, slots=True)
class CudaText:
    """A module with one kernel, and the kernel's name, which follows from the text."""

    name: str
    source: str


class Geometry(NamedTuple):
    """The windows of a convolution over two axes; `pads` are those at the beginning."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]


def write_columns(dtype: str, geometry: Geometry) -> CudaText:
    """Returns the kernel that copies windows into columns, with zeros where a window hangs over the border.

    Arguments: x (images, channels, height, width), columns (images, channels * kernel, out_height * out_width), count of columns'
    elements, channels, height, width, out_height, out_width.
    """
    (tall, wide), (down, right), (step_down, step_right), (top, left) = geometry
    storage = STORAGE[dtype]
    body = f"""
extern "C" __global__ void NAME(const {storage}* x, {storage}* columns, long long count, int channels, int height, int width,
                                int out_height, int out_width) {{
  {_EACH} {{
    long long rest = i;
    const int column = rest % out_width; rest /= out_width;
    const int row = rest % out_height; rest /= out_height;
    const int tap = rest % {tall * wide}; rest /= {tall * wide};
    const int y = row * {down} - {top} + tap / {wide} * {step_down};
    const int z = column * {right} - {left} + tap % {wide} * {step_right};
    columns[i] = y >= 0 && y < height && z >= 0 && z < width ? x[(rest * height + y) * width + z] : ({storage})0;
  }}
}}
"""
    return name_text("columns", body)


def write_depthwise(dtype: str, geometry: Geometry) -> CudaText:
    """Returns the kernel of a convolution of each channel with its own filter.

    Arguments: x (images, channels, height, width), w (channels, 1, *kernel), y (images, channels, out_height, out_width), count of y's
    elements, channels, height, width, out_height, out_width.
    """
    (tall, wide), (down, right), (step_down, step_right), (top, left) = geometry
    storage = STORAGE[dtype]
    body = f"""
extern "C" __global__ void NAME(const {storage}* x, const {storage}* w, {storage}* y, long long count, int channels, int height,
                                int width, int out_height, int out_width) {{
  {_EACH} {{
    long long rest = i;
    const int column = rest % out_width; rest /= out_width;
    const int row = rest % out_height; rest /= out_height;
    const int channel = rest % channels;
    float sum = 0.0f;
#pragma unroll
    for (int a = 0; a < {tall}; ++a) {{
      const int p = row * {down} - {top} + a * {step_down};
#pragma unroll
      for (int b = 0; b < {wide}; ++b) {{
        const int q = column * {right} - {left} + b * {step_right};
        if (p >= 0 && p < height && q >= 0 && q < width)
          sum += {write_load(dtype, "x[(rest * height + p) * width + q]")} * {write_load(dtype, f"w[(channel * {tall} + a) * {wide} + b]")};
      }}
    }}
    y[i] = {write_store(dtype, "sum")};
  }}
}}
"""
    return name_text("depthwise", body)


def write_softmax(dtype: str) -> CudaText:
    """Returns the kernel of exp(x - max) / sum over the last axis; one block for a row.

    Arguments: x, y (rows, width), rows, width.
    """
    storage, element = STORAGE[dtype], write_load(dtype, "source[i]")
    body = f"""{_ROWS}
extern "C" __global__ void NAME(const {storage}* x, {storage}* y, long long rows, int width) {{
  __shared__ float shared[{THREADS}];
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {{
    const {storage}* source = x + row * width;
    float most = __int_as_float(0xff800000);
    for (int i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, {element});
    most = hetero_most_of_block(shared, most);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += expf({element} - most);
    sum = hetero_sum_block(shared, sum);
    for (int i = threadIdx.x; i < width; i += blockDim.x) y[row * width + i] = {write_store(dtype, f"expf({element} - most) / sum")};
  }}
}}
"""
    return name_text("softmax", body)


def write_layer_normalization(dtype: str, parameters: str) -> CudaText:
    """Returns the kernel of (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis; one block for a row.

    Arguments: x (rows, width), scale and bias (width) of the type `parameters`, y, rows, width, epsilon.
    """
    storage, constants, element = STORAGE[dtype], STORAGE[parameters], write_load(dtype, "source[i]")
    value = f"({element} - mean) * inverse * {write_load(parameters, 'scale[i]')} + {write_load(parameters, 'bias[i]')}"
    body = f"""{_ROWS}
extern "C" __global__ void NAME(const {storage}* x, const {constants}* scale, const {constants}* bias, {storage}* y, long long rows,
                                int width, float epsilon) {{
  __shared__ float shared[{THREADS}];
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {{
    const {storage}* source = x + row * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += {element};
    const float mean = hetero_sum_block(shared, sum) / width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += ({element} - mean) * ({element} - mean);
    const float inverse = 1.0f / sqrtf(hetero_sum_block(shared, squares) / width + epsilon);
    for (int i = threadIdx.x; i < width; i += blockDim.x) y[row * width + i] = {write_store(dtype, value)};
  }}
}}
"""
    return name_text("layer_normalization", body)


def name_text(subject: str, body: str) -> CudaText:
    """Returns a module with its functions for 16 bits; what stands for NAME in the body gets the kernel's name, which follows from it."""
    name = f"hetero_{subject}_{sha256(body.encode()).hexdigest()[:12]}"
    return CudaText(name, CONVERSIONS + ROUNDING + body.replace("NAME", name))
