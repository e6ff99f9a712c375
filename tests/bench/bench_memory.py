"""Prints what the parts of a decoder hold that is split by memory over three devices, beside the estimate and the limit of each.

    python tests/bench/bench_memory.py [--layers 6] [--width 512] [--share 0.42] [--kernels NUMPY JIT AUTO] [--tokens 32]

The devices are three CPU devices under names of their own, each with its weights and its working memory. `--share` is the limit of a device
as a part of what the whole network is estimated to take. Held are the bytes that the devices report after the tokens are written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import hetero_cpu
import numpy as np

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import DeviceMemoryError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from hetero_tests.open_models import make_decoder  # the path is set above

NAMES = ("FIRST", "SECOND", "THIRD")
_HEADS, _KEY_HEADS = 8, 2


def read_decoder(core: Core, layers: int, width: int, tokens: int) -> Network:
    """Returns the decoder with states, and with bounds for its open sizes."""
    ties = {f"present_{kind}_{layer}": f"past_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")}
    depth = width // _HEADS
    past = (1, _KEY_HEADS, range(tokens + 4), depth)
    shapes: dict[str, Any] = {"tokens": (1, range(1, 4)), **dict.fromkeys(ties.values(), past)}
    network = core.read_network(make_decoder(layers=layers, width=width, heads=_HEADS, key_heads=_KEY_HEADS)).with_shapes(shapes)
    return network.with_state(ties, initial=dict.fromkeys(ties.values(), np.zeros((1, _KEY_HEADS, 0, depth), np.float32)))


def write_tokens(loaded: ExecutableNetwork, count: int) -> list[int]:
    """Returns three tokens and those that the decoder writes behind them."""
    request, tokens = loaded.create_infer_request(), [3, 1, 4]
    logits = request.infer({"tokens": np.array([tokens])})["logits"]
    for _ in range(count):
        tokens.append(int(logits[0, -1].argmax()))
        logits = request.infer({"tokens": np.array([tokens[-1:]])})["logits"]
    return tokens


def bench(core: Core, network: Network, kernels: str, share: float, tokens: int) -> None:
    """Prints a row for each device, and whether the tokens are those of the whole network."""
    device, whole = (
        f"HETERO:{','.join(NAMES)}",
        core.query_network(network, "HETERO:FIRST", {"HETERO_MEMORY": {"FIRST": "1TB"}}).plan,
    )
    total = sum(part.weights + part.border + part.arena for part in whole.memory) if whole is not None else 0
    config = {
        "HETERO_MEMORY": dict.fromkeys(NAMES, int(total * share)),
        "DEVICE_PROPERTIES": {name: {"CPU_KERNELS": kernels} for name in NAMES},
    }
    loaded = core.load_network(network, device, config)
    written = write_tokens(loaded, tokens)
    held_bytes = loaded.get_metric("HETERO_HELD_BYTES")
    for part in loaded.get_metric("HETERO_PLAN").memory:
        estimate = part.weights + part.border + part.arena
        cells = (
            kernels,
            part.device,
            f"{part.limit:,}",
            f"{estimate:,}",
            f"{held_bytes[part.device]:,}",
            f"{held_bytes[part.device] / estimate:.3f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    alone = core.load_network(network, "FIRST", {"CPU_KERNELS": kernels})
    print(
        f"{kernels}: {'the same' if write_tokens(alone, tokens) == written else 'OTHER'} tokens as the whole network of {total:,} bytes"
    )


def main() -> None:
    """Prints the table for each kind of kernels, and the refusal of limits that are too small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.42)
    parser.add_argument("--kernels", nargs="*", default=["NUMPY", "JIT", "AUTO"])
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    print("| kernels | device | limit | estimate | held | held / estimate |\n|---|---|---|---|---|---|")
    with Core() as core:
        for name in NAMES:
            core.register_plugin(name, hetero_cpu)
        network = read_decoder(core, arguments.layers, arguments.width, arguments.tokens)
        for kernels in arguments.kernels:
            bench(core, network, kernels, arguments.share, arguments.tokens)
        try:
            core.query_network(network, f"HETERO:{','.join(NAMES)}", {"HETERO_MEMORY": dict.fromkeys(NAMES, "1MB")})
        except DeviceMemoryError as error:
            print(f"refused with 1 MB each: {error}")


if __name__ == "__main__":
    main()
