"""The passes of this device, in order.

The query applies only the passes that remove nodes: the rest look into nodes, which may be invalid, so they come after
every node has been accepted. They make nodes that the device takes out of nodes that it takes, so the query's answer holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hetero_core.kernels.program import evaluate_node
from hetero_core.limits import FOLDED_FLOOR
from hetero_core.network.graph import Network, Node
from hetero_core.network.hints import rebuild_graph
from hetero_core.network.inference import infer_fixed_node, infer_types
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec, ValueType, merge_types
from hetero_core.transforms.constants import LARGEST_KEPT, drop_unread, fold_constants, fold_node
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.rewrite import Pass, run_passes
from hetero_cpu.operators.groups import Group
from hetero_cpu.symbols.evaluation import Signature
from hetero_cpu.symbols.network import find_map_types

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_cpu.symbols.sizes import Scope


_MOST_ROUNDS = 4
# Bytes; a larger value gets no place in an arena, and may fail in the run that makes it.
_LARGEST_VALUE = 1 << 31
_MANY_BYTES = 1 << 26
"""Bytes of large constants from which they are not held all at once."""


def specialize_network(network: Network, signature: Signature) -> Network:
    """Returns the network with these input shapes, its types inferred and its shape arithmetic computed."""
    inputs = []
    for spec, shape in zip(network.inputs, signature, strict=True):
        is_open = isinstance(spec.type, TensorType) and shape is not None and spec.type.shape != shape
        inputs.append(replace(spec, type=TensorType(spec.dtype, shape)) if is_open else spec)
    if all(new is old for new, old in zip(inputs, network.inputs, strict=True)) and not _has_open_types(network):
        # Its types are those of these shapes already.
        return _fold_shapes(network)
    plain = specialize_plainly(network, inputs)
    if plain is not None:
        return plain
    types = {**network.types, **{spec.name: spec.type for spec in inputs}}
    return _fold_shapes(infer_types(replace(network, inputs=tuple(inputs), types=MappingProxyType(types))))


def specialize_plainly(network: Network, inputs: Sequence[ValueSpec]) -> Network | None:
    """Returns the network with these inputs in one sweep, node by node, without onnx; None if a node has no rule of types.

    onnx's inference takes a network as a message, many times if shapes are computed in the network. All errors are onnx's to find.
    Cost: linear, some 5 us for each node, and the time of computed nodes.
    """
    room = FOLDED_FLOOR
    constants: dict[str, Initializer] = dict(network.initializers)
    types: dict[str, ValueType] = {spec.name: spec.type for spec in inputs}
    types.update((name, constant.type) for name, constant in constants.items())
    nodes: list[Node] = []
    for node in network.nodes:
        folded = None
        if not is_turned_for_products(node, network):
            folded = fold_node(node, network, constants, evaluate_node, type_of=types.get, room=room)
        if folded is not None:
            room -= sum(constant.nbytes for constant in folded.values())
            constants.update(folded)
            types.update((value, constant.type) for value, constant in folded.items())
            continue
        inferred = find_map_types(node, network) or infer_fixed_node(node, types, constants)
        if inferred is None or any(merge_types(network.types.get(name, own), own) != own for name, own in inferred.items()):
            return None
        types.update(inferred)
        nodes.append(node)
    sized = rebuild_graph(replace(network, inputs=tuple(inputs)), tuple(nodes), types)
    assert isinstance(sized, Network)
    return drop_unread(replace(sized, initializers=MappingProxyType(constants)))


def _fold_shapes(network: Network) -> Network:
    """Returns the network with everything computed that follows from its constants, and the types that follow from that."""
    special, room = network, FOLDED_FLOOR
    for index in range(_MOST_ROUNDS):
        # Large constants do not depend on the shapes of inputs, and were folded before; new constants stay within a limit.
        folded = fold_constants(special, evaluate_node, is_kept=is_turned_for_products, room=room)
        # Constants that were folded when the network was loaded tell types, too.
        if folded is special and index:
            break
        room -= sum(folded.initializers[name].nbytes for name in folded.initializers.keys() - special.initializers.keys())
        # New constants, as the shape of a Reshape, tell more types.
        special = infer_types(folded) if _has_open_types(folded) else folded
    return special


def _has_open_types(network: Network) -> bool:
    static = list_static_types(network)
    return any(value not in static for node in network.nodes for value in node.writes)


def is_turned_for_products(node: Node, network: Network) -> bool:
    """Says whether a node turns a constant matrix that only products read on the right: they read it turned, without a copy."""
    if node.op_type != "Transpose" or node.domain or len(node.inputs) != 1 or tuple(node.attributes.get("perm", (1, 0))) != (1, 0):
        return False
    constant = network.initializers.get(node.inputs[0])
    readers = [network.nodes[index] for index in network.index_of_consumers.get(node.outputs[0], ())]
    return (
        constant is not None
        and len(constant.shape) == 2
        and bool(readers)
        and all(reader.op_type == "MatMul" and not reader.domain and reader.inputs[0] != node.outputs[0] for reader in readers)
    )


def list_static_types(network: Network) -> dict[str, TensorType]:
    """Returns the types of all values of numbers whose sizes are known."""
    types = {value: own for value, own in network.types.items() if isinstance(own, TensorType)}
    # Values of the same type mostly share the object.
    verdicts = {key: _is_static(own) for key, own in {id(own): own for own in types.values()}.items()}
    return {value: own for value, own in types.items() if verdicts[id(own)]}


def _is_static(own: TensorType) -> bool:
    if own.shape is None or own.dtype in (None, "string"):
        return False
    # NumPy bounds the sizes other than 0 also of an array without elements.
    spread = TensorType(own.dtype, tuple(size for size in own.shape if size != 0)) if 0 in own.shape else own
    nbytes = spread.nbytes
    return nbytes is not None and nbytes <= _LARGEST_VALUE


class OperatorPass:
    """A pass, imported and run only if a network has an operator that the pass changes."""

    def __init__(self, module: str, name: str, operators: str, *others: str, then: Pass | None = None) -> None:
        """A network has to have any of `operators`, and any of each of `others`. `then` follows if the pass has changed it."""
        self.module, self.name, self.operators, self._then = module, name, frozenset(operators.split()), then
        self.others = tuple(frozenset(names.split()) for names in others)

    def __call__(self, network: Network) -> Network:
        """Returns the network after the pass."""
        if any(names.isdisjoint(network.op_types) for names in (self.operators, *self.others)):
            return network
        transformed: Network = getattr(importlib.import_module(self.module), self.name)(network)
        return transformed if self._then is None or transformed is network else self._then(transformed)


_SHARED, _OWN = "hetero_core.transforms", "hetero_cpu.transforms"


def _is_kept(node: Node, network: Network) -> bool:
    if node.op_type == "DequantizeLinear":
        from hetero_cpu.transforms.integers import is_weight_of_product  # only quantized networks need it

        return is_weight_of_product(node, network)
    return is_turned_for_products(node, network)


def _fold(network: Network) -> Network:
    return fold_constants(network, evaluate_node, is_kept=_is_kept)


def unroll_loops(network: Network) -> Network:
    """Returns the network with the nodes of If, Loop and Scan written out if their course is known, and constants folded."""
    for _ in range(_MOST_ROUNDS):
        unrolled = _UNROLL_LOOPS(network)
        if unrolled is network:
            break
        # The sizes of what a branch makes may be the condition of the next.
        network = _fold(unrolled)
    return network


_UNROLL_LOOPS = OperatorPass(f"{_OWN}.loops", "unroll_loops", "ConcatFromSequence If Loop Scan")
_MERGE_TRANSPOSES = OperatorPass(f"{_OWN}.reshapes", "merge_transposes", "Transpose")
PASSES_OF_QUERY = (eliminate_dropout, eliminate_copies)
# Written-out operators are found first: passes below would hide their patterns.
PASSES = (
    *PASSES_OF_QUERY,
    OperatorPass(
        f"{_OWN}.models",
        "rewrite_models",
        "ArrayFeatureExtractor Binarizer Gemm Imputer LinearClassifier OneHotEncoder ReduceLogSumExp ReduceProd SVMClassifier SVMRegressor "
        "Scaler Scan TreeEnsembleClassifier",
    ),
    _fold,
    OperatorPass(f"{_OWN}.reshapes", "drop_zero_states", "GRU LSTM RNN"),
    unroll_loops,
    # Constants as they are multiplied.
    OperatorPass(f"{_OWN}.einsum", "express_einsum", "Einsum", then=_fold),
    OperatorPass(
        f"{_OWN}.microsoft",
        "express_in_onnx",
        "Attention BiasGelu FastGelu Gelu MultiHeadAttention QAttention QuickGelu RotaryEmbedding SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization",
    ),
    OperatorPass(f"{_SHARED}.normalizations", "fuse_layer_normalization", "ReduceMean"),
    OperatorPass(f"{_SHARED}.normalizations", "fuse_rms_normalization", "ReduceMean"),
    OperatorPass(f"{_SHARED}.activations", "fuse_gelu", "Erf Tanh"),
    OperatorPass(f"{_SHARED}.activations", "fuse_hard_swish", "Clip HardSigmoid Max Min"),
    OperatorPass(f"{_SHARED}.activations", "fuse_swish", "Exp Sigmoid"),
    _MERGE_TRANSPOSES,
    OperatorPass(f"{_OWN}.reshapes", "fold_pads", "Pad", "Conv"),
    OperatorPass(f"{_SHARED}.affine", "fold_affines", "Add BatchNormalization Mul", "BatchNormalization Conv"),
    # After all passes that fold scales: the weights and the sums of integers are to stay whole.
    OperatorPass(
        f"{_OWN}.integers",
        "compute_integers",
        "ConvInteger DequantizeLinear DynamicQuantizeLinear DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat QGemm QLinearAdd "
        "QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMatMul QLinearMul QLinearSigmoid "
        "QLinearSoftmax QLinearWhere QuantizeLinear",
        # The weights that are read as floats.
        then=partial(fold_constants, evaluate=evaluate_node, is_kept=is_turned_for_products),
    ),
    # After all passes that look for convolutions, and before any that asks for sizes.
    OperatorPass(f"{_OWN}.lines", "lift_lines", "AveragePool Conv ConvTranspose MaxPool"),
    OperatorPass(f"{_OWN}.lines", "convolve_upsampling", "ConvTranspose"),
)
_ELIMINATE_IDLE = OperatorPass(
    f"{_OWN}.reshapes",
    "eliminate_idle",
    "Cast Concat Expand Flatten Identity Max Mean Min Pad Reshape Slice Squeeze Sum Tile Unsqueeze",
)
# These ask for sizes, so they see the network once for each set of input shapes.
PASSES_OF_SHAPES = (
    _ELIMINATE_IDLE,
    OperatorPass(f"{_OWN}.einsum", "express_einsum", "Einsum"),
    OperatorPass(f"{_OWN}.reshapes", "write_pads", "Pad"),
    OperatorPass(f"{_OWN}.reshapes", "merge_stacked_transposes", "Transpose"),
    OperatorPass(f"{_SHARED}.attention", "fuse_attention", "Softmax"),
    OperatorPass(f"{_OWN}.caches", "share_heads", "Attention"),
    _MERGE_TRANSPOSES,
    OperatorPass(f"{_SHARED}.attention", "pack_heads", "Attention"),
    OperatorPass(f"{_OWN}.caches", "fuse_caches", "Attention"),
)


def strip_network(network: Network) -> Network:
    """Returns the network as the query sees it."""
    return run_passes(network, PASSES_OF_QUERY)


def transform_network(network: Network) -> Network:
    """Returns the network as it is compiled; the device has to support every node."""
    return run_passes(network, PASSES)


def join_network(network: Network) -> Network:
    """Returns a network whose shapes are known, after the passes that need to know them."""
    return run_passes(network, PASSES_OF_SHAPES)


def join_open_network(network: Network, scope: Scope) -> Network:
    """Returns a network whose sizes are symbols of `scope`, after the passes that ask for them.

    A reshape that happens to change nothing for the sizes of the example stays: without it the class would be these sizes alone, or all
    but these.
    """
    scope.is_structural = True
    try:
        stripped = run_passes(network, (_ELIMINATE_IDLE,))
    finally:
        scope.is_structural = False
    return run_passes(stripped, PASSES_OF_SHAPES[1:])


def list_large_renewable(network: Network) -> dict[str, Initializer]:
    """Returns the large constants that can be made again, if together they are so large that few of them should be held at a time."""
    large = {
        name: constant
        for name, constant in network.initializers.items()
        if constant.is_renewable and constant.nbytes >= LARGEST_KEPT and name not in network.names_of_outputs
    }
    return large if sum(constant.nbytes for constant in large.values()) >= _MANY_BYTES else {}


def compile_toolkit(network: Network, extensions: Mapping[tuple[str, str], Any], *, renews: bool = False) -> Program:
    """Returns the network as the toolkit runs it, node by node, with the names that a profile shows; `renews`: as of `compile_program`."""
    from hetero_core.kernels.program import compile_program

    return compile_program(replace(network, nodes=name_nodes(network)), extensions=extensions, renews=renews)


def name_nodes(network: Network) -> tuple[Node, ...]:
    """Returns the nodes of a network, each under the joined names of the nodes of the model that it was made of."""
    return tuple([Group(node).name_profile() for node in network.nodes])
