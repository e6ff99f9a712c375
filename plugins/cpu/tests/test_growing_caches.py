"""Caches that grow in place as states of a request: equal to ONNX Runtime, and arrays already returned never change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_cpu.run.caches import CacheMemory, extend_cache, open_cache
from hetero_tests.open_models import make_decoder

from hetero_core import Core, ExecutableNetwork, RunContext
from hetero_core.testing.reference_session import open_reference_session
from hetero_core.transforms.editing import edit

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")

HEADS, DEPTH, LENGTH = 2, 64, 200
PASTS = ("past_key_0", "past_value_0")
TIES = {name.replace("past", "present"): name for name in PASTS}
EMPTY = {name: np.zeros((1, HEADS, 0, DEPTH), np.float32) for name in PASTS}
Array = np.ndarray[Any, Any]
Caches = tuple[Array, ...]


@pytest.fixture
def verified_plans() -> None:
    """Turns off the verification of every plan, which would check each length of a generation; a test turns it on by its key."""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return make_decoder(layers=1, width=2 * HEADS * DEPTH, heads=2 * HEADS, key_heads=HEADS)


@pytest.fixture(scope="module")
def compute(model: onnx.ModelProto) -> Callable[[int, Caches], Caches]:
    session = open_reference_session(model.SerializeToString())
    names = ["logits", *TIES]

    def run(token: int, caches: Caches) -> Caches:
        arrays = [np.ascontiguousarray(cache) for cache in caches]
        return tuple(session.run(names, {"tokens": np.array([[token]]), **dict(zip(PASTS, arrays, strict=True))}))

    return run


@pytest.fixture(params=[1, 2])
def loaded(request: pytest.FixtureRequest, model: onnx.ModelProto) -> Iterator[ExecutableNetwork]:
    with Core() as core:
        yield load(core, model, INFERENCE_NUM_THREADS=request.param)


def load(core: Core, model: onnx.ModelProto, **config: Any) -> ExecutableNetwork:
    network = edit(core.read_network(model)).with_state(TIES, initial=EMPTY)
    return core.load_network(network, "CPU", {"CPU_KERNELS": "JIT", **config})


def draw(length: int = LENGTH) -> Caches:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((1, HEADS, length, DEPTH)).astype(np.float32) for _ in PASTS)


def step(network: ExecutableNetwork, token: int, caches: Caches) -> Caches:
    """Returns logits and caches as the device hands them out."""
    return tuple(network.executable.run((np.array([[token]]), *caches), RunContext()))


def require_equal(arrays: Caches, expected: Caches) -> None:
    assert [array.shape for array in arrays] == [array.shape for array in expected]
    for array, right in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, right, rtol=0, atol=1e-4)


def grow(network: ExecutableNetwork, count: int) -> list[Caches]:
    """Returns the caches after each of `count` steps."""
    steps = [draw()]
    for token in range(count):
        steps.append(step(network, token, steps[-1])[1:])
    return steps


def test_long_generation_copies_caches_only_when_memory_is_full(
    model: onnx.ModelProto, compute: Callable[[int, Caches], Caches]
) -> None:
    with Core() as core:
        request, caches = load(core, model).create_infer_request(), draw(120)
        for name, cache in zip(PASTS, caches, strict=True):
            request.states[name].value = cache
        memories, copied = [], 0
        for token in range(75):
            logits, *caches = compute(token, tuple(caches))
            require_equal((request.infer({"tokens": np.array([[token]])})["logits"],), (logits,))
            copied += request.states.copied_bytes
            memory = request.states["past_key_0"].array.base.base
            memories += [memory] if isinstance(memory, CacheMemory) and all(memory is not known for known in memories) else []
        require_equal(tuple(request.states[name].value for name in PASTS), tuple(caches))
        # The first memory has room for 192 keys; a second memory follows it.
        assert (len(memories), copied) == (2, 0)
        assert request.states["past_key_0"].value.flags.c_contiguous


def test_newest_cache_grows_and_earlier_caches_keep_their_values(
    loaded: ExecutableNetwork, compute: Callable[[int, Caches], Caches]
) -> None:
    steps = grow(loaded, 5)
    values = [tuple(cache.copy() for cache in caches) for caches in steps]
    assert np.shares_memory(steps[4][0], steps[5][0])
    older = step(loaded, 50, steps[3])
    require_equal(older, compute(50, values[3]))
    assert not np.shares_memory(older[1], steps[5][0])
    # Two beams continue the same cache: the first beam extends it in place, the second beam copies it.
    beams = [step(loaded, token, steps[5]) for token in (60, 61)]
    assert [np.shares_memory(beam[1], steps[5][0]) for beam in beams] == [True, False]
    for token, beam in zip((60, 61), beams, strict=True):
        require_equal(beam, compute(token, values[5]))
    for caches, own in zip(steps, values, strict=True):
        for cache, value in zip(caches, own, strict=True):
            np.testing.assert_array_equal(cache, value)


def test_a_cache_that_was_written_is_read_as_it_is(loaded: ExecutableNetwork, compute: Callable[[int, Caches], Caches]) -> None:
    caches = grow(loaded, 3)[-1]
    for cache in caches:
        cache[:, :, ::3] *= 0.5
    expected = compute(9, tuple(cache.copy() for cache in caches))
    require_equal(step(loaded, 9, caches), expected)


VIEWS: Mapping[str, Callable[[Array], Array]] = {
    "the first keys": lambda cache: cache[:, :, :-1],
    "the last keys": lambda cache: cache[:, :, 1:],
    "every other key": lambda cache: cache[:, :, ::2],
    "keys from the end": lambda cache: cache[:, :, ::-1],
    "heads from the end": lambda cache: cache[:, ::-1],
    "turned": lambda cache: cache.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2),
    "a copy": lambda cache: cache.copy(),
    "read-only": lambda cache: np.broadcast_to(cache, cache.shape),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_cache_is_right_and_changes_nothing(
    view: str, model: onnx.ModelProto, compute: Callable[[int, Caches], Caches]
) -> None:
    with Core() as core:
        loaded = load(core, model)
        newest = grow(loaded, 3)[-1]
        values = tuple(cache.copy() for cache in newest)
        caches = tuple(VIEWS[view](cache) for cache in newest)
        require_equal(step(loaded, 7, caches), compute(7, caches))
        for cache, value in zip(newest, values, strict=True):
            np.testing.assert_array_equal(cache, value)
        require_equal(step(loaded, 8, newest), compute(8, values))


def test_of_threads_with_one_cache_each_gets_its_own_answer(
    loaded: ExecutableNetwork, compute: Callable[[int, Caches], Caches]
) -> None:
    caches = grow(loaded, 2)[-1]
    for round_ in range(10):
        values = tuple(cache.copy() for cache in caches)
        answers: dict[int, Caches] = {}
        barrier = threading.Barrier(3)

        def run(token: int, own: Caches = caches, answers: dict[int, Caches] = answers, barrier: Any = barrier) -> None:
            barrier.wait()
            answers[token] = step(loaded, token, own)

        threads = [threading.Thread(target=run, args=(3 * round_ + index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for token, answer in answers.items():
            require_equal(answer, compute(token, values))
        assert sum(np.shares_memory(answer[1], caches[0]) for answer in answers.values()) <= 1
        caches = answers[3 * round_][1:]


def test_another_network_may_go_on_with_a_cache(model: onnx.ModelProto, compute: Callable[[int, Caches], Caches]) -> None:
    with Core() as core:
        single_threaded, two_threaded = load(core, model), load(core, model, INFERENCE_NUM_THREADS=2)
        caches = grow(single_threaded, 2)[-1]
        values = tuple(cache.copy() for cache in caches)
        for network in (two_threaded, single_threaded):
            require_equal(step(network, 5, caches), compute(5, values))


@pytest.mark.parametrize(
    "config",
    [
        {"MEMORY_LIMIT": 1 << 28},
        {"DEADLINE": 60},
        {"PERF_COUNT": True},
        {"CPU_VERIFY": "YES"},
        {"CPU_KERNELS": "NUMPY"},
    ],
)
def test_requests_are_right_under_each_configuration(
    config: dict[str, Any], model: onnx.ModelProto, compute: Callable[[int, Caches], Caches]
) -> None:
    with Core() as core:
        request, caches = load(core, model, **config).create_infer_request(), draw()
        for name, cache in zip(PASTS, caches, strict=True):
            request.states[name].value = cache
        mine = np.empty((1, 1, 1000), np.float32)
        for token in range(12):
            if token == 6:
                request.set_tensor("logits", mine)
            logits, *caches = compute(token, tuple(caches))
            require_equal((request.infer({"tokens": np.array([[token]])})["logits"],), (logits,))
        require_equal((mine, *(request.states[name].value for name in PASTS)), (logits, *caches))


def test_imported_network_continues_with_exported_states(
    tmp_path: Path, model: onnx.ModelProto, compute: Callable[[int, Caches], Caches]
) -> None:
    with Core() as core:
        exported = load(core, model)
        first, caches = exported.create_infer_request(), draw()
        for name, cache in zip(PASTS, caches, strict=True):
            first.states[name].value = cache
        for token in range(3):
            logits, *caches = compute(token, tuple(caches))
            first.infer({"tokens": np.array([[token]])})
        exported.export_network(tmp_path / "decoder.blob")
        second = core.import_network(tmp_path / "decoder.blob", "CPU").create_infer_request()
        for name in PASTS:
            second.states[name].value = first.states[name].value
        for token in range(3, 8):
            logits, *caches = compute(token, tuple(caches))
            for request in (first, second):
                require_equal((request.infer({"tokens": np.array([[token]])})["logits"],), (logits,))


ATTENTION = """
<ir_version: 8, opset_import: ["": 17]>
attention (float[1,2,3,64] q, float[1,2,3,64] k, float[1,2,3,64] v, float[1,2,P,64] past_key_0, float[1,2,P,64] past_value_0)
    => (float[1,2,3,64] y, float[1,2,T,64] present_key_0, float[1,2,T,64] present_value_0)
    <float scale = {0.125}, int64[1] first = {FIRST}, int64[1] last = {9000000}, int64[1] axis = {2}>
{
    cut_key = Slice (past_key_0, first, last, axis)
    cut_value = Slice (past_value_0, first, last, axis)
    present_key_0 = Concat <axis = 2> (cut_key, k)
    present_value_0 = Concat <axis = 2> (cut_value, v)
    turned = Transpose <perm = [0, 1, 3, 2]> (present_key_0)
    products = MatMul (q, turned)
    scores = Mul (products, scale)
    weights = Softmax <axis = -1> (scores)
    y = MatMul (weights, present_value_0)
}
"""


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_window_that_slides_over_a_cache_is_right(first: int) -> None:
    """A model that drops the oldest keys reads a slice of the cache, so new keys must not overwrite the keys behind that slice."""
    sliding = onnx.parser.parse_model(ATTENTION.replace("FIRST", str(first)))
    session, rng = ort.InferenceSession(sliding.SerializeToString()), np.random.default_rng(3)
    with Core() as core:
        network = edit(core.read_network(sliding)).with_state(TIES, initial=EMPTY)
        request, caches = core.load_network(network, "CPU", {"CPU_KERNELS": "JIT"}).create_infer_request(), draw()
        for name, cache in zip(PASTS, caches, strict=True):
            request.states[name].value = cache
        for _ in range(8):
            feeds = {name: rng.standard_normal((1, HEADS, 3, DEPTH)).astype(np.float32) for name in "qkv"}
            y, *caches = session.run(["y", *TIES], {**feeds, **dict(zip(PASTS, caches, strict=True))})
            require_equal((request.infer(feeds)["y"],), (y,))
            require_equal(tuple(request.states[name].value for name in PASTS), tuple(caches))
        memory = getattr(request.states["past_key_0"].array.base, "base", None)
        assert isinstance(memory, CacheMemory) == (first == 0)


def test_memory_grows_behind_its_newest_view_alone() -> None:
    cache = open_cache((2, 3, 100, 8), np.dtype(np.float32))
    longer = extend_cache(cache, 101)
    assert longer is not None
    assert longer.shape == (2, 3, 101, 8)
    assert longer.__array_interface__["data"] == cache.__array_interface__["data"]
    refused = [cache, longer[:, :, 1:], longer[:1], longer[:, :, :100], longer[..., :4], longer.view(np.int32), longer.copy()]
    assert [extend_cache(view, 102) for view in refused] == [None] * len(refused)
    assert extend_cache(longer, 165) is None, "there is room for 64 more, no others"
    assert extend_cache(longer, 164) is not None
    assert extend_cache(longer, 102) is None
