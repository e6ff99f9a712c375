"""Configuration keys that change on a loaded network."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from threading import Event

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Network
from hetero_core.errors import ConfigKeyError, ConfigValueError, MemoryLimitError

TEXT = "g (float[N] x) => (float[M] y) { a = Concat <axis = 0> (x, x, x, x) y = Concat <axis = 0> (a, a, a, a) }"
MODEL = f'<ir_version: 8, opset_import: ["": 17]> {TEXT}'
LARGE = {"x": np.ones(1000, np.float32)}
"""The output takes 64000 bytes."""


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
def test_memory_limit_may_be_set_changed_and_taken_back(core: Core, read: Callable[..., Network], device: str) -> None:
    network = core.load_network(read(TEXT), device)
    request = network.create_infer_request()
    for limit, fits in ((None, True), (1000, False), (10**6, True), (1000, False), (None, True)):
        network.set_config({"memory_limit": limit})
        assert network.get_config("MEMORY_LIMIT") == limit
        for run in (request.infer, network.infer):
            if fits:
                assert run(LARGE)["y"].shape == (16000,)
                continue
            with pytest.raises(MemoryLimitError, match="1000"):
                run(LARGE)


def test_deadline_may_be_set_and_taken_back(core: Core, read: Callable[..., Network]) -> None:
    network = core.load_network(read(TEXT), "CPU")
    network.set_config({"DEADLINE": 3600.0})
    assert network.deadline == 3600
    assert network.infer(LARGE)["y"].shape == (16000,)
    network.set_config({"DEADLINE": None})
    assert network.deadline is network.get_config("DEADLINE") is None


def test_wrong_limit_changes_nothing(core: Core, read: Callable[..., Network]) -> None:
    network = core.load_network(read(TEXT), "CPU", {"DEADLINE": 60.0})
    with pytest.raises(ConfigValueError, match="MEMORY_LIMIT of network 'g' on CPU: expected an int of 1 or more, got -1"):
        network.set_config({"DEADLINE": 30.0, "MEMORY_LIMIT": -1})
    with pytest.raises(ConfigKeyError, match="NUM_STREAMS cannot change to 2 on a loaded network"):
        network.set_config({"DEADLINE": 30.0, "NUM_STREAMS": 2})
    with pytest.raises(ConfigKeyError, match="NUM_STREAMS cannot change to None on a loaded network"):
        network.set_config({"DEADLINE": 30.0, "NUM_STREAMS": None})
    assert network.deadline == network.get_config("DEADLINE") == 60


def test_errors_name_the_network_and_near_misses(core: Core, read: Callable[..., Network]) -> None:
    network = core.load_network(read(TEXT), "CPU")
    with pytest.raises(
        ConfigValueError, match=r"^configuration key LOG_LEVEL of network 'g' on CPU: .*, did you mean 'LOG_DEBUG'\?"
    ):
        network.set_config({"LOG_LEVEL": "DEBUG"})
    with pytest.raises(ConfigKeyError, match="^network 'g' on CPU has no configuration key 'DEADLINES', did you mean 'DEADLINE'"):
        network.set_config({"DEADLINES": 1})
    with pytest.raises(ConfigValueError, match="^configuration key CPU_THREADS_PER_STREAM of network 'g' on CPU: expected an int"):
        network.set_config({"CPU_THREADS_PER_STREAM": "many"})


@pytest.mark.parametrize("device", ["CPU", "HETERO:TEMPLATE,CPU", "MULTI:CPU,TEMPLATE", "AUTO:CPU,TEMPLATE", "BATCH:CPU(2)"])
def test_priority_may_change_before_and_after_an_import(core: Core, read: Callable[..., Network], device: str) -> None:
    loaded = core.load_network(read("g (float[N, 2] x) => (float[N, 2] y) { y = Abs (x) }"), device)
    stream = io.BytesIO()
    loaded.export_network(stream)
    stream.seek(0)
    for network in (loaded, core.import_network(stream, device)):
        network.set_config({"model_priority": "HIGH"})
        assert network.get_config("MODEL_PRIORITY") == "HIGH"
        with pytest.raises(ConfigKeyError, match="NUM_STREAMS cannot change to 2 on a loaded network"):
            network.set_config({"NUM_STREAMS": 2})


@pytest.mark.parametrize("device", ["CPU", "HETERO:TEMPLATE,CPU", "MULTI:CPU,TEMPLATE", "AUTO:CPU,TEMPLATE", "BATCH:CPU(2)"])
@pytest.mark.parametrize("first", [False, True])
def test_times_may_be_asked_for_and_taken_back(core: Core, read: Callable[..., Network], device: str, *, first: bool) -> None:
    network = core.load_network(
        read("g (float[N, 2] x) => (float[N, 2] y) { [absolute] y = Abs (x) }"), device, {"PERF_COUNT": first}
    )
    request = network.create_infer_request()
    inputs = {"x": -np.ones((2, 2), np.float32)}
    for value, measures in ((True, True), (False, False), ("YES", True), (None, first)):
        network.set_config({"perf_count": value})
        assert network.get_config("PERF_COUNT") is measures
        assert request.infer(inputs)["y"].tolist() == [[1, 1], [1, 1]]
        names = {entry.node for entry in request.perf_counts}
        assert ("absolute" in names) is measures
        assert (request.latency is not None) is measures
        request.start_async(inputs)
        assert request.wait(60)
        assert bool(request.perf_counts) is (request.latency is not None) is measures


def test_none_or_closing_restores_the_level_of_a_loaded_network() -> None:
    logger = logging.getLogger("hetero_template")
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(MODEL), "TEMPLATE")
        for value, level in (("LOG_ERROR", logging.ERROR), (None, logging.NOTSET), ("LOG_DEBUG", logging.DEBUG)):
            network.set_config({"LOG_LEVEL": value})
            assert (logger.level, logging.getLogger("hetero_core").level) == (level, level)
    assert (logger.level, logging.getLogger("hetero_core").level) == (logging.NOTSET, logging.NOTSET)


def test_none_restores_the_values_of_the_load(core: Core, read: Callable[..., Network]) -> None:
    network = core.load_network(read(TEXT), "MULTI:CPU,TEMPLATE", {"MODEL_PRIORITY": "HIGH", "DEADLINE": 60.0})
    network.set_config({"MODEL_PRIORITY": "LOW", "MULTI_DEVICE_PRIORITIES": "TEMPLATE"})
    assert network.get_metric("EXECUTION_DEVICES") == ("TEMPLATE",)
    network.set_config({"MODEL_PRIORITY": None, "MULTI_DEVICE_PRIORITIES": None, "DEADLINE": None})
    values = [network.get_config(name) for name in ("MODEL_PRIORITY", "MULTI_DEVICE_PRIORITIES", "DEADLINE")]
    assert values == ["HIGH", "CPU,TEMPLATE", None]
    assert network.get_metric("EXECUTION_DEVICES") == ("CPU", "TEMPLATE")


def test_run_submitted_after_its_priority_rose_goes_first(core: Core, read: Callable[..., Network]) -> None:
    config = {"EXCLUSIVE_ASYNC_REQUESTS": True}
    first, second = (core.load_network(read(TEXT), "CPU", config) for _ in range(2))
    order: list[str] = []
    begun, may_end = Event(), Event()

    def hold() -> None:
        begun.set()
        may_end.wait(60)

    blocking = first.submit(hold)
    assert begun.wait(60)
    waiting = [first.submit(lambda: order.append("medium"))]
    second.set_config({"MODEL_PRIORITY": "HIGH"})
    waiting.append(second.submit(lambda: order.append("high")))
    may_end.set()
    for future in (blocking, *waiting):
        future.result(60)
    assert order == ["high", "medium"]
