"""Products with constants that DequantizeLinear restores from blocks: each becomes one MatMulNBits, which reads the blocks themselves.

```text
codes (depth, outputs), scales, zero points ── DequantizeLinear ── [Transpose] ── MatMul, Gemm     ──>    MatMulNBits
```

For machine code alone: the toolkit restores the weights of a MatMulNBits in each run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_cpu.transforms.writer import Array, Writer, derive_constant, rewrite_operators

_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_BLOCK_UNIT = 16


def multiply_blocks(network: Network) -> Network:
    """Returns the network with these products as MatMulNBits; linear, and no constant is read."""
    if "DequantizeLinear" not in network.op_types:
        return network
    return rewrite_operators(network, {("", op_type): _multiply for op_type in ("Gemm", "MatMul")})


def _read_numbers(array: Array, *, is_turned: bool) -> Array:
    """Returns a matrix as (outputs, depth), of which it is stored turned unless it `is_turned` already."""
    numbers = array.astype(np.int8) if array.dtype.kind == "V" else array
    return numbers if is_turned else numbers.T


def _hold_codes(codes: Initializer, sizes: Mapping[str, int], middle: int, *, is_turned: bool) -> Initializer:
    """Returns the packed codes (outputs, blocks, bytes), made when they are read; `middle` is added to them."""
    depth, outputs, bits, block = (sizes[name] for name in ("K", "N", "bits", "block_size"))
    blocks = -(-depth // block)

    def pack(array: Array) -> Array:
        whole = np.zeros((outputs, blocks * block), np.uint8)
        whole[:, :depth] = _read_numbers(array, is_turned=is_turned).astype(np.int16) + middle
        packed = whole[:, :: 8 // bits].copy()
        for place in range(1, 8 // bits):
            packed |= whole[:, place :: 8 // bits] << np.uint8(bits * place)
        return packed.reshape(outputs, blocks, -1)

    return derive_constant(codes, pack, (outputs, blocks, block * bits // 8), "uint8")


def _hold_factors(constant: Initializer, added: int, *, is_turned: bool) -> Initializer:
    """Returns numbers of each output and block, plus `added`, as float32, made when they are read."""

    def convert(array: Array) -> Array:
        return np.ascontiguousarray(_read_numbers(array, is_turned=is_turned).astype(np.float32) + np.float32(added))

    return derive_constant(constant, convert, constant.shape[:: 1 if is_turned else -1])


def _multiply(network: Network, node: Node, writer: Writer) -> bool:
    """Adds the MatMulNBits of a product whose right side is a constant in blocks along the depth."""
    is_gemm, attributes = node.op_type == "Gemm", node.attributes
    if is_gemm and (any(attributes.get(name, 1) != 1 for name in ("alpha", "beta")) or attributes.get("transA", 0)):
        return False
    is_turned, maker = bool(node.attributes.get("transB", 0)), network.find_producer(node.inputs[1])
    origins: tuple[str, ...] = ()
    if maker is not None and maker.op_type == "Transpose" and not maker.domain and len(maker.inputs) == 1:
        is_turned, origins, maker = not is_turned, maker.origins, network.find_producer(maker.inputs[0])
    if (
        maker is None
        or maker.op_type != "DequantizeLinear"
        or maker.domain
        or maker.attributes.get("output_dtype", 0) not in (0, 1)
    ):
        return False
    read = network.initializers.get
    codes, scales, zeros = (read(value) for value in (*maker.inputs, "")[:3])
    block, axis = int(maker.attributes.get("block_size", 0)), int(maker.attributes.get("axis", 1))
    if codes is None or scales is None or codes.dtype not in _BITS or scales.dtype != "float32" or len(codes.shape) != 2:
        return False
    if block <= 0 or block % _BLOCK_UNIT or axis % 2 != is_turned or (zeros is None and any(maker.inputs[2:])):
        return False
    if scales.shape != tuple(-(-size // block) if place == is_turned else size for place, size in enumerate(codes.shape)):
        return False
    bias = read(node.inputs[2]) if is_gemm and any(node.inputs[2:]) else None
    outputs, depth = codes.shape if is_turned else codes.shape[::-1]
    if any(node.inputs[2:]) and (bias is None or bias.dtype != "float32" or bias.shape not in ((outputs,), (1, outputs))):
        return False
    sizes = {"K": depth, "N": outputs, "bits": _BITS[codes.dtype], "block_size": block}
    # MatMulNBits has codes from 0 on, and the middle of these as the zero point unless it has others.
    middle = 0 if codes.dtype.startswith("u") else 1 << (sizes["bits"] - 1)
    factors, zero_points = _hold_factors(scales, 0, is_turned=is_turned), None
    if zeros is not None:
        zero_points = _hold_factors(zeros, middle, is_turned=is_turned)
    elif not middle:
        zero_points = Initializer.of_array(np.zeros(factors.shape, np.float32))
    parts = _hold_codes(codes, sizes, middle, is_turned=is_turned), factors, zero_points
    held = ["" if part is None else writer.hold(part, writer.name("blocks")) for part in parts]
    writer.origins = (*maker.origins, *origins, *node.origins)
    writer.add("MatMulNBits", node.inputs[0], *held, "", *node.inputs[2:], output=node.outputs[0], **sizes)
    return True
