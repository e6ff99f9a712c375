"""Faults of what makes a network: constants, attributes, versions, domains, sizes, types; planted in a device that is otherwise right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hetero_tests.planted import device_with, list_failed

from hetero_core import Executable, Network, RunContext, hookimpl
from hetero_core.contract import ConfigKey, DeviceName
from hetero_core.devices.query import require_all_supported
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_refusals
from hetero_core.network.graph import Node
from hetero_core.testing.plain_device import KERNELS, PlainDevice, PlainExecutable


class Compiled(PlainExecutable):
    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._program = compile_program(network)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return self._program.run(inputs)


class Toolkit(PlainDevice):
    """Runs whatever the kernels of the toolkit run; a fault is planted in the nodes."""

    def find_refusal(self, node: Node, network: Network) -> str | None:
        return find_refusals(network).get(node.name)

    def make_executable(self, network: Network) -> Executable:
        return Compiled(replace(network, nodes=self.change_nodes(network.nodes)))

    def change_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return nodes


class WithoutConstants(PlainDevice):
    """Keeps what it compiled by nodes and types: of two networks that differ in constants it has the first one's."""

    def __init__(self) -> None:
        self._networks: dict[str, Network] = {}

    def make_executable(self, network: Network) -> Executable:
        key = str([(node.op_type, node.inputs, node.outputs) for node in network.nodes]) + str((network.inputs, network.outputs))
        first = self._networks.setdefault(key, network)
        return PlainExecutable(replace(network, initializers=first.initializers))


class WithoutAttributes(Toolkit):
    """Keeps the attributes of the first node of each operator."""

    def change_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        first: dict[str, Mapping[str, Any]] = {}
        return tuple(replace(node, attributes=first.setdefault(node.op_type, node.attributes)) for node in nodes)


class WithoutVersions(Toolkit):
    def change_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(replace(node, since_version=13) if node.op_type == "Softmax" else node for node in nodes)


class WithoutDomains(PlainDevice):
    def find_refusal(self, node: Node, network: Network) -> str | None:
        return None if node.op_type in {name for name, _ in KERNELS} else f"this device has no kernel for {node.operator}"


class FirstChoice(PlainDevice):
    """Computes by the choice of the first load of its Core."""

    def __init__(self) -> None:
        self._choice = ""

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"ROUNDING": ConfigKey(str, "NONE", "How results are rounded.", choices=("NONE", "HALF"))}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        require_all_supported(device, network, self.query_network(device, network))
        self._choice = self._choice or config["ROUNDING"]
        return Halved(network) if self._choice == "HALF" else PlainExecutable(network)


class Halved(PlainExecutable):
    def compute(self, node: Node, inputs: list[Any]) -> Any:
        value = super().compute(node, inputs)
        return value.astype(np.float16).astype(value.dtype)


class FirstChoicePlugin:
    @hookimpl
    def create_device(self) -> FirstChoice:
        return FirstChoice()


class SixteenBits(PlainExecutable):
    """Counts rows in 16 bits."""

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        value = np.array(super().compute(node, inputs))
        if value.ndim:
            value[0xFFFF:] = 0
        return value


class OneMillion(PlainExecutable):
    def compute(self, node: Node, inputs: list[Any]) -> Any:
        value = np.array(super().compute(node, inputs))
        value.reshape(-1)[1 << 20 :] = 0
        return value


class OneTile(PlainExecutable):
    """Sums at most 512 products."""

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        a, b = (*inputs, None)[:2]
        return super().compute(node, [a[..., :512], b[:512]] if node.op_type == "MatMul" else inputs)


class EvenTiles(PlainExecutable):
    """Leaves out columns that fill no tile of eight."""

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        value = np.array(super().compute(node, inputs))
        if node.op_type == "MatMul" and value.shape[-1] > 8:
            value[..., value.shape[-1] // 8 * 8 :] = 0
        return value


class Singles(PlainExecutable):
    """Computes float64 in float32."""

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        wide = inputs[0].dtype
        return super().compute(node, [value.astype(np.float32) if wide == np.float64 else value for value in inputs]).astype(wide)


class Saturating(PlainExecutable):
    def compute(self, node: Node, inputs: list[Any]) -> Any:
        value = super().compute(node, inputs)
        return np.clip(value, np.finfo(value.dtype).min, np.finfo(value.dtype).max)


class FirstBroadcast(PlainExecutable):
    """Decides in its first run whether the inputs of a node are alike."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._are_alike: bool | None = None

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        if len(inputs) < 2 or node.op_type == "MatMul":
            return super().compute(node, inputs)
        if self._are_alike is None:
            self._are_alike = inputs[0].shape == inputs[1].shape
        if self._are_alike and inputs[0].shape != inputs[1].shape:
            return np.zeros(np.broadcast_shapes(inputs[0].shape, inputs[1].shape), inputs[0].dtype)
        return super().compute(node, inputs)


FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "cache without constants": (
        WithoutConstants,
        "meaning.constants_tell_networks_apart",
        "beside a network that differs in this constant",
    ),
    "kernels kept without attributes": (
        WithoutAttributes,
        "meaning.nodes_of_one_operator_keep_their_attributes",
        "two nodes LeakyRelu with different attributes",
    ),
    "version of an operator ignored": (
        WithoutVersions,
        "meaning.older_version_of_an_operator_means_what_it_meant",
        "Softmax-11, in a model of opset 11: the version of the operator is not looked at",
    ),
    "domain of an operator ignored": (
        WithoutDomains,
        "meaning.operator_of_another_domain_is_another_operator",
        "the domain of an operator is not looked at",
    ),
    "choice of the first load kept": (
        FirstChoicePlugin,
        "choices.loads_keep_their_own_choice",
        "the device keeps the choice of another load",
    ),
    "rows beyond 16 bits": (
        lambda: device_with(SixteenBits),
        "values.large_inputs_are_computed_to_the_end",
        "an input of 70001 rows",
    ),
    "elements beyond a million": (
        lambda: device_with(OneMillion),
        "values.large_inputs_are_computed_to_the_end",
        "an input of 1048579 rows",
    ),
    "sums of 512 products": (
        lambda: device_with(OneTile),
        "values.products_of_odd_sizes_are_right",
        "MatMul of (8, 1030) and (1030, 8)",
    ),
    "columns that fill no tile": (lambda: device_with(EvenTiles), "values.products_of_odd_sizes_are_right", "(17, 33) and (33, 9)"),
    "float64 in float32": (lambda: device_with(Singles), "values.float64_keeps_its_precision", "right to 24 bits of 53"),
    "infinity lost": (lambda: device_with(Saturating), "values.infinity_is_not_lost", "of infinity and of numbers near it"),
    "broadcasting kept from the first run": (
        lambda: device_with(FirstBroadcast),
        "dynamic_shapes.broadcasting_is_decided_in_each_run",
        "Add of 4 rows and 1",
    ),
}


@pytest.mark.parametrize(("device", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_of_meaning_is_named(device: Callable[[], Any], check: str, message: str) -> None:
    failed = list_failed(device(), check)
    assert list(failed) == [check]
    assert message in failed[check]


@pytest.mark.parametrize("device", [PlainDevice, Toolkit])
def test_device_without_a_fault_passes(device: type[PlainDevice]) -> None:
    assert list_failed(device(), *{check for _, check, _ in FAULTS.values()}) == {}
