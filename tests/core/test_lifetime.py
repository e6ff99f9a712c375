"""Lifetimes: Core, network and request are freed in every order, the interpreter exits during runs, a forked child gets an error."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from time import monotonic
from typing import Any

import importlib_metadata
import numpy as np
import onnx.parser
import pytest

from hetero_core import AsyncInferQueue, Core, ExecutableNetwork
from hetero_core.errors import ConfigValueError

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { a = Abs(x) y = Add(a, x) }'
X = np.array([3], np.float32)
KINDS = ("core", "network", "request", "queue")


def list_orders(device: str, split: str, kinds: tuple[str, ...]) -> list[Any]:
    """Returns every order of the kinds on a device, and every fifth order on a split."""
    orders = list(itertools.permutations(kinds))
    pairs = [*((device, order) for order in orders), *((split, order) for order in orders[::5])]
    return [pytest.param(*pair, id=f"{pair[0]}-{'-'.join(pair[1])}") for pair in pairs]


def make_all(device: str) -> dict[str, Any]:
    core = Core()
    model = core.read_network(onnx.parser.parse_model(MODEL))
    network = core.load_network(model.with_affinity({"op:Abs": "TEMPLATE"} if ":" in device else {}), device)
    request, queue = network.create_infer_request(), AsyncInferQueue(network, 2)
    request.start_async({"x": X})
    for _ in range(4):
        queue.start_async({"x": X})
    queue.wait_all()
    assert request.wait(60)
    return {"core": core, "network": network, "request": request, "queue": queue}


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize(("device", "order"), list_orders("CPU", "HETERO:TEMPLATE,CPU", KINDS))
def test_objects_go_in_every_order_and_nothing_stays(device: str, order: tuple[str, ...]) -> None:
    held = make_all(device)
    watched = {kind: weakref.ref(thing) for kind, thing in held.items()}
    for kind in order:
        del held[kind]
        gc.collect()
        if "request" in held:
            assert held["request"].infer({"x": X})["y"].tolist() == [6], f"a request works without its {kind}"
    # A pool thread may still hold the run for a moment after it has reported the end.
    end = monotonic() + 60
    while monotonic() < end and any(reference() is not None for reference in watched.values()):
        gc.collect()
    assert [kind for kind, reference in watched.items() if reference() is not None] == []


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize(("device", "order"), list_orders("FLIGHT", "HETERO:FLIGHT,CPU", ("core", "network", "request", "plugin")))
def test_run_in_flight_ends_well_in_every_order_of_deletion(hand: Any, device: str, order: tuple[str, ...]) -> None:
    before, ended = set(threading.enumerate()), list[Any]()
    plugin = type(hand)()
    core = Core()
    core.register_plugin("FLIGHT", plugin)
    model = core.read_network(onnx.parser.parse_model(MODEL))
    network = core.load_network(model.with_affinity({"op:Add": "CPU"} if ":" in device else {}), device)
    request = network.create_infer_request()
    request.set_callback(lambda request, error: ended.append(error or request.get_tensor("y").tolist()))
    request.start_async({"x": X})
    run = plugin.next_run()
    # The compiler thread is shared by the process and is started by the first test that compiles.
    threads = [thread for thread in threading.enumerate() if thread not in before and thread.name != "hetero-cpu-compiler"]
    assert {thread.name.rpartition("_")[0] for thread in threads} >= {f"hetero-{device}"}
    held = {"core": core, "network": network, "request": request, "plugin": plugin}
    watched = {kind: weakref.ref(thing) for kind, thing in held.items()}
    del core, network, request, plugin
    for kind in order:
        if kind == "plugin" and "core" in held:
            held["core"].unregister_plugin("FLIGHT")
        del held[kind]
        gc.collect()
    assert ended == []
    run.end()
    del run
    # Core and registry form a cycle, which is collected after the thread has released the run.
    deadline = monotonic() + 60
    while any(thread.is_alive() for thread in threads) and monotonic() < deadline:
        gc.collect()
        threads[0].join(0.01)
    # HAND doubles its input for any operator.
    assert ended == [[9 if ":" in device else 6]]
    assert [thread.name for thread in threads if thread.is_alive()] == []
    gc.collect()
    assert [kind for kind, reference in watched.items() if reference() is not None] == []


@pytest.mark.parametrize("order", list(itertools.permutations(("core", "network"))), ids="-".join)
def test_closing_in_every_order_leaves_a_clear_error(order: tuple[str, ...]) -> None:
    held = make_all("HETERO:TEMPLATE,CPU")
    for kind in order:
        held[kind].close()
        held[kind].close()
    with pytest.raises(RuntimeError, match="network 'g' on HETERO:TEMPLATE,CPU is closed; load it again"):
        held["request"].infer({"x": X})
    assert held["request"].wait(0)
    held["queue"].wait_all()


def test_core_without_holders_ends_its_threads(hand: Any, by_hand: ExecutableNetwork) -> None:
    held = make_all("CPU")
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("hetero-CPU")]
    assert threads != []
    held.clear()
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_cancelled_and_failed_runs_hold_no_input(hand: Any, by_hand: ExecutableNetwork) -> None:
    class Array(np.ndarray):  # type: ignore[type-arg]  # only to be watched
        pass

    request = by_hand.create_infer_request()
    array = np.array([1], np.float32).view(Array)
    watched = weakref.ref(array)
    request.start_async({"x": array})
    run = hand.next_run()
    request.cancel()
    run.end()
    del run, array
    hand.is_free = True
    request.infer({"x": X})
    # The thread releases the cancelled run when it takes the next task from its queue.
    by_hand.submit(lambda: None).result(60)
    for _ in range(4):
        by_hand.submit(lambda: None).result(60)
    gc.collect()
    assert watched() is None


PROGRAM = """
import os, sys, threading
import numpy as np, onnx.parser
from hetero_core import AsyncInferQueue, Core, Executable, QueryResult, hookimpl
from hetero_core.errors import ClosedError
from hetero_core.runtime import executors

MODEL = onnx.parser.parse_model({model!r})
X = np.array([3], np.float32)
entered = threading.Semaphore(0)


class Stuck(Executable):
    def __init__(self, network):
        self.inputs, self.outputs = network.inputs, network.outputs

    def run(self, inputs, context):
        entered.release()
        threading.Event().wait()


class StuckDevice:
    @hookimpl
    def query_network(self, network):
        return QueryResult({{node.name: "STUCK" for node in network.nodes}})

    @hookimpl
    def load_network(self, network):
        return Stuck(network)


core = Core()
core.register_plugin("STUCK", StuckDevice())
"""


def run_program(body: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(model=MODEL) + body
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize(
    "body",
    [
        # A device that never returns, with runs queued behind it.
        """
executors.EXIT_SECONDS = 0.1
network = core.load_network(MODEL, "STUCK")
requests = [network.create_infer_request() for _ in range(50)]
for request in requests:
    request.start_async({"x": X})
entered.acquire()
""",
        # A callback that restarts its request for ever.
        """
network = core.load_network(MODEL, "CPU")
requests = [network.create_infer_request() for _ in range(50)]
for request in requests:
    request.set_callback(lambda request, error: request.start_async() if error is None else None)
    request.set_tensor("x", X)
    request.start_async()
""",
        # A queue on a split network; both are dropped before the exit.
        """
queue = AsyncInferQueue(core.load_network(MODEL, "HETERO:TEMPLATE,CPU"), 4)
for _ in range(50):
    queue.start_async({"x": X})
del queue, core
""",
    ],
    ids=["stuck", "restarted", "split"],
)
def test_interpreter_ends_with_runs_in_flight(body: str) -> None:
    ended = run_program(body)
    assert (ended.returncode, ended.stderr) == (0, "")


REOPENED = """
import io
import warnings

# Python 3.12 and later warn about a fork with threads; this test checks its effects.
warnings.simplefilter("ignore", DeprecationWarning)
core.close()
core = Core(after_fork="reopen")
core.register_plugin("STUCK", StuckDevice())
core.set_config({"CPU_KERNELS": "NUMPY"}, "CPU")
devices = ("CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU", "AUTO:TEMPLATE,CPU", "BATCH:CPU(2)")
networks = [core.load_network(MODEL, device) for device in devices]
stream = io.BytesIO()
networks[0].export_network(stream)
networks.append(core.import_network(stream.getvalue(), trust=True))
networks[0].set_config({"DEADLINE": 100})
request, queue = networks[0].create_infer_request(), AsyncInferQueue(networks[0], 2)
outputs = [network.infer({"x": X})["y"].tolist() for network in networks]


def list_faults():
    faults = []
    for network in networks:
        if network.infer({"x": X})["y"].tolist() != [6]:
            faults.append(str(network))
    settings = core.get_config("CPU", "CPU_KERNELS"), networks[0].get_config("DEADLINE"), networks[0].get_config("CPU_KERNELS")
    if settings != ("NUMPY", 100, "NUMPY") or "STUCK" not in core.device_names:
        faults.append(f"settings {settings}")
    for action in (lambda: request.infer({"x": X}), request.wait, request.cancel, queue.wait_all, queue.start_async):
        try:
            action()
        except ClosedError as error:
            if "was created before this process was forked" in str(error):
                continue
            faults.append(str(error))
        else:
            faults.append("a request of the parent ran")
    own = networks[0].create_infer_request()
    own.start_async({"x": X})
    own.wait()
    core.close()
    for network in networks:
        try:
            network.infer({"x": X})
        except ClosedError:
            continue
        faults.append(f"{network} outlives its Core")
    return faults


child = os.fork()
if child == 0:
    faults = list_faults()
    sys.stderr.write("; ".join(faults))
    sys.exit(len(faults))
assert outputs == [[6]] * len(networks)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert request.infer({"x": X})["y"].tolist() == [6]
"""


def test_forked_child_opens_core_and_networks_again_if_told() -> None:
    ended = run_program(REOPENED)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_after_fork_takes_two_values() -> None:
    with pytest.raises(ConfigValueError, match="after_fork: expected 'raise' or 'reopen', got 'ignore'"):
        Core(after_fork="ignore")  # type: ignore[arg-type]  # a wrong value on purpose


def test_exports_into_a_folder_on_sys_path_leak_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # importlib-metadata caches the listing of a folder for each modification time of the folder.
    monkeypatch.syspath_prepend(str(tmp_path))

    def count_listings() -> int:
        return sum(type(held) is importlib_metadata.Lookup for held in gc.get_objects())

    config = {"CACHE_DIR": str(tmp_path / "cache"), "CPU_KERNELS": "NUMPY"}

    def load_and_export(core: Core, number: int) -> None:
        os.utime(tmp_path, ns=(number, number))
        core.load_network(onnx.parser.parse_model(MODEL), "CPU", {"CPU_KERNELS": "NUMPY"}).export_network(
            tmp_path / f"{number}.blob"
        )
        os.utime(tmp_path, ns=(number, number))
        core.load_network(onnx.parser.parse_model(MODEL), "CPU", config)

    with Core() as core:
        # The first round fills the cache of distribution versions.
        load_and_export(core, 0)
        before = count_listings()
        for number in range(1, 6):
            load_and_export(core, number)
    assert before > 0
    assert count_listings() == before


FORK = """
import warnings

# Python 3.12 and later warn about a fork with threads; this test checks its effects.
warnings.simplefilter("ignore", DeprecationWarning)
network = core.load_network(MODEL, "CPU")
request, queue = network.create_infer_request(), AsyncInferQueue(network, 2)
request.infer({"x": X})
stuck = core.load_network(MODEL, "STUCK").create_infer_request()
stuck.start_async({"x": X})
entered.acquire()
executors.EXIT_SECONDS = 0.1


def list_unclear():
    unclear = []
    for name, action in {
        "infer": lambda: request.infer({"x": X}),
        "start": lambda: request.start_async({"x": X}),
        "wait": lambda: stuck.wait(),
        "cancel": lambda: stuck.cancel(),
        "network": lambda: network.infer({"x": X}),
        "create": lambda: network.create_infer_request(),
        "queue": lambda: queue.start_async({"x": X}),
        "wait_all": lambda: queue.wait_all(),
        "load": lambda: core.load_network(MODEL, "CPU"),
        "metric": lambda: core.get_metric("CPU", "FULL_DEVICE_NAME"),
        "submit": lambda: core.create_executor("CPU", workers=1).submit(print),
    }.items():
        try:
            action()
        except ClosedError as error:
            text = str(error)
            if "cannot be used here: this process was forked after it was made" not in text or "after_fork='reopen'" not in text:
                unclear.append(f"{name}: {error}")
        else:
            unclear.append(f"{name}: no error")
    return unclear


child = os.fork()
if child == 0:
    unclear = list_unclear()
    network.close()
    core.close()
    with Core() as own:
        result = own.load_network(MODEL, "CPU").create_infer_request()
        result.start_async({"x": X})
        result.wait()
        if result.get_tensor("y").tolist() != [6]:
            unclear.append("a Core of the child")
    sys.stderr.write("".join(unclear))
    # sys.exit runs the exit handlers, unlike os._exit.
    sys.exit(len(unclear))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert request.infer({"x": X})["y"].tolist() == [6]
"""


def test_forked_child_gets_an_error_and_can_make_its_own_core() -> None:
    ended = run_program(FORK)
    assert (ended.returncode, ended.stderr) == (0, "")
