"""TORCH beside eager PyTorch: the same networks with random weights, as PyTorch's exporter writes them, on the same threads; and the kit.

The two sides run in turns in one process; each figure is the median of the quotients of neighbouring runs, in wall time and in time of the
processor. `--device TORCH.CUDA.0` for an accelerator, and `--kit` to run the conformance kit there first. Nothing is asserted.

    python tests/bench/torch_device.py --device TORCH --threads 2 --rounds 40
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hetero_core import Core
from hetero_core.cli.main import main as run_command

OPSET = 17


class Bottleneck(nn.Module):
    """A block of ResNet-50: three convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        is_same = stride == 1 and channels == 4 * width
        turn = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Identity() if is_same else turn

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.shortcut(x))


def build_resnet50() -> tuple[nn.Module, tuple[Tensor, ...], list[str]]:
    """Returns the network, inputs, and their names."""
    blocks, channels = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            blocks.append(Bottleneck(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    head = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    network = nn.Sequential(*head, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return network, (torch.randn(1, 3, 224, 224),), ["image"]


class Layer(nn.Module):
    """A layer of a decoder with caches of keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, steps, width = x.shape
        parts = self.project(self.norm(x)).split(width, 2)
        q, k, v = (part.view(batch, steps, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        key, value = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        mixed = functional.scaled_dot_product_attention(q, key, value)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, steps, width))
        return x + self.shrink(functional.gelu(self.grow(self.second_norm(x)))), key, value


class Decoder(nn.Module):
    """One step of a decoder: a token, and keys and values of the past."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x, caches = self.embedding(tokens), []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, past[2 * index], past[2 * index + 1])
            caches += [key, value]
        return self.head(self.norm(x)), *caches


def build_decoder(layers: int, width: int, words: int) -> tuple[nn.Module, tuple[Tensor, ...], list[str]]:
    """Returns the network, inputs, and their names."""
    heads, past = width // 64, 128
    caches = tuple(torch.randn(1, heads, past, width // heads) for _ in range(2 * layers))
    names = ["tokens", *(f"past_{index}" for index in range(2 * layers))]
    return Decoder(layers, width, heads, words), (torch.tensor([[7]]), *caches), names


def export(network: nn.Module, inputs: tuple[Tensor, ...], names: list[str], path: Path, *, is_open: bool) -> None:
    """Writes the network as PyTorch's exporter does; `is_open` leaves the length of the past, or the batch, open."""
    axes = {name: {2 if name.startswith("past") else 0: "length" if name.startswith("past") else "batch"} for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, inputs, str(path), input_names=names, dynamo=False, opset_version=OPSET, dynamic_axes=axes if is_open else None
        )


def time_turns(sides: tuple[Callable[[], Any], Callable[[], Any]], rounds: int) -> tuple[list[float], list[float]]:
    """Returns the median seconds of each side and the median quotients, of the wall clock and of the processor."""
    for side in sides:
        side(), side()
    times: list[list[tuple[float, float]]] = [[], []]
    # Both sides hold their last results, as a decoder holds its caches.
    held: list[Any] = [None, None]
    for turn in range(rounds):
        for index in (0, 1) if turn % 2 else (1, 0):
            wall, processor = perf_counter(), process_time()
            held[index] = sides[index]()
            times[index].append((perf_counter() - wall, process_time() - processor))
    medians = [statistics.median(wall for wall, _ in side) for side in times]
    quotients = [
        statistics.median(ours[clock] / max(theirs[clock], 1e-9) for ours, theirs in zip(*times, strict=True)) for clock in (0, 1)
    ]
    return medians, quotients


def compare(name: str, build: Any, arguments: argparse.Namespace, *, is_open: bool) -> str:
    """Returns a row of the table: TORCH beside eager PyTorch."""
    torch.manual_seed(0)
    network, inputs, names = build()
    network.eval()
    with tempfile.TemporaryDirectory() as folder, Core() as core, torch.inference_mode():
        path = Path(folder) / "model.onnx"
        export(network, inputs, names, path, is_open=is_open)
        loaded = core.load_network(path, arguments.device)
        arrays = {key: value.numpy() for key, value in zip(names, inputs, strict=True)}
        place = loaded.executable._place
        network, placed = network.to(place), tuple(value.to(place) for value in inputs)

        def run_eager() -> Any:
            results = network(*placed)
            return [result.cpu() for result in (results if isinstance(results, tuple) else (results,))]

        request = loaded.create_infer_request()
        results = zip(loaded.infer(arrays).values(), run_eager(), strict=True)
        difference = max(float(np.abs(ours - theirs.numpy()).max()) for ours, theirs in results)
        medians, quotients = time_turns((lambda: request.infer(arrays), run_eager), arguments.rounds)
    title = f"{name}{', open sizes' if is_open else ''}"
    return f"| {title} | {medians[0] * 1e3:.2f} | {medians[1] * 1e3:.2f} | {quotients[0]:.2f} | {quotients[1]:.2f} | {difference:.1e} |"


NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...], list[str]]]] = {
    "resnet50": build_resnet50,
    "decoder of 6 layers, 512 wide": partial(build_decoder, 6, 512, 8192),
    "decoder of 4 layers, 128 wide": partial(build_decoder, 4, 128, 1024),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="TORCH")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="networks whose name has this in it")
    parser.add_argument("--kit", action="store_true", help="run the conformance kit first")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.kit:
        run_command(["conformance", arguments.device])
    print("| network | TORCH ms | eager ms | quotient | of the processor's time | difference |\n|---|---|---|---|---|---|")
    for name, build in NETWORKS.items():
        for is_open in (False, True) if arguments.only in name else ():
            print(compare(name, build, arguments, is_open=is_open), flush=True)


if __name__ == "__main__":
    main()
