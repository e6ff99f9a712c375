"""Operators that move elements or choose boxes, with shapes and attributes that hypothesis draws, against ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

# The models are made and compared as those of the arithmetic operators are.
_spec = importlib.util.spec_from_file_location("attributes", Path(__file__).with_name("test_kernels_random_attributes.py"))
assert _spec is not None
assert _spec.loader is not None
attributes_of = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(attributes_of)
check, draw_array, lists, SEEDS = attributes_of.check, attributes_of.draw_array, attributes_of.lists, attributes_of.SEEDS


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from(["none", "add", "mul", "max", "min"]), SEEDS)
def test_scatter_elements(data: st.DataObject, reduction: str, seed: int) -> None:
    shape, random = data.draw(lists(1, 4, data.draw(st.integers(1, 3)))), np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    wanted = [data.draw(st.integers(1, size)) for size in shape]
    indices = random.integers(-shape[axis], shape[axis], wanted)
    if reduction == "none":
        # Two updates of one place may win in any order.
        wanted[axis] = 1
        indices = random.integers(0, shape[axis], wanted)
    check("ScatterElements", 18, [draw_array(seed, *shape), indices, draw_array(seed + 1, *wanted)],
          {"axis": axis, "reduction": reduction})  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.data(), SEEDS)
def test_non_max_suppression(data: st.DataObject, seed: int) -> None:
    random = np.random.default_rng(seed)
    batch, classes, count = (data.draw(st.integers(1, limit)) for limit in (2, 3, 8))
    corners = random.random((batch, count, 4)).astype(np.float32)
    limits = [np.array([data.draw(st.integers(0, 4))]), np.array([0.3], np.float32), np.array([0.25], np.float32)]
    scores = random.random((batch, classes, count)).astype(np.float32)
    check("NonMaxSuppression", 11, [corners, scores, *limits], {"center_point_box": data.draw(st.integers(0, 1))})


@settings(deadline=None, max_examples=40)
@given(st.data(), SEEDS)
def test_roi_align(data: st.DataObject, seed: int) -> None:
    random = np.random.default_rng(seed)
    begin = random.random((3, 2)) * 3
    rois = np.concatenate([begin, begin + 0.5 + random.random((3, 2)) * 3], axis=1).astype(np.float32)
    attributes = {
        "output_height": data.draw(st.integers(1, 3)),
        "output_width": data.draw(st.integers(1, 3)),
        "sampling_ratio": data.draw(st.integers(0, 2)),
        "spatial_scale": data.draw(st.sampled_from([1.0, 0.5])),
        "coordinate_transformation_mode": data.draw(st.sampled_from(["half_pixel", "output_half_pixel"])),
    }
    check("RoiAlign", 16, [draw_array(seed, 2, 2, 6, 5), rois, random.integers(0, 2, 3)], attributes)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from(["DepthToSpace", "SpaceToDepth", "CumSum", "ReverseSequence"]), SEEDS)
def test_moved_elements(data: st.DataObject, op_type: str, seed: int) -> None:
    block = data.draw(st.integers(1, 3))
    if op_type == "DepthToSpace":
        x = draw_array(seed, 2, 2 * block * block, 2, 3)
        check(op_type, 13, [x], {"blocksize": block, "mode": data.draw(st.sampled_from(["DCR", "CRD"]))})
    elif op_type == "SpaceToDepth":
        check(op_type, 13, [draw_array(seed, 2, 3, 2 * block, block)], {"blocksize": block})
    elif op_type == "CumSum":
        attributes = {"exclusive": data.draw(st.integers(0, 1)), "reverse": data.draw(st.integers(0, 1))}
        check(op_type, 14, [draw_array(seed, 3, 4), np.array(data.draw(st.integers(-2, 1)))], attributes)
    else:
        time_axis = data.draw(st.integers(0, 1))
        lengths = np.array(data.draw(lists(1, (4, 5)[time_axis], (4, 5)[1 - time_axis])))
        check(op_type, 10, [draw_array(seed, 4, 5, 2), lengths], {"time_axis": time_axis, "batch_axis": 1 - time_axis})
