"""The attention kernel as it is written, run on the host: against the formula in float64, in all forms; which nodes it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hetero_cupy.attention_operator import AttentionOperator
from hetero_cupy.attention_text import AttentionForm, choose_tile, write_attention
from hetero_cupy.device import GpuDevice
from hetero_tests.larger_models import bert_model

from hetero_core import Core, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.backend_cases import iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch, max_relative_difference

from . import cuda_compiler, host_compiler
from .compiled import transform_network
from .host_compiler import HostCompiledCard, HostCompilingRuntime

TYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
# Of the largest value; inputs are rounded before the formula sees them, so that only the result's rounding is left.
BOUNDS = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}

needs_compiler = pytest.mark.skipif(host_compiler.COMPILER is None, reason=host_compiler.MISSING)
needs_cuda_compiler = pytest.mark.skipif(not cuda_compiler.has_compiler(), reason=cuda_compiler.MISSING)


def draw(dtype: str, *shape: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(TYPES[dtype])


def attend(
    q: Any, k: Any, v: Any, mask: Any = None, *, scale: float | None = None, is_causal: bool = False
) -> np.ndarray[Any, Any]:
    """Returns the formula in float64: (batch, heads, steps, elements); zeros for a query that may see no key."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(np.float64)
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[2:], bool)), scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    shares = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = shares.sum(axis=-1, keepdims=True)
    y: np.ndarray[Any, Any] = shares @ v / np.where(total == 0, 1, total)
    return y


def run(q: Any, k: Any, v: Any, mask: Any = None, **attributes: Any) -> tuple[np.ndarray[Any, Any], HostCompiledCard]:
    card = HostCompiledCard(0)
    arrays = [card.from_host(x) for x in (q, k, v, *(() if mask is None else (mask,)))]
    return card.to_host(AttentionOperator(card).function(*arrays, **attributes)), card


def check(found: Any, expected: Any, dtype: str) -> None:
    assert found.dtype == TYPES[dtype]
    assert np.abs(found.astype(np.float64) - expected).max() <= BOUNDS[dtype] * np.abs(expected).max()


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("heads", "few", "queries", "keys", "size", "value_size"),
    [
        # More than a band of queries and than a tile of keys, neither a multiple; heads of one, of no multiple of 16, of all tiles.
        (2, 2, 70, 75, 64, 64),
        (4, 2, 5, 33, 20, 24),
        (2, 1, 40, 70, 100, 128),
        (1, 1, 18, 35, 256, 250),
        (3, 3, 1, 1, 1, 1),
        (1, 1, 64, 32, 64, 16),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_the_formula(
    dtype: str, heads: int, few: int, queries: int, keys: int, size: int, value_size: int, is_causal: bool
) -> None:
    q = draw(dtype, 2, heads, queries, size, seed=0)
    k, v = draw(dtype, 2, few, keys, size, seed=1), draw(dtype, 2, few, keys, value_size, seed=2)
    found, card = run(q, k, v, is_causal=int(is_causal), scale=0.3)
    check(found, attend(q, k, v, is_causal=is_causal, scale=0.3), dtype)
    assert len(card.launches) == 1


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask_type", ["float32", "float16", "bfloat16", "bool"])
@pytest.mark.parametrize("shape", [(2, 3, 9, 40), (1, 1, 9, 40), (2, 1, 1, 40), (3, 1, 40), (9, 40)], ids=str)
def test_masks_are_added_however_they_are_spread(dtype: str, mask_type: str, shape: tuple[int, ...]) -> None:
    q, k, v = (draw(dtype, 2, 3, count, 16, seed=seed) for seed, count in enumerate((9, 40, 40)))
    generator = np.random.default_rng(3)
    hidden = generator.random(shape) < 0.5
    mask = ~hidden if mask_type == "bool" else np.where(hidden, -np.inf, generator.normal(size=shape)).astype(TYPES[mask_type])
    check(run(q, k, v, mask)[0], attend(q, k, v, mask), dtype)


@needs_compiler
@pytest.mark.parametrize("is_causal", [False, True])
def test_query_that_may_see_no_key_gets_zeros_and_the_others_do_not(is_causal: bool) -> None:
    q, k, v = (draw("float32", 1, 2, 40, 16, seed=seed) for seed in range(3))
    mask = np.zeros((40, 40), np.float32)
    mask[7], mask[30, :35] = -np.inf, -np.inf
    found, _ = run(q, k, v, mask, is_causal=int(is_causal))
    expected = attend(q, k, v, mask, is_causal=is_causal)
    check(found, expected, "float32")
    assert not found[0, :, 7].any()
    assert found[0, :, 30].any() != is_causal


@needs_compiler
def test_scores_that_no_exponential_holds_are_scaled_down_as_larger_ones_come() -> None:
    q, v = np.ones((1, 1, 1, 1), np.float32), draw("float32", 1, 1, 200, 8, seed=0)
    k = np.linspace(-3e3, 3e3, 200, dtype=np.float32).reshape(1, 1, 200, 1)
    for keys in (k, k[:, :, ::-1]):
        check(run(q, np.ascontiguousarray(keys), v, scale=1.0)[0], attend(q, keys, v, scale=1.0), "float32")


@needs_compiler
def test_no_number_in_a_query_stays_in_its_row() -> None:
    q, k, v = (draw("float32", 1, 1, 40, 16, seed=seed) for seed in range(3))
    q[0, 0, 3, 5] = np.nan
    found, _ = run(q, k, v)
    assert np.isnan(found).all(axis=-1)[0, 0].tolist() == [row == 3 for row in range(40)]


@needs_compiler
def test_arrays_are_read_where_they_lie() -> None:
    card = HostCompiledCard(0)
    packed = [draw("float32", 2, count, 3 * 16, seed=seed) for seed, count in enumerate((20, 40, 40))]
    split = [x.reshape(*x.shape[:2], 3, 16).transpose(0, 2, 1, 3) for x in packed]
    expected = attend(*split)
    views = [card.from_host(x).reshape(*x.shape[:2], 3, 16).transpose(0, 2, 1, 3) for x in packed]
    operator = AttentionOperator(card)
    check(card.to_host(operator.function(*views)), expected, "float32")
    found = card.to_host(operator.function(*map(card.from_host, packed), q_num_heads=3, kv_num_heads=3))
    check(found.reshape(2, 20, 3, 16).transpose(0, 2, 1, 3), expected, "float32")
    turned = card.from_host(np.ascontiguousarray(split[1].swapaxes(2, 3))).swapaxes(2, 3)
    check(card.to_host(operator.function(views[0], turned, views[2])), expected, "float32")
    assert len(set(card.launches)) == 1


@needs_compiler
def test_barrier_that_is_taken_out_is_found() -> None:
    q, k, v = (draw("float32", 1, 1, 70, 64, seed=seed) for seed in range(3))
    form = AttentionForm("float32", 64, 64)
    source = write_attention(form).source
    wrong = 0
    for index in range(source.count("__syncthreads();")):
        parts = source.split("__syncthreads();")
        broken = "__syncthreads();".join(parts[: index + 1]) + "__syncthreads();".join(["", *parts[index + 1 :]])[16:]
        card = HostCompiledCard(0)
        name = f"hetero_attention_broken_{index}"
        compile_kernel = card.compile_kernel
        card.compile_kernel = lambda _, __, c=compile_kernel, n=name, b=broken: c(n, b.replace(write_attention(form).name, n))  # type: ignore[misc,method-assign]  # the one text that is changed
        found = card.to_host(AttentionOperator(card).function(*map(card.from_host, (q, k, v))))
        wrong += not np.allclose(found, attend(q, k, v), atol=1e-5)
    # The one behind the keys, behind the scores and behind the shares; those that keep threads of the next round back do not show
    # where each thread runs to its barrier before the next one begins.
    assert wrong >= 3


@needs_cuda_compiler
@pytest.mark.parametrize("architecture", cuda_compiler.ARCHITECTURES)
def test_nvidias_compiler_takes_the_kernel(architecture: str) -> None:
    forms = [
        ("float32", 20, ""),
        ("float16", 64, "float32"),
        ("bfloat16", 128, "bool"),
        ("float32", 256, "bfloat16"),
        ("float16", 20, ""),
        ("bfloat16", 64, "float32"),
    ]
    texts = [write_attention(AttentionForm(dtype, size, size, mask, is_causal=not mask)) for dtype, size, mask in forms]
    ptx = cuda_compiler.compile_modules([text.source for text in texts], architecture)
    assert [text.name for text in texts if f".entry {text.name}".encode() not in ptx] == []
    assert [part.partition(b"(")[0].decode() for part in ptx.split(b".entry ") if b".f64" in part] == []


def test_tiles_fit_into_the_shared_memory_of_a_block() -> None:
    for size in range(1, 257):
        band, tile, wide = choose_tile(AttentionForm("float32", size, 1))
        assert 4 * ((band + tile) * (wide + 1) + 2 * band * (tile + 1)) <= 48 << 10
    with pytest.raises(ValueError, match="heads of 257 and 64 elements; a tile holds 1 to 256"):
        choose_tile(AttentionForm("float32", 257, 64))


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("g (float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,6] v) => (float[2,3,4,6] y) { y = Attention (q, k, v) }", True),
        (
            "g (float[B,Q,24] q, float[B,K,8] k, float[B,K,8] v) => (y) { y = Attention <q_num_heads = 3, kv_num_heads = 1> (q, k, v) }",
            True,
        ),
        (
            "g (float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,6] v, bool[4,5] m) => (y) { y = Attention <is_causal = 1> (q, k, v, m) }",
            True,
        ),
        ("g (float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,6] v) => (y) { y = Attention <softcap = 2.0> (q, k, v) }", False),
        ("g (float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,6] v, float[4,3] m) => (y) { y = Attention (q, k, v, m) }", False),
        ("g (float[2,3,4,D] q, float[2,3,5,D] k, float[2,3,5,6] v) => (y) { y = Attention (q, k, v) }", False),
        ("g (float[1,1,4,300] q, float[1,1,5,300] k, float[1,1,5,6] v) => (y) { y = Attention (q, k, v) }", False),
        ("g (double[2,3,4,8] q, double[2,3,5,8] k, double[2,3,5,6] v) => (y) { y = Attention (q, k, v) }", False),
        ("g (float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,6] v) => (y, p) { y, p = Attention (q, k, v) }", False),
    ],
)
def test_kernel_takes_the_plain_form_alone(core: Core, text: str, is_taken: bool) -> None:
    import onnx.parser

    network = core.read_network(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 24]> {text}'))
    (node,) = transform_network(network, precision="f32", fuses=False, attends=True).nodes
    assert (node.domain == "hetero.gpu") == is_taken
    assert transform_network(network, precision="f32", fuses=False).nodes[0].domain == ""


@pytest.mark.parametrize(("hint", "bound"), [("f32", 1e-5), ("f16", 2e-3), ("bf16", 2e-2)])
def test_network_computes_the_same_with_the_kernel(core: Core, hint: str, bound: float) -> None:
    network = core.read_network(bert_model(1, layers=1, length=12))
    inputs = {"states": np.random.default_rng(0).standard_normal((1, 12, 768)).astype(np.float32)}
    expected = core.load_network(network, "CPU").infer(inputs)
    loaded = core.load_network(network, "GPU", {"GPU_ATTENTION": True, "INFERENCE_PRECISION_HINT": hint})
    for name, found in loaded.infer(inputs).items():
        assert max_relative_difference(found, expected[name]) <= bound
    operators = [node.op_type for node in transform_network(network, precision=hint, fuses=True, attends=True).nodes]
    assert operators.count("Attention") == 1
    assert "Softmax" not in operators


@needs_compiler
def test_backend_cases_of_attention_are_right_on_the_kernel_as_it_is_written() -> None:
    runtime, wrong, right = HostCompilingRuntime(), {}, 0
    with Core() as core:
        core.register_plugin("CARD", GpuDevice("CARD", runtime))
        for case in iterate_backend_cases(r"^test_attention", kinds=("node",)):
            try:
                loaded = core.load_network(case.model, "CARD", {"GPU_ATTENTION": True})
            except UnsupportedNodesError:
                continue
            for inputs, expected in case.runs:
                given = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
                for (name, value), wanted in zip(loaded.infer(given).items(), expected, strict=True):
                    mismatch = describe_mismatch(value, wanted, rtol=max(case.rtol, 1e-4), name=name)
                    if mismatch is not None:
                        wrong[case.name] = mismatch
            right += case.name not in wrong
    assert wrong == {}
    assert right >= 40
    assert sum(name.startswith("hetero_attention") for name in runtime.card.launches) >= 20


def test_shapes_that_do_not_fit_are_an_error(read: Callable[[str], Network]) -> None:
    card = HostCompiledCard(0)
    operator = AttentionOperator(card)
    q, k, v = (card.from_host(draw("float32", 1, 1, count, 4, seed=0)) for count in (2, 3, 4))
    with pytest.raises(ValueError, match=r"q has the shape \[1, 1, 2, 4\], k \[1, 1, 3, 4\], v \[1, 1, 4, 4\]: these do not fit"):
        operator.function(q, k, v)
    if host_compiler.COMPILER is not None:
        with pytest.raises(ValueError, match=r"the mask has the shape \[3, 3\], the scores \[1, 1, 2, 3\]: it cannot be spread"):
            operator.function(q, k, k, card.from_host(np.zeros((3, 3), np.float32)))
