"""Prints the table of placement by measurement: what `hetero tune` chooses for models of different kinds, and what it gains.

    python tests/bench/tune.py [MODEL ...] [--devices OPENVINO,ORT,CPU] [--budget 60] [--verify 9] [--json FILE]

After the search the chosen placement and the single devices that are close to the fastest are timed again with `hetero bench`, in turns
and in processes of their own, so that the gain does not stand on the times by which the placement was chosen. The gain is the median over
the turns of the best single device's time divided by the placement's; half of the turns lie in the range behind it. Run it on a quiet
machine. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from hetero_tests.network_writer import NetworkWriter  # the path is set above

_CLOSE = 1.15
"""Times the fastest single device of the search, up to which another one is timed again."""
_SECONDS = 0.5
_CLEARED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")


def add_quantized(writer: NetworkWriter, x: str, scale: float) -> str:
    """Adds a value's way to int8 and back."""
    step, zero = writer.add_scalar(scale), writer.add_constant(np.array(0, np.int8))
    quantized = writer.add_node("QuantizeLinear", x, step, zero)
    return str(writer.add_node("DequantizeLinear", quantized, step, zero))


def add_quantized_convolution(writer: NetworkWriter, x: str, channels: int, index: int) -> str:
    """Adds a 3x3 convolution of int8 on as many channels as it makes, behind which values stay near 1."""
    generator = np.random.default_rng(index)
    weight = writer.add_constant(generator.integers(-127, 128, (channels, channels, 3, 3)).astype(np.int8))
    step = writer.add_scalar(float(1.4 / (73 * np.sqrt(9 * channels))))
    constant = writer.add_node("DequantizeLinear", weight, step, writer.add_constant(np.array(0, np.int8)))
    y = writer.add_node("Conv", add_quantized(writer, x, 0.03), constant, pads=[1] * 4)
    return add_quantized(writer, str(writer.add_node("Relu", y)), 0.03)


def add_convolution(writer: NetworkWriter, x: str, channels: int) -> str:
    """Adds a 3x3 convolution of float32 with Relu."""
    deviation = float(np.sqrt(2 / (9 * channels)))
    y = writer.add_node("Conv", x, writer.draw_weight(channels, channels, 3, 3, deviation=deviation), pads=[1] * 4)
    return str(writer.add_node("Relu", y))


def int8_model(quantized: int = 12, floats: int = 0, *, channels: int = 64, size: int = 40) -> onnx.ModelProto:
    """Returns convolutions of int8, and behind them convolutions of float32."""
    writer = NetworkWriter("int8_float" if floats else "int8")
    shape = (1, channels, size, size)
    x = writer.add_input("x", shape)
    for index in range(quantized):
        x = add_quantized_convolution(writer, x, channels, index)
    for _ in range(floats):
        x = add_convolution(writer, x, channels)
    writer.add_output(x, shape)
    return writer.build_model()


def add_forest(writer: NetworkWriter, x: str, features: int, trees: int = 150, depth: int = 6) -> str:
    """Adds complete trees that compare one feature in each node."""
    generator = np.random.default_rng(trees)
    inner, leaves = 2**depth - 1, 2**depth
    count = inner + leaves
    ids = np.tile(np.arange(count), trees)
    is_leaf = ids >= inner
    forest = np.repeat(np.arange(trees), count)
    children = {"nodes_truenodeids": 1, "nodes_falsenodeids": 2}
    return str(
        writer.add_node(
            "TreeEnsembleRegressor",
            x,
            domain="ai.onnx.ml",
            n_targets=1,
            nodes_treeids=forest.tolist(),
            nodes_nodeids=ids.tolist(),
            nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
            nodes_featureids=np.where(is_leaf, 0, generator.integers(0, features, ids.size)).tolist(),
            nodes_values=np.where(is_leaf, 0, generator.standard_normal(ids.size)).astype(np.float32).tolist(),
            target_treeids=forest[is_leaf].tolist(),
            target_nodeids=ids[is_leaf].tolist(),
            target_ids=[0] * int(is_leaf.sum()),
            target_weights=generator.standard_normal(int(is_leaf.sum())).astype(np.float32).tolist(),
            **{name: np.where(is_leaf, 0, 2 * ids + step).tolist() for name, step in children.items()},
        )
    )


def forest_model(rows: int = 256, *, convolutions: int = 0) -> onnx.ModelProto:
    """Returns trees behind a net: linear layers on many rows, or convolutions whose pooled channels are the features."""
    writer = NetworkWriter("trees_behind_images" if convolutions else "trees_behind_rows")
    if convolutions:
        x, features, rows = writer.add_input("x", (4, 64, 28, 28)), 64, 4
        for _ in range(convolutions):
            x = add_convolution(writer, x, 64)
        x = str(writer.add_node("Flatten", writer.add_node("GlobalAveragePool", x)))
    else:
        features = 256
        x = writer.add_input("x", (rows, features))
        for _ in range(4):
            x = str(writer.add_node("Relu", writer.add_linear(x, features, features)))
    writer.add_output(add_forest(writer, x, features), (rows, 1))
    model = writer.build_model()
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    return model


def add_recurrence(writer: NetworkWriter, x: str, inputs: int, hidden: int) -> str:
    """Adds an LSTM on (steps, 1, inputs); returns (steps, 1, hidden)."""
    w = writer.draw_weight(1, 4 * hidden, inputs, deviation=inputs**-0.5)
    r = writer.draw_weight(1, 4 * hidden, hidden, deviation=hidden**-0.5)
    y, *_ = writer.add_node("LSTM", x, w, r, count=3, hidden_size=hidden)
    return str(writer.add_node("Squeeze", y, writer.add_numbers(1)))


def add_tower(writer: NetworkWriter, x: str, blocks: int, channels: int = 64) -> str:
    """Adds convolutions behind a first one that makes the channels of an image."""
    weight = writer.draw_weight(channels, 3, 3, 3, deviation=(2 / 27) ** 0.5)
    x = str(writer.add_node("Relu", writer.add_node("Conv", x, weight, pads=[1] * 4, strides=[2, 2])))
    for _ in range(blocks):
        x = add_convolution(writer, x, channels)
    return x


def speech_model(steps: int = 100, hidden: int = 128) -> onnx.ModelProto:
    """Returns convolutions over a spectrogram, and LSTMs over its frames, as recognizers of speech have them."""
    writer = NetworkWriter("speech")
    x = add_tower(writer, writer.add_input("x", (1, 3, 2 * steps, 80)), 6)
    frames = writer.add_reshape(writer.add_node("Transpose", x, perm=[2, 0, 1, 3]), (steps, 1, 64 * 40))
    x = writer.add_linear(frames, 64 * 40, hidden)
    for _ in range(2):
        x = add_recurrence(writer, x, hidden, hidden)
    writer.add_output(writer.add_linear(x, hidden, 32), (steps, 1, 32))
    return writer.build_model()


def two_towers_model(steps: int = 100, hidden: int = 128) -> onnx.ModelProto:
    """Returns an image's convolutions and a text's LSTMs, which know nothing of each other until their features are joined."""
    writer = NetworkWriter("two_towers")
    image = add_tower(writer, writer.add_input("image", (1, 3, 112, 112)), 5)
    features = writer.add_node("Flatten", writer.add_node("GlobalAveragePool", image))
    x = writer.add_input("text", (steps, 1, hidden))
    for _ in range(2):
        x = add_recurrence(writer, x, hidden, hidden)
    last = writer.add_node("ReduceMean", x, axes=[0], keepdims=0)
    joined = writer.add_node("Concat", features, last, axis=1)
    writer.add_output(writer.add_linear(joined, 64 + hidden, 10), (1, 10))
    return writer.build_model()


def detector_model(size: int = 128, anchors: int = 3, most: int = 100) -> onnx.ModelProto:
    """Returns convolutions that tell boxes and scores, and the suppression of boxes that overlap, as detectors end."""
    writer = NetworkWriter("detector")
    cells = (size // 2) ** 2
    x = add_tower(writer, writer.add_input("x", (1, 3, size, size)), 5)
    parts = []
    for width, op_type in ((4, "Sigmoid"), (1, "Sigmoid")):
        y = writer.add_node("Conv", x, writer.draw_weight(anchors * width, 64, 1, 1, deviation=0.05))
        rows = writer.add_reshape(writer.add_node("Transpose", y, perm=[0, 2, 3, 1]), (1, cells * anchors, width))
        parts.append(writer.add_node(op_type, rows))
    scores = writer.add_node("Transpose", parts[1], perm=[0, 2, 1])
    limits = [
        writer.add_constant(np.array([value], kind)) for value, kind in ((most, np.int64), (0.5, np.float32), (0.5, np.float32))
    ]
    chosen = writer.add_node("NonMaxSuppression", parts[0], scores, *limits)
    rows = writer.add_node("Gather", chosen, writer.add_index(2), axis=1)
    writer.add_output(writer.add_node("Gather", parts[0], rows, axis=1), (1, "found", 4))
    return writer.build_model()


def text_model(rows: int = 64, words: int = 20, vocabulary: int = 2000) -> onnx.ModelProto:
    """Returns texts as words: small letters, weighted counts of known words, and a net on them, as classifiers of texts have it."""
    writer = NetworkWriter("text")
    x = writer.add_input("words", (rows, words), onnx.TensorProto.STRING)
    flat = writer.add_node("Reshape", x, writer.add_numbers(rows * words))
    small = writer.add_node("StringNormalizer", flat, case_change_action="LOWER", is_case_sensitive=1)
    counts = writer.add_node(
        "TfIdfVectorizer",
        writer.add_node("Reshape", small, writer.add_numbers(rows, words)),
        mode="TFIDF",
        min_gram_length=1,
        max_gram_length=1,
        max_skip_count=0,
        ngram_counts=[0],
        ngram_indexes=list(range(vocabulary)),
        pool_strings=[f"word{index}" for index in range(vocabulary)],
        weights=np.random.default_rng(vocabulary).random(vocabulary).astype(np.float32).tolist(),
    )
    for inputs, outputs in ((vocabulary, 512), (512, 512)):
        counts = writer.add_node("Relu", writer.add_linear(counts, inputs, outputs))
    writer.add_output(writer.add_linear(counts, 512, 20), (rows, 20))
    return writer.build_model()


def named(name: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a model of the speed benchmarks."""
    from speed.models import make_model

    return lambda: make_model(name, 1)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{
        name: named(name)
        for name in ("squeezenet", "resnet50", "mobilenet_v2", "inception_v1", "u_net", "vit_tiny", "bert", "gpt2_step")
    },
    "int8": int8_model,
    "int8_float": lambda: int8_model(8, 8),
    "trees_behind_rows": forest_model,
    "trees_behind_images": lambda: forest_model(convolutions=6),
    "speech": speech_model,
    "two_towers": two_towers_model,
    "detector": detector_model,
    "text": text_model,
}


def ask(*arguments: str) -> dict[str, Any]:
    """Returns what a command of hetero prints as JSON."""
    environment = {name: value for name, value in os.environ.items() if name not in _CLEARED}
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_core", *arguments, "--json"], capture_output=True, text=True, check=False, env=environment
    )
    answer: dict[str, Any] = json.loads(ended.stdout)
    if "error" in answer:
        raise SystemExit(f"hetero {' '.join(arguments)}: {answer['error']['message']}")
    return answer


def tune(name: str, devices: str, budget: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Returns the placement of a model, and the times of the chosen one and of the best single devices in turns of their own."""
    model, pins = str(folder / f"{name}.onnx"), str(folder / "pins.toml")
    onnx.save(MODELS[name](), model)
    split = f"HETERO:{devices}"
    placement = ask("tune", model, "-d", split, "--again", "--budget", str(budget), "--write", pins)["placement"]
    searched = {
        candidate["title"]: candidate["seconds"]
        for candidate in placement["candidates"]
        if candidate["seconds"] is not None and candidate["title"] in devices.split(",")
    }
    least = min(searched.values(), default=0.0)
    close = [device for device, seconds in searched.items() if seconds <= _CLOSE * least]
    asked = [piece for device in (split, *close) for piece in ("-d", device)]
    rows = ask("bench", model, *asked, "--affinity", pins, "--rounds", str(rounds), "--seconds", str(_SECONDS))["devices"]
    turns = {row["device"]: [turn["median_seconds"] for turn in row["rounds"]] for row in rows if row["error"] is None}
    return {"model": name, "placement": placement, "searched": searched, "turns": turns}


def find_gains(turns: dict[str, list[float]], split: str) -> list[float]:
    """Returns the best single device's time divided by the placement's of each turn, in rising order."""
    singles = {device: times for device, times in turns.items() if device != split}
    if not singles:
        return []
    best = min(singles, key=lambda device: median(singles[device]))
    return sorted(single / placed for single, placed in zip(singles[best], turns[split], strict=True))


def describe(row: dict[str, Any], devices: str) -> str:
    """Returns a row of the table in Markdown; times that were not measured again are those of the search."""
    placement, turns, split = row["placement"], row["turns"], f"HETERO:{devices}"
    chosen = placement["candidates"][placement["chosen"]]
    seconds = {**row["searched"], **{device: median(times) for device, times in turns.items()}}
    gains = find_gains(turns, split)
    gain = f"{median(gains):.2f} ({gains[len(gains) // 4]:.2f} to {gains[-1 - len(gains) // 4]:.2f})" if gains else "-"
    cells = [f"{seconds[device] * 1e3:.2f}" if device in seconds else "refuses" for device in devices.split(",")]
    distinct = len({segment["twin"] for segment in placement["segments"]})
    return "| " + " | ".join(
        (
            row["model"],
            *cells,
            f"{seconds[split] * 1e3:.2f}",
            gain,
            f"{chosen['title']}, {chosen['parts']} part{'s' if chosen['parts'] != 1 else ''}",
            f"{len(placement['segments'])} ({distinct})",
            f"{placement['seconds']:.0f} s{'' if placement['is_complete'] else ', cut short'}",
        )
    ) + " |"  # fmt: skip


def main() -> None:
    """Prints a row for each model as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"all by default: {', '.join(MODELS)}")
    parser.add_argument("--devices", default="OPENVINO,ORT,CPU")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--verify", type=int, default=9, metavar="ROUNDS")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.models if name not in MODELS]:
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(MODELS)}")
    header = ("model", *arguments.devices.split(","), "placed, ms", "gain", "chosen", "segments (distinct)", "search")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    rows = []
    for name in arguments.models or MODELS:
        with tempfile.TemporaryDirectory(prefix="hetero-tune-") as folder:
            rows.append(tune(name, arguments.devices, arguments.budget, arguments.verify, Path(folder)))
        print(describe(rows[-1], arguments.devices), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
