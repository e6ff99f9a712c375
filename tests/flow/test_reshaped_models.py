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


def test_network_for_images_accepts_smaller_images(core: Core) -> None:
    model = light_model("squeezenet")
    name, shape = model.graph.input[0].name, (1, 3, 160, 160)
    feeds = {name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    network = edit(read_network(model)).with_shapes({name: shape})
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 160
    check(core, split(network), "HETERO:CPU,TEMPLATE", feeds, run_engine(model, feeds))


def test_network_for_one_image_takes_a_batch(core: Core) -> None:
    model = light_model("shufflenet")
    name, output = model.graph.input[0].name, model.graph.output[0].name
    images = np.random.default_rng(1).standard_normal((2, 3, 224, 224)).astype(np.float32)
    # The oracle is the original model on a single image at a time.
    expected = np.concatenate([run_engine(model, {name: images[index : index + 1]})[0] for index in range(2)])
    outputs = core.load_network(edit(read_network(model)).with_batch(2), "CPU").infer({name: images})
    assert_same(outputs[output], expected, rtol=RELATIVE)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 7), (2, 512)])
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
