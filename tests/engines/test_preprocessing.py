"""Preprocessing of photographs in front of a network, compared with NumPy formulas and with the same steps in OpenVINO and ONNX Runtime.

Skipped unless OpenVINO and scikit-learn, the source of the photographs, are installed; nox -s engines installs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from hetero_core import Core, Network
from hetero_core.network.border import InputInfo
from hetero_core.network.reader import read_network
from hetero_core.network.writer import network_to_bytes
from hetero_core.transforms.editing import edit

DEVICES = ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"]
MEAN, SCALE = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's channels, red first, in units of a pixel."""
HEIGHT, WIDTH = 96, 128
# Allows for a different summation order of the interpolation; integer scale steps are exact.
ABSOLUTE = 2e-3


def passing_model(channels: int, height: int, width: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[N,{channels},{height},{width}] x) => (float[N,{channels},{height},{width}] y) '
        "{ y = Identity(x) }"
    )


@cache
def read_photographs() -> tuple[np.ndarray, ...]:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn has the photographs; nox -s engines installs it")
    return tuple(datasets.load_sample_images().images)


@cache
def read_digits() -> np.ndarray:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn has the digits; nox -s engines installs it")
    return np.asarray(datasets.load_digits().images)


def weigh(size: int, output: int, mode: str) -> np.ndarray:
    """Returns the weight of each source pixel in each target pixel by the definition of the mode, shape (output, size)."""
    matrix = np.zeros((output, size))
    step = size / output
    for target in range(output):
        center = (target + 0.5) * step - 0.5
        if mode == "nearest":
            matrix[target, int(np.clip(np.ceil(center - 0.5), 0, size - 1))] = 1
        elif mode == "bilinear":
            low = int(np.floor(center))
            matrix[target, int(np.clip(low, 0, size - 1))] += low + 1 - center
            matrix[target, int(np.clip(low + 1, 0, size - 1))] += center - low
        else:
            edges = np.clip(np.arange(size + 1), target * step, (target + 1) * step)
            matrix[target] = np.diff(edges) / step
    return matrix


def compute_by_formula(image: np.ndarray, mode: str, *, is_turned: bool) -> np.ndarray:
    planes = (image[..., ::-1] if is_turned else image).transpose(2, 0, 1).astype(np.float64)
    resized = weigh(image.shape[0], HEIGHT, mode) @ planes @ weigh(image.shape[1], WIDTH, mode).T
    return (resized - np.array(MEAN).reshape(3, 1, 1)) / np.array(SCALE).reshape(3, 1, 1)


def describe(image: np.ndarray, mode: str, *, is_turned: bool) -> Network:
    info = InputInfo("U8", "NHWC", (1, *image.shape), MEAN, SCALE, mode, "BGR->RGB" if is_turned else None)
    return edit(read_network(passing_model(3, HEIGHT, WIDTH))).with_inputs({"x": info})


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "area"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", [0, 1])
def test_photograph_is_prepared_as_the_formula_says(core: Core, mode: str, device: str, index: int) -> None:
    image = read_photographs()[index]
    for is_turned in (False, True):
        y = core.load_network(describe(image, mode, is_turned=is_turned), device).infer({"x": image[None]})["y"][0]
        np.testing.assert_allclose(y, compute_by_formula(image, mode, is_turned=is_turned), rtol=0, atol=ABSOLUTE)


@pytest.mark.parametrize("device", DEVICES)
def test_digits_are_prepared_as_the_formula_says(core: Core, device: str) -> None:
    digits = read_digits()[:50]
    info = InputInfo("U8", "NHW", digits.shape, mean=8, scale=16)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N,8,8] x) => (float[N,8,8] y) { y = Identity(x) }'
    )
    network = edit(read_network(model)).with_inputs({"x": InputInfo(model_layout="NHW")}).with_inputs({"x": info})
    y = core.load_network(network, device).infer({"x": digits.astype(np.uint8)})["y"]
    assert y.tolist() == ((digits - 8) / 16).tolist()


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "area"])
def test_written_steps_give_equal_outputs_on_onnx_runtime(core: Core, mode: str) -> None:
    image = read_photographs()[0]
    network = describe(image, mode, is_turned=True)
    session = onnxruntime.InferenceSession(network_to_bytes(network), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": image[None]})[0]
    for device in DEVICES:
        np.testing.assert_allclose(
            core.load_network(network, device).infer({"x": image[None]})["y"], expected, rtol=0, atol=ABSOLUTE
        )


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed; nox -s engines installs it")
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("index", [0, 1])
def test_preprocessing_equals_openvino(core: Core, mode: str, index: int) -> None:
    expected = run_openvino(read_photographs()[index], mode)
    network = describe(read_photographs()[index], mode, is_turned=True)
    for device in DEVICES:
        y = core.load_network(network, device).infer({"x": read_photographs()[index][None]})["y"]
        np.testing.assert_allclose(y, expected, rtol=0, atol=ABSOLUTE)


def run_openvino(image: np.ndarray, mode: str) -> Any:
    """Runs PrePostProcessor with the same steps in the same order; in float32, because the plugin's default may be less precise."""
    import openvino
    from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm

    engine = openvino.Core()
    model = engine.read_model(passing_model(3, HEIGHT, WIDTH).SerializeToString(), b"")
    processor = PrePostProcessor(model)
    processor_input = processor.input()
    tensor = (
        processor_input.tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC")).set_shape([1, *image.shape])
    )
    tensor.set_color_format(ColorFormat.BGR)
    algorithm: Callable[..., Any] = ResizeAlgorithm.RESIZE_NEAREST if mode == "nearest" else ResizeAlgorithm.RESIZE_LINEAR
    steps = processor_input.preprocess().convert_element_type(openvino.Type.f32).convert_color(ColorFormat.RGB).resize(algorithm)
    steps.mean(list(MEAN)).scale(list(SCALE))
    processor_input.model().set_layout(openvino.Layout("NCHW"))
    compiled = engine.compile_model(processor.build(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([image[None]])[0]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed; nox -s engines installs it")
def test_torch_tensors_are_read_in_place_or_refused_with_reason(core: Core) -> None:
    import torch

    loaded = core.load_network(passing_model(1, 2, 3), "CPU", {"PERF_COUNT": True})
    request = loaded.create_infer_request()
    x = torch.arange(6, dtype=torch.float32).reshape(1, 1, 2, 3)
    assert request.infer({"x": x})["y"].tolist() == x.tolist()
    assert request.host_copied_bytes == 0
    assert (
        request.infer({"x": x.reshape(1, 1, 3, 2).transpose(2, 3)})["y"].tolist() == x.reshape(1, 1, 3, 2).transpose(2, 3).tolist()
    )
    assert request.host_copied_bytes == 24
    with pytest.raises(TypeError, match="input 'x' of network 'g': this Tensor gives no array: Can't call numpy"):
        request.infer({"x": x.clone().requires_grad_()})
    with pytest.raises(TypeError, match="expected float32, got float64"):
        request.infer({"x": x.double()})
