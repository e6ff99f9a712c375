"""Resize to the nearest pixel: the engine computes positions in float32, which may fall on the other side of a half or a whole number.

OpenVINO 2026.4 is right if sizes are multiplied by whole numbers, or by powers of two, and corners are not aligned. For known
sizes the pixels are computed here, in exact fractions, and a Gather takes them; other nodes are refused.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from types import MappingProxyType

import numpy as np

from hetero_core.engines.inspection import find_constant, find_shape, has_input
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType

RESIZING = ("Resize", "Upsample")
_UNALIGNED = ("asymmetric", "half_pixel", "pytorch_half_pixel")
Axis = tuple[int | str | None, int | str | None, Fraction | None]
"""The size before and after, and how often one goes into the other; None if that is not known."""


def may_miss_pixels(node: Node, graph: Graph) -> bool:
    """Says whether the engine may take another pixel than the nearest one, and the pixels cannot be computed ahead."""
    axes = _list_axes(node, graph)
    return axes is not None and not _is_right(node, axes) and (not isinstance(graph, Network) or _list_pixels(node, axes) is None)


def gather_pixels(network: Network) -> Network:
    """Returns the network with a Gather for each axis that a Resize stretches to the nearest pixel by an awkward factor."""
    names = FreshNames(network)
    nodes: list[Node] = []
    initializers = dict(network.initializers)
    for node in network.nodes:
        axes = _list_axes(node, network)
        pixels = None if axes is None or _is_right(node, axes) else _list_pixels(node, axes)
        if pixels is None:
            nodes.append(node)
            continue
        value, last = node.inputs[0], max(pixels)
        for axis, indices in pixels.items():
            constant = names.value(f"{node.name}/pixels")
            initializers[constant] = Initializer.of_array(np.array(indices, np.int64))
            result = node.outputs[0] if axis == last else names.value(f"{node.name}/rows")
            attributes = MappingProxyType({"axis": axis})
            nodes.append(
                Node(names.node(f"{node.name}/gather"), "Gather", (value, constant), (result,), "", node.opset, 1, attributes)
            )
            value = result
    if initializers.keys() == network.initializers.keys():
        return network
    return replace(network, nodes=tuple(nodes), initializers=MappingProxyType(initializers))


def _list_axes(node: Node, graph: Graph) -> list[Axis] | None:
    """Returns the axes of a Resize to the nearest pixel, or None for another node; an unknown rank is one unknown axis."""
    if node.domain or node.op_type not in RESIZING or node.attributes.get("mode", "nearest") not in ("nearest", b"nearest"):
        return None
    before, result = find_shape(node, graph), graph.type_of(node.outputs[0])
    if before is None:
        return [(None, None, None)]
    after = result.shape if isinstance(result, TensorType) and result.shape is not None else (None,) * len(before)
    factors: list[Fraction | None] = [
        Fraction(new, old) if isinstance(old, int) and isinstance(new, int) and old > 0 else None
        for old, new in zip(before, after, strict=True)
    ]
    scales = _find_scales(node, graph)
    if scales is not None:
        named = node.attributes.get("axes") or range(len(before))
        factors = [Fraction(1)] * len(before)
        for axis, scale in zip(named, scales, strict=False):
            factors[axis] = Fraction(float(scale)) if np.isfinite(scale) and scale > 0 else None
    elif not _has_sizes(node):
        factors = [None] * len(before)
    return list(zip(before, after, factors, strict=True))


def _find_scales(node: Node, graph: Graph) -> list[float] | None:
    if "scales" in node.attributes:
        return list(node.attributes["scales"])
    position = 2 if node.op_type == "Resize" and node.since_version != 10 else 1
    scales = find_constant(node.inputs[position], graph, graph.initializers) if has_input(node, position) else None
    return scales.astype(np.float32).tolist() if scales is not None and scales.size else None


def _has_sizes(node: Node) -> bool:
    return has_input(node, 3)


def _find_coordinates(node: Node) -> str:
    if node.op_type == "Upsample" or node.since_version == 10:
        return "asymmetric"
    return str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))


def _is_right(node: Node, axes: list[Axis]) -> bool:
    return all(factor == 1 or (factor is not None and _is_plain(factor)) for _, _, factor in axes) and (
        _find_coordinates(node) in _UNALIGNED or all(factor == 1 for _, _, factor in axes)
    )


def _is_plain(factor: Fraction) -> bool:
    """Says whether a factor is a whole number, or one divided by a power of two."""
    return factor.denominator == 1 or (factor.numerator == 1 and not factor.denominator & (factor.denominator - 1))


def _list_pixels(node: Node, axes: list[Axis]) -> dict[int, list[int]] | None:
    """Returns the pixels that are taken along each axis that changes; None if they come with the run."""
    coordinates = _find_coordinates(node)
    if coordinates not in (*_UNALIGNED, "align_corners"):
        return None
    rounding = (
        "floor"
        if coordinates == "asymmetric" and node.since_version in (7, 9, 10)
        else node.attributes.get("nearest_mode", "round_prefer_floor")
    )
    pixels = {}
    for axis, (old, new, factor) in enumerate(axes):
        if factor == 1 and old == new:
            continue
        if not isinstance(old, int) or not isinstance(new, int) or factor is None or not old:
            return None
        places = (_place(index, old, new, factor, coordinates) for index in range(new))
        pixels[axis] = [min(max(_round(place, str(rounding)), 0), old - 1) for place in places]
    return pixels or None


def _place(index: int, old: int, new: int, factor: Fraction, coordinates: str) -> Fraction:
    half = Fraction(1, 2)
    if coordinates == "asymmetric":
        return index / factor
    if coordinates == "align_corners":
        return Fraction(index * (old - 1), new - 1) if new > 1 else Fraction(0)
    if coordinates == "pytorch_half_pixel" and new == 1:
        return Fraction(0)
    return (index + half) / factor - half


def _round(place: Fraction, rounding: str) -> int:
    half = Fraction(1, 2)
    if rounding == "floor":
        return floor(place)
    if rounding == "ceil":
        return ceil(place)
    return ceil(place - half) if rounding == "round_prefer_floor" else floor(place + half)
