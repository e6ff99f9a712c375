"""Programs of machine code and their teams: chunks run once, calls in order; threads sleep, end, and do not survive a fork.

The kernel of these tests counts its runs per chunk. It also counts an error if the call before has unfinished chunks, or if another
thread uses the same worker number at the same time: both happen if the program lets two calls overlap.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx.parser
import pytest

find_width = pytest.importorskip("hetero_cpu.machine.compiler").find_width
if find_width() == 0:
    pytest.skip("no kernels are made for this processor", allow_module_level=True)

from hetero_cpu.machine.calls import NativeCall, address_of  # noqa: E402
from hetero_cpu.machine.code import Code  # noqa: E402  # LLVM: only where there is one
from hetero_cpu.machine.compiler import COMPILER, Kernel  # noqa: E402
from hetero_cpu.machine.interpreter import DONE, PARKED, TICKET  # noqa: E402
from hetero_cpu.machine.program import (  # noqa: E402
    NativeProgram,
    Team,
    TeamPool,
)

from hetero_core import AsyncInferQueue, Core, Extension  # noqa: E402  # as above

MOST_WORKERS = 8
HERE = Path(__file__).parent
NUMBERS = ("counts", "done_before", "chunks_before", "done", "wrong", "inside", "helped", "steps", "workers")


def emit_counting(name: str, width: int) -> Code:
    code = Code(name, 3, width)
    row, chunk, worker = code.parameters
    p = {key: code.load_number(row, 8 * place) for place, key in enumerate(NUMBERS)}
    mine = p["inside"] + worker * 64
    done_before = code.load_atomically(p["done_before"])
    with code.when((done_before < p["chunks_before"]) | (done_before > p["chunks_before"])):
        code.add_atomically(p["wrong"], 1)
    with code.when((worker < 0) | (worker >= p["workers"]) | (code.add_atomically(mine, 1) > 0)):
        code.add_atomically(p["wrong"], 1)
    with code.when(worker > 0):
        code.add_atomically(p["helped"], 1)
    value = code.variable(chunk)
    with code.loop(0, p["steps"]):
        value.set(value.get() * 6364136223846793005 + 1442695040888963407)
    with code.when(value.get().equals(-1)):  # never true; keeps the loop from being optimized away
        code.add_atomically(p["wrong"], 1 << 32)
    code.add_atomically(p["counts"] + chunk * 8, 1)
    code.add_atomically(mine + 8, 1)
    code.add_atomically(mine, -1)
    code.add_atomically(p["done"], 1)
    code.finish()
    return code


# Compiled kernels are cached by name, so the name must change with this file.
COUNTING = Kernel(f"test_team_{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}", emit_counting)


class Counted:
    """A program of counting calls, with its counters."""

    def __init__(self, chunks: list[int], *, workers: int, steps: int = 0) -> None:
        self.chunks = chunks
        self.counts = np.zeros((len(chunks), max([*chunks, 1])), np.int64)
        self.done = np.zeros(len(chunks) + 1, np.int64)
        self.wrong, self.helped = np.zeros(1, np.int64), np.zeros(1, np.int64)
        inside = np.zeros((MOST_WORKERS, 8), np.int64)
        self.chunks_of_worker = inside[:, 1]
        keep = (self.counts, self.done, self.wrong, self.helped, inside)
        calls = []
        for place, count in enumerate(chunks):
            before = (address_of(self.done[place:]), chunks[place - 1] if place else 0)
            counters = (address_of(self.done[place + 1 :]), *map(address_of, (self.wrong, inside, self.helped)))
            calls.append(NativeCall(COUNTING, (address_of(self.counts[place]), *before, *counters, steps, workers), count, keep))
        numbers = np.array([number for call in calls for number in call.numbers], np.int64)
        self.program = NativeProgram(calls, numbers, np.array(chunks, np.int64))

    def run(self, begin: int, end: int, team: Team | None) -> None:
        """Runs a part; fails if one of its chunks did not run exactly once, if a foreign chunk ran, or if calls overlapped."""
        self.counts[:] = 0
        self.done[0] = 0
        self.done[1:] = np.where(np.arange(len(self.chunks)) < begin, self.chunks, 0)
        self.program.run(begin, end, team)
        limits = np.array([count if begin <= place < end else 0 for place, count in enumerate(self.chunks)])
        assert np.array_equal(self.counts, np.arange(self.counts.shape[1]) < limits[:, None])
        assert self.wrong[0] == 0


def make_random(source: random.Random, workers: int) -> Counted:
    calls, steps = source.choice([(1, 0), (2, 20), (5, 4000), (30, 400), (30, 2000), (200, 0), (200, 20)])
    chunks = [source.choice([0, 1, 1, 1, 2, 3, 8, 64]) for _ in range(calls)]
    return Counted(chunks, workers=workers, steps=steps)


def run_many(seed: int, workers: int, runs: int) -> None:
    """Runs parts of programs, at least `runs` times and until helper threads have run 300 chunks."""
    source, team = random.Random(seed), Team(workers)
    target, deadline = 0 if workers == 1 else 300, monotonic() + 60
    try:
        programs = [make_random(source, workers) for _ in range(20)]
        while runs > 0 or sum(int(counted.helped[0]) for counted in programs) < target:
            runs -= 1
            assert monotonic() < deadline
            counted = source.choice(programs)
            begin, end = sorted(source.choices(range(len(counted.chunks) + 1), k=2))
            counted.run(begin, end, team)
            if source.random() < 0.04:
                time.sleep(source.choice([0.0001, 0.0005, 0.001, 0.004]))  # about the time after which helpers go to sleep
    finally:
        team.close()


def read_place(team: Team, place: int) -> int:
    return int(team._memory[place : place + 8].view(np.int64)[0])


def wait_until(condition: Any) -> None:
    deadline = monotonic() + 60
    while not condition():
        assert monotonic() < deadline
        time.sleep(0.001)


def list_helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hetero-CPU-team_")]


@pytest.fixture(autouse=True)
def threads_end() -> Any:
    before = list_helpers()
    yield
    gc.collect()
    wait_until(lambda: set(list_helpers()) <= set(before))


def test_program_alone_runs_every_chunk_once_in_order() -> None:
    counted = Counted([1, 0, 64, 3, 1], workers=1)
    assert len(counted.chunks) == 5
    for begin in range(6):
        for end in range(begin, 6):
            counted.run(begin, end, None)
    Counted([], workers=1).program.run(0, 0)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_short_team_runs_run_each_chunk_once_in_order(workers: int) -> None:
    run_many(workers, workers, 200)


@pytest.mark.parametrize("workers", [2, 4])
def test_tiny_consecutive_calls_keep_their_counters_apart(workers: int) -> None:
    team, chunks = Team(workers), [2, 3, 2, 7] * 50
    counted, runs = Counted(chunks, workers=workers), 0
    deadline = monotonic() + 60
    while runs < 300 or counted.helped[0] < 500:
        assert monotonic() < deadline
        counted.done[:] = 0
        counted.program.run(0, len(chunks), team)
        runs += 1
    assert np.array_equal(counted.counts, runs * (np.arange(7) < np.array(chunks)[:, None]))
    assert counted.wrong[0] == 0
    team.close()


def test_two_teams_at_the_same_time_do_not_meet() -> None:
    failures = list[BaseException]()

    def work(seed: int) -> None:
        try:
            run_many(seed, 3, 100)
        except BaseException as error:  # noqa: BLE001  # reported below, in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (11, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("workers", [2, 5])
def test_every_helper_takes_part_when_awake_and_after_it_slept(workers: int) -> None:
    team, counted = Team(workers), Counted([1, 32, 1, 32], workers=workers, steps=10_000)
    for _ in range(3):
        counted.chunks_of_worker[:] = 0

        def is_done_by_all() -> bool:
            counted.run(0, 4, team)
            return bool(counted.chunks_of_worker[:workers].all())

        wait_until(is_done_by_all)
        wait_until(lambda: read_place(team, PARKED) == workers - 1)
    team.close()


def test_run_without_chunks_to_share_wakes_no_helper() -> None:
    team, counted = Team(3), Counted([1] * 50, workers=3)
    wait_until(lambda: read_place(team, PARKED) == 2)
    for _ in range(100):
        counted.run(0, 50, team)
    assert read_place(team, PARKED) == 2
    assert read_place(team, DONE) == read_place(team, TICKET) == 0
    team.close()


def test_sleeping_team_uses_no_processor() -> None:
    # In a process of its own, as threads of other tests would count, too.
    used = float(
        run_python(
            """
team, one = Team(4), Counted([64] * 20, workers=4)
for _ in range(20):
    one.run(0, 20, team)
wait_until(lambda: read_place(team, PARKED) == 3)
before = time.process_time()
time.sleep(0.3)
print(time.process_time() - before)
"""
        )
    )
    assert used < 0.1, "three spinning threads use up to 0.9 seconds"


@pytest.mark.parametrize("state", ["spinning", "parked"])
def test_close_ends_threads_and_runs_go_on_alone(state: str) -> None:
    team, counted = Team(3), Counted([64, 1, 64], workers=3)
    if state == "parked":
        wait_until(lambda: read_place(team, PARKED) == 2)
    else:
        counted.run(0, 3, team)
    threads = list_helpers()
    assert len(threads) >= 2
    team.close()
    assert not any(thread in list_helpers() for thread in threads if thread.name.startswith("hetero-CPU-team_"))
    team.close()
    counted.helped[0] = 0
    counted.run(0, 3, team)
    assert counted.helped[0] == 0


def test_close_by_another_thread_during_runs_leaves_them_right() -> None:
    counted = Counted([16] * 30, workers=3, steps=500)
    for _ in range(8):
        team = Team(3)
        counted.run(0, 30, team)
        closer = threading.Thread(target=team.close)
        closer.start()
        while closer.is_alive():
            counted.run(0, 30, team)
        closer.join()


def test_team_is_closed_when_the_process_takes_itself_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(2)
    (thread,) = team._threads
    # As after the exit functions of weakref; a Core may be closed behind them.
    monkeypatch.setattr(weakref.finalize, "_shutdown", True)
    closer = threading.Thread(target=team.close, daemon=True)
    closer.start()
    closer.join(60)
    assert not thread.is_alive()


def test_collected_team_and_pool_end_their_threads() -> None:
    before = set(list_helpers())
    team, pool = Team(2), TeamPool(3, streams=2)
    with pool.lease() as first, pool.lease() as second:
        assert first is not second
    threads = [thread for thread in list_helpers() if thread not in before]
    assert len(threads) == 1 + 2 * 2
    gc.collect()
    gc.disable()
    try:
        del team, pool, first, second  # no reference cycle keeps them alive
        for thread in threads:
            thread.join(60)
    finally:
        gc.enable()
    assert not any(thread.is_alive() for thread in threads)


def test_pool_reuses_its_team_and_lends_none_beyond_its_streams() -> None:
    pool = TeamPool(2, streams=2)
    with pool.lease() as first:
        assert first is not None
        assert first.workers == 2
        with pool.lease() as second, pool.lease() as third:
            assert second is not None
            assert third is None
    with pool.lease() as again:
        assert again is first
    with TeamPool(1, streams=2).lease() as alone:
        assert alone is None
    pool.close()


def test_runs_beside_each_other_share_the_threads_of_a_pool() -> None:
    pool, before = TeamPool(7, streams=1), set(list_helpers())
    with ExitStack() as runs:
        teams = [runs.enter_context(pool.lease()) for _ in range(4)]
        assert [team.workers if team else 1 for team in teams] == [7, 3, 1, 1]
        counted = Counted([8] * 5, workers=7)
        counted.run(0, 5, teams[1])
    with ExitStack() as runs:
        runs.enter_context(pool.lease())
        with pool.lease() as beside:
            assert beside is teams[1]
    with pool.lease() as again:
        assert again is teams[0]
    assert len(set(list_helpers()) - before) == 6 + 2
    pool.close()
    assert set(list_helpers()) <= before


def test_closed_pool_ends_a_lent_team_when_it_comes_back() -> None:
    pool, counted = TeamPool(3), Counted([8] * 5, workers=3)
    before = set(list_helpers())
    with pool.lease() as team:
        threads = [thread for thread in list_helpers() if thread not in before]
        pool.close()
        assert all(thread.is_alive() for thread in threads)
        counted.run(0, 5, team)
    assert not any(thread.is_alive() for thread in threads)
    with pool.lease() as later:
        assert later is None
    pool.close()


def test_team_for_which_no_thread_starts_works_alone_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.stack_size(2**47 - 2**20)  # more than the address space of a process
    try:
        with caplog.at_level(logging.WARNING):
            team = Team(3)
    finally:
        threading.stack_size(before)
    assert caplog.messages == ["a team of 3 threads works with 1: can't start new thread"]
    Counted([8] * 5, workers=3).run(0, 5, team)
    team.close()


def run_python(program: str, *, first: str = "") -> str:
    """Returns the output of a program with all names of this file; the program must exit with 0 and an empty stderr."""
    source = f"{first}\nfrom {Path(__file__).stem} import *\n{program}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_forked_child_works_alone_and_can_make_teams() -> None:
    run_python("""
team, pool, one = Team(3), TeamPool(3, streams=2), Counted([64, 1, 8] * 10, workers=3, steps=100)
for is_parked in (False, True):
    with pool.lease() as lent:
        one.run(0, 30, lent)
        if is_parked:
            wait_until(lambda: read_place(team, PARKED) == 2)
        one.run(0, 30, team)
        child = os.fork()
        if child == 0:
            assert list_helpers() == []
            one.helped[0] = 0
            for _ in range(100):
                one.run(0, 30, team)
                one.run(0, 30, lent)
            assert one.helped[0] == 0
            with pool.lease() as other:
                for _ in range(100):
                    one.run(0, 30, other)
            team.close()
            pool.close()
            sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
one.run(0, 30, team)
assert len(list_helpers()) == 4
""")


@pytest.mark.parametrize(
    "end",
    [
        "wait_until(lambda: read_place(team, PARKED) == 2)",
        "threading.Thread(target=go_on, daemon=True).start(); time.sleep(0.05)",
        "sys.modules['kept'] = team",
    ],
    ids=["parked", "running", "held by a module"],
)
def test_interpreter_ends_with_teams_alive(end: str) -> None:
    # atexit calls its functions in reverse order.
    first = """
import atexit, threading
atexit.register(lambda: print(*(thread.name for thread in threading.enumerate() if thread.name.startswith("hetero"))))
"""
    program = f"""
def go_on():
    while True:
        one.program.run(0, 30, team)

for name in ("first", "second"):
    team, one = Team(3), Counted([64, 1, 8] * 10, workers=3, steps=100)
    one.run(0, 30, team)
{end}
"""
    assert run_python(program, first=first) == "\n"


def test_kernel_of_these_tests_finds_calls_that_overlap() -> None:
    counted = Counted([2, 2], workers=1)
    counted.done[1] = 1  # as if the second chunk of the first call had not run
    counted.program.run(1, 2)
    assert counted.wrong[0] == 2
    assert COUNTING.name in COMPILER._addresses


def test_requests_of_one_stream_run_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_core.devices.device.count_processors", lambda: 16)
    met = threading.Barrier(3, timeout=60)

    def meet(x: Any) -> Any:
        met.wait()
        return x

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.acme": 1]> g (float[3] x) => (float[3] y) { a = com.acme.Meet(x) y = Relu(a) }'
    )
    with Core() as core:
        core.add_extension(Extension("com.acme", "Meet", 1, meet, lambda types, attributes: types), "CPU")
        counts = {threads: core.load_network(model, "CPU", {"INFERENCE_NUM_THREADS": threads}) for threads in (1, 3, 16)}
        assert {threads: each.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") for threads, each in counts.items()} == {
            1: 1,
            3: 3,
            16: 8,
        }
        with AsyncInferQueue(counts[3]) as queue:
            for value in range(3):
                queue.start_async({"x": np.full(3, value, np.float32)})
        assert sorted(request.get_tensor("y")[0] for request in queue) == [0, 1, 2]
