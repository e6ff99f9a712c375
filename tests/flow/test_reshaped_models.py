"""Models with changed input sizes, on every device and after export and import, compared with ONNX Runtime."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero_core import Core, Network
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same
from hetero_core.testing.models import light_model
from hetero_core.testing.transformers import VOCABULARY, encoder_model
from hetero_core.transforms.editing import edit

RELATIVE = 1e-4


def open_resnet() -> onnx.ModelProto:
    """resnet50 in its training form: a global mean instead of a pooling window of 7, so that images may have any size."""
    model = light_model("resnet50")
    for node in model.graph.node:
        if node.op_type == "AveragePool":
            node.op_type = "GlobalAveragePool"
            del node.attribute[:]
    return model


def run_engine(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check(core: Core, network: Network, device: str, feeds: dict[str, Any], expected: list[Any]) -> None:
    """Asserts the expected outputs, of the loaded network and after export and import."""
    loaded = core.load_network(network, device)
    blob = io.BytesIO()
    loaded.export_network(blob)
    for network_under_test in (loaded, core.import_network(blob.getvalue(), device)):
        for value, reference in zip(network_under_test.infer(feeds).values(), expected, strict=True):
            assert_same(value, reference, rtol=RELATIVE)


def split(network: Network) -> Network:
    """Pins only every tenth node to TEMPLATE, because its convolutions are slow."""
    return network.with_affinity({node.name: "TEMPLATE" if index % 10 == 9 else "CPU" for index, node in enumerate(network.nodes)})


@pytest.fixture(scope="module")
def resnet() -> onnx.ModelProto:
    return open_resnet()


def test_network_for_images_accepts_smaller_images(core: Core, resnet: onnx.ModelProto) -> None:
    name = "gpu_0/data_0"
    feeds = {name: np.random.default_rng(0).standard_normal((1, 3, 160, 160)).astype(np.float32)}
    fixed_model = onnx.ModelProto()
    fixed_model.CopyFrom(resnet)
    for axis in (2, 3):
        fixed_model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 160
    network = edit(read_network(resnet)).with_shapes({name: (1, 3, 160, 160)})
    check(core, split(network), "HETERO:CPU,TEMPLATE", feeds, run_engine(fixed_model, feeds))


def test_network_for_one_image_takes_a_batch(core: Core, resnet: onnx.ModelProto) -> None:
    name = "gpu_0/data_0"
    images = np.random.default_rng(1).standard_normal((2, 3, 224, 224)).astype(np.float32)
    # The oracle is the original model on a single image at a time.
    expected = np.concatenate([run_engine(resnet, {name: images[index : index + 1]})[0] for index in range(2)])
    outputs = core.load_network(edit(read_network(resnet)).with_batch(2), "CPU").infer({name: images})
    assert_same(outputs["gpu_0/softmax_1"], expected, rtol=RELATIVE)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 7), (1, 64), (2, 512)])
def test_encoder_takes_any_length_and_batch(core: Core, device: str, batch: int, length: int) -> None:
    model = encoder_model()
    network = edit(read_network(model)).with_shapes({"length": length}).with_batch(batch)
    if length > 1:  # with length 1, the size of Range stays open: broadcasting may repeat either side
        assert [str(spec) for spec in network.outputs] == [f"logits: float32[{batch},{length},{VOCABULARY}]"]
    if "HETERO" in device:
        network = network.with_affinity({node.name: ("TEMPLATE", "CPU")[index % 2] for index, node in enumerate(network.nodes)})
    feeds = {"tokens": np.random.default_rng(length).integers(0, VOCABULARY, (batch, length))}
    check(core, network, device, feeds, run_engine(model, feeds))


def test_encoder_accepts_lengths_within_its_bounds_only(core: Core) -> None:
    network = edit(read_network(encoder_model())).with_shapes({"length": range(1, 513), "batch": 1})
    loaded = core.load_network(network, "CPU")
    assert loaded.infer({"tokens": np.zeros((1, 512), np.int64)})["logits"].shape == (1, 512, VOCABULARY)
    with pytest.raises(ValueError, match="'length' is 513, and its bounds are 1 to 512"):
        loaded.infer({"tokens": np.zeros((1, 513), np.int64)})
