"""PROCESS: a device in another process gives the same answers, and its failures stay contained there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import (
    DeadlineExceededError,
    DeviceCrashedError,
    DeviceNameError,
    InferenceError,
    RequestCancelledError,
    UnsupportedNodesError,
)
from hetero_core.remote import succession

GOOD = {"x": np.array([1.0, -2.0], np.float32)}
BAD = {"x": np.array([13.0, 1.0], np.float32)}


def require_right(network: Any) -> None:
    np.testing.assert_array_equal(network.infer(GOOD)["y"], [-1.0, 2.0])


def wait_for(is_true: Callable[[], bool], *, seconds: float = 10) -> bool:
    """Waits up to this long for a condition in another process."""
    clock = threading.Event()
    return any(is_true() or clock.wait(0.01) for _ in range(round(100 * seconds))) or is_true()


def is_alive(pid: int) -> bool:
    """Says whether a process runs; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a child that hangs soon after the end of the wait, since no test needs its answer."""
    monkeypatch.setattr(succession, "GRACE", 0.1)


def test_texts_sequences_and_absent_values_cross(core: Core, read: Callable[[str], Network]) -> None:
    network = read(
        "g (string[n] t, seq(float[m]) s) => (string[n] u, float[m] v) "
        "{ u = Identity (t) i = Constant <value_int = 1> () v = SequenceAt (s, i) }"
    )
    remote = core.load_network(network, "PROCESS:CPU")
    texts = np.array(["a", "\u20ac", ""], object)
    outputs = remote.infer({"t": texts, "s": [np.zeros(2, np.float32), np.arange(3, dtype=np.float32)]})
    assert outputs["u"].tolist() == texts.tolist()
    np.testing.assert_array_equal(outputs["v"], [0, 1, 2])


def test_query_names_refused_nodes_with_their_reasons(core: Core, read: Callable[[str], Network]) -> None:
    network = read("g (float[n] x) => (float[n] y) { h = Neg (x) y = Abs (h) }")
    answer = core.query_network(network, "PROCESS:BREAKING")
    assert list(answer.supported.values()) == ["PROCESS:BREAKING"]
    assert list(answer.refused.values()) == ["it computes Neg alone"]
    with pytest.raises(UnsupportedNodesError, match="Neg alone"):
        core.load_network(read("g (float[n] x) => (float[n] y) { y = Abs (x) }"), "HETERO:PROCESS:BREAKING")


def test_process_without_a_device_is_an_error(core: Core, negation: Network) -> None:
    with pytest.raises(DeviceNameError, match="PROCESS:CPU"):
        core.load_network(negation, "PROCESS")


def test_device_error_keeps_its_text_and_the_process_continues(load: Callable[..., Any]) -> None:
    network = load(BREAKING_HOW="RAISE")
    pid = network.get_metric("PID")
    with pytest.raises(InferenceError, match="ValueError: a device of mine has had enough"):
        network.infer(BAD)
    require_right(network)
    assert network.get_metric("PID") == pid != os.getpid()


def test_crash_ends_the_run_and_the_next_run_has_a_new_process(load: Callable[..., Any]) -> None:
    for how, end in (("ABORT", "SIGABRT"), ("SEGV", "SIGSEGV"), ("EXIT", "exited with status 3")):
        network = load(BREAKING_HOW=how)
        request = network.create_infer_request()
        pid = network.get_metric("PID")
        with pytest.raises(DeviceCrashedError, match=f"device BREAKING in process {pid} .*{end}"):
            request.infer(BAD)
        assert not is_alive(pid)
        np.testing.assert_array_equal(request.infer(GOOD)["y"], [-1.0, 2.0])
        assert network.get_metric("PID") != pid


@pytest.mark.parametrize("config", [{"PERF_COUNT": "YES", "DEADLINE": 60}, {"MEMORY_LIMIT": 1 << 30}])
def test_crash_names_the_last_node_if_runs_have_limits(load: Callable[..., Any], config: dict[str, Any]) -> None:
    network = load(BREAKING_HOW="ABORT", **config)
    require_right(network)
    with pytest.raises(
        DeviceCrashedError, match=r"(?m)SIGABRT while it ran a network; the last node that began is '.*' \(Neg-13\)$"
    ):
        network.infer(BAD)
    require_right(network)
    os.kill(network.get_metric("PID"), signal.SIGKILL)
    with pytest.raises(DeviceCrashedError, match="SIGKILL") as crash:
        network.infer(GOOD)
    assert "last node" not in str(crash.value)
    require_right(network)


def test_device_that_crashes_again_is_given_up(own_core: Core, negation: Network) -> None:
    network = own_core.load_network(negation, "PROCESS:BREAKING", {"BREAKING_HOW": "ABORT"})
    for _ in range(2):
        with pytest.raises(DeviceCrashedError, match="SIGABRT"):
            network.infer(BAD)
    with pytest.raises(DeviceCrashedError, match="2 times in a row and is given up"):
        network.infer(GOOD)
    require_right(own_core.load_network(negation, "CPU"))


@pytest.mark.parametrize("place", ["LOAD", "QUERY"])
def test_crash_in_load_or_query_is_an_error(core: Core, negation: Network, load: Callable[..., Any], place: str) -> None:
    with pytest.raises(DeviceCrashedError, match="SIGABRT"):
        load(BREAKING_HOW="ABORT", BREAKING_AT=place) if place == "LOAD" else core.query_network(
            negation, "PROCESS:BREAKING", {"BREAKING_HOW": "ABORT", "BREAKING_AT": place}
        )
    require_right(load())


def test_all_runs_end_with_the_process_and_can_be_repeated(load: Callable[..., Any]) -> None:
    network = load(BREAKING_HOW="ABORT")
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(network.infer, BAD if index == 20 else GOOD) for index in range(40)]
    errors = [run.exception() for run in runs]
    assert errors[20] is not None
    assert all(error is None or isinstance(error, DeviceCrashedError) for error in errors)
    require_right(network)


def test_process_that_hangs_is_ended_when_its_run_is_cancelled(load: Callable[..., Any], tmp_path: Path, short_grace: None) -> None:
    network = load(BREAKING_HOW="HANG_WITH_LOCK", BREAKING_SIGN=str(tmp_path / "hangs"))
    pid = network.get_metric("PID")
    request = network.create_infer_request()
    request.start_async(BAD)
    assert wait_for((tmp_path / "hangs").exists)
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait()
    require_right(network)
    assert network.get_metric("PID") != pid
    assert not is_alive(pid)


def test_run_after_an_interrupt_has_its_own_inputs_and_outputs(load: Callable[..., Any], tmp_path: Path) -> None:
    request = load(BREAKING_HOW="PAUSE", BREAKING_SIGN=str(tmp_path / "pause")).create_infer_request()
    over = tmp_path / "pause.over"
    request.infer({"x": np.arange(4, dtype=np.float32)})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for length in (6, 2):
            paused = np.full(length, 13, np.float32)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                request.infer({"x": paused})
            assert wait_for(over.exists)
            over.unlink()
            for start in (20, 30):
                x = np.arange(start, start + length, dtype=np.float32)
                np.testing.assert_array_equal(request.infer({"x": x})["y"], -x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_deadline_ends_a_process_that_hangs(core: Core, negation: Network, short_grace: None) -> None:
    network = core.load_network(negation, "PROCESS:BREAKING", {"BREAKING_HOW": "HANG", "DEADLINE": 30})
    pid = network.get_metric("PID")
    network.deadline = 0.2
    with pytest.raises(DeadlineExceededError):
        network.infer(BAD)
    network.deadline = None
    assert wait_for(lambda: not is_alive(pid))
    require_right(network)
    assert network.get_metric("PID") != pid


def test_deadline_ends_a_process_that_hangs_in_load_or_query(
    core: Core, negation: Network, load: Callable[..., Any], short_grace: None
) -> None:
    healthy = load()
    # A child that is killed at a deadline counts as no crash, so the device is not given up.
    for place in ("LOAD", "QUERY", "LOAD"):
        config = {"BREAKING_HOW": "HANG_WITH_LOCK", "BREAKING_AT": place, "DEADLINE": 0.3}
        operation = core.load_network if place == "LOAD" else core.query_network
        pid = healthy.get_metric("PID")
        with pytest.raises(DeadlineExceededError, match=r"on PROCESS:BREAKING has not ended within DEADLINE=0.3 s"):
            operation(negation, "PROCESS:BREAKING", config)
        assert wait_for(lambda pid=pid: not is_alive(pid))
    require_right(healthy)


def test_other_loads_are_repeated_after_a_hanging_load_is_ended(
    core: Core, negation: Network, tmp_path: Path, short_grace: None
) -> None:
    sign = tmp_path / "loaded"
    sign.touch()
    core.load_network(negation, "PROCESS:BREAKING")
    config = {"BREAKING_AT": "SECOND_LOAD", "BREAKING_SIGN": str(sign), "BREAKING_HOW": "HANG"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(core.load_network, negation, "PROCESS:BREAKING", {**config, "DEADLINE": 0.3})
        assert wait_for(Path(f"{sign}.second").exists)
        # The second load hangs beside the first in the same process; in a process started without the sign it does not hang.
        second = pool.submit(core.load_network, negation, "PROCESS:BREAKING", config)
        with pytest.raises(DeadlineExceededError):
            first.result()
        sign.unlink()
        require_right(second.result())


def test_cancel_ends_a_process_that_hangs_while_it_loads_again(load: Callable[..., Any], tmp_path: Path, short_grace: None) -> None:
    sign = tmp_path / "loaded"
    network = load(BREAKING_HOW="HANG_WITH_LOCK", BREAKING_AT="SECOND_LOAD", BREAKING_SIGN=str(sign))
    os.kill(network.get_metric("PID"), signal.SIGKILL)
    with pytest.raises(DeviceCrashedError, match="SIGKILL"):
        network.infer(GOOD)
    request = network.create_infer_request()
    request.start_async(GOOD)
    assert wait_for(Path(f"{sign}.second").exists)
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait()
    sign.unlink()
    require_right(network)


def test_memory_that_a_device_eats_is_bounded(load: Callable[..., Any]) -> None:
    network = load(BREAKING_HOW="EAT", PROCESS_MEMORY_LIMIT=1 << 29)
    with pytest.raises((DeviceCrashedError, InferenceError, MemoryError)):
        network.infer(BAD)
    require_right(network)


def test_network_of_a_child_that_is_gone_can_be_closed(load: Callable[..., Any]) -> None:
    network, second = load(), load()
    os.kill(network.get_metric("PID"), signal.SIGKILL)
    network.close()
    require_right(second)


def test_closing_the_core_leaves_no_process(own_core: Core, negation: Network) -> None:
    configs = ({}, {"PROCESS_MEMORY_LIMIT": 1 << 30})
    pids = {own_core.load_network(negation, "PROCESS:BREAKING", config).get_metric("PID") for config in configs}
    assert len(pids) == 2
    own_core.close()
    assert [pid for pid in pids if is_alive(pid)] == []


def test_child_that_hangs_ends_with_a_parent_that_is_killed(breaking_folder: Path, tmp_path: Path) -> None:
    sign = tmp_path / "hangs"
    script = dedent(
        f"""
        import os, sys, threading
        sys.path.insert(0, {str(breaking_folder)!r})
        import numpy as np, onnx.parser
        from hetero_core import Core
        core = Core()
        model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {{ y = Neg (x) }}')
        network = core.load_network(model, "PROCESS:BREAKING", {{"BREAKING_HOW": "HANG_WITH_LOCK", "BREAKING_SIGN": {str(sign)!r}}})
        pid = network.get_metric("PID")
        network.infer({{"x": np.ones(1, np.float32)}})
        request = network.create_infer_request()
        request.start_async({{"x": np.full(1, 13, np.float32)}})
        while not os.path.exists({str(sign)!r}):
            threading.Event().wait(0.01)
        print(pid, flush=True)
        threading.Event().wait()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait()
    assert wait_for(lambda: not is_alive(pid))


def test_times_of_nodes_come_back(core: Core, read: Callable[[str], Network]) -> None:
    network = core.load_network(read("g (float[n] x) => (float[n] y) { y = Exp (x) }"), "PROCESS:CPU", {"PERF_COUNT": "YES"})
    request = network.create_infer_request()
    request.infer(GOOD)
    to_child, entry, from_child = request.perf_counts
    assert [copied.operator for copied in (to_child, from_child)] == ["transfer", "transfer"]
    assert (entry.operator, entry.device) == ("Exp-13", "PROCESS:CPU")
    assert 0 < entry.seconds < 60


@pytest.mark.parametrize(
    "config", [{"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2}, {"NUM_STREAMS": 2}, {"INFERENCE_NUM_THREADS": 1}, {}]
)
def test_threads_of_a_stream_are_those_of_the_device_itself(
    core: Core, negation: Network, load: Callable[..., Any], config: dict[str, int]
) -> None:
    local = core.load_network(negation, "BREAKING", config)
    remote = load(**config)
    assert remote.get_metric("THREADS_OF_A_RUN") == local.get_metric("THREADS_OF_A_RUN")
    assert remote.get_metric("STREAMS") == local.get_metric("STREAMS")


def test_forked_process_keeps_no_child_alive(breaking_folder: Path) -> None:
    script = dedent(
        f"""
        import os, sys, threading
        sys.path.insert(0, {str(breaking_folder)!r})
        import onnx.parser
        from hetero_core import Core
        core = Core()
        model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {{ y = Neg (x) }}')
        pid = core.load_network(model, "PROCESS:BREAKING").get_metric("PID")
        fork = os.fork()
        if fork:
            print(pid, fork, flush=True)
        threading.Event().wait()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, fork = map(int, parent.stdout.readline().split())
        try:
            assert is_alive(pid)
            parent.kill()
            parent.wait()
            assert wait_for(lambda: not is_alive(pid))
            assert is_alive(fork)
        finally:
            os.kill(fork, signal.SIGKILL)
