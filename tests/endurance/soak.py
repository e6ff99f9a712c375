"""Stress test: eight threads use four faulty devices in every way at once, for minutes; finds hangs, leaks and wrong results.

    python tests/endurance/soak.py --minutes 10 --seed 1

Every hook call and run of a device fails with a probability of 1 %. Exit code 1: a wrong result, an error that is neither injected nor
of hetero, or a leak. Exit code 3, with the stacks of all threads: a hang.

After each part of the time the threads pause between two operations, all networks are released, and resources are counted; see rest.py.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from faulty_device import Faults, FaultyFactory, InjectedError
from operations import DEVICES, HANG, KINDS, NETWORKS, OPERATIONS, STAYING, TAKEN, is_injected, make_model
from rest import Gate, Sample, await_compiler, count_pipes, count_threads, find_growth, find_leftovers, measure, settle

from hetero_core import Core, ExecutableNetwork, HeteroError
from hetero_core.errors import DeviceNotFoundError, PluginError, RequestCancelledError

THREADS = 8


class Soak:
    """The shared state of the threads."""

    def __init__(self, core: Core, folder: Path, seed: int, rate: float) -> None:
        self.core, self.folder, self.seed = core, folder, seed
        self.faults = Faults(seed, rate)
        self.factories = {name: FaultyFactory(kind, self.faults) for name, kind in KINDS.items()}
        for name, factory in self.factories.items():
            core.register_plugin(name, factory)
        self.models = [make_model(number) for number in range(NETWORKS)]
        self.loaded: deque[tuple[int, ExecutableNetwork]] = deque(maxlen=16)
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.findings: list[str] = []
        self.is_over = threading.Event()
        self.gate = Gate(THREADS)
        # The last element belongs to the measuring thread.
        self.last = [time.monotonic()] * THREADS + [float("inf")]

    def work(self, index: int) -> None:
        """Runs random operations until the soak is over."""
        random = Random(f"{self.seed}:{index}")
        while not self.is_over.is_set() and not self.findings:
            self.last[index] = float("inf")
            self.gate.pass_through()
            self.last[index] = time.monotonic()
            kind = random.choices(list(OPERATIONS), [weight for _, weight in OPERATIONS.values()])[0]
            outcome = self.attempt(lambda kind=kind: OPERATIONS[kind][0](self, random))
            with self.lock:
                if outcome:
                    self.errors[f"{kind}: {outcome}"] += 1
                else:
                    self.done[kind] += 1
        self.last[index] = float("inf")
        self.gate.leave()

    def count_open(self) -> int:
        """Returns the number of open devices, without the permanent device STAYING."""
        return sum(self.factories[name].created[name] - self.factories[name].closed[name] for name in TAKEN)

    def count_done(self) -> int:
        """Returns the number of successful operations."""
        with self.lock:
            return sum(self.done.values())

    def attempt(self, action: Callable[[], object]) -> str:
        """Returns the kind of failure of an action, "" for success; records an unexpected error as a finding."""
        try:
            action()
        except (InjectedError, HeteroError) as error:
            is_ordered = is_injected(error)
            if not is_ordered and not isinstance(error, RequestCancelledError | DeviceNotFoundError) and not is_race(error):
                self.findings.append("an error that nobody ordered\n" + traceback.format_exc())
            return type(error).__name__ + (" (injected)" if is_ordered else "")
        except BaseException as error:  # noqa: BLE001  # any other error is a finding
            self.findings.append(traceback.format_exc())
            return type(error).__name__
        return ""

    def pick(self, random: Random) -> tuple[int, ExecutableNetwork]:
        """Returns a loaded network with its number: a random earlier network, or a new load while there are few."""
        with self.lock:
            if len(self.loaded) > 4:
                return random.choice(self.loaded)
        return self.load(random)

    def load(self, random: Random) -> tuple[int, ExecutableNetwork]:
        """Loads a network on a random device, in 30 % of the cases through the cache, and shares it with all threads."""
        number, device = random.randrange(NETWORKS), random.choice(DEVICES)
        config = {"CACHE_DIR": str(self.folder), "CACHE_SIZE_LIMIT": 60_000} if random.random() < 0.3 else {}
        network = self.core.read_network(self.models[number])
        if ":" in device:
            network = network.with_affinity(
                {"op:Neg": random.choice(list(KINDS)), "op:Add": random.choice(list(KINDS)), "op:Relu": random.choice(list(KINDS))}
            )
        pair = number, self.core.load_network(network, device, config)
        with self.lock:
            self.loaded.append(pair)
        return pair


def is_race(error: HeteroError) -> bool:
    """Says whether an error was caused by two threads that registered the same name."""
    return isinstance(error, PluginError) and "is taken by" in str(error)


def watch(soak: Soak) -> None:
    """Ends the process with the stacks of all threads if a thread makes no progress."""
    while not soak.is_over.wait(1.0) or any(last != float("inf") for last in soak.last):
        stuck = [index for index, last in enumerate(soak.last) if time.monotonic() - last > HANG]
        if stuck:
            sys.stdout.write(f"FINDING: threads {stuck} have been in one operation for {HANG:g} s\n")
            sys.stdout.flush()
            faulthandler.dump_traceback(all_threads=True)
            os._exit(3)


def rest(soak: Soak, threads: int, pipes: int) -> Sample:
    """Returns a sample while no thread works and no network is loaded; `threads` and `pipes` are the expected numbers."""
    soak.gate.close()
    soak.last[THREADS] = time.monotonic()
    soak.loaded.clear()
    for name in TAKEN:
        soak.core.unregister_plugin(name)

    def count_unended() -> int:
        # Unused devices are closed when a name is registered or unregistered.
        soak.core.register_plugin("RESTING", soak.factories[STAYING])
        soak.core.unregister_plugin("RESTING")
        return soak.count_open() + max(count_threads() - threads, 0) + max(count_pipes() - pipes, 0)

    await_compiler(pipes)
    settle(count_unended)
    sample = measure(soak.count_open())
    for name in TAKEN:
        soak.core.register_plugin(name, soak.factories[name])
    soak.last[THREADS] = float("inf")
    return sample


def run(soak: Soak, seconds: float, samples: int, *, warm_up: int) -> list[Sample]:
    """Lets the threads work; returns a sample after each part of the time, which starts after `warm_up` operations."""
    before, pipes = measure(0), count_pipes()
    workers = [threading.Thread(target=soak.work, args=(index,), name=f"soak-{index}", daemon=True) for index in range(THREADS)]
    threading.Thread(target=watch, args=(soak,), name="soak-watch", daemon=True).start()
    before = replace(before, threads=before.threads + THREADS + 1)
    measured: list[Sample] = []
    for worker in workers:
        worker.start()
    while soak.count_done() < warm_up and not soak.findings:
        soak.is_over.wait(0.1)
    for part in range(1, samples + 1):
        soak.is_over.wait(seconds / samples)
        measured.append(rest(soak, before.threads, pipes))
        print_sample(part, soak, measured[-1])
        soak.findings += find_leftovers(before, measured[-1])
        if soak.findings:
            break
        soak.gate.open()
    soak.is_over.set()
    soak.gate.open()
    for worker in workers:
        worker.join()
    return measured


def print_sample(part: int, soak: Soak, sample: Sample) -> None:
    """Prints a line about a part of the time."""
    done = soak.count_done()
    with soak.lock:
        failed = sum(soak.errors.values())
    sys.stdout.write(
        f"part {part}: at rest {sample.threads} threads, {sample.files} files, {sample.devices} devices, {sample.objects} objects, "
        f"{sample.blocks} blocks, {sample.allocated / 2**20:.2f} MiB allocated, {sample.memory / 2**20:.1f} MiB in all; "
        f"{done} done, {failed} failed\n"
    )
    sys.stdout.flush()


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.01, help="the share of requests to a device that fail")
    parser.add_argument("--warm-up", type=int, default=0, help="the operations before the time begins, in which caches are filled")
    parser.add_argument("--samples", type=int, default=10, help="the least number of measurements; from 6 on, growth is a finding")
    arguments = parser.parse_args()
    faulthandler.enable()
    # Each fault in a load through the cache is a warning.
    logging.getLogger("hetero_core").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        core = Core()
        soak = Soak(core, Path(folder) / "cache", arguments.seed, arguments.rate)
        measured = run(soak, arguments.minutes * 60, max(round(arguments.minutes), arguments.samples), warm_up=arguments.warm_up)
        soak.loaded.clear()
        core.close()
    findings = [*soak.findings, *find_growth(measured)]
    for title, counts in (("done", soak.done), ("injected", soak.faults.counts), ("errors", soak.errors)):
        print_counts(title, counts)
    for name, factory in soak.factories.items():
        created, closed = factory.created[name], factory.closed[name]
        sys.stdout.write(f"{name}: {created} devices made, {closed} closed\n")
        if created != closed:
            findings.append(f"of {created} devices {name} {closed} were closed")
    for finding in findings:
        sys.stdout.write(f"FINDING: {finding}\n")
    sys.stdout.write(f"{len(findings)} findings\n")
    return 1 if findings else 0


def print_counts(title: str, counts: Counter[str]) -> None:
    """Prints a total and its parts."""
    parts = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    sys.stdout.write(f"{title}, {sum(counts.values())}: {parts}\n")


if __name__ == "__main__":
    sys.exit(main())
