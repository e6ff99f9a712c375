"""Cubic resize, crop, pad, NV12 and I420 in front of a network, compared with OpenVINO's PrePostProcessor; a mean image by its formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import InvalidNetworkError
from hetero_core.network.border import InputInfo
from hetero_core.network.reader import read_network
from hetero_core.transforms.editing import edit

openvino = pytest.importorskip("openvino", reason="OpenVINO is the oracle; nox -s engines installs it")
preprocess = pytest.importorskip("openvino.preprocess", reason="as above")

DEVICES = ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU", "OPENVINO", "ORT"]
MEAN, SCALE = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# Allows for a different summation order with pixels up to 255.
ABSOLUTE = 2e-3


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def passing_model(height: int, width: int, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> g (float[1,3,{height},{width}] x) => (float[1,3,{height},{width}] y) '
        "{ y = Identity(x) }"
    )


def prepare(core: Core, device: str, info: InputInfo, size: tuple[int, int], array: np.ndarray, opset: int = 21) -> Any:
    network = edit(read_network(passing_model(*size, opset))).with_inputs({"x": info})
    return core.load_network(network, device).infer({"x": array})["y"]


def run_openvino(array: np.ndarray, size: tuple[int, int], describe: Callable[[Any, Any], None]) -> Any:
    """Runs PrePostProcessor in float32 with the steps that `describe(tensor, steps)` adds."""
    engine = openvino.Core()
    processor = preprocess.PrePostProcessor(engine.read_model(passing_model(*size).SerializeToString(), b""))
    processor_input = processor.input()
    processor_input.tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC"))
    processor_input.model().set_layout(openvino.Layout("NCHW"))
    describe(processor_input.tensor(), processor_input.preprocess().convert_element_type(openvino.Type.f32))
    return engine.compile_model(processor.build(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([array])[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("given", "size"), [((20, 30), (8, 9)), ((5, 7), (13, 16)), ((12, 12), (12, 5))])
def test_cubic_resize_equals_openvino(core: Core, device: str, given: tuple[int, int], size: tuple[int, int]) -> None:
    image = draw(1, *given, 3)

    def describe(tensor: Any, steps: Any) -> None:
        tensor.set_shape(list(image.shape))
        steps.resize(preprocess.ResizeAlgorithm.RESIZE_CUBIC)

    info = InputInfo(precision="U8", layout="NHWC", shape=image.shape, resize="cubic")
    np.testing.assert_allclose(prepare(core, device, info, size, image), run_openvino(image, size, describe), rtol=0, atol=ABSOLUTE)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_cubic_resize_of_an_open_size_equals_a_known_size(core: Core, opset: int) -> None:
    image = draw(1, 20, 30, 3)
    outputs = [
        prepare(core, "CPU", InputInfo(precision="U8", layout="NHWC", shape=shape, resize="cubic"), (8, 9), image, opset)
        for shape in (image.shape, (1, None, None, 3))
    ]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=ABSOLUTE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("form", ["NV12", "I420"])
def test_conversion_of_camera_planes_equals_openvino(core: Core, device: str, form: str, order: str) -> None:
    plane = draw(1, 36, 30, 1)

    def describe(tensor: Any, steps: Any) -> None:
        tensor.set_spatial_static_shape(24, plane.shape[2]).set_color_format(
            getattr(preprocess.ColorFormat, f"{form}_SINGLE_PLANE")
        )
        steps.convert_color(getattr(preprocess.ColorFormat, order)).mean(list(MEAN)).scale(list(SCALE))

    expected = run_openvino(plane, (24, 30), describe)
    info = InputInfo(precision="U8", layout="NHWC", color=f"{form}->{order}", mean=MEAN, scale=SCALE)
    np.testing.assert_allclose(prepare(core, device, info, (24, 30), plane), expected, rtol=0, atol=ABSOLUTE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["NV12", "I420"])
def test_all_steps_run_in_the_order_of_the_page(core: Core, device: str, form: str) -> None:
    plane = draw(1, 36, 32, 1)

    def describe(tensor: Any, steps: Any) -> None:
        tensor.set_spatial_static_shape(24, plane.shape[2]).set_color_format(
            getattr(preprocess.ColorFormat, f"{form}_SINGLE_PLANE")
        )
        steps.convert_color(preprocess.ColorFormat.RGB).crop([0, 2, 5, 0], [1, 20, 29, 3])
        steps.resize(preprocess.ResizeAlgorithm.RESIZE_CUBIC, 10, 12).convert_layout(openvino.Layout("NCHW"))
        steps.pad([0, 0, 1, 0], [0, 0, 3, 2], 114.0, preprocess.PaddingMode.CONSTANT).mean(list(MEAN)).scale(list(SCALE))

    info = InputInfo(
        precision="U8",
        layout="NHWC",
        shape=plane.shape,
        color=f"{form}->RGB",
        crop={"H": (2, 20), "W": (5, -3)},
        resize="cubic",
        pad={"H": (1, 3), "W": (0, 2)},
        pad_value=114,
        mean=MEAN,
        scale=SCALE,
    )
    expected = run_openvino(plane, (14, 14), describe)
    np.testing.assert_allclose(prepare(core, device, info, (14, 14), plane), expected, rtol=0, atol=ABSOLUTE)


@pytest.mark.parametrize("device", DEVICES)
def test_crop_without_a_resize_takes_a_part(core: Core, device: str) -> None:
    image = draw(1, 20, 30, 3)
    info = InputInfo(precision="U8", layout="NHWC", shape=image.shape, color="BGR->RGB", crop={"H": (3, 11), "W": (-12, -3)})
    expected = image[:, 3:11, -12:-3, ::-1].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(prepare(core, device, info, (8, 9), image), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_mean_image_is_subtracted_from_each_pixel(core: Core, device: str) -> None:
    image, mean = draw(1, 8, 9, 3), np.random.default_rng(1).uniform(0, 255, (3, 8, 9))
    expected = (image.transpose(0, 3, 1, 2).astype(np.float64) - mean) / np.reshape(SCALE, (3, 1, 1))
    info = InputInfo(precision="U8", layout="NHWC", mean=mean, scale=SCALE)
    np.testing.assert_allclose(prepare(core, device, info, (8, 9), image), expected, rtol=0, atol=1e-4)


def test_region_of_interest_is_a_view_of_the_caller_s_array(core: Core) -> None:
    frame = draw(1, 40, 50, 3)
    region = frame[:, 10:30, 12:42]
    begin, end = openvino.Coordinate([0, 10, 12, 0]), openvino.Coordinate([1, 30, 42, 3])

    def describe(tensor: Any, steps: Any) -> None:
        tensor.set_shape(list(region.shape))
        steps.resize(preprocess.ResizeAlgorithm.RESIZE_LINEAR)

    expected = run_openvino(openvino.Tensor(openvino.Tensor(frame), begin, end), (8, 9), describe)
    info = InputInfo(precision="U8", layout="NHWC", shape=region.shape, resize="bilinear")
    np.testing.assert_allclose(prepare(core, "CPU", info, (8, 9), region), expected, rtol=0, atol=ABSOLUTE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"color": "NV12->RGB", "shape": (1, 35, 30, 1)}, r"arrays in layout='NHWC' of the shape \(N, 3/2 height, width, 1\)"),
        ({"color": "NV12->RGB", "layout": "NCHW"}, "in layout NCHW"),
        ({"color": "NV12->RGB", "shape": (1, 36, 32, 1)}, r"it becomes float32\[1,3,24,32\]"),
        ({"color": "NV21->RGB"}, "no change of colors 'NV21->RGB', did you mean 'NV12->RGB'"),
        ({"crop": {"C": (0, 1)}}, "crop has the axis 'C'; the axes that it can have in layout NHWC are H, W"),
        ({"crop": {"H": (0, 50)}, "shape": (1, 40, 30, 3)}, "crop takes 0 to 50 out of 40 pixels"),
        ({"crop": {"H": (0, 23)}, "shape": (1, 40, 30, 3)}, r"it becomes float32\[1,3,23,30\]"),
        ({"crop": {"H": (1,)}}, r"crop has \(1,\) for the axis H; expected begin and end"),
        ({"pad": {"W": (20, 10)}}, "pad has 20 and 10 pixels; the model's axis has 30 in all"),
        ({"pad": {"W": (-1, 0)}}, r"pad has \(-1, 0\) for the axis W; expected two numbers of pixels, 0 or more"),
        ({"mean": np.zeros((3, 24, 31))}, "expected one number, or one for each channel of NCHW .*, or an image of that shape"),
    ],
)
def test_description_that_does_not_fit_is_refused(fields: Mapping[str, Any], message: str) -> None:
    network = edit(read_network(passing_model(24, 30)))
    with pytest.raises(InvalidNetworkError, match=message):
        network.with_inputs({"x": InputInfo(**{"precision": "U8", "layout": "NHWC", **fields})})
