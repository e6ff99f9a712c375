"""What tests/bench/gpu.py asks of each part of the GPU device by itself, on a card: is it right, and what does it take.

Each function yields lines as they come; one with WRONG in it decides how the script ends. Differences are over the largest value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np


def check_copies(card: Any) -> Iterator[str]:
    """Yields whether arrays of all sizes come back, while the host changes them, and how fast large ones cross."""
    for nbytes in (1, 1000, (4 << 20) - 1, 4 << 20, (8 << 20) + 5, (20 << 20) + 3):
        x = np.random.default_rng(nbytes).integers(0, 255, nbytes).astype(np.uint8)
        given = x.copy()
        placed = card.from_host(given)
        given.fill(7)
        if not np.array_equal(card.to_host(placed), x):
            yield f"copy of {nbytes} bytes: WRONG: it does not come back"
    large = np.ones(64 << 20, np.uint8)
    began = perf_counter()
    placed = card.from_host(large)
    with card.use(card.create_stream()):
        pass
    between = perf_counter()
    card.to_host(placed)
    ended = perf_counter()
    rates = [64 / 1024 / seconds for seconds in (between - began, ended - between)]
    yield f"copies of six sizes come back; 64 MiB: {rates[0]:.1f} GiB/s to the card, {rates[1]:.1f} back"


def check_overlap(core: Any, network: Any, inputs: dict[str, Any], *, name: str, runs: int) -> Iterator[str]:
    """Yields what two requests take one after the other and at once, host to host, and whether each got its own values."""
    from hetero_core.testing.compare import max_relative_difference

    with core.load_network(network, "CARD") as loaded:
        requests = [loaded.create_infer_request() for _ in range(2)]
        given = [{key: value * factor for key, value in inputs.items()} for factor in (1, -1)]
        expected = [[value.copy() for value in request.infer(one).values()] for request, one in zip(requests, given, strict=True)]
        wrong: list[str] = []

        def serve(index: int) -> None:
            for _ in range(runs):
                found = requests[index].infer(given[index]).values()
                worst = max(max_relative_difference(*pair) for pair in zip(found, expected[index], strict=True))
                if worst > 1e-3:
                    wrong.append(f" WRONG: request {index} differs by {worst:.1e} from itself alone")

        began = perf_counter()
        serve(0)
        serve(1)
        alone = perf_counter() - began
        threads = [threading.Thread(target=serve, args=(index,)) for index in range(2)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        together = perf_counter() - began
    times = f"{alone * 1e3:.1f} ms one after the other, {together * 1e3:.1f} ms at once"
    yield f"{name}, 2 requests of {runs} runs: {times}{''.join(wrong[:1])}"


def check_full_card(core: Any, card: Any) -> Iterator[str]:
    """Yields whether a run that does not fit is our error, and whether the network runs again after it."""
    import onnx.parser

    from hetero_core.errors import DeviceMemoryError

    if not card.facts.memory_bytes:
        yield "full card: left out: this one has no limit"
        return
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x, int64[1] shape) => (float[M] y) <int64[1] axis = {0}>
        { a = Expand (x, shape) b = Exp (a) y = ReduceSum (b, axis) }"""
    with core.load_network(onnx.parser.parse_model(text), "CARD") as loaded:
        x = np.zeros(1, np.float32)
        try:
            loaded.infer({"x": x, "shape": np.array([card.facts.memory_bytes // 2])})
            yield "full card: WRONG: more than its memory fitted"
        except DeviceMemoryError as error:
            found = loaded.infer({"x": x, "shape": np.array([1000])})["y"]
            wrong = "" if abs(float(found.reshape(())) - 1000) < 1 else " WRONG: and then a small run is not right"
            yield f"full card: {str(error)[:160]}; a small run goes on{wrong}"
