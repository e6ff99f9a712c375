"""MatMul and Gemm with constant weights on the right: all rows on the left are the pixels of a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hetero_cpu.machine.arithmetic import Activation
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.memory import cut_scratch, measure_scratch
from hetero_cpu.operators.elementwise import PLAIN_EXPRESSION, Expression, ExpressionReader, read_activation
from hetero_cpu.operators.images import Convolution, Staging, has_channel_vectors
from hetero_cpu.operators.layout import Copy, plan_copy
from hetero_cpu.operators.product_kernel import PARAMETERS, PIECE_PARAMETERS, list_cut, make_product
from hetero_cpu.operators.recipe import Bind, Halo, Recipe, Site
from hetero_cpu.operators.tiling import ColumnPacking, Tiling, choose_chunks, choose_pieces, choose_tiling, pad_vector
from hetero_cpu.symbols.arrays import lay_empty
from hetero_cpu.symbols.sizes import is_same_shape


@dataclass(frozen=True, slots=True)
class NativeEpilogue:
    """`bias`: a number for each channel, or None; `added`: values of the shape of the result; then the activations.

    An expression of the result may follow: of `vectors`, numbers for each channel, and of `added` if the result has no addend.
    """

    bias: Array | None
    added: str = ""
    activations: tuple[Activation, ...] = ()
    expression: Expression = PLAIN_EXPRESSION
    vectors: tuple[Array, ...] = ()

    def lay_vectors(self, size: int) -> Array:
        """Returns the vectors, each filled up to a size."""
        return np.concatenate([pad_vector(each, each.size, size) for each in self.vectors] or [pad_vector(None, 0, size)])

    def has_channel_vectors(self, site: Site) -> bool:
        """Says whether what is added has its channels side by side."""
        return not self.added or has_channel_vectors(site.prototypes[self.added], of_bytes=self.added in site.shifts)


def read_epilogue(site: Site, bias: Array | None, outputs: int, *, channel_axis: int) -> NativeEpilogue | None:
    """Returns the epilogue of a product with `outputs` channels, and the expression behind it; None if the kernel cannot compute it."""
    added, activations = "", []
    shape = site.types[site.group.outputs[0]].shape
    for extra in site.group.product.epilogue:
        if not extra.value:
            activation = read_activation(extra.node, site.constants)
            if activation is None:
                return None
            activations.append(activation)
            continue
        vector = _read_vector(site.constants.get(extra.value), shape or (), outputs, channel_axis)
        if vector is not None and not added:
            bias = vector if bias is None else bias.reshape(-1) + vector
        elif not added and site.is_float32(extra.value) and site.shape(extra.value) == shape and extra.value not in site.constants:
            added = extra.value
        else:
            return None
    own = NativeEpilogue(bias, added, tuple(activations))
    return _read_expression(site, own, outputs, channel_axis) if site.group.chained else own


def _read_expression(site: Site, own: NativeEpilogue, outputs: int, channel_axis: int) -> NativeEpilogue | None:
    group = site.group
    (product,), nodes = group.product.outputs, [extra.node for extra in group.epilogue[-group.chained :]]
    shape = site.types[product].shape or ()
    reader = ExpressionReader.of_site(site, product)
    if not all(reader.read_node(node) for node in nodes) or not is_same_shape(site.types[group.outputs[0]].shape or (), shape):
        return None
    added, kinds = own.added, "v"
    for operand in reader.operands[1:]:
        if not isinstance(operand, str):
            kinds += "s" if operand.size == 1 else "c"
        elif added or not site.holds_numbers(operand) or not is_same_shape(site.shape(operand), shape):
            return None
        else:
            added, kinds = operand, kinds + ("b" if operand in site.shifts else "v")
    expression = reader.finish(kinds, group.outputs[0])
    constants = [operand for operand in reader.operands if not isinstance(operand, str)]
    vectors = [vector for constant in constants if (vector := _read_vector(constant, shape, outputs, channel_axis)) is not None]
    if len(vectors) < len(constants):
        return None
    return NativeEpilogue(own.bias, added, own.activations, expression, tuple(vectors))


def list_overwritten(site: Site, source: str, added: str) -> tuple[int, ...]:
    """Returns the positions among (source, added) whose memory the result may take: that of `added`, if the source is not in it.

    Later tiles read the source after the first tile is written; an addend is read by the tile that overwrites it.
    """
    return (1,) if added and not np.may_share_memory(site.prototypes[source], site.prototypes[added]) else ()


def join_recipe(
    convolution: Convolution,
    epilogue: NativeEpilogue,
    staging: Staging | None,
    bind: Bind,
    kernels: tuple[Kernel, ...],
    *,
    nbytes: int = 0,
    reaches: tuple[Halo, ...] = (),
) -> Recipe:
    """Returns the recipe of a convolution. Its working memory holds the staged image, then `nbytes`."""
    reads = (convolution.source, epilogue.added) if epilogue.added else (convolution.source,)
    overwrites = list_overwritten(convolution.site, convolution.source, epilogue.added)
    if staging is not None:
        nbytes, kernels = nbytes + staging.nbytes, (staging.kernel, *kernels)
    return Recipe(reads, bind, nbytes, is_channels_last=True, overwrites=overwrites, kernels=kernels, reaches=reaches)


def _read_vector(constant: Array | None, shape: tuple[object, ...], outputs: int, channel_axis: int) -> Array | None:
    """Returns the number of each channel that a constant broadcasts to, None for any other value."""
    if constant is None or constant.dtype != np.float32 or constant.ndim > len(shape):
        return None
    sizes = (1,) * (len(shape) - constant.ndim) + constant.shape
    channel_shape = tuple(outputs if axis == channel_axis % len(shape) else 1 for axis in range(len(shape)))
    if sizes == channel_shape:
        return constant.reshape(-1)
    return np.full(outputs, constant.reshape(-1)[0], np.float32) if constant.size == 1 else None


def read_gemm(site: Site) -> tuple[Array | None, bool] | None:
    """Returns beta * c, a number for each column, and whether the right side is transposed, of a Gemm or a MatMul; None for a Gemm that
    kernels do not take."""
    if site.node.op_type == "MatMul":
        return None, False
    node, bias = site.node, site.constant(2)
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if node.since_version < 7 or node.attributes.get("transA", 0) or alpha != 1 or (site.has_input(2) and bias is None):
        return None
    is_turned = bool(node.attributes.get("transB", 0))
    if bias is not None:
        outputs = site.shape(node.inputs[1])[0 if is_turned else -1]
        if bias.dtype != np.float32 or (bias.size > 1 and bias.shape not in ((outputs,), (1, outputs))):
            return None
        # The constant itself if possible: a plan of weights that are held once has no copy of it.
        bias = np.broadcast_to(bias.reshape(-1) if beta == 1 else bias.reshape(-1) * np.float32(beta), (outputs,))
    return bias, is_turned


def plan_native_product(site: Site) -> Recipe | None:
    """Returns the recipe of x @ w with a constant matrix or vector w, or of x @ w + beta * c."""
    product, weight, source = read_gemm(site), site.constant(1), site.node.inputs[0]
    # A weight that is shared is read as it is, also by nodes that the toolkit runs for some sizes.
    if product is None or site.weights.is_shared or not site.is_float32(source):
        return None
    bias, is_turned = product
    if weight is None or weight.ndim not in (1, 2) or weight.dtype != np.float32:
        return None
    # A vector is a matrix of a single column.
    depth, outputs = (weight.size, 1) if weight.ndim == 1 else weight.shape[::-1] if is_turned else weight.shape
    shape = site.shape(source)
    if len(shape) < 2 or shape[-1] != depth:
        return None
    epilogue = read_epilogue(site, bias, outputs, channel_axis=-1)
    if epilogue is None:
        return None
    if epilogue.added and not site.prototypes[epilogue.added].flags.c_contiguous:
        return None
    return plan_rows(
        site, source, (weight,), outputs, epilogue,
        purpose=("product", is_turned), packing_of=lambda tiling: ColumnPacking(tiling.packing, is_turned),
    )  # fmt: skip


def plan_rows(
    site: Site,
    source: str,
    weights: tuple[Array, ...],
    outputs: int,
    epilogue: NativeEpilogue,
    *,
    purpose: tuple[object, ...],
    packing_of: Callable[[Tiling], Callable[..., Array]],
) -> Recipe | None:
    """Returns the recipe of the product of the rows of `source` and the matrix of `outputs` columns that `packing_of` packs of the
    weights; its result is in C order, and so is an addend."""
    shape, adds = site.shape(source), bool(epilogue.added)
    rows, depth = prod(shape[:-1]), shape[-1]
    staging: Copy | None = None
    if not site.prototypes[source].flags.c_contiguous:
        # Rows that lie otherwise, as those of a turned array, are laid side by side first.
        staging = plan_copy(lay_empty(shape, np.float32), site.prototypes[source], workers=site.workers)
        if staging is None:
            return None
    tiling = choose_tiling(rows, outputs, find_width())
    chunks = choose_chunks(tiling, lines=1, depth=depth, pixel_bytes=depth * 4, workers=site.workers)
    packed = site.weights.pack_lazily(weights, (*purpose, tiling.vectors, tiling.width), packing_of(tiling))
    padded = pad_vector(epilogue.bias, outputs, tiling.padded_outputs)
    pieces, piece_depth = choose_pieces(depth)
    prefetches, splits = tiling.count_prefetches(tiling.tiles), pieces > 1
    kernel = make_product(tiling, epilogue.activations, adds=adds, prefetches=prefetches, splits=splits)
    offsets, zeros = np.zeros(1, np.int64), pad_vector(None, 0, tiling.vectors * tiling.width)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x = reads[0] if staging is None else cut_scratch(scratch, [shape])[0]
        numbers = {
            "x": address_of(x), "x_pixel": depth * 4, "offsets": address_of(offsets), "taps": 1, "depth": piece_depth,
            "w": address_of(packed), "block_bytes": depth * tiling.vectors * tiling.width * 4, "bias": address_of(padded),
            "y": address_of(writes[0]), "y_pixel": outputs * 4, "added": address_of(reads[1]) if adds else 0, "added_pixel": outputs * 4,
            "rows": 1, "pieces": pieces, "last_depth": depth - (pieces - 1) * piece_depth, "zeros": address_of(zeros),
            **list_cut(tiling, chunks),
        }  # fmt: skip
        names = (*PARAMETERS, *PIECE_PARAMETERS) if pieces > 1 else PARAMETERS
        keep = (offsets, zeros, packed, padded, x, *reads, *writes)
        staged = [] if staging is None else [staging.bind(x, reads[0])]
        return [*staged, NativeCall(kernel, tuple(numbers.get(key, 0) for key in names), chunks.count, keep)]

    kernels, nbytes = ((kernel,), 0) if staging is None else ((staging.kernel, kernel), measure_scratch([shape]))
    overwrites = list_overwritten(site, source, epilogue.added)
    return Recipe((source, *filter(None, [epilogue.added])), bind, nbytes, overwrites=overwrites, kernels=kernels)
