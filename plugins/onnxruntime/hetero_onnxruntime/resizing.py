"""The pixels that ONNX Runtime's nearest Resize picks along one axis, compared with exact fractions.

The engine divides in float32, so that a coordinate that lies on a whole number or on a half may come out beside it (20 to 12 pixels,
asymmetric, floor: pixel 9 is 15 x 12 / 20 and becomes 14). Source: ONNX Resize-19.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from hetero_core.engines.inspection import find_shape, has_input
from hetero_core.network.graph import Graph, Node
from hetero_onnxruntime.engine import CPU_PROVIDER, make_options, open_session

_MODES = ("asymmetric", "half_pixel", "pytorch_half_pixel")
_HALF = Fraction(1, 2)
_LARGEST = 1 << 16
"""Pixels along an axis; the coordinates of longer ones are not computed one by one."""


def picks_other_pixels(node: Node, graph: Graph) -> bool:
    """Says whether a nearest Resize of known sizes picks another pixel than the standard; of open sizes nothing is said."""
    if node.attributes.get("mode", "nearest") != "nearest":
        return False
    coordinates = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get("nearest_mode", "round_prefer_floor")
    if coordinates not in _MODES or node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    return any(_is_wrong(size, target, scale, coordinates, rounding) for size, target, scale in _iterate_axes(node, graph))


def _iterate_axes(node: Node, graph: Graph) -> Iterator[tuple[int, int, float | None]]:
    """Yields size, new size and scale, if it is given, of each axis whose new size is no multiple of the old one."""
    shape = find_shape(node, graph)
    if shape is None or len(node.inputs) < 3:
        return
    has_sizes = has_input(node, 3)
    constant = graph.initializers.get(node.inputs[3 if has_sizes else 2])
    if constant is None:
        return
    axes = node.attributes.get("axes", range(len(shape)))
    for axis, number in zip(axes, constant.array.reshape(-1).tolist(), strict=False):
        size = shape[axis]
        if not isinstance(size, int) or not 0 < size <= _LARGEST:
            continue
        target = int(number) if has_sizes else math.floor(size * number)
        if 0 < target <= _LARGEST and target % size:
            yield size, target, None if has_sizes else float(number)


@cache
def _is_wrong(size: int, target: int, scale: float | None, coordinates: str, rounding: str) -> bool:
    ratio = Fraction(target, size) if scale is None else Fraction(scale)
    expected = [_pick(pixel, size, target, ratio, coordinates, rounding) for pixel in range(target)]
    return expected != _ask_engine(size, target, scale, coordinates, rounding)


def _pick(pixel: int, size: int, target: int, ratio: Fraction, coordinates: str, rounding: str) -> int:
    if coordinates == "asymmetric":
        place = pixel / ratio
    elif coordinates == "pytorch_half_pixel" and target == 1:
        place = Fraction(0)
    else:
        place = (pixel + _HALF) / ratio - _HALF
    shift, cut = {
        "ceil": (Fraction(0), math.ceil),
        "floor": (Fraction(0), math.floor),
        "round_prefer_ceil": (_HALF, math.floor),
        "round_prefer_floor": (-_HALF, math.ceil),
    }[rounding]
    return min(max(cut(place + shift), 0), size - 1)


def _ask_engine(size: int, target: int, scale: float | None, coordinates: str, rounding: str) -> list[int]:
    import onnx  # heavy, and loaded already if there is a network
    import onnxruntime  # the engine; loaded already

    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", [1, 1, size, 1]), ("y", None))
    ]
    given = np.array([1, 1, target, 1], np.int64) if scale is None else np.array([1, 1, scale, 1], np.float32)
    node = helper.make_node(
        "Resize",
        ["x", "", "", "given"] if scale is None else ["x", "", "given"],
        ["y"],
        mode="nearest",
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
    )
    graph = helper.make_graph([node], "probe", values[:1], values[1:], [numpy_helper.from_array(given, "given")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = make_options(onnxruntime, CPU_PROVIDER)
    options.intra_op_num_threads = 1
    session = open_session(onnxruntime, model.SerializeToString(), options, CPU_PROVIDER)
    (pixels,) = session.run(None, {"x": np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)})
    return [int(pixel) for pixel in pixels.reshape(-1)]
