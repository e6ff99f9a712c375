"""Products with constants that DequantizeLinear restores from blocks: each becomes one MatMulNBits, which reads the blocks themselves.

```text
codes (depth, outputs), scales, zero points ── DequantizeLinear ── [Transpose] ── MatMul, Gemm     ──>    MatMulNBits
```

For machine code alone: the toolkit restores the weights of a MatMulNBits in each run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.transforms.constants import drop_unread

Array = np.ndarray[Any, Any]
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_BLOCK_UNIT = 16


def multiply_blocks(network: Network) -> Network:
    """Returns the network with these products as MatMulNBits; linear, and no constant is read."""
    if "DequantizeLinear" not in network.op_types:
        return network
    names, constants, nodes = FreshNames(network), dict(network.initializers), list[Node]()
    for node in network.nodes:
        blocks = _read_product(node, network)
        if blocks is None:
            nodes.append(node)
            continue
        inputs = [node.inputs[0]]
        for part in (blocks.hold_codes(), blocks.hold_factors(blocks.scales, 0), blocks.hold_zeros()):
            inputs.append("" if part is None else names.value(f"{node.outputs[0]}/blocks"))
            if part is not None:
                constants[inputs[-1]] = part
        inputs += ["", *node.inputs[2:]]
        sizes = {"K": blocks.depth, "N": blocks.outputs, "bits": blocks.bits, "block_size": blocks.block}
        attributes, origins = MappingProxyType(sizes), (*blocks.origins, *node.origins)
        fields: Any = {"inputs": tuple(inputs), "attributes": attributes, "origins": origins}
        nodes.append(replace(node, op_type="MatMulNBits", domain="com.microsoft", opset=1, since_version=0, **fields))
    if len(constants) == len(network.initializers):
        return network
    return drop_unread(replace(network, nodes=tuple(nodes), initializers=MappingProxyType(constants)))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A matrix in blocks of its depth; it is stored as (outputs, depth) if it `is_turned`."""

    codes: Initializer
    scales: Initializer
    zeros: Initializer | None
    block: int
    is_turned: bool
    origins: tuple[str, ...]

    @property
    def bits(self) -> int:
        return _BITS[self.codes.dtype]

    @property
    def middle(self) -> int:
        """The code of 0 if codes are signed: MatMulNBits has codes from 0 on."""
        return 0 if self.codes.dtype.startswith("u") else 1 << (self.bits - 1)

    @property
    def depth(self) -> int:
        return self.codes.shape[1 if self.is_turned else 0]

    @property
    def outputs(self) -> int:
        return self.codes.shape[0 if self.is_turned else 1]

    def hold_codes(self) -> Initializer:
        """Returns the packed codes (outputs, blocks, bytes), made when they are read."""
        blocks, bits = -(-self.depth // self.block), self.bits

        def load() -> Array:
            codes = np.zeros((self.outputs, blocks * self.block), np.uint8)
            codes[:, : self.depth] = self._read(self.codes).astype(np.int16) + self.middle
            packed = codes[:, :: 8 // bits].copy()
            for place in range(1, 8 // bits):
                packed |= codes[:, place :: 8 // bits] << np.uint8(bits * place)
            self.codes.release()
            return packed.reshape(self.outputs, blocks, -1)

        return Initializer("uint8", (self.outputs, blocks, self.block * bits // 8), load, is_renewable=True)

    def hold_zeros(self) -> Initializer | None:
        """Returns the zero points as floats; None if all of them are the middle of the codes."""
        if self.zeros is not None:
            return self.hold_factors(self.zeros, self.middle)
        shape = self.scales.shape[:: 1 if self.is_turned else -1]
        return None if self.middle else Initializer.of_array(np.zeros(shape, np.float32))

    def hold_factors(self, constant: Initializer, added: int) -> Initializer:
        """Returns numbers of each output and block as float32, made when they are read."""

        def load() -> Array:
            return np.ascontiguousarray(self._read(constant).astype(np.float32) + np.float32(added))

        return Initializer("float32", constant.shape[:: 1 if self.is_turned else -1], load, is_renewable=True)

    def _read(self, constant: Initializer) -> Array:
        array: Array = constant.array
        numbers = array.astype(np.int8) if array.dtype.kind == "V" else array
        return numbers if self.is_turned else numbers.T


def _read_product(node: Node, network: Network) -> _Blocks | None:
    """Returns the right side of a product if it is a constant in blocks along the depth."""
    is_gemm = node.op_type == "Gemm" and not any(node.attributes.get(name, 1) != 1 for name in ("alpha", "beta"))
    if node.domain or not (is_gemm or node.op_type == "MatMul") or node.attributes.get("transA", 0):
        return None
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
        return None
    read = network.initializers.get
    codes, scales, zeros = (read(value) for value in (*maker.inputs, "")[:3])
    block, axis = int(maker.attributes.get("block_size", 0)), int(maker.attributes.get("axis", 1))
    if codes is None or scales is None or codes.dtype not in _BITS or scales.dtype != "float32" or len(codes.shape) != 2:
        return None
    if block <= 0 or block % _BLOCK_UNIT or axis % 2 != is_turned or (zeros is None and any(maker.inputs[2:])):
        return None
    if scales.shape != tuple(-(-size // block) if place == is_turned else size for place, size in enumerate(codes.shape)):
        return None
    bias = read(node.inputs[2]) if is_gemm and any(node.inputs[2:]) else None
    outputs = codes.shape[0 if is_turned else 1]
    if any(node.inputs[2:]) and (bias is None or bias.dtype != "float32" or bias.shape not in ((outputs,), (1, outputs))):
        return None
    return _Blocks(codes, scales, zeros, block, is_turned, (*maker.origins, *origins))
