"""Prints what a process costs a run: a network of one node on CPU, on PROCESS:CPU, and a bare round trip over two pipes, in turns.

    python tests/bench/bench_process.py [--rounds 2000] [--elements 262144] [--threads 1] [--apart] [--bare] [--shared] [--profile]
    python tests/bench/bench_process.py --model resnet50 [--rounds 40]

`--elements 262144` is 1 MB in and out of the caller's own memory; a copy of it each way is measured beside. `--threads` is the
INFERENCE_NUM_THREADS of both devices. `--bare` measures beside it a process of the least that carries the same input: a copy into shared
memory here, a pipe, and there one function of NumPy from shared memory to shared memory. `--shared` gives both an input that lies in
shared memory. `--apart` keeps this process on one processor and its children on another one, the pipe's, too; `taskset -c 0` keeps
all on one. `--profile` prints where the parent's time goes.
`--model` prints instead how many requests of a whole network end in a second, as many at once as it works on, and what a process leaves.
"""

from __future__ import annotations

import argparse
import cProfile
import mmap
import os
import pstats
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import onnx.parser
from hetero_process import create_shared_array

from hetero_core import AsyncInferQueue, Core, ExecutableNetwork
from hetero_core.testing.models import light_inputs, light_model

_MODEL = '<ir_version: 8, opset_import: ["": 17]> one (float[N] x) => (float[N] y) { y = Neg (x) }'
_ECHO = "import os\nwhile os.read(0, 64): os.write(1, b'12345678')"
_BARE = """
import mmap, os, sys
import numpy as np
read, write, file, elements = map(int, sys.argv[1:])
memory = mmap.mmap(file, 0)
x, y = (np.ndarray(elements, np.float32, memory, place * 4 * elements) for place in (0, 1))
while os.read(read, 64):
    np.negative(x, out=y)
    os.write(write, b'12345678')
"""
_TURN = 20
"""Runs of one subject before the turn of the next."""


def main() -> None:
    """Prints medians in microseconds, and what the process costs beyond a pipe and the device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--model")
    parser.add_argument("--elements", type=int, default=4)
    parser.add_argument("--threads", type=int)
    for switch in ("--apart", "--bare", "--shared", "--profile"):
        parser.add_argument(switch, action="store_true")
    options = parser.parse_args()
    if options.model is not None:
        compare_throughput(options.model, options.rounds or 40)
        return
    options.rounds = options.rounds or 2000
    inputs = {"x": np.ones(options.elements, np.float32)}
    shared = create_shared_array(options.elements) if options.shared else inputs["x"]
    shared[...] = 1
    model = onnx.parser.parse_model(_MODEL.replace("N]", f"{options.elements}]"))
    copy = np.empty_like(inputs["x"])
    config = {} if options.threads is None else {"INFERENCE_NUM_THREADS": options.threads}
    here, there = sorted(os.sched_getaffinity(0))[:2] if options.apart else (0, 0)
    if options.apart:
        os.sched_setaffinity(0, {there})
    with Core() as core, subprocess.Popen([sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        requests = {name: core.load_network(model, name, config).create_infer_request() for name in ("CPU", "PROCESS:CPU")}
        writer, reader = echo.stdin.fileno(), echo.stdout.fileno()

        def cross_pipes() -> None:
            os.write(writer, b"12345678")
            os.read(reader, 64)

        subjects: dict[str, Callable[[], object]] = {
            "CPU": lambda: requests["CPU"].infer(inputs),
            "PROCESS:CPU": lambda: requests["PROCESS:CPU"].infer({"x": shared}),
            "pipe": cross_pipes,
            "two copies": lambda: (np.copyto(copy, inputs["x"]), np.copyto(copy, inputs["x"])),
        }
        if options.bare:
            subjects["bare process"] = open_bare_process(inputs["x"], is_shared=options.shared)
            subjects["NumPy"] = lambda: np.negative(inputs["x"], out=copy)
        if options.apart:
            os.sched_setaffinity(0, {here})
        if options.profile:
            print_profile(subjects["PROCESS:CPU"], options.rounds)
        else:
            print_times(subjects, options.rounds, copies=0 if options.shared else 1)


def compare_throughput(model: str, rounds: int) -> None:
    """Prints the medians over turns of requests in a second, and the median of the quotients with half of them."""
    proto = light_model(model)
    inputs, config = light_inputs(proto), {"PERFORMANCE_HINT": "THROUGHPUT"}
    with Core() as core:
        networks = {device: core.load_network(proto, device, config) for device in ("CPU", "PROCESS:CPU")}
        rates: dict[str, list[float]] = {device: [] for device in networks}
        for turn in range(-3, rounds):
            for device in networks if turn % 2 == 0 else reversed(networks):
                rate = count_requests(networks[device], inputs)
                # The first turns compile machine code.
                rates[device] += [rate] if turn >= 0 else []
    quotients = sorted(process / here for here, process in zip(rates["CPU"], rates["PROCESS:CPU"], strict=True))
    for device, values in rates.items():
        print(f"{device:12} {median(values):7.2f} per second, at most {max(values):.2f}")
    print(f"{'quotient':12} {median(quotients):7.3f}, half of {quotients[rounds // 4]:.3f} to {quotients[-1 - rounds // 4]:.3f}")


def count_requests(network: ExecutableNetwork, inputs: dict[str, np.ndarray], count: int = 16) -> float:
    """Returns requests in a second, with as many at once as the network works on."""
    with AsyncInferQueue(network) as queue:
        queue.start_async(inputs)
        queue.wait_all()
        begin = perf_counter()
        for _ in range(count):
            queue.start_async(inputs)
        queue.wait_all()
        return count / (perf_counter() - begin)


def open_bare_process(x: np.ndarray, *, is_shared: bool) -> Callable[[], object]:
    """Returns a call of a process that does nothing but what a run needs; it ends with this one."""
    elements = x.size
    there, back = os.pipe(), os.pipe()
    file = os.memfd_create("bench")
    os.ftruncate(file, 8 * elements)
    memory = mmap.mmap(file, 0)
    read, write = (np.ndarray(elements, np.float32, memory, place * 4 * elements) for place in (0, 1))
    numbers = [str(number) for number in (there[0], back[1], file, elements)]
    subprocess.Popen([sys.executable, "-c", _BARE, *numbers], pass_fds=(there[0], back[1], file))

    def call() -> np.ndarray:
        if not is_shared:
            np.copyto(read, x)
        os.write(there[1], b"12345678")
        os.read(back[0], 64)
        return write

    np.copyto(read, x)
    np.testing.assert_array_equal(call(), -x)
    return call


def print_times(subjects: dict[str, Callable[[], object]], rounds: int, *, copies: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(-(-rounds // _TURN)):
        for name, call in subjects.items():
            for _ in range(_TURN):
                begin = perf_counter()
                call()
                times[name].append(perf_counter() - begin)
    medians = {name: median(values) * 1e6 for name, values in times.items()}
    for name, microseconds in medians.items():
        print(f"{name:12} {microseconds:7.1f} us")
    beyond = medians["PROCESS:CPU"] - medians["CPU"] - medians["pipe"] - copies * medians["two copies"]
    print(f"{'beyond all':12} {beyond:7.1f} us")
    if "bare process" in medians:
        # Both compute: of each the time that it takes here is subtracted.
        process, bare = medians["PROCESS:CPU"] - medians["CPU"], medians["bare process"] - medians["NumPy"]
        print(f"{'beyond bare':12} {process - bare:7.1f} us")


def print_profile(call: Callable[[], object], rounds: int) -> None:
    profiler = cProfile.Profile()
    call()
    profiler.enable()
    for _ in range(rounds):
        call()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
