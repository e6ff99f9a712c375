"""From the network as it was read to the one that is compiled, in two steps: what makes constants, and what chooses kernels.

`prepare_network` takes nodes away, folds and casts: it makes the weights as they are written to the card, and its result is what a
blob holds. `choose_kernels` takes the card's operators and fuses chains; it makes no array of weights, so that it is done anew at
import. The query sees the network as it is; what these passes make of accepted nodes is accepted.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.kernels.single_nodes import evaluate_node
from hetero_core.network.graph import EMPTY, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType
from hetero_core.transforms.activations import fuse_gelu
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.attention import fuse_attention, pack_heads
from hetero_core.transforms.constants import drop_unread, fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization
from hetero_core.transforms.rewrite import Pass, Replacement, replace_nodes, run_passes
from hetero_cupy.attention import fuse_scores
from hetero_cupy.attention_operator import take_attention
from hetero_cupy.epilogues import fuse_epilogues
from hetero_cupy.fusion import fuse_elementwise
from hetero_cupy.operators import DOMAIN, take_operators
from hetero_cupy.precision import lower_precision

LOWERED = {"f16": "float16", "bf16": "bfloat16"}
"""The hint -> the element type that float32 becomes."""

_CLIP_BY_ATTRIBUTES = 6


def prepare_network(network: Network, *, precision: str, attends: bool) -> Network:
    """Returns the network of ONNX's operators with its weights as the card gets them."""
    network = run_passes(
        network,
        (
            eliminate_dropout,
            eliminate_copies,
            lambda current: fold_constants(current, evaluate_node),
            fold_affines,
            fuse_layer_normalization,
            fuse_gelu,
            *((fuse_attention, pack_heads) if attends else ()),
        ),
    )
    if precision in LOWERED:
        network = lower_precision(network, LOWERED[precision])
    return round_numbers(network)


def round_numbers(network: Network) -> Network:
    """Returns the network with the numbers of its nodes as ONNX writes them, float32, so that it computes the same from a blob."""

    def find(node: Node) -> Replacement | None:
        floats = {name: float(np.float32(value)) for name, value in node.attributes.items() if isinstance(value, float)}
        if all(value == node.attributes[name] or value != value for name, value in floats.items()):
            return None
        return Replacement((replace(node, attributes=MappingProxyType({**node.attributes, **floats})),))

    return replace_nodes(network, find)


def choose_kernels(network: Network, *, fuses: bool, attends: bool, has_epilogues: bool) -> Network:
    """Returns a prepared network as it is compiled; its weights stay as they are, or are views of them."""
    network = take_operators(take_attention(network) if attends else network)
    passes: list[Pass] = [bound_clips, fuse_scores] if fuses else []
    passes += [split_biases] if fuses or has_epilogues else []
    passes += [fuse_epilogues] if has_epilogues else []
    return run_passes(network, (*passes, *((fuse_elementwise,) if fuses else ())))


def bound_clips(network: Network) -> Network:
    """Returns the network with constant limits of Clip as attributes, as its versions before 11 have them, so that it can be fused."""

    def find(node: Node) -> Replacement | None:
        if node.op_type != "Clip" or node.domain or node.since_version < 11:
            return None
        data = network.type_of(node.inputs[0])
        if not isinstance(data, TensorType) or data.dtype not in ("float32", *LOWERED.values()):
            return None
        bounds = [network.initializers.get(name) for name in node.inputs[1:] if name]
        floats = [bound for bound in bounds if bound is not None and bound.dtype in ("float32", *LOWERED.values())]
        if len(floats) != len(node.inputs[1:]) or not all(np.isfinite(bound.array.astype(np.float32)).all() for bound in floats):
            return None
        limits = {name: float(bound.array.reshape(())) for name, bound in zip(("min", "max"), floats, strict=False)}
        attributes, version = MappingProxyType(limits) if limits else EMPTY, _CLIP_BY_ATTRIBUTES
        clip = replace(node, inputs=node.inputs[:1], opset=version, since_version=version, attributes=attributes)
        return Replacement((clip,))

    return drop_unread(replace_nodes(network, find))


def split_biases(network: Network) -> Network:
    """Returns the network with the constant bias of Conv and Gemm as an Add behind it, which joins what follows in one kernel."""
    names = FreshNames(network)

    def find(node: Node) -> Replacement | None:
        output_type = network.type_of(node.outputs[0]) if node.outputs else None
        bias = network.initializers.get(node.inputs[2]) if node.domain == DOMAIN and len(node.inputs) == 3 else None
        if bias is None or not isinstance(output_type, TensorType) or output_type.shape is None:
            return None
        if node.op_type not in ("Conv", "Gemm") or node.attributes.get("beta", 1.0) != 1.0:
            return None
        product, added = names.value(f"{node.outputs[0]}/product"), names.value(f"{node.inputs[2]}/spread")
        shape = (bias.shape[0], *(1,) * (len(output_type.shape) - 2)) if node.op_type == "Conv" else bias.shape
        spread = Initializer(bias.dtype, shape, lambda: bias.array.reshape(shape))
        add = Node(names.node(f"{node.name}/bias"), "Add", (product, added), node.outputs, opset=14, since_version=14)
        return Replacement(
            (replace(node, inputs=node.inputs[:2], outputs=(product,)), add),
            types={product: output_type},
            initializers={added: spread},
        )

    return drop_unread(replace_nodes(network, find))
