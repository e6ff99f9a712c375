"""Trains the digit classifier of the demo and writes `digits.onnx` and `digits.npz`.

Torch only finds the weights; the ONNX graph is the text below, so that its nodes have names worth reading in a plan.
The split, the start weights and the order of the images are seeded, and one thread does all sums in one order: the same versions
on the same kind of processor write the same files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

ASSETS = Path(__file__).parents[3] / "hetero_core" / "cli" / "demo_assets"
SEED = 0
EPOCHS = 60
HELD_BACK = 360

# Two branches with different windows, joined by Concat, then a residual block. Transforms have something to do: Dropout does
# nothing in inference, every BatchNormalization and the Div can be folded into a Conv; the Sub cannot, as conv1 pads with zeros.
GRAPH = """
<ir_version: 10, opset_import: ["": 21], producer_name: "hetero train_digits.py">
digits (float[batch, 1, 8, 8] image) => (float[batch, 10] probabilities) {
    [center]   centered = Sub (image, pixel_mean)
    [scale]    scaled = Div (centered, pixel_deviation)
    [conv1]    c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (scaled, conv1_weight)
    [bn1]      b1 = BatchNormalization <epsilon = 0.00001> (c1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)
    [relu1]    r1 = Relu (b1)
    [conv2a]   c2a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r1, conv2a_weight)
    [bn2a]     b2a = BatchNormalization <epsilon = 0.00001> (c2a, bn2a_weight, bn2a_bias, bn2a_running_mean, bn2a_running_var)
    [relu2a]   r2a = Relu (b2a)
    [conv2b]   c2b = Conv <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (r1, conv2b_weight)
    [bn2b]     b2b = BatchNormalization <epsilon = 0.00001> (c2b, bn2b_weight, bn2b_bias, bn2b_running_mean, bn2b_running_var)
    [relu2b]   r2b = Relu (b2b)
    [join]     j = Concat <axis = 1> (r2a, r2b)
    [pool1]    p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (j)
    [conv3]    c3 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p1, conv3_weight)
    [bn3]      b3 = BatchNormalization <epsilon = 0.00001> (c3, bn3_weight, bn3_bias, bn3_running_mean, bn3_running_var)
    [residual] s3 = Add (b3, p1)
    [relu3]    r3 = Relu (s3)
    [pool2]    p2 = GlobalAveragePool (r3)
    [flatten]  f = Flatten <axis = 1> (p2)
    [dropout]  d = Dropout (f)
    [gemm]     logits = Gemm <transB = 1> (d, gemm_weight, gemm_bias)
    [softmax]  probabilities = Softmax <axis = 1> (logits)
}
"""


class Digits(nn.Module):
    """The network of `GRAPH`, for training; its parameters carry the names that the graph uses, with dots."""

    def __init__(self, images: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("pixel_mean", images.mean())
        self.register_buffer("pixel_deviation", images.std())
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2a, self.bn2a = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2b, self.bn2b = nn.Conv2d(16, 16, 5, padding=2, bias=False), nn.BatchNorm2d(16)
        self.conv3, self.bn3 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.gemm = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the logits, (batch, 10)."""
        x = (image - self.pixel_mean) / self.pixel_deviation
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.cat([torch.relu(self.bn2a(self.conv2a(x))), torch.relu(self.bn2b(self.conv2b(x)))], dim=1)
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.bn3(self.conv3(x)) + x).mean(dim=(2, 3))
        return self.gemm(nn.functional.dropout(x, 0.2, self.training))


def split_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns training images, held-back images, and their labels.

    Images are float32 (count, 1, 8, 8): the data set's pixels, 0..16, divided by 16.
    """
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    return train_test_split(images, digits.target, test_size=HELD_BACK, stratify=digits.target, random_state=SEED)


def train(images: np.ndarray, labels: np.ndarray) -> Digits:
    """Returns the trained network, ready for inference."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    model = Digits(x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(64):
            # One pixel of shift in each direction stands in for more images.
            down, right = torch.randint(3, (2,)).tolist()
            shifted = nn.functional.pad(x[chosen], (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]
            loss = nn.functional.cross_entropy(model(shifted), y[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def build_onnx(model: Digits) -> onnx.ModelProto:
    """Returns `GRAPH` with the trained parameters as initializers, in the order in which its nodes use them."""
    onnx_model = onnx.parser.parse_model(GRAPH)
    parameters = {name.replace(".", "_"): value for name, value in model.state_dict().items()}
    used = dict.fromkeys(name for node in onnx_model.graph.node for name in node.input if name in parameters)
    onnx_model.graph.initializer.extend(onnx.numpy_helper.from_array(parameters[name].numpy(), name) for name in used)
    onnx.checker.check_model(onnx_model, full_check=True)
    return onnx_model


def main() -> None:
    """Trains, measures and writes both files."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ASSETS, help="folder to write to (default: %(default)s)")
    folder = options.parse_args().out
    train_images, held_images, train_labels, held_labels = split_digits()
    model = train(train_images, train_labels)
    with torch.no_grad():
        correct = (model(torch.from_numpy(held_images)).argmax(1).numpy() == held_labels).sum()
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(build_onnx(model), folder / "digits.onnx")
    np.savez_compressed(folder / "digits.npz", image=held_images, label=held_labels)
    print(f"{correct} of {len(held_labels)} held-back images right: accuracy {correct / len(held_labels):.4f}")
    for path in (folder / "digits.onnx", folder / "digits.npz"):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
