"""What tests/bench/gpu.py asks of each part of the GPU device by itself, on a card: is it right, and what does it take.

Each function yields lines as they come; one with WRONG in it decides how the script ends. Differences are over the largest value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

# A result that is rounded once, of sums of some hundred terms in float32; on the host the same kernels stay below a quarter of it.
BOUNDS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
Timer = Callable[[Callable[[], Any]], float]


def numpy_type(dtype: str) -> Any:
    from hetero_core.dtypes import numpy_dtype

    return numpy_dtype(dtype)


def draw(dtype: str, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(numpy_type(dtype))


def judge(found: Any, expected: Any, bound: float) -> str:
    """Returns the difference as text, with WRONG where it is too large."""
    difference = float(np.abs(found.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30))
    return f"{difference:.1e}" + ("" if difference <= bound else f" WRONG: at most {bound:.0e} is explained")


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


def check_attention(card: Any, median: Callable[..., float], measure: Timer, *, is_dry: bool) -> Iterator[str]:
    """Yields the attention kernel against float64, and its time beside that of two products and a softmax."""
    from hetero_cupy.attention_operator import AttentionOperator
    from hetero_cupy.operators import CardOperators

    shapes = ((1, 2, 70, 64),) if is_dry else ((1, 12, 128, 64), (8, 12, 512, 64), (1, 4, 2048, 128), (1, 2, 100, 256))
    for shape in shapes:
        for dtype, bound in BOUNDS.items():
            q, k, v = (draw(dtype, *shape, seed=seed) for seed in range(3))
            mask = np.where(np.random.default_rng(3).random((shape[2], shape[2])) < 0.2, -np.inf, 0).astype(np.float32)
            operator, parts = AttentionOperator(card), CardOperators(card, uses_tf32=False)
            with card.use(card.create_stream()):
                placed = [card.from_host(x) for x in (q, k, v, mask)]
                found = card.to_host(operator.function(*placed))
                causal = card.to_host(operator.function(*placed[:3], is_causal=1))
                differences = [
                    judge(found, attend(q, k, v, mask), bound),
                    judge(causal, attend(q, k, v, np.where(np.tri(shape[2]), 0, -np.inf)), bound),
                ]
                one = median(measure, lambda o=operator, p=placed: o.function(*p[:3]), seconds=0.2)

                def run_products(p: Any = placed, c: Any = parts, scale: float = shape[3] ** -0.5) -> Any:
                    return c.multiply(c.compute_softmax(c.multiply(p[0], p[1].swapaxes(2, 3)), scale=scale), p[2])

                two = median(measure, run_products, seconds=0.2)
            yield (
                f"attention {'x'.join(map(str, shape))} {dtype}: {differences[0]} from float64 with a mask, {differences[1]} causal; "
                f"{one * 1e3:.3f} ms in one kernel, {two * 1e3:.3f} ms as products"
            )


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Returns softmax(q k^T / sqrt(size) + mask) v in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5 + mask
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shares @ v / shares.sum(axis=-1, keepdims=True)


def check_epilogues(card: Any, median: Callable[..., float], measure: Timer, *, is_dry: bool) -> Iterator[str]:
    """Yields products with an epilogue by the library against a product and formulas, and the times of both."""
    from hetero_cupy.epilogues import LinearOperator

    products = card.find_products()
    if products is None:
        yield "epilogues: left out: libcublasLt is not found"
        return
    for rows, depth, columns in ((8, 16, 6),) if is_dry else ((1, 768, 768), (128, 768, 3072), (4096, 768, 3072)):
        for dtype, bound in BOUNDS.items():
            a, b, bias = draw(dtype, rows, depth, seed=0), draw(dtype, depth, columns, seed=1), draw(dtype, columns, seed=2)
            wide = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
            gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
            cells = []
            with card.use(card.create_stream()):
                placed = [card.from_host(x) for x in (a, b, bias)]
                for activation, expected in (("", wide), ("Relu", np.maximum(wide, 0)), ("Gelu", gelu)):
                    found = products.multiply(*placed, activation=activation, uses_tf32=False)
                    name = activation or "bias"
                    cells.append(f"{name} no plan" if found is None else f"{name} {judge(card.to_host(found), expected, bound)}")
                operators = [LinearOperator(card, library, uses_tf32=False) for library in (products, None)]
                times = [median(measure, lambda o=one: o.function(*placed, activation="Relu"), seconds=0.2) for one in operators]  # noqa: B023  # called at once
            yield (
                f"epilogues {rows}x{depth}x{columns} {dtype}: {', '.join(cells)} from float64; with ReLU {times[0] * 1e3:.3f} ms in one "
                f"call, {times[1] * 1e3:.3f} ms without"
            )


def check_arena(core: Any, card: Any, network: Any, inputs: dict[str, Any], *, name: str) -> Iterator[str]:
    """Yields whether runs in an arena, and recorded ones, are right, take no memory and keep to their places."""
    from hetero_core import RunContext

    expected = list(core.load_network(network, "CARD").infer(inputs).values())
    for title, config in (("arena", {"GPU_ARENA": True}), ("recorded in an arena", {"GPU_GRAPHS": True, "GPU_FUSION": True})):
        with core.load_network(network, "CARD", config) as loaded:
            executable = loaded.executable
            placed = tuple(
                inputs[spec.name] if spec.memory == "host" else card.from_host(inputs[spec.name]) for spec in executable.inputs
            )
            context = RunContext(executable.create_state())
            for _ in range(2):
                executable.run(placed, context)
            before = count_taken(card)
            for _ in range(5):
                outputs = executable.run(placed, context)
            taken = count_taken(card) - before
            differences = [
                judge(card.to_host(output), wanted.astype(np.float64), 1e-3)
                for output, wanted in zip(outputs, expected, strict=True)
            ]
            arena, misses = loaded.get_metric("GPU_ARENA_BYTES"), loaded.get_metric("GPU_ARENA_MISSES")
            recorded = "" if context.state.recordings is None else f", {context.state.recordings.count} recorded"
            wrong = (
                ""
                if not taken and not misses and (arena or not executable.inputs)
                else " WRONG: a run took memory or left its places"
            )
            if recorded == ", 0 recorded":
                wrong += " WRONG: nothing was recorded"
            yield (
                f"{name}, {title}: {arena} bytes, {loaded.get_metric('GPU_ARENA_IN_PLACE')} in place, {misses} misses, {taken} taken in "
                f"5 runs{recorded}, {max(differences)} from plain{wrong}"
            )


def count_taken(card: Any) -> int:
    """Returns the bytes that CuPy's pool has in use and in reserve; on a card of make-believe the arrays that got memory."""
    if not card.memory.startswith("cuda"):
        return int(card.allocations)
    pool = card.xp.get_default_memory_pool()
    return int(pool.used_bytes()) + int(pool.total_bytes())


def check_overlap(
    core: Any, network: Any, inputs: dict[str, Any], config: dict[str, Any], *, name: str, runs: int
) -> Iterator[str]:
    """Yields what two requests take one after the other and at once, host to host, and whether each got its own values."""
    from hetero_core.testing.compare import max_relative_difference

    with core.load_network(network, "CARD", config) as loaded:
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
