"""The arena of a request: places never clash, a run takes no memory, what departs from the plan is right nevertheless, limits at load."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hetero_cupy.arena import ALIGNMENT, Arena, ArenaPlan, Tracer, plan_arena
from hetero_cupy.cupy_arena import make_allocator
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime
from hetero_tests.larger_models import bert_model

from hetero_core import Core, Network, RunContext
from hetero_core.contract import DeviceName
from hetero_core.errors import BlobMismatchError, DeviceMemoryError, InferenceError
from hetero_core.kernels.arena import Lifetime
from hetero_core.testing.compare import max_relative_difference
from hetero_core.testing.models import light_model

from . import host_compiler
from .host_compiler import HostCompilingRuntime

ON = {"GPU_ARENA": True}
CHAIN = "g (float[64] x) => (float[64] y) { a = Exp (x) b = Neg (a) c = Add (b, a) d = Abs (c) e = Mul (d, x) y = Add (e, x) }"


class Runner:
    """A request of a loaded network, run with host arrays and without the border."""

    def __init__(self, loaded: Any) -> None:
        self.executable = loaded.executable
        self.card = self.executable.card
        self.context = RunContext(self.executable.create_state())

    def run(self, *arrays: Any) -> tuple[Any, ...]:
        placed = tuple(array if self.card.owns(array) else self.card.from_host(array) for array in arrays)
        before = self.card.allocations
        outputs: tuple[Any, ...] = self.executable.run(placed, self.context)
        self.allocated = self.card.allocations - before
        return outputs


def draw_lifetimes(seed: int) -> tuple[list[Lifetime], dict[int, list[int]]]:
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 60))
    lifetimes = [
        Lifetime(int(draw.choice([1, 4, 256, 300, 1024])), begin, int(min(begin + draw.integers(0, 9), count)))
        for begin in range(count)
    ]
    sources = {
        index: [
            other for other in range(index) if lifetimes[other].end == index and lifetimes[other].nbytes == lifetimes[index].nbytes
        ]
        for index in range(count)
    }
    return lifetimes, sources


@pytest.mark.parametrize("seed", range(40))
def test_arrays_that_live_together_share_no_byte_but_those_in_place(seed: int) -> None:
    lifetimes, sources = draw_lifetimes(seed)
    plan = plan_arena(lifetimes, sources)
    in_place = 0
    for index, mine in enumerate(lifetimes):
        assert plan.offsets[index] % ALIGNMENT == 0
        assert plan.offsets[index] + mine.nbytes <= plan.nbytes
        for other in range(index):
            theirs = lifetimes[other]
            shares = (
                plan.offsets[index] < plan.offsets[other] + theirs.nbytes
                and plan.offsets[other] < plan.offsets[index] + mine.nbytes
            )
            if shares and theirs.end >= mine.begin:
                # The same place, whole, and nobody but the kernel that writes it needs what was there.
                assert (plan.offsets[other], theirs.end, theirs.nbytes) == (plan.offsets[index], index, mine.nbytes)
                assert other in sources[index]
                in_place += 1
    assert in_place == plan.in_place


@pytest.mark.parametrize("seed", range(40))
def test_run_as_planned_misses_nothing_and_array_that_is_kept_too_long_is_never_written_over(seed: int) -> None:
    lifetimes, sources = draw_lifetimes(seed)
    plan = plan_arena(lifetimes, sources)
    arena = Arena(plan, None)
    for kept in (None, 0, len(lifetimes) // 2):
        arena.begin()
        misses = arena.misses
        tickets: dict[int, Any] = {}
        for index, mine in enumerate(lifetimes):
            for other in [other for other in tickets if lifetimes[other].end < index and other != kept]:
                del tickets[other]
            tickets[index] = arena.take(mine.nbytes)
            if kept is not None and kept < index and tickets[index].offset is not None and tickets[kept].offset is not None:
                begin, end = plan.offsets[kept], plan.offsets[kept] + lifetimes[kept].nbytes
                is_clear = tickets[index].offset >= end or tickets[index].offset + mine.nbytes <= begin
                # The one array that is computed in its place was meant to be.
                assert is_clear or (kept in sources[index] and tickets[index].offset == begin)
        assert kept is not None or arena.misses == misses


def test_other_sizes_than_planned_come_from_the_pool() -> None:
    arena = Arena(plan_arena([Lifetime(8, 0, 1), Lifetime(8, 1, 1)], {}), None)
    arena.begin()
    tickets = [arena.take(nbytes) for nbytes in (8, 16, 8)]
    assert [ticket.offset for ticket in tickets] == [0, None, None]
    assert arena.misses == 2


def test_run_takes_no_memory_and_every_request_has_its_own_arena(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read(CHAIN), "GPU", ON)
    # The shapes are known: the places were found at load, before anybody ran.
    arena = loaded.get_metric("GPU_ARENA_BYTES")
    assert 0 < arena <= 4 * 256
    first, second = Runner(loaded), Runner(loaded)
    kept = {}
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=64).astype(np.float32)
        for runner, given in ((first, x), (second, -x)):
            (kept[runner],) = runner.run(given)
            assert runner.allocated == 0
        for runner, given in ((first, x), (second, -x)):
            found = runner.card.to_host(kept[runner])
            np.testing.assert_allclose(found, given, rtol=1e-6)
    assert loaded.get_metric("GPU_ARENA_MISSES") == 0


def test_unknown_shapes_are_planned_by_the_first_run_of_each(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read(CHAIN.replace("64", "N")), "GPU", ON)
    assert loaded.get_metric("GPU_ARENA_BYTES") == 0
    runner = Runner(loaded)
    for size, expected in ((64, True), (64, False), (640, True), (640, False), (64, False), (640, False)):
        x = np.random.default_rng(size).normal(size=size).astype(np.float32)
        (found,) = runner.run(x)
        np.testing.assert_allclose(runner.card.to_host(found), x, rtol=1e-6)
        # The block of 64 is too small for 640, and is made anew once.
        assert (runner.allocated > 1) == expected
    assert loaded.get_metric("GPU_ARENA_MISSES") == 0


def test_output_of_the_last_run_may_be_the_next_input(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[8] x) => (float[8] y) { a = Exp (x) b = Log (a) c = Neg (b) y = Sub (b, c) }"
    for config in (ON, {"GPU_GRAPHS": True}, {**ON, "GPU_FUSION": True}):
        runner = Runner(core.load_network(read(text), "GPU", config))
        x: Any = np.linspace(-1, 1, 8, dtype=np.float32)
        value = runner.card.from_host(x)
        for _ in range(4):
            (value,) = runner.run(value)
        np.testing.assert_allclose(runner.card.to_host(value), 16 * x, rtol=1e-5, atol=1e-6)


def test_wrong_plan_gives_wrong_results(core: Core, read: Callable[..., Network]) -> None:
    """What the tests here rest on: arrays of the card of make-believe do lie in the arena, one over the other where a plan says so."""
    loaded = core.load_network(read(CHAIN), "GPU", ON)
    book = loaded.executable._book
    ((signature, plan),) = book._plans.items()
    book._plans[signature] = replace(plan, offsets=(0,) * len(plan.sizes))
    object.__setattr__(book._plans[signature], "clashes", ((),) * len(plan.sizes))
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    runner = Runner(loaded)
    (found,) = runner.run(x)
    assert not np.allclose(runner.card.to_host(found), x)


def test_run_that_reads_on_the_way_is_not_planned(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[4] x) => (int64[1,M] y) { a = Relu (x) y = NonZero (a) }"
    loaded = core.load_network(read(text), "GPU", ON)
    runner = Runner(loaded)
    for x in ([1, 0, 2, 0], [0, 0, 0, 3]):
        (found,) = runner.run(np.array(x, np.float32))
        assert runner.card.to_host(found).tolist() == [np.flatnonzero(x).tolist()]
    assert loaded.get_metric("GPU_ARENA_BYTES") == 0


def test_network_that_takes_no_zeros_is_loaded(core: Core, read: Callable[..., Network]) -> None:
    # Sizes that were computed on the card: zeros do not make up the axis, but nobody has given zeros.
    text = "g (int64[2] n, float[8] x) => (float[A] y, float[B] z) { s = Abs (n) y, z = Split <axis = 0> (x, s) }"
    loaded = core.load_network(read(text), "GPU", ON)
    x = np.arange(8, dtype=np.float32)
    for _ in range(2):
        found = loaded.infer({"n": np.array([-3, 5]), "x": x})
        assert [found[name].tolist() for name in "yz"] == [[0, 1, 2], [3, 4, 5, 6, 7]]
    assert loaded.get_metric("GPU_ARENA_BYTES") == 0
    with pytest.raises(InferenceError, match=r"parts of \(3, 4\) do not make up an axis of 8"):
        loaded.infer({"n": np.array([3, 4]), "x": x})


def test_elementwise_kernels_compute_in_place(core: Core, read: Callable[..., Network]) -> None:
    text = """g (float[8,64] x, float[64,64] w) => (float[8,64] y) { a = MatMul (x, w) b = Sigmoid (a) c = Exp (b) d = MatMul (c, w)
        e = Neg (d) f = Tanh (e) y = MatMul (f, w) }"""
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=(8, 64)).astype(np.float32), draw.normal(size=(64, 64)).astype(np.float32)
    loaded = core.load_network(read(text), "GPU", {**ON, "GPU_FUSION": True})
    assert loaded.get_metric("GPU_ARENA_IN_PLACE") == 2
    # Two products at a time, 2,048 bytes each; without in-place it would be the same, but for the kernel between them.
    assert loaded.get_metric("GPU_ARENA_BYTES") == 2 * 2048
    expected = core.load_network(read(text), "CPU").infer({"x": x, "w": w})["y"]
    assert max_relative_difference(loaded.infer({"x": x, "w": w})["y"], expected) < 1e-5


def test_blob_brings_the_places_along(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    loaded = core.load_network(read(CHAIN.replace("64", "N")), "GPU", ON)
    x = np.linspace(-1, 1, 96, dtype=np.float32)
    loaded.infer({"x": x})
    blob = io.BytesIO()
    loaded.export_network(blob)
    blob.seek(0)
    again = core.import_network(blob, "GPU")
    assert again.get_metric("GPU_ARENA_BYTES") == loaded.get_metric("GPU_ARENA_BYTES") > 0
    runner = Runner(again)
    (found,) = runner.run(x)
    # The block alone: nobody had to watch a run.
    assert runner.allocated == 1
    np.testing.assert_allclose(runner.card.to_host(found), x, rtol=1e-6)
    assert again.get_metric("GPU_ARENA_MISSES") == 0


def test_known_shapes_are_not_tried_again_at_import(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    blob = io.BytesIO()
    core.load_network(read(CHAIN), "GPU", ON).export_network(blob)
    blob.seek(0)
    card = runtime.cards()[0]
    before = card.allocations
    again = core.import_network(blob, "GPU")
    # The zeros that it would be tried with, to know their signature.
    assert card.allocations - before == 1
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    np.testing.assert_allclose(again.infer({"x": x})["y"], x, rtol=1e-6)


@pytest.mark.parametrize("section", [b"[[1]]", b'[[[[[4], "float32"]], [8], [4], [-1], 256]]', b"{"])
def test_blob_with_other_places_is_an_error(core: Core, read: Callable[..., Network], runtime: FakeRuntime, section: bytes) -> None:
    device, name = GpuDevice("GPU", runtime), DeviceName("GPU", "", "")
    payload = device.export_network(name, core.load_network(read(CHAIN), "GPU", ON).executable)
    damaged = replace(payload, sections={**payload.sections, "gpu arena": section})
    with pytest.raises(BlobMismatchError, match="cannot import the blob on GPU: its section 'gpu arena' holds no places of arrays"):
        device.import_network(name, damaged, {})


@pytest.mark.parametrize(
    ("sizes", "offsets", "replaces", "nbytes", "reason"),
    [
        ((8, 8), (0, 256), (-1,), 512, "2 sizes, 2 offsets and 1 sources are no plan"),
        ((8,), (256,), (-1,), 256, "array 0 of 8 bytes cannot lie at 256 of 256"),
        ((8,), (4,), (-1,), 256, "array 0 of 8 bytes cannot lie at 4 of 256"),
        ((8, 8), (0, 0), (1, -1), 256, "array 0 of 8 bytes cannot lie at 0 of 256 in the place of 1"),
        ((8, 8), (0, 256), (-1, 0), 512, "array 1 of 8 bytes cannot lie at 256 of 512 in the place of 0"),
    ],
)
def test_places_that_cannot_be_meant_are_an_error(sizes: Any, offsets: Any, replaces: Any, nbytes: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ArenaPlan(sizes, offsets, replaces, nbytes)


@pytest.mark.skipif(host_compiler.COMPILER is None, reason=host_compiler.MISSING)
def test_kernels_of_rows_compute_in_place_as_they_are_written() -> None:
    runtime = HostCompilingRuntime()
    with Core() as core:
        core.register_plugin("CARD", GpuDevice("CARD", runtime))
        network = core.read_network(bert_model(1, layers=1, length=12))
        inputs = {"states": np.random.default_rng(0).standard_normal((1, 12, 768)).astype(np.float32)}
        expected = core.load_network(network, "CPU").infer(inputs)
        loaded = core.load_network(network, "CARD", {**ON, "GPU_FUSION": True})
        assert loaded.get_metric("GPU_ARENA_IN_PLACE") >= 2
        for _ in range(2):
            for name, found in loaded.infer(inputs).items():
                assert max_relative_difference(found, expected[name]) < 1e-5
        assert loaded.get_metric("GPU_ARENA_MISSES") == 0


@pytest.mark.parametrize("config", [ON, {"GPU_GRAPHS": True, "GPU_FUSION": True}], ids=["arena", "recorded"])
def test_network_runs_in_less_memory_than_its_values_take(core: Core, config: dict[str, Any]) -> None:
    network = core.read_network(light_model("squeezenet"))
    inputs = {spec.name: np.random.default_rng(0).standard_normal(spec.shape).astype(np.float32) for spec in network.inputs}
    (expected,) = core.load_network(network, "CPU").infer(inputs).values()
    loaded = core.load_network(network, "GPU", config)
    ((_, plan),) = loaded.executable._book._plans.items()
    assert plan.nbytes < 0.5 * sum(plan.sizes)
    request = loaded.create_infer_request()
    for _ in range(3):
        (found,) = request.infer(inputs).values()
        assert max_relative_difference(found, expected) < 1e-4
    assert loaded.get_metric("GPU_ARENA_MISSES") == 0


def test_request_without_room_is_an_error_at_load_and_the_card_goes_on(read: Callable[..., Network]) -> None:
    # Two values of 4,000 bytes live at once, beside zeros to try it with; 6,000 are left for a request.
    text = "g (float[1000] x) => (float[1000] y) { a = Exp (x) b = Neg (a) y = Abs (b) }"
    with Core() as core:
        core.register_plugin("SMALL", GpuDevice("SMALL", FakeRuntime(memory_bytes=10000)))
        core.register_plugin("ROOMY", GpuDevice("ROOMY", FakeRuntime(memory_bytes=24000)))
        with pytest.raises(
            DeviceMemoryError, match=r"network 'g' on SMALL: 4000 bytes more were needed while a first run on zeros"
        ):
            core.load_network(read(text), "SMALL", ON)
        assert core.load_network(read(text.replace("1000", "500")), "SMALL", ON).get_metric("GPU_ARENA_BYTES") > 0
        loaded = core.load_network(read(text), "ROOMY", ON)
        arena = loaded.get_metric("GPU_ARENA_BYTES")
        assert arena == 2 * 4096
        requests = [loaded.create_infer_request() for _ in range(2)]
        with pytest.raises(
            DeviceMemoryError,
            match=r"network 'g' on ROOMY: 8192 bytes more were needed while the memory of a request was set aside",
        ):
            loaded.create_infer_request()
        for request in requests:
            np.testing.assert_array_equal(request.infer({"x": np.zeros(1000, np.float32)})["y"], np.ones(1000))


def test_arena_that_does_not_fit_beside_the_constants_is_named_at_load(read: Callable[..., Network]) -> None:
    runtime = FakeRuntime(memory_bytes=100000)
    card = runtime.cards()[0]
    card.read_memory = lambda: (1000, 100000)  # type: ignore[method-assign]  # another process took the rest
    with Core() as core:
        core.register_plugin("FULL", GpuDevice("FULL", runtime))
        with pytest.raises(
            DeviceMemoryError,
            match="cannot load network 'g' on FULL: the values of one request take 8192 bytes, 1000 are free on card of make-believe 0",
        ) as caught:
            core.load_network(read("g (float[1000] x) => (float[1000] y) { a = Exp (x) y = Neg (a) }"), "FULL", ON)
    assert (caught.value.needed, caught.value.free) == (8192, 1000)


def test_memory_of_cupy_keeps_its_ticket_as_long_as_an_array_or_a_view_of_it() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    tracer, pool = Tracer(), []

    def allocate(nbytes: int) -> Any:
        pool.append(nbytes)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0x10000 * len(pool), nbytes, None, 0), 0)

    def make(places: Any, block: Any) -> Any:
        give = make_allocator(cupy, places, block, index=0, allocate=allocate)
        first = cupy.ndarray((64,), "float32", memptr=give(256))
        view = first[1:]
        del first
        second = cupy.ndarray((64,), "float32", memptr=give(256))
        address = view.data.ptr
        del view
        third = cupy.ndarray((64,), "float32", memptr=give(256))
        return address, second.data.ptr, third.data.ptr

    assert make(tracer, None) == (0x10004, 0x20000, 0x30000)
    plan = tracer.finish()
    assert plan is not None
    assert plan.nbytes == 2 * 256
    pool.clear()
    arena = Arena(plan, None)
    arena.begin()
    first, second, third = make(arena, SimpleNamespace(data=SimpleNamespace(ptr=0x80000)))
    assert (first - 4, pool, arena.misses) == (third, [], 0)
    assert {first - 4, second} == {0x80000, 0x80100}
