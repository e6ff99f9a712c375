"""Models of torch with random weights, exported by torch.onnx, on every device and split, compared with ONNX Runtime and torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed; nox -s models installs it", exc_type=ImportError)
pytest.importorskip("onnxscript", reason="onnxscript is not installed; nox -s models installs it", exc_type=ImportError)

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetero_core import Core

# The exporter and its tools emit warnings about themselves.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Encoder(nn.Module):
    """A small BERT: embeddings of words and positions, two layers, a mask for the padding, a score for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(32, 3)

    def forward(self, ids: Tensor, is_padding: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.classes(torch.tanh(self.layers(x, src_key_padding_mask=is_padding)[:, 0]))


class Decoder(nn.Module):
    """A block of GPT-2: new words attend to the cached words and, causally, to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 32)
        self.before, self.after = nn.LayerNorm(32), nn.LayerNorm(32)
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.feed = nn.Sequential(nn.Linear(32, 128), nn.GELU(approximate="tanh"), nn.Linear(128, 32))

    def forward(self, ids: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.words(ids)
        heads = self.project(self.before(x)).view(*ids.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
        key, value = torch.cat([past_key, heads[1]], 2), torch.cat([past_value, heads[2]], 2)
        past = past_key.shape[2]
        allowed = torch.arange(key.shape[2])[None, :] <= torch.arange(ids.shape[1])[:, None] + past
        mixed = functional.scaled_dot_product_attention(heads[0], key, value, attn_mask=allowed)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        x = x + self.feed(self.after(x))
        return x @ self.words.weight.T, key, value


class VisionTransformer(nn.Module):
    """A small ViT: patches by a convolution, a class token, a single layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 17, 24))
        self.layer = nn.TransformerEncoderLayer(24, 3, 48, activation="gelu", batch_first=True)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.layer(x)[:, 0]


class UNet(nn.Module):
    """A U-Net of two levels: up once by a transposed convolution and once by interpolation, with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.GroupNorm(4, 16), nn.SiLU())
        self.third = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.LeakyReLU(0.1))
        self.up = nn.ConvTranspose2d(16, 16, 3, stride=2, padding=1, output_padding=1)
        self.last = nn.Conv2d(40, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.first(x)
        middle = self.second(high)
        low = self.up(self.third(middle))
        joined = torch.cat([low, middle], 1)
        wide = functional.interpolate(joined, size=high.shape[2:], mode="bilinear", align_corners=False)
        return torch.softmax(self.last(torch.cat([wide, high], 1)), 1)


class Tagger(nn.Module):
    """A bidirectional LSTM of two layers, with a score of each tag for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.log_softmax(self.tags(self.lstm(self.words(ids))[0]), -1)


class Recurrent(nn.Module):
    """A GRU with its state as input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 9, batch_first=False)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, last = self.gru(x, state)
        return y, last


class DetectionHead(nn.Module):
    """Boxes and scores by convolutions, candidates by TopK and gathering, the final selection by NonMaxSuppression."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 3, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        centres = self.boxes(features).flatten(2).transpose(1, 2).sigmoid()
        scores = self.scores(features).flatten(2).sigmoid()
        best, places = scores.amax(1).topk(20)
        rows = torch.arange(features.shape[0])[:, None]
        boxes = centres[rows, places]
        picked = scores.transpose(1, 2)[rows, places].transpose(1, 2)
        limits = (torch.tensor([5]), torch.tensor([0.3]), torch.tensor([0.2]))
        selected = torch.onnx.ops.symbolic(
            "NonMaxSuppression", (boxes, picked, *limits), {"center_point_box": 1}, dtype=torch.int64, shape=(7, 3), version=11
        )
        return selected, best


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def draw_ids(limit: int, *shape: int) -> Tensor:
    return torch.randint(0, limit, shape, generator=torch.Generator().manual_seed(limit))


PADDING = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "encoder": (Encoder, (draw_ids(50, 2, 9), PADDING)),
    "decoder": (Decoder, (draw_ids(40, 2, 3), draw(2, 4, 5, 8), draw(2, 4, 5, 8))),
    "vision_transformer": (VisionTransformer, (draw(2, 3, 16, 16),)),
    "u_net": (UNet, (draw(1, 1, 16, 16),)),
    "tagger": (Tagger, (draw_ids(30, 2, 7),)),
    "recurrent": (Recurrent, (draw(5, 2, 6), draw(1, 2, 9))),
}


def export(model: nn.Module, inputs: tuple[Tensor, ...], **options: Any) -> onnx.ModelProto:
    stream = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, stream, dynamo=True, verbose=False, external_data=False, **options)
    return onnx.load_from_string(stream.getvalue())


def name_inputs(proto: onnx.ModelProto, inputs: tuple[Tensor, ...]) -> dict[str, np.ndarray[Any, Any]]:
    return {spec.name: value.numpy() for spec, value in zip(proto.graph.input, inputs, strict=True)}


def make(factory: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return factory().eval()


# From opset 23 on, attention is a single operator.
@pytest.mark.parametrize(
    ("name", "opset"), [*((name, 18) for name in MODELS), ("encoder", 23), ("decoder", 23), ("vision_transformer", 23)]
)
def test_model(check_everywhere: Any, name: str, opset: int) -> None:
    factory, inputs = MODELS[name]
    model = make(factory)
    proto = export(model, inputs, opset_version=opset)
    with torch.no_grad():
        results = model(*inputs)
    results_of_torch = [value.numpy() for value in (results if isinstance(results, tuple) else (results,))]
    # ONNX Runtime 1.31 refuses a mask that is broadcast over the queries, which ONNX allows.
    outputs = check_everywhere(proto, name_inputs(proto, inputs), results_of_torch if (name, opset) == ("encoder", 23) else None)
    for value, result in zip(outputs, results_of_torch, strict=True):
        np.testing.assert_allclose(value, result, rtol=1e-3, atol=1e-4)


def test_decoder_generates_with_its_cache(check_everywhere: Any) -> None:
    """The cache starts empty and grows; the last scores equal those of a run on the whole text."""
    model, ids = make(Decoder), draw_ids(40, 1, 6)
    empty = torch.zeros(1, 4, 0, 8)
    steps, past = torch.export.Dim("steps"), torch.export.Dim("past", min=0)
    shapes = ({1: steps}, {2: past}, {2: past})
    proto = export(model, (draw_ids(40, 1, 3), draw(1, 4, 5, 8), draw(1, 4, 5, 8)), opset_version=18, dynamic_shapes=shapes)
    names = [spec.name for spec in proto.graph.input]
    key = value = empty.numpy()
    for first, last in ((0, 3), (3, 4), (4, 6)):
        feeds = dict(zip(names, (ids[:, first:last].numpy(), key, value), strict=True))
        scores, key, value = check_everywhere(proto, feeds)
    with torch.no_grad():
        whole = model(ids, empty, empty)[0]
    np.testing.assert_allclose(scores[:, -1], whole[:, -1].numpy(), rtol=1e-3, atol=1e-4)


def test_detection_head(check_everywhere: Any) -> None:
    features = (draw(1, 8, 6, 6),)
    proto = export(make(DetectionHead), features, opset_version=18)
    operators = {node.op_type for node in proto.graph.node}
    assert {"NonMaxSuppression", "TopK", "GatherND"} <= operators
    selected, _ = check_everywhere(proto, name_inputs(proto, features))
    assert len(selected) > 3


class Spectra(nn.Module):
    """The front end of a speech model: windows, spectra, mel bands, logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.register_buffer("bands", torch.rand(9, 4))

    def forward(self, sound: Tensor) -> Tensor:
        spectra = torch.stft(sound, 16, 4, 16, self.window, center=True, return_complex=False)
        energies = (spectra**2).sum(-1).transpose(1, 2) @ self.bands
        return torch.log10(torch.clamp(energies, min=1e-6))


def export_script(model: nn.Module, inputs: tuple[Tensor, ...], axes: dict[int, str]) -> onnx.ModelProto:
    """Exports by TorchScript with open axes of the first input; the graph computes the sizes that depend on them."""
    stream = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, stream, dynamo=False, opset_version=17, input_names=["x"], dynamic_axes={"x": axes})
    return onnx.load_from_string(stream.getvalue())


OPEN_MODELS: dict[str, tuple[Callable[[], nn.Module], dict[int, str], list[Tensor]]] = {
    "vision_transformer": (VisionTransformer, {0: "batch"}, [draw(2, 3, 16, 16), draw(1, 3, 16, 16), draw(5, 3, 16, 16)]),
    "u_net": (UNet, {0: "batch", 2: "height", 3: "width"}, [draw(1, 1, 16, 16), draw(2, 1, 24, 16), draw(1, 1, 8, 32)]),
    "tagger": (Tagger, {0: "batch", 1: "length"}, [draw_ids(30, 2, 7), draw_ids(30, 1, 3), draw_ids(30, 4, 9)]),
    "spectra": (Spectra, {0: "batch", 1: "length"}, [draw(2, 40), draw(1, 77)]),
}


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
@pytest.mark.parametrize("name", OPEN_MODELS)
def test_script_with_open_sizes(split_core: Core, name: str, kernels: str) -> None:
    if kernels == "JIT":
        pytest.importorskip("llvmlite")
    factory, axes, inputs = OPEN_MODELS[name]
    model = make(factory)
    proto = export_script(model, (inputs[0],), axes)
    with split_core.load_network(split_core.read_network(proto), "CPU", {"CPU_KERNELS": kernels}) as loaded:
        for x in inputs:
            (output,) = loaded.infer({"x": x.numpy()}).values()
            with torch.no_grad():
                np.testing.assert_allclose(output, model(x).numpy(), rtol=1e-3, atol=1e-4)
