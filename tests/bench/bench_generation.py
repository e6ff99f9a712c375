"""Time of a token of a small decoder as its past grows: with states kept by the request, and with the past passed by hand.

    python tests/bench/bench_generation.py [--tokens 400] [--device CPU]

Times are of the processor, in microseconds for each token, over stretches of 50 tokens; copied are the bytes of states in a token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import numpy as np

from hetero_core import Core
from hetero_core.network.reader import read_network
from hetero_core.testing.transformers import HEADS, WIDTH, decoder_model, ties_of_decoder
from hetero_core.transforms.editing import edit

STRETCH = 50


def measure(step: Callable[[int], int], tokens: int) -> list[float]:
    """Returns microseconds for each token, stretch by stretch; the token of each step is the input of the next."""
    times, token = [], 1
    for _ in range(tokens // STRETCH):
        began = process_time()
        for _ in range(STRETCH):
            token = step(token)
        times.append((process_time() - began) / STRETCH * 1e6)
    return times


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--device", default="CPU")
    options = parser.parse_args()
    network, ties = edit(read_network(decoder_model())), ties_of_decoder()
    past = {name: np.zeros((1, HEADS, 0, WIDTH // HEADS), np.float32) for name in ties.values()}
    with Core() as core:
        request = core.load_network(network.with_state(ties, initial=past), options.device).create_infer_request()
        bare = core.load_network(network, options.device)
        copied: list[int] = []

        def step_with_states(token: int) -> int:
            logits = request.infer({"tokens": np.array([[token]])})["logits"]
            copied.append(request.states.copied_bytes)
            return int(logits[0, -1].argmax())

        def step_by_hand(token: int) -> int:
            outputs = bare.infer({"tokens": np.array([[token]]), **past})
            past.update({name: outputs[output] for output, name in ties.items()})
            return int(outputs["logits"][0, -1].argmax())

        with_states, by_hand = measure(step_with_states, options.tokens), measure(step_by_hand, options.tokens)
    print(f"{'past':>9}  {'states':>8}  {'by hand':>8}  copied")
    for index, (one, other) in enumerate(zip(with_states, by_hand, strict=True)):
        first = index * STRETCH
        print(f"{first:>4}-{first + STRETCH:<4}  {one:>8.0f}  {other:>8.0f}  {max(copied[first : first + STRETCH])}")


if __name__ == "__main__":
    main()
