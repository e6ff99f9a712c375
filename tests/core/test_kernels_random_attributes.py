"""Operators with random shapes and attributes against ONNX Runtime; a case that ONNX Runtime refuses is not compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from hetero_tests.samples import DRAWS
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

from hetero_core.kernels.operators.indexing import top_k
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

Array = np.ndarray[Any, Any]
SEEDS = st.integers(0, 2**32 - 1)
AUTO_PADS = st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])


def lists(low: int, high: int, size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=size, max_size=size)


def check(op_type: str, opset: int, inputs: list[Array | None], attributes: dict[str, Any], *, outputs: int = 1) -> None:
    """Compares the kernels' results with ONNX Runtime's, and their shapes with the inferred types."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{index}" for index in range(outputs)], **attributes)
    given_inputs = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    specs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given_inputs.items()
    ]
    graph = helper.make_graph([node], "g", specs, [onnx.ValueInfoProto(name=name) for name in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = session.run(None, given_inputs)
    except Exception:  # noqa: BLE001  # ONNX Runtime raises many types for refusals
        assume(False)
    network = read_network(model)
    results = compile_program(network).run(tuple(given_inputs.values()))
    for spec, value, expected_value in zip(network.outputs, results, expected, strict=True):
        assert_same(value, expected_value)
        assert all(size in (None, actual) for size, actual in zip(spec.type.shape, value.shape, strict=True))


def draw_array(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def draw_windows(data: st.DataObject, rank: int) -> dict[str, Any]:
    """Returns strides, dilations, and either pads or auto_pad."""
    auto_pad = data.draw(AUTO_PADS)
    attributes: dict[str, Any] = {
        "strides": data.draw(lists(1, 3, rank)),
        # ONNX Runtime and ONNX disagree on dilated windows under SAME.
        "dilations": data.draw(lists(1, 2, rank)) if auto_pad in ("NOTSET", "VALID") else [1] * rank,
        "auto_pad": auto_pad,
    }
    if auto_pad == "NOTSET":
        attributes["pads"] = data.draw(lists(0, 2, 2 * rank))
    return attributes


@DRAWS
@given(st.data(), st.integers(1, 2), SEEDS)
def test_conv_transpose(data: st.DataObject, rank: int, seed: int) -> None:
    group, into, out = (data.draw(st.integers(1, 2)) for _ in range(3))
    sizes, kernel_shape = data.draw(lists(2, 5, rank)), data.draw(lists(1, 3, rank))
    x = draw_array(seed, 2, group * into, *sizes)
    w = draw_array(seed + 1, group * into, out, *kernel_shape)
    strides, dilations = data.draw(lists(1, 3, rank)), data.draw(lists(1, 2, rank))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group, "kernel_shape": kernel_shape}
    match data.draw(st.sampled_from(["pads", "output_shape", "auto_pad"])):
        case "pads":
            attributes["pads"] = data.draw(lists(0, 2, 2 * rank))
            attributes["output_padding"] = [data.draw(st.integers(0, stride - 1)) for stride in strides]
        case "output_shape":
            attributes["output_shape"] = [size * stride for size, stride in zip(sizes, strides, strict=True)]
        case _:
            attributes["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
            attributes["output_padding"] = [data.draw(st.integers(0, stride - 1)) for stride in strides]
    check("ConvTranspose", 11, [x, w], attributes)


@DRAWS
@given(st.data(), st.integers(1, 3), st.sampled_from(["MaxPool", "AveragePool", "LpPool"]), SEEDS)
def test_pool(data: st.DataObject, rank: int, op_type: str, seed: int) -> None:
    kernel_shape = data.draw(lists(1, 3, rank))
    attributes = {**draw_windows(data, rank), "kernel_shape": kernel_shape}
    attributes["pads"] = [
        min(pad, kernel_shape[index % rank] - 1) for index, pad in enumerate(attributes.get("pads", [0] * 2 * rank))
    ]
    if attributes["auto_pad"] != "NOTSET":
        del attributes["pads"]
    attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    if op_type == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    if op_type == "LpPool":
        attributes["p"] = data.draw(st.integers(1, 3))
        del attributes["ceil_mode"]
    x = draw_array(seed, 2, 2, *data.draw(lists(4, 7, rank)))
    extents = [(size - 1) * step + 1 for size, step in zip(kernel_shape, attributes["dilations"], strict=True)]
    assume(all(extent <= size for extent, size in zip(extents, x.shape[2:], strict=True)))
    # Under SAME with a stride longer than the window, ONNX Runtime's AveragePool skips elements; its MaxPool does not.
    is_same = attributes["auto_pad"].startswith("SAME")
    assume(not is_same or all(extent >= step for extent, step in zip(extents, attributes["strides"], strict=True)))
    check(op_type, 22 if op_type != "LpPool" else 18, [x], attributes)


@DRAWS
@given(st.data(), SEEDS)
def test_gemm(data: st.DataObject, seed: int) -> None:
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    trans_a, trans_b = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    shape = data.draw(st.sampled_from([(m, n), (1, n), (m, 1), (n,), (1,), ()]))
    a = draw_array(seed, *((k, m) if trans_a else (m, k)))
    b = draw_array(seed + 1, *((n, k) if trans_b else (k, n)))
    attributes = {
        "alpha": data.draw(st.sampled_from([1.0, 0.5, -2.0])),
        "beta": data.draw(st.sampled_from([1.0, 0.0, 0.25])),
        "transA": trans_a,
        "transB": trans_b,
    }
    check("Gemm", 13, [a, b, draw_array(seed + 2, *shape)], attributes)


@DRAWS
@given(st.data(), SEEDS)
def test_mat_mul(data: st.DataObject, seed: int) -> None:
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    stacks = data.draw(st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (1, 3)), ((2, 3), (3,))]))
    shape_a = (k,) if data.draw(st.booleans()) and not stacks[0] else (*stacks[0], m, k)
    shape_b = (k,) if data.draw(st.booleans()) and not stacks[1] else (*stacks[1], k, n)
    check("MatMul", 13, [draw_array(seed, *shape_a), draw_array(seed + 1, *shape_b)], {})


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@DRAWS
@given(st.data(), st.sampled_from(REDUCTIONS), SEEDS)
def test_reduction(data: st.DataObject, name: str, seed: int) -> None:
    shape = data.draw(lists(1, 4, data.draw(st.integers(1, 4))))
    axes = data.draw(
        st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda axis: axis % len(shape), max_size=len(shape))
    )
    x = np.abs(draw_array(seed, *shape)) + np.float32(0.1)
    attributes = {"keepdims": data.draw(st.integers(0, 1)), "noop_with_empty_axes": data.draw(st.integers(0, 1))}
    # For all further reductions, the meaning of an empty list of axes was undefined before opset 28.
    assume(axes or not attributes["noop_with_empty_axes"] or name in ("Sum", "Mean", "Max", "Min", "Prod"))
    check(f"Reduce{name}", 18, [x, np.array(axes, np.int64)], attributes)


@DRAWS
@given(st.data(), SEEDS)
def test_resize(data: st.DataObject, seed: int) -> None:
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes: dict[str, Any] = {
        "mode": mode,
        # ONNX Runtime reads align_corners and half_pixel_symmetric differently if lengths are rounded.
        "coordinate_transformation_mode": data.draw(st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric"])),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = data.draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = data.draw(st.sampled_from([-0.75, -0.5]))
        attributes["exclude_outside"] = data.draw(st.integers(0, 1))
    x = draw_array(seed, 1, 2, *data.draw(lists(2, 6, 2)))
    if data.draw(st.booleans()):
        # Scales are powers of two, so that no coordinate misses a border by a rounding error.
        scales = [1.0, 1.0, *(data.draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for _ in range(2))]
        inputs = [x, None, np.array(scales, np.float32)]
    else:
        factors = [data.draw(st.sampled_from([1, 2, 4])) for _ in range(2)]
        inputs = [x, None, None, np.array([1, 2, x.shape[2] * factors[0], x.shape[3] * factors[1]], np.int64)]
    check("Resize", 18, inputs, attributes)


@DRAWS
@given(st.data(), SEEDS)
def test_attention(data: st.DataObject, seed: int) -> None:
    batch, heads, group, queries, size = (data.draw(st.integers(1, 3)) for _ in range(5))
    present, past = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    causal = data.draw(st.integers(0, 1))
    # With a causal mask and no past, ONNX Runtime requires as many queries as keys.
    queries = present if causal else queries
    inputs: list[Array | None] = [
        draw_array(seed, batch, heads * group, queries, size),
        draw_array(seed + 1, batch, heads, present, size),
        draw_array(seed + 2, batch, heads, present, size),
    ]
    keys = present + past
    mask = data.draw(st.sampled_from(["none", "bool", "float"]))
    inputs.append({
        "none": None,
        "bool": np.random.default_rng(seed).random((batch, 1, queries, keys)) < 0.8,
        "float": draw_array(seed + 3, queries, keys),
    }[mask])  # fmt: skip
    if mask == "bool":
        inputs[3][..., 0] = True  # type: ignore[index]  # a query without keys has an undefined result
    if past:
        inputs += [draw_array(seed + 4, batch, heads, past, size), draw_array(seed + 5, batch, heads, past, size)]
    while inputs[-1] is None:
        inputs.pop()
    attributes = {
        "is_causal": causal,
        "softcap": data.draw(st.sampled_from([0.0, 2.0])),
        "scale": data.draw(st.sampled_from([0.25, 1.0])),
    }
    check("Attention", 23, inputs, attributes, outputs=3 if past else 1)


@DRAWS
@given(st.data(), SEEDS)
def test_pad(data: st.DataObject, seed: int) -> None:
    shape = data.draw(lists(2, 4, data.draw(st.integers(1, 3))))
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    low = -1 if mode == "constant" else 0
    pads = [data.draw(st.integers(low, shape[axis] - 1)) for _ in range(2) for axis in axes]
    value = np.array(1.5, np.float32) if mode == "constant" else None
    check("Pad", 19, [draw_array(seed, *shape), np.array(pads, np.int64), value, np.array(axes, np.int64)], {"mode": mode})


@DRAWS
@given(st.data(), SEEDS)
def test_top_k(data: st.DataObject, seed: int) -> None:
    shape = data.draw(lists(1, 5, data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(seed).integers(0, 4, shape).astype(np.float32)
    k = np.array([data.draw(st.integers(0, shape[axis]))])
    check("TopK", 11, [x, k], {"axis": axis, "largest": data.draw(st.integers(0, 1))}, outputs=2)


@DRAWS
@given(st.data(), SEEDS, st.sampled_from(("float16", "float32", "float64", "int8", "int64", "uint64")), st.integers(0, 1))
def test_top_k_of_long_rows(data: st.DataObject, seed: int, dtype: str, largest: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, data.draw(st.sampled_from((3, 100))), (2, 60, 40)).astype(dtype)
    if x.dtype.kind == "f":
        for special in (np.nan, np.inf, -np.inf, -0.0):
            x[rng.random(x.shape) < data.draw(st.sampled_from((0, 0.01, 0.3)))] = special
    axis, k = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 15))
    k = min(k, x.shape[axis])
    # NaN is the largest element; the stable sort of the reversed axis, read backwards, has the lower position first.
    order = np.argsort(np.flip(x, axis) if largest else x, axis=axis, stable=True)
    order = np.take(x.shape[axis] - 1 - np.flip(order, axis) if largest else order, range(k), axis=axis)
    values, positions = top_k(np, x, np.array([k]), axis=axis, largest=largest)
    np.testing.assert_array_equal(positions, order, strict=True)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=axis), strict=True)


@DRAWS
@given(st.data(), SEEDS)
def test_grid_sample(data: st.DataObject, seed: int) -> None:
    sizes, outputs = data.draw(lists(1, 5, 2)), data.draw(lists(1, 4, 2))
    attributes = {
        "mode": data.draw(st.sampled_from(["linear", "cubic"])),
        "padding_mode": data.draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": data.draw(st.integers(0, 1)),
    }
    assume(min(sizes) > 1 or attributes["padding_mode"] != "reflection")
    check("GridSample", 20, [draw_array(seed, 2, 2, *sizes), 2 * draw_array(seed + 1, 2, *outputs, 2)], attributes)


@DRAWS
@given(st.data(), st.sampled_from(["LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN"]), SEEDS)
def test_normalization(data: st.DataObject, op_type: str, seed: int) -> None:
    shape = [2, *data.draw(lists(2, 5, data.draw(st.integers(2, 3))))]
    x, channels = draw_array(seed, *shape), shape[1]
    scale, bias = draw_array(seed + 1, channels), draw_array(seed + 2, channels)
    if op_type == "LRN":
        attributes = {"size": data.draw(st.sampled_from([1, 3, 5])), "alpha": 0.5, "bias": data.draw(st.sampled_from([1.0, 2.0]))}
        check(op_type, 13, [x], attributes)
    elif op_type == "LayerNormalization":
        axis = data.draw(st.integers(-len(shape) + 1, len(shape) - 1))
        inner = shape[axis:]
        # A mean near zero by cancellation would have no correct digits.
        x += np.float32(3)
        check(
            op_type, 17, [x, draw_array(seed + 1, *inner), draw_array(seed + 2, *inner)], {"axis": axis, "epsilon": 1e-3}, outputs=3
        )
    elif op_type == "InstanceNormalization":
        check(op_type, 22, [x, scale, bias], {"epsilon": 1e-3})
    else:
        mean, variance = draw_array(seed + 3, channels), np.abs(draw_array(seed + 4, channels)) + np.float32(0.1)
        check(op_type, 15, [x, scale, bias, mean, variance], {"epsilon": 1e-3})


@DRAWS
@given(st.data(), SEEDS)
def test_quantize_and_back(data: st.DataObject, seed: int) -> None:
    shape = data.draw(lists(1, 5, data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from([np.uint8, np.int8]))
    count = () if data.draw(st.booleans()) else (shape[axis],)
    # Scales are powers of two: quotients are exact, so both engines see the same ties.
    scale = np.float32(2.0) ** np.random.default_rng(seed).integers(-6, 2, count).astype(np.float32)
    zero = np.random.default_rng(seed + 1).integers(0, 20, count).astype(dtype)
    check("QuantizeLinear", 19, [draw_array(seed, *shape), np.asarray(scale), np.asarray(zero)], {"axis": axis})
    quantized = np.random.default_rng(seed).integers(0, 120, shape).astype(dtype)
    check("DequantizeLinear", 19, [quantized, np.asarray(scale), np.asarray(zero)], {"axis": axis})


@DRAWS
@given(st.data(), st.sampled_from(["Gather", "GatherElements", "GatherND"]), SEEDS)
def test_gather(data: st.DataObject, op_type: str, seed: int) -> None:
    shape = data.draw(lists(1, 4, data.draw(st.integers(1, 3))))
    x, random = draw_array(seed, *shape), np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    if op_type == "Gather":
        indices = random.integers(-shape[axis], shape[axis], data.draw(lists(1, 3, data.draw(st.integers(0, 2)))))
        check(op_type, 13, [x, np.asarray(indices, np.int64)], {"axis": axis})
    elif op_type == "GatherElements":
        expected_value = [data.draw(st.integers(1, size)) for size in shape]
        check(op_type, 13, [x, random.integers(-shape[axis], shape[axis], expected_value)], {"axis": axis})
    else:
        stacks = data.draw(st.integers(0, len(shape) - 1))
        depth = data.draw(st.integers(1, len(shape) - stacks))
        columns = [random.integers(-size, size, (*shape[:stacks], 3)) for size in shape[stacks : stacks + depth]]
        check(op_type, 13, [x, np.stack(columns, axis=-1)], {"batch_dims": stacks})


@DRAWS
@given(st.data(), st.sampled_from(["none", "add", "mul", "max", "min"]), SEEDS)
def test_scatter_elements(data: st.DataObject, reduction: str, seed: int) -> None:
    shape, random = data.draw(lists(1, 4, data.draw(st.integers(1, 3)))), np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    expected_value = [data.draw(st.integers(1, size)) for size in shape]
    indices = random.integers(-shape[axis], shape[axis], expected_value)
    if reduction == "none":
        # If an element has two updates, either update may win.
        expected_value[axis] = 1
        indices = random.integers(0, shape[axis], expected_value)
    check("ScatterElements", 18, [draw_array(seed, *shape), indices, draw_array(seed + 1, *expected_value)],
          {"axis": axis, "reduction": reduction})  # fmt: skip


@DRAWS
@given(st.data(), SEEDS)
def test_non_max_suppression(data: st.DataObject, seed: int) -> None:
    random = np.random.default_rng(seed)
    batch, classes, count = (data.draw(st.integers(1, limit)) for limit in (2, 3, 8))
    corners = random.random((batch, count, 4)).astype(np.float32)
    limits = [np.array([data.draw(st.integers(0, 4))]), np.array([0.3], np.float32), np.array([0.25], np.float32)]
    scores = random.random((batch, classes, count)).astype(np.float32)
    check("NonMaxSuppression", 11, [corners, scores, *limits], {"center_point_box": data.draw(st.integers(0, 1))})


@DRAWS
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


@DRAWS
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
