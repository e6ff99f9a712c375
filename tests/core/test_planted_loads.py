"""Faults of queries, loads and memories, planted in a device that is otherwise without one; a check names each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hetero_template.device import TemplateArray, TemplateDevice, TemplateExecutable
from hetero_tests.planted import device_with, list_failed

from hetero_core import Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.contract import ConfigKey, DeviceName
from hetero_core.devices.query import require_all_supported
from hetero_core.network.graph import Node
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


class ByName(PlainDevice):
    """Compiles a network once for each name."""

    def __init__(self) -> None:
        self._compiled: dict[str, Executable] = {}

    def make_executable(self, network: Network) -> Executable:
        return self._compiled.setdefault(network.name, PlainExecutable(network))


class Racing(PlainDevice):
    """Keeps what belongs to a load on itself, where the next load finds it."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)

    def make_executable(self, network: Network) -> Executable:
        self._network = network
        try:
            # Until a second load is here, too; alone it goes on after a moment.
            self._both.wait(0.02)
        except threading.BrokenBarrierError:
            self._both.reset()
        return PlainExecutable(self._network)


class Forgetful(PlainDevice):
    """Takes a node until it has loaded one like it."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def find_refusal(self, node: Node, network: Network) -> str | None:
        if node.op_type in self._asked:
            return f"this device has no memory left for {node.op_type}"
        return super().find_refusal(node, network)

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        result = super().query_network(device, network)
        self._asked |= {node.op_type for node in network.nodes if network.name == "mixed"}
        return result


class Padding(PlainExecutable):
    """Makes one row of none, as a kernel that needs something to start with."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, context)
        return tuple(np.zeros((1, *value.shape[1:]), value.dtype) if value.ndim and not len(value) else value for value in outputs)


class Boundless(PlainExecutable):
    """Starts runs by itself, and counts no memory."""

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Any) -> None:
        threading.Thread(target=lambda: done(self.run(inputs, context), None)).start()


class SharedEngine(PlainDevice):
    """Has one engine for equal networks, and frees it as soon as one of them is closed."""

    def __init__(self) -> None:
        self._freed: set[bytes | str] = set()

    def make_executable(self, network: Network) -> Executable:
        freed = self._freed
        freed.discard(network.fingerprint)

        class Shared(PlainExecutable):
            def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
                outputs = super().run(inputs, context)
                return tuple(np.zeros_like(value) for value in outputs) if self.network.fingerprint in freed else outputs

            def close(self) -> None:
                freed.add(self.network.fingerprint)

        return Shared(network)


class Live(TemplateDevice):
    """Computes into one buffer for each output, and gives the buffer itself to the host."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        executable = super().load_network(device, network, config, None)
        assert isinstance(executable, TemplateExecutable)
        compute, buffers = executable.run, {}

        def run(inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
            outputs = []
            for index, value in enumerate(compute(inputs, context)):
                elements = value.read(value.memory)
                buffer = buffers.setdefault((index, *elements.shape), np.empty_like(elements))
                buffer[...] = elements
                outputs.append(TemplateArray(value.memory, buffer))
            return tuple(outputs)

        executable.run = run  # type: ignore[method-assign]  # the planted fault
        return executable

    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        return array.read(array.memory)


class Mode(PlainDevice):
    """Computes Abs wrongly in one of its modes."""

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"MODE": ConfigKey(str, "SAFE", "How it computes.", choices=("SAFE", "FAST"))}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        executable = super().load_network(device, network)
        return WrongNeg(network) if config["MODE"] == "FAST" else executable


class Promising(PlainDevice):
    @hookimpl
    def load_network(self, device: Any, network: Network) -> Executable:
        refused = {node.name: "no memory for tables" for node in network.nodes if node.op_type == "Abs"}
        supported = {node.name: str(device) for node in network.nodes if node.op_type != "Abs"}
        require_all_supported(device, network, QueryResult(supported, refused))
        return super().load_network(device, network)


class WrongNeg(PlainExecutable):
    def compute(self, node: Node, inputs: list[Any]) -> Any:
        return inputs[0] if node.op_type == "Neg" else super().compute(node, inputs)


class WrongRelu(PlainExecutable):
    def compute(self, node: Node, inputs: list[Any]) -> Any:
        return np.abs(inputs[0]) if node.op_type == "Relu" else super().compute(node, inputs)


FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "cache by network name": (ByName, "load.networks_of_one_name_do_not_mix", "all named 'chain'"),
    "load takes less than query": (Promising, "query.claimed_network_loads", "claimed by query, refused by load"),
    "load takes less than query, in a case": (Promising, "operators.test_abs", "claimed by query, refused by load"),
    "race in load": (Racing, "threading.threads_query_and_load_at_once", "while others load"),
    "query depends on history": (Forgetful, "query.same_question_has_the_same_answer", "asked again"),
    "empty tensors": (
        lambda: device_with(Padding),
        "dynamic_shapes.sizes_may_change_between_runs",
        "size 0, request, output 'y': expected shape (0, 2), got (1, 2)",
    ),
    "engine used after it was closed": (
        SharedEngine,
        "lifetime.closing_frees_nothing_in_use",
        "a second network of the model, whose engine may still be in use",
    ),
    "`to_host` of a live buffer": (
        lambda: Live("PLANTED"),
        "tensors.results_belong_to_the_caller",
        "memory that it goes on writing to",
    ),
    "wrong under a choice": (Mode, "choices.query", "under MODE=FAST, query.claimed_network_loads: network 'fork' of Neg"),
    "wrong in a part": (lambda: device_with(WrongRelu), "models.residual", "output 'probabilities': expected"),
}


@pytest.mark.parametrize(("device", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_of_loads_is_named(device: Callable[[], Any], check: str, message: str) -> None:
    failed = list_failed(device(), check)
    assert list(failed) == [check]
    assert message in failed[check]


def test_memory_limit_that_a_device_ignores_is_kept_by_the_core() -> None:
    # The arrays that go in and come out are counted where every run ends, so that none exceeds the limit unseen.
    assert list_failed(device_with(Boundless), "start.run_that_fails_ends") == {}


def test_choice_of_the_configuration_is_set_for_every_check() -> None:
    target = make_target("PLANTED", plugin=Mode(), config={"MODE": "FAST"})
    (outcome,) = run_checks(choose_checks((), ["query.claimed_network_loads"]), target)
    assert outcome.status == "failed"
    assert "'fork' of Neg" in outcome.reason
