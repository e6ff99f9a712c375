"""Passes that prepare a network for a card; lower precision: the values of a float32 network that the hint puts in 16 bits.

Data flow: a value keeps its name and float32; its copy in 16 bits has a name of its own, and each node reads the form that suits it. The
operator decides the type of a result: products make 16 bits; operators that move or mix values keep the type of their inputs; all further
operators, such as Exp, Pow and sums, make float32, since their results may leave the range of 16 bits or need more digits. Constants are
cast here, once. Outputs and values that bodies read stay float32, as in the model. Kernels sum in float32.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.dtypes import numpy_dtype, onnx_of_dtype
from hetero_core.kernels.program import evaluate_node
from hetero_core.kernels.registry import find_kernel
from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType
from hetero_core.transforms.activations import fuse_gelu
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import drop_unread, fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization
from hetero_core.transforms.rewrite import run_passes
from hetero_cupy.namespace import SMALL

PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
"""Sums of products: they read 16 bits and make 16 bits, the sum is float32."""

NORMALIZED = frozenset(
    (
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"),
        *("MeanVarianceNormalization", "RMSNormalization", "AveragePool", "GlobalAveragePool", "LRN", "Softmax"),
    )
)
"""Their first input is read as it is, float32 is computed inside, and the result is small again: 16 bits."""

NEUTRAL = frozenset(
    (
        *("Abs", "Add", "Celu", "Clip", "Concat", "DepthToSpace", "Div", "Elu", "Erf", "Expand", "Flatten", "Gather", "Gelu"),
        *("GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg"),
        *("PRelu", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Selu", "Sigmoid", "Slice", "SpaceToDepth", "Split"),
        *("Sqrt", "Squeeze", "Sub", "Sum", "SwiGLU", "Swish", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
"""Operators with 16-bit results if every float input is small, or a constant that 16 bits hold, as embeddings."""

_CAST_OPSET = 13
"""The first opset whose Cast knows bfloat16."""


def prepare_network(network: Network, *, precision: str) -> Network:
    """Returns the network with its weights as the card gets them: constants folded, nodes joined, and 16 bits if `precision` says so."""
    passes = (
        eliminate_dropout,
        eliminate_copies,
        lambda current: fold_constants(current, evaluate_node),
        fold_affines,
        fuse_layer_normalization,
        fuse_gelu,
    )
    network = run_passes(network, passes)
    return lower_precision(network, precision) if precision in SMALL else network


def lower_precision(network: Network, dtype: str) -> Network:
    """Returns the network with 16-bit values, `dtype` "float16" or "bfloat16", if that is safe; its border keeps its types."""
    lowering = _Lowering(network, dtype)
    for node in network.nodes:
        lowering.add(node)
    return drop_unread(lowering.finish())


class _Lowering:
    """The nodes so far, the values present in float32, and the copies in 16 bits."""

    def __init__(self, network: Network, dtype: str) -> None:
        self._network = network
        self._dtype = dtype
        self._names = FreshNames(network)
        self._nodes: list[Node] = []
        self._types = dict(network.types)
        self._constants: dict[str, Initializer] = dict(network.initializers)
        self._present = {spec.name for spec in network.inputs} | set(network.initializers)
        self._copies: dict[str, str] = {}
        # Values that their makers write in 16 bits. A float32 value may have a copy, too, but its readers make float32.
        self._small: set[str] = set()

    def add(self, node: Node) -> None:
        floats = [
            index
            for index, name in enumerate(node.inputs)
            if name and self._is_float32(name) and not _stays_on_host(node, index) and not _is_read_wide(node, index)
        ]
        makes_small = self._makes_small(node, [node.inputs[index] for index in floats])
        follows = _is_one_of(NORMALIZED, node) and node.inputs[0] not in self._small
        inputs = tuple(
            self._read_copy(name) if makes_small and not follows and index in floats else self._read(name)
            for index, name in enumerate(node.inputs)
        )
        for name in node.captures:
            self._read(name)
        changed = node if inputs == node.inputs else replace(node, inputs=inputs)
        if makes_small and not follows:
            changed = replace(changed, outputs=tuple(self._name_copy(name) for name in node.outputs))
        else:
            self._present.update(node.writes)
        self._nodes.append(changed)
        if makes_small:
            small = [name for name in node.writes if self._is_float32(name)]
            self._small.update(small)
            for name in small:
                self._read_copy(name)

    def finish(self) -> Network:
        for spec in self._network.outputs:
            self._read(spec.name)
        return replace(
            self._network,
            nodes=tuple(self._nodes),
            types=MappingProxyType(self._types),
            initializers=MappingProxyType(self._constants),
        )

    def _is_float32(self, name: str) -> bool:
        constant = self._network.initializers.get(name)
        value_type = self._network.type_of(name) if constant is None else constant.type
        return isinstance(value_type, TensorType) and value_type.dtype == "float32"

    def _makes_small(self, node: Node, floats: list[str]) -> bool:
        if node.domain or node.bodies or not floats:
            return False
        constants = [self._network.initializers[name] for name in floats if name in self._network.initializers]
        if not all(_fits_in(constant, self._dtype) for constant in constants):
            return False
        if node.op_type in PRODUCTS:
            return all(self._is_float32(name) for name in node.writes)
        if node.op_type in NORMALIZED:
            return len(node.writes) == 1
        values = [name for name in floats if name not in self._network.initializers]
        return node.op_type in NEUTRAL and all(name in self._small for name in values)

    def _read(self, name: str) -> str:
        """Returns the name; casts from the copy if the value itself is not present yet."""
        if name in self._copies and name not in self._present:
            self._cast(self._copies[name], name, "float32")
            self._present.add(name)
        return name

    def _read_copy(self, name: str) -> str:
        """Returns the copy in 16 bits; casts if there is no copy yet."""
        if name in self._copies:
            return self._copies[name]
        constant = self._network.initializers.get(name)
        copy = self._name_copy(name)
        if constant is None:
            self._cast(name, copy, self._dtype)
        else:
            dtype = self._dtype
            self._constants[copy] = Initializer(dtype, constant.shape, lambda: constant.array.astype(numpy_dtype(dtype)))
        return copy

    def _name_copy(self, name: str) -> str:
        if not name or not self._is_float32(name):
            return name
        copy = self._copies[name] = self._names.value(f"{name}/{self._dtype}")
        value_type = self._network.type_of(name)
        self._types[copy] = TensorType(self._dtype, value_type.shape if isinstance(value_type, TensorType) else None)
        return copy

    def _cast(self, source: str, target: str, dtype: str) -> None:
        attributes = MappingProxyType({"to": onnx_of_dtype(dtype)})
        name = self._names.node(f"cast/{target}")
        self._nodes.append(
            Node(name, "Cast", (source,), (target,), opset=_CAST_OPSET, since_version=_CAST_OPSET, attributes=attributes)
        )


def _is_one_of(operators: frozenset[str], node: Node) -> bool:
    return not node.domain and node.op_type in operators


def _is_read_wide(node: Node, index: int) -> bool:
    """Says whether an input keeps float32 beside small inputs: parameters of normalizations, masks that 16 bits would make infinite."""
    return bool(index and _is_one_of(NORMALIZED, node)) or (index == 3 and _is_one_of(frozenset({"Attention"}), node))


def _stays_on_host(node: Node, index: int) -> bool:
    record = find_kernel(node)
    return record is not None and index in record.host


def _fits_in(constant: Initializer, dtype: str) -> bool:
    """Says whether 16 bits hold a constant: no finite element becomes infinite, and a single number does not become zero."""
    with np.errstate(over="ignore"):
        small = constant.array.astype(numpy_dtype(dtype)).astype(np.float32)
    if (np.isinf(small) & np.isfinite(constant.array)).any():
        return False
    return constant.array.size != 1 or bool((small != 0).all()) or not constant.array.any()
