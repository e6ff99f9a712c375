"""Reading and writing of 16-bit floats in CUDA C++: as unsigned short, so that no header and no type of a library is needed.

Arithmetic between is float32. Imports no array library.
"""

from __future__ import annotations

STORAGE = {"float32": "float", "float16": "unsigned short", "bfloat16": "unsigned short"}
"""Element type -> what an array of it is in a kernel."""

SMALL = frozenset({"float16", "bfloat16"})

CONVERSIONS = """
__device__ inline float hetero_load_float16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ inline unsigned short hetero_store_float16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
"""
"""Conversions for which only a card has an instruction; tests put the host's in their place."""

ROUNDING = """
__device__ inline float hetero_load_bfloat16(unsigned short bits) { return __uint_as_float((unsigned int)bits << 16); }
__device__ inline unsigned short hetero_store_bfloat16(float value) {
  unsigned int bits = __float_as_uint(value);
  // Rounding would carry a NaN over to infinity.
  if (value != value) return (unsigned short)((bits >> 16) | 0x40);
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
"""
"""bfloat16 is the upper half of float32, rounded to the nearest, ties to even."""


def write_load(dtype: str, place: str) -> str:
    """Returns the expression that reads an element as float."""
    return f"hetero_load_{dtype}({place})" if dtype in SMALL else place


def write_store(dtype: str, value: str) -> str:
    """Returns the expression that a float is written as."""
    return f"hetero_store_{dtype}({value})" if dtype in SMALL else value
