"""The attention kernel as text: softmax(scale q k^T + mask) v a tile of keys at a time, so that no scores are ever written to memory.

Source: Milakov & Gimelshein 2018, Online normalizer calculation for softmax; Dao et al. 2022, FlashAttention, algorithm 1. One block of
threads computes a band of queries of one head: it walks over the keys, keeps for each query the largest score so far, the sum of the
exponentials and the sum of the values, and scales both sums down whenever a larger score comes. All arithmetic is float32, by
multiply-add; tensor cores are not used. Imports no array library.
"""

from __future__ import annotations

from hetero_core.records import record
from hetero_cupy.conversions import STORAGE, write_load, write_store
from hetero_cupy.kernel_texts import THREADS, CudaText, name_text

LARGEST_HEAD = 256
"""The elements of a head that fit into the shared memory of a block, 48 KiB on every card."""

_SIDE = 16
"""Threads stand in a square: one side of it shares out queries, the other keys or elements of a head."""


@record(frozen=True, slots=True)
class AttentionForm:
    """The parameters of a kernel's text: element types, the elements of a head of q and k and of v, and whether later keys are hidden.

    `mask` is an element type, "bool", or empty for none.
    """

    dtype: str
    size: int
    value_size: int
    mask: str = ""
    is_causal: bool = False


def choose_tile(form: AttentionForm) -> tuple[int, int, int]:
    """Returns the queries of a band, the keys of a tile, and the elements that a row of a tile is rounded up to."""
    widest = max(form.size, form.value_size)
    if not 0 < min(form.size, form.value_size) <= widest <= LARGEST_HEAD:
        raise ValueError(f"heads of {form.size} and {form.value_size} elements; a tile holds 1 to {LARGEST_HEAD}")
    wide = -(-widest // _SIDE) * _SIDE
    queries, keys = (64, 32) if wide <= 64 else (32, 32) if wide <= 128 else (16, 16)
    return queries, keys, wide


def write_attention(form: AttentionForm) -> CudaText:
    """Returns the kernel of attention; a query that may see no key gets zeros.

    Arguments: q, k, v, y, the mask if there is one; groups (batch * heads), heads, repeats (heads of q for each of k and v), queries, keys,
    scale; then elements from one to the next along batch, head, step and element of q, of k, of v, of y, and along batch, head, query and
    key of the mask, 0 where it is spread.
    """
    band, tile, wide = choose_tile(form)
    storage, rows, columns, elements = STORAGE[form.dtype], band // _SIDE, tile // _SIDE, -(-form.value_size // _SIDE)
    step = wide + 1  # odd, so that threads side by side meet different banks of shared memory
    mask_storage = "unsigned char" if form.mask == "bool" else STORAGE.get(form.mask, "")
    names = ("q", "k", "v", "y", *(("mask",) if form.mask else ()))
    steps = ", ".join(f"long long {name}_{axis}" for name in names for axis in ("batch", "head", "row", "element"))
    mask_parameter = f", const {mask_storage}* mask" if form.mask else ""
    own_mask = f"\n    const {mask_storage}* own_mask = mask + image * mask_batch + head * mask_head;" if form.mask else ""
    read_q, read_k, read_v = (
        write_load(form.dtype, f"own_{name}[({first} + row) * {name}_row + element * {name}_element]")
        for name, first in (("q", "first"), ("k", "begin"), ("v", "begin"))
    )
    body = f"""
extern "C" __global__ void NAME(const {storage}* q, const {storage}* k, const {storage}* v, {storage}* y{mask_parameter},
                                long long groups, int heads, int repeats, int queries, int keys, float scale, {steps}) {{
  __shared__ float band[{band * step}];
  __shared__ float tile[{tile * step}];
  __shared__ float scores[{band * (tile + 1)}];
  __shared__ float shares[{band * (tile + 1)}];
  const float never = __int_as_float(0xff800000);
  const int tx = threadIdx.x % {_SIDE}, ty = threadIdx.x / {_SIDE};
  const int bands = (queries + {band - 1}) / {band};
  for (long long task = blockIdx.x; task < groups * bands; task += gridDim.x) {{
    const long long group = task / bands, image = group / heads;
    const int first = (int)(task % bands) * {band}, head = (int)(group % heads);
    const {storage}* own_q = q + image * q_batch + head * q_head;
    const {storage}* own_k = k + image * k_batch + head / repeats * k_head;
    const {storage}* own_v = v + image * v_batch + head / repeats * v_head;
    {storage}* own_y = y + image * y_batch + head * y_head;{own_mask}
    for (int i = threadIdx.x; i < {band * wide}; i += {THREADS}) {{
      const int row = i / {wide}, element = i % {wide};
      const bool there = first + row < queries && element < {form.size};
        band[row * {step} + element] = there ? {read_q} : 0.0f;
    }}
    float most[{rows}], sums[{rows}], result[{rows}][{elements}];
    for (int r = 0; r < {rows}; ++r) {{
      most[r] = never; sums[r] = 0.0f;
      for (int e = 0; e < {elements}; ++e) result[r][e] = 0.0f;
    }}
    const int end = {f"first + {band} < keys ? first + {band} : keys" if form.is_causal else "keys"};
    for (int begin = 0; begin < end; begin += {tile}) {{
      __syncthreads();
      for (int i = threadIdx.x; i < {tile * wide}; i += {THREADS}) {{
        const int row = i / {wide}, element = i % {wide};
        const bool there = begin + row < keys && element < {form.size};
        tile[row * {step} + element] = there ? {read_k} : 0.0f;
      }}
      __syncthreads();
      float own[{rows}][{columns}];
      for (int r = 0; r < {rows}; ++r)
        for (int c = 0; c < {columns}; ++c) own[r][c] = 0.0f;
      for (int element = 0; element < {form.size}; ++element) {{
#pragma unroll
        for (int r = 0; r < {rows}; ++r) {{
          const float factor = band[(r * {_SIDE} + ty) * {step} + element];
#pragma unroll
          for (int c = 0; c < {columns}; ++c) own[r][c] += factor * tile[(c * {_SIDE} + tx) * {step} + element];
        }}
      }}
      for (int r = 0; r < {rows}; ++r)
        for (int c = 0; c < {columns}; ++c) {{
          const int row = first + r * {_SIDE} + ty, key = begin + c * {_SIDE} + tx;
          float score = own[r][c] * scale;
          const bool seen = key < keys && row < queries{" && key <= row" if form.is_causal else ""};{_add_mask(form)}
          own[r][c] = seen ? score : never;
          scores[(r * {_SIDE} + ty) * {tile + 1} + c * {_SIDE} + tx] = own[r][c];
        }}
      __syncthreads();
      // The products with the keys are done: their place is free for the values.
      for (int i = threadIdx.x; i < {tile * wide}; i += {THREADS}) {{
        const int row = i / {wide}, element = i % {wide};
        const bool there = begin + row < keys && element < {form.value_size};
        tile[row * {step} + element] = there ? {read_v} : 0.0f;
      }}
      for (int r = 0; r < {rows}; ++r) {{
        const float* line = scores + (r * {_SIDE} + ty) * {tile + 1};
        float peak = most[r];
        for (int j = 0; j < {tile}; ++j) peak = fmaxf(peak, line[j]);
        // Minus infinity less itself is no number: while nothing was seen, nothing is kept and nothing added.
        const float kept = peak == never ? 1.0f : expf(most[r] - peak);
        for (int c = 0; c < {columns}; ++c)
          shares[(r * {_SIDE} + ty) * {tile + 1} + c * {_SIDE} + tx] = own[r][c] == never ? 0.0f : expf(own[r][c] - peak);
        most[r] = peak; sums[r] *= kept;
        for (int e = 0; e < {elements}; ++e) result[r][e] *= kept;
      }}
      __syncthreads();
      const int last = keys - begin < {tile} ? keys - begin : {tile};
      for (int j = 0; j < last; ++j)
#pragma unroll
        for (int r = 0; r < {rows}; ++r) {{
          const float share = shares[(r * {_SIDE} + ty) * {tile + 1} + j];
          sums[r] += share;
#pragma unroll
          for (int e = 0; e < {elements}; ++e) result[r][e] += share * tile[j * {step} + e * {_SIDE} + tx];
        }}
    }}
    for (int r = 0; r < {rows}; ++r)
      for (int e = 0; e < {elements}; ++e) {{
        const int row = first + r * {_SIDE} + ty, element = e * {_SIDE} + tx;
        const float value = sums[r] == 0.0f ? 0.0f : result[r][e] / sums[r];
        if (row < queries && element < {form.value_size}) own_y[row * y_row + element * y_element] = {write_store(form.dtype, "value")};
      }}
    __syncthreads();
  }}
}}
"""
    return name_text("attention", body)


def _add_mask(form: AttentionForm) -> str:
    """Returns the statement that adds the mask to a score, where there is one to read."""
    if not form.mask:
        return ""
    place = "own_mask[row * mask_row + key * mask_element]"
    added = f"{place} ? 0.0f : never" if form.mask == "bool" else write_load(form.mask, place)
    return f"\n          if (seen) score += {added};"
