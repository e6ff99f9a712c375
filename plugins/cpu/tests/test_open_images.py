"""Images with open height and width: one plan for a class of sizes; expected values from ONNX Runtime without optimizations."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_tests.open_models import make_detector
from hetero_tests.open_variants import make_unet, swish

from hetero_core import Core
from hetero_core.testing.reference_session import open_reference_session

pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")


def _check(model: onnx.ModelProto, sizes: list[tuple[int, ...]], caplog: pytest.LogCaptureFixture, *, threads: int = 2) -> int:
    """Compares all answers, verifying each plan for each set of sizes; returns the number of plans."""
    session = open_reference_session(model.SerializeToString())
    rng, (name,) = np.random.default_rng(5), [value.name for value in model.graph.input]
    config = {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": str(threads)}
    with Core() as core, caplog.at_level(logging.WARNING):
        network = core.load_network(model, "CPU", config)
        for shape in sizes:
            feeds = {name: rng.standard_normal(shape).astype(np.float32)}
            answers = network.infer(feeds)
            for output, expected in zip(model.graph.output, session.run(None, feeds), strict=True):
                answer = np.asarray(answers[output.name])
                assert answer.shape == expected.shape
                np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-4 * max(np.abs(expected).max(), 1), err_msg=str(shape))
        plans: tuple[int, int] = network.get_metric("CPU_PLANS")
    assert not caplog.records, "a plan was refused"
    return plans[0]


def _draw(count: int, *, channels: int, largest: int = 60) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(11)
    return [(int(rng.integers(1, 3)), channels, *(int(size) for size in rng.integers(12, largest, 2))) for _ in range(count)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_detector_is_right_for_drawn_sizes_with_few_plans(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    sizes = [(1, 3, *size[2:]) for size in _draw(16, channels=3, largest=140)]
    assert _check(make_detector(width=8, depth=2), sizes, caplog, threads=threads) <= 8


_UNETS: dict[str, dict[str, Any]] = {
    "batch normalization": {},
    "group normalization": {"activate": swish, "norm": "group", "grow": "nearest", "depth": 3, "channels": 3},
    "no normalization": {"norm": "", "grow": "linear", "width": 8, "depth": 3},
}


@pytest.mark.parametrize(("name", "threads"), [*((name, 2) for name in _UNETS), ("batch normalization", 1)])
def test_a_unet_has_one_plan_for_small_and_large_images(name: str, threads: int, caplog: pytest.LogCaptureFixture) -> None:
    model = make_unet(**_UNETS[name])
    sizes = [(1, _UNETS[name].get("channels", 1), *sides) for sides in ((80, 112), (256, 256), (64, 128), (240, 96), (96, 80))]
    assert _check(model, sizes, caplog, threads=threads) == 1


def test_a_gate_of_channels_has_one_plan_for_all_batches(caplog: pytest.LogCaptureFixture) -> None:
    gate = "m = GlobalAveragePool (x) a = Conv (m, w) b = Relu (a) d = Conv (b, w) s = Sigmoid (d) y = Mul (x, s)"
    model = _parse(gate)
    weight = np.random.default_rng(4).standard_normal((16, 16, 1, 1)).astype(np.float32)
    model.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    assert _check(model, [(batch, 16, 12, 20) for batch in (9, 4, 3, 2, 20)], caplog) == 1


_PADS = "pads = [1, 1, 1, 1]"
_FLOOR = '<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
_IMAGES = {
    "conv_same": 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)',
    "conv_dilated": "y = Conv <pads = [2, 2, 2, 2], dilations = [2, 2]> (x, w)",
    "conv_uneven": "y = Conv <pads = [0, 1, 2, 0], strides = [2, 1]> (x, w)",
    "conv_groups": f"y = Conv <{_PADS}, group = 4> (x, w_group)",
    "conv_winograd": f"a = Conv <{_PADS}> (x, w) b = Relu (a) c = Conv <{_PADS}> (b, w) y = Add (b, c)",
    "depthwise": f"y = Conv <{_PADS}, strides = [2, 2], group = 16> (x, w_each)",
    "max_pool_up": "a = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x) y = Conv (a, w)",
    "max_pool_pads": f"y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], {_PADS}> (x)",
    "mean_without_pads": f"a = Conv (x, w) y = AveragePool <kernel_shape = [3, 3], strides = [2, 1], {_PADS}> (a)",
    "mean_with_pads": f"a = Conv (x, w) y = AveragePool <kernel_shape = [3, 3], {_PADS}, count_include_pad = 1> (a)",
    "mean_up": "a = Conv (x, w) y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (a)",
    "whole": "a = Conv (x, w) m = GlobalAveragePool (a) n = GlobalMaxPool (a) y = Concat <axis = 1> (m, n)",
    "transposed": "y = ConvTranspose <strides = [2, 2]> (x, w_up)",
    "transposed_overlapping": f"y = ConvTranspose <strides = [2, 2], {_PADS}> (x, w)",
    "nearest": f"a = Conv <{_PADS}> (x, w) b = Resize {_FLOOR} (a, , twice) c = Concat <axis = 1> (b, b) y = Relu (c)",
    "linear": f'a = Conv <{_PADS}> (x, w) b = Resize <mode = "linear"> (a, , twice) y = Conv <{_PADS}> (b, w)',
    "halved": f"a = Conv (x, w) y = Resize {_FLOOR} (a, , half)",
    "rows": "a = Conv (x, w) b = Relu (a) y = Concat <axis = 2> (a, b)",
    "attention": "a = Conv (x, w) m = GlobalAveragePool (a) s = Sigmoid (m) y = Mul (a, s)",
    "softmax": "y = Softmax <axis = 1> (x)",
}


def _parse(body: str) -> onnx.ModelProto:
    shapes = {"w": (16, 16, 3, 3), "w_group": (16, 4, 3, 3), "w_each": (16, 1, 3, 3), "w_up": (16, 16, 2, 2)}
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    graph (float[batch, 16, height, width] x) => (float[b, c, h, v] y)
    <float[4] twice = {{1, 1, 2, 2}}, float[4] half = {{1, 1, 0.5, 0.5}}> {{ {body} }}""")
    rng = np.random.default_rng(2)
    for name, shape in shapes.items():
        if name in body.replace(",", " ").replace(")", " ").split():
            weight = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize("graph", sorted(_IMAGES))
def test_an_image_is_right_for_drawn_sizes(graph: str, caplog: pytest.LogCaptureFixture) -> None:
    assert _check(_parse(_IMAGES[graph]), _draw(14, channels=16), caplog) < 14


# Even sizes avoid coordinates that are ties, which ONNX Runtime rounds in float32.
_MODES: list[dict[str, Any]] = [
    *({"mode": "nearest", "nearest_mode": mode} for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    *(
        {"mode": mode, "coordinate_transformation_mode": way}
        for mode in ("nearest", "linear")
        for way in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    ),
]


@pytest.mark.parametrize("attributes", _MODES, ids=lambda attributes: "-".join(attributes.values()))
@pytest.mark.parametrize("size", [(10, 12), (14, 14), (4, 4)])
def test_a_resized_image_is_right(attributes: dict[str, str], size: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    attribute_text = ", ".join(f'{name} = "{value}"' for name, value in attributes.items())
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    graph (float[2, 19, 7, 7] x) => (float[2, 19, {size[0]}, {size[1]}] y)
    <int64[4] size = {{2, 19, {size[0]}, {size[1]}}}, float[19, 19, 1, 1] w>
    {{ a = Conv (x, w) y = Resize <{attribute_text}> (a, , , size) }}""")
    weight = np.random.default_rng(3).standard_normal((19, 19, 1, 1)).astype(np.float32)
    del model.graph.initializer[:]
    sizes = np.array((2, 19, *size), np.int64)
    model.graph.initializer.extend([onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(sizes, "size")])
    assert _check(model, [(2, 19, 7, 7)], caplog, threads=1) == 1


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_resize_with_its_defaults_written_out_is_machine_code(mode: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
    graph (float[1, 16, 7, 9] x) => (float[1, 16, 14, 18] y) <float[4] twice = {{1, 1, 2, 2}}>
    {{ a = Relu (x) y = Resize <mode = "{mode}", antialias = 0, coordinate_transformation_mode = "half_pixel", cubic_coeff_a = -0.75,
       exclude_outside = 0, extrapolation_value = 0.0, keep_aspect_ratio_policy = "stretch", nearest_mode = "floor"> (a, , twice) }}""")
    x = np.random.default_rng(3).random((1, 16, 7, 9)).astype(np.float32)
    expected = x.astype(np.float64)
    for axis, size in ((2, 7), (3, 9)):
        places = np.clip((np.arange(2 * size) + 0.5) / 2 - 0.5, 0, size - 1)
        first = np.floor(places).astype(int)
        share = (places - first if mode == "linear" else np.zeros(2 * size)).reshape(-1, *(1,) * (3 - axis))
        after = expected.take(np.minimum(first + 1, size - 1), axis)
        expected = expected.take(first, axis) * (1 - share) + after * share
    with Core() as core, core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}) as loaded:
        np.testing.assert_allclose(loaded.infer({"x": x})["y"], expected, rtol=1e-6)
        assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0


def test_channels_that_are_compiled_in_are_plain_numbers() -> None:
    pytest.importorskip("llvmlite", reason="kernels are made by llvmlite")
    from hetero_cpu.machine.compiler import find_width
    from hetero_cpu.operators.images import make_stage
    from hetero_cpu.symbols.arrays import lay_empty
    from hetero_cpu.symbols.sizes import Scope

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    scope = Scope()
    image = lay_empty((2, scope.open_size("channels", 3), scope.open_size("height", 9), 8), np.float32)
    kernel = make_stage(image)
    assert kernel.name == "stage_3_planes"
    assert "stage_3_planes" in kernel.emit(kernel.name, find_width()).take_text()
