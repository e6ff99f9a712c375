"""One plan for a class of sizes: correct for random sizes by ONNX Runtime without optimizations, and made only a few times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_tests.open_models import make_decoder, make_encoder

from hetero_core import Core
from hetero_core.testing.reference_session import open_reference_session

pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")

Feeds = Mapping[str, Any]
Draw = Callable[[np.random.Generator, int], Feeds]


def _compute(model: onnx.ModelProto) -> Callable[[Feeds], list[Any]]:
    session = open_reference_session(model.SerializeToString())
    return lambda feeds: list(session.run(None, dict(feeds)))


def _draw_decoder(rng: np.random.Generator, place: int) -> Feeds:
    """The past grows from 2 by a single step per run at first; later sizes are random."""
    grows = place < 12
    batch, steps = (1, 1) if grows else (int(rng.integers(1, 4)), int(rng.integers(1, 6)))
    past = place if grows else int(rng.integers(0, 300))
    caches = {
        f"past_{part}_{layer}": rng.standard_normal((batch, 2, past, 16)).astype(np.float32)
        for layer in range(2)
        for part in ("key", "value")
    }
    return {"tokens": rng.integers(0, 1000, (batch, steps)), **caches}


def _draw_encoder(rng: np.random.Generator, place: int) -> Feeds:
    batch, length = int(rng.integers(1, 9)), int(rng.integers(1, 150))
    mask = (rng.random((batch, length)) < 0.8).astype(np.int64)
    mask[:, 0] = 1
    return {"tokens": rng.integers(0, 1000, (batch, length)), "mask": mask}


def _check(model: onnx.ModelProto, draw: Draw, *, threads: int, count: int, kernels: str = "JIT") -> int:
    """Compares all answers; returns the number of plans."""
    rng, compute = np.random.default_rng(7), _compute(model)
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": str(threads)})
        for place in range(count):
            feeds = draw(rng, place)
            answers = network.infer(feeds)
            for output, expected in zip(model.graph.output, compute(feeds), strict=True):
                scale = max(float(np.abs(expected).max(initial=0)), 1e-3)
                answer = np.asarray(answers[output.name])
                assert answer.shape == expected.shape
                assert answer.dtype == expected.dtype
                np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-4 * scale, err_msg=f"{output.name} of run {place}")
        plans: tuple[int, int] = network.get_metric("CPU_PLANS")
        return plans[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_decoder_is_right_for_drawn_sizes_with_few_plans(threads: int) -> None:
    model = make_decoder(layers=2, width=64, heads=4, key_heads=2)
    assert _check(model, _draw_decoder, threads=threads, count=22) <= 12


@pytest.mark.parametrize("threads", [1, 2])
def test_an_encoder_is_right_for_drawn_sizes_with_few_plans(threads: int) -> None:
    assert _check(make_encoder(layers=1, width=64), _draw_encoder, threads=threads, count=22) <= 12


_GRAPHS = {
    "elements": "y = Relu (x) z = Add (y, row) out = Mul (z, x)",
    "turned": "t = Transpose <perm = [0, 2, 1]> (x) s = Softmax <axis = 1> (t) out = Transpose <perm = [0, 2, 1]> (s)",
    "joined": "y = Sqrt (x) c = Concat <axis = 1> (x, y, x) r = ReduceMean <axes = [2], keepdims = 1> (c) out = Sub (c, r)",
    "flat": "f = Reshape (x, flat) e = Exp (f) n = Neg (e) g = Reshape (n, back) out = Add (g, x)",
    "batched": "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) p = Softmax (s) out = MatMul (p, x)",
    "sliced": "a = Slice (x, zero, four, two) b = Slice (x, four, eight, two) c = Concat <axis = 2> (b, a) out = Mul (c, x)",
    "sizes": """s = Shape (x) l = Gather <axis = 0> (s, one) m = Sub (l, one_of) h = Slice (x, zero, m, one) q = Concat <axis = 1> (h, x)
        out = Abs (q)""",
    "range": """s = Shape (x) l = Gather <axis = 0> (s, scalar) r = Range (nothing, l, step) f = Cast <to = 1> (r)
        u = Unsqueeze (f, last) out = Add (x, u)""",
    # Division of attention scores as torch exports it: by the root of a fixed or an open size.
    "root of a fixed size": """s = Shape (x) d = Gather <axis = 0> (s, wide) f = Cast <to = 1> (d) r = Sqrt (f)
        t = Transpose <perm = [0, 2, 1]> (x) q = MatMul (x, t) e = Div (q, r) p = Softmax (e) out = MatMul (p, x)""",
    "root of an open size": """s = Shape (x) d = Gather <axis = 0> (s, scalar) f = Cast <to = 1> (d) r = Sqrt (f)
        t = Transpose <perm = [0, 2, 1]> (x) q = MatMul (x, t) e = Div (q, r) p = Softmax (e) out = MatMul (p, x)""",
}


def _parse(body: str) -> onnx.ModelProto:
    names = {"x": "float[batch, length, 8]"}
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    graph ({", ".join(f"{kind} {name}" for name, kind in names.items())}) => (float[b, l, w] out)
    <float[8] row = {{1, 2, 3, 4, 5, 6, 7, 8}}, int64[2] flat = {{-1, 8}}, int64[1] zero = {{0}}, int64[1] four = {{4}},
     int64[1] eight = {{8}}, int64[1] two = {{2}}, int64[1] one = {{1}}, int64[1] one_of = {{1}}, int64 scalar = {{1}}, int64 wide = {{2}},
     int64 nothing = {{0}}, int64 step = {{1}}, int64[1] last = {{1}}, int64[3] back = {{0, -1, 8}}>
    {{ {body} }}"""
    if "back" in body:
        shape = "s = Shape (x) back_now = Identity (s)"
        text = text.replace(body, f"{shape} {body.replace('(n, back)', '(n, back_now)')}")
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("graph", sorted(_GRAPHS))
def test_a_small_graph_is_right_for_drawn_sizes(graph: str) -> None:
    def draw(rng: np.random.Generator, place: int) -> Feeds:
        sizes = (int(rng.integers(1, 5)), int(rng.integers(1, 40)), 8)
        if place % 5 == 4:
            sizes = (int(rng.integers(1, 20)), int(rng.integers(100, 400)), 8)
        return {"x": np.abs(rng.standard_normal(sizes)).astype(np.float32)}

    # A pattern reads the root of the open size as a number, so each set of sizes has its own plan; some sets occur twice.
    assert _check(_parse(_GRAPHS[graph]), draw, threads=2, count=24) < (25 if graph == "root of an open size" else 24)


def test_the_first_sizes_make_the_plan_of_their_class() -> None:
    def draw(rng: np.random.Generator, place: int) -> Feeds:
        shape = (2 + place, 40 + 7 * place)
        return {"tokens": rng.integers(0, 1000, shape), "mask": np.ones(shape, np.int64)}

    assert _check(make_encoder(layers=1, width=64), draw, threads=1, count=3) == 1


@pytest.mark.parametrize("operator", ["RandomNormalLike <mean = 2.0, scale = 0.0>", "RandomUniformLike <low = 2.0, high = 2.0>"])
def test_noise_takes_the_sizes_of_its_class(operator: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> noisy (float[1, 4, n] x) => (float[1, 4, n] y)
        {{ noise = {operator} (x) y = Add (x, noise) }}"""
    )
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        for length in (30, 50, 77):
            x = np.random.default_rng(length).standard_normal((1, 4, length)).astype(np.float32)
            np.testing.assert_array_equal(network.infer({"x": x})["y"], x + np.float32(2))
        assert network.get_metric("CPU_PLANS")[0] == 1


def test_accidentally_equal_sizes_make_no_separate_class() -> None:
    # 64 is the width; 16 and 17 lie on both sides of a vector of queries.
    shapes = [(20, 64), (20, 20), (64, 20), (20, 16), (20, 17), (16, 100), (65, 65)]

    def draw(rng: np.random.Generator, place: int) -> Feeds:
        return {"tokens": rng.integers(0, 1000, shapes[place]), "mask": np.ones(shapes[place], np.int64)}

    assert _check(make_encoder(layers=1, width=64), draw, threads=1, count=len(shapes)) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("first", [5, 60])
def test_products_have_a_class_of_few_rows_and_one_of_many(first: int, threads: int) -> None:
    rows = [first, 65 - first, *range(2, 32), 113, 700]
    layer = "p = MatMul (x, w) b = Add (p, c) y = Relu (b) z = MatMul (y, v) out = Add (z, x)"
    constants = ", ".join(
        f"float[{', '.join(map(str, shape))}] {name} = {{{', '.join(f'{number:.3f}' for number in numbers.reshape(-1))}}}"
        for name, shape in (("w", (24, 200)), ("c", (200,)), ("v", (200, 24)))
        for numbers in [np.random.default_rng(len(name)).standard_normal(shape)]
    )
    text = f"<ir_version: 8, opset_import: ['': 17]> graph (float[rows, 24] x) => (float[rows, 24] out) <{constants}> {{ {layer} }}"

    def draw(rng: np.random.Generator, place: int) -> Feeds:
        return {"x": rng.standard_normal((rows[place], 24)).astype(np.float32)}

    assert _check(onnx.parser.parse_model(text.replace("'", '"')), draw, threads=threads, count=len(rows)) == 2


def test_a_class_reaches_down_to_a_few_keys_and_rows() -> None:
    # 8 keys are fewer than a kernel tile has; 26 rows are more than the least sum of tiles of two sizes.
    shapes = [(6, 105), (8, 14), (2, 13), (5, 8), (3, 9)]

    def draw(rng: np.random.Generator, place: int) -> Feeds:
        mask = np.ones(shapes[place], np.int64)
        mask[:, 5:] = 0
        return {"tokens": rng.integers(0, 1000, shapes[place]), "mask": mask}

    assert _check(make_encoder(layers=1, width=64), draw, threads=1, count=len(shapes)) == 1


def test_kernels_compiled_behind_numpy_take_over_for_a_class() -> None:
    assert _check(make_encoder(layers=1, width=64), _draw_encoder, threads=1, count=12, kernels="AUTO") <= 12


def test_sums_of_caches_keep_their_values_in_later_runs() -> None:
    model = make_decoder(layers=1, width=64, heads=4, key_heads=2)
    rng, compute = np.random.default_rng(3), _compute(model)
    caches = {f"past_{part}_0": np.zeros((1, 2, 0, 16), np.float32) for part in ("key", "value")}
    tokens = rng.integers(0, 1000, (1, 40))
    history = []
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        for place in range(36):
            feeds = {"tokens": tokens[:, place : place + 1], **caches}
            expected = compute(feeds)
            answers = network.infer(feeds)
            history.append((np.asarray(answers["present_key_0"]), expected[1]))
            caches = {f"past_{part}_0": np.asarray(answers[f"present_{part}_0"]) for part in ("key", "value")}
    for cache, expected_cache in history:
        np.testing.assert_allclose(cache, expected_cache, rtol=1e-4, atol=1e-5)
