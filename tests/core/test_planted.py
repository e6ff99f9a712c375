"""Devices with a single planted fault. docs/reference/planted-faults.md lists the check that finds each fault, and its message."""

from __future__ import annotations

import ctypes
import gc
import gzip
import io
import itertools
import logging
import os
import pickle
import platform
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar
from uuid import uuid4

import ml_dtypes
import numpy as np
import pytest
from hetero_template.device import TemplateArray, TemplateDevice

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.conformance import contract_resources, contract_runs
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import Subject
from hetero_core.conformance.report import describe_operators, report_to_json
from hetero_core.conformance.runner import Outcome, make_target, run_checks
from hetero_core.contract import ConfigKey, DeviceName, Done, OwnOutputs, Payload
from hetero_core.devices.processors import read_host_memory
from hetero_core.devices.query import require_all_supported
from hetero_core.errors import InferenceError, NotImplementedByDeviceError
from hetero_core.executed import list_nodes
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_refusals
from hetero_core.network.graph import Node
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.testing.plain_device import KERNELS, PlainDevice, PlainExecutable

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planted-faults.md"
ROWS = {
    fault: (check, message)
    for fault, check, message in re.findall(r"^\| ([^|]+) \| `([\w.]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
}
"""Fault -> (check, part of the message of the check)."""
Arrays = tuple[Any, ...]
Plant = Callable[[], Any]


def run_kit(plugin: object, *patterns: str, levels: tuple[str, ...] = (), config: Mapping[str, Any] | None = None) -> list[Outcome]:
    target = make_target("PLANTED", plugin=plugin, config=config)
    return list(run_checks(choose_checks(levels, patterns), target, limit=120))


def list_failed(plugin: object, *patterns: str) -> dict[str, str]:
    return {outcome.check.name: outcome.reason for outcome in run_kit(plugin, *patterns) if outcome.status == "failed"}


# Devices with a fault in the executable


def of(executable: Callable[[Network], Executable]) -> Plant:
    """Returns a device class that compiles networks with `executable`."""

    class Planted(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            return executable(network)

    return Planted


def running(run: Callable[[Any, Arrays, RunContext], Any]) -> Plant:
    """Returns a device class that runs networks with `run`."""
    return of(type("Planted", (PlainExecutable,), {"run": run}))


def computing(compute: Callable[[Node, list[Any], Callable[[Node, list[Any]], Any]], Any]) -> Plant:
    """Returns a device class that computes each node with `compute(node, inputs, correct)`; `correct` is the kernel without the fault."""

    class Planted(PlainExecutable):
        def compute(self, node: Node, inputs: list[Any]) -> Any:
            return compute(node, inputs, super().compute)

    return of(Planted)


def changing(operator: str, change: Callable[[list[Any], Any], Any]) -> Plant:
    """Returns a device class that changes the output of `operator`, or of every operator if `operator` is ""."""

    def compute(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
        output = right(node, inputs)
        return change(inputs, output) if operator in ("", node.op_type) else output

    return computing(compute)


def timeless(executable: PlainExecutable, inputs: Arrays, context: RunContext) -> Arrays:
    """Runs the network and records no times in the profile."""
    return PlainExecutable.run(executable, inputs, RunContext(context.state, outputs=context.outputs, token=context.token))


def zero_from(start: int, value: Any) -> Any:
    value = np.array(value)
    if value.ndim:
        value[start:] = 0
    return value


class Mixing(PlainExecutable):
    """Stores the inputs of a run in an attribute, which a concurrent run overwrites."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._both = threading.Barrier(2)

    def run(self, inputs: Arrays, context: RunContext) -> Arrays:
        self._inputs = inputs
        meet(self._both)
        return super().run(self._inputs, context)


def meet(both: threading.Barrier) -> None:
    """Waits up to 20 ms for a second thread."""
    try:
        both.wait(0.02)
    except threading.BrokenBarrierError:
        both.reset()


def reuse_buffers(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    outputs = PlainExecutable.run(executable, inputs, context)
    buffers = vars(executable).setdefault("buffers", {})
    if any(value is None for value in outputs):
        return outputs
    for index, value in enumerate(outputs):
        np.copyto(buffers.setdefault((index, *value.shape), np.empty_like(value)), value)
    return tuple(buffers[index, *value.shape] for index, value in enumerate(outputs))


def evaluate(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
    from onnx.reference.ops.op_neg import Neg

    return Neg.eval(inputs[0]) if node.op_type == "Neg" else right(node, inputs)


def negate_in_place(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
    is_owned = node.op_type == "Neg" and inputs[0].flags.writeable
    return np.negative(inputs[0], out=inputs[0]) if is_owned else right(node, inputs)


def cut_sums(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
    return right(node, [inputs[0][..., :512], inputs[1][:512]] if node.op_type == "MatMul" else inputs)


def cut_columns(inputs: list[Any], product: Any) -> Any:
    product = np.array(product)
    if product.shape[-1] > 8:
        product[..., product.shape[-1] // 8 * 8 :] = 0
    return product


def narrow(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
    """Computes float64 nodes in float32."""
    dtype = inputs[0].dtype
    return right(node, [x.astype(np.float32) if x.dtype == np.float64 else x for x in inputs]).astype(dtype)


class FirstBroadcast(PlainExecutable):
    """Decides in its first run whether both inputs of a node have the same shape, and reuses the decision in later runs."""

    are_alike: bool | None = None

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        if len(inputs) == 2 and node.op_type != "MatMul":
            is_alike = inputs[0].shape == inputs[1].shape
            self.are_alike = is_alike if self.are_alike is None else self.are_alike
            if self.are_alike and not is_alike:
                return np.zeros(np.broadcast_shapes(inputs[0].shape, inputs[1].shape), inputs[0].dtype)
        return super().compute(node, inputs)


def drift(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    outputs = PlainExecutable.run(executable, inputs, context)
    executable._constants = {name: array + np.float32(1e-6) for name, array in executable._constants.items()}
    return outputs


def jitter(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    runs = vars(executable).setdefault("runs", itertools.count())
    outputs = PlainExecutable.run(executable, inputs, context)
    noise = np.float32(2.0**-20) * (next(runs) * 5 % 7 - 3)
    return tuple(value * (1 + noise) if value.dtype == np.float32 else value for value in outputs)


def round_factors(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
    """Rounds the factors of a float32 product to the 11 bits of TF32."""
    is_product = node.op_type == "MatMul" and inputs[0].dtype == np.float32
    rounded = [((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32) for x in inputs] if is_product else inputs
    return right(node, rounded)


def cached_by(make_key: Callable[[Any], Any]) -> Plant:
    """Returns a device class that caches results by `make_key` of each input."""

    def run(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
        results, key = vars(executable).setdefault("results", {}), tuple(map(make_key, inputs))
        if key not in results:
            results[key] = PlainExecutable.run(executable, inputs, context)
        return tuple(value.copy() for value in results[key])

    return running(run)


def keep_size(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    rows = vars(executable).setdefault("rows", len(inputs[0]))
    return tuple(value[:rows] for value in PlainExecutable.run(executable, inputs, context))


def spoil_inputs(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    outputs = PlainExecutable.run(executable, inputs, context)
    for value in inputs:
        if value.flags.writeable:
            value[...] = 0
    return outputs


def add_row(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    outputs = PlainExecutable.run(executable, inputs, context)
    return tuple(np.zeros((1, *value.shape[1:]), value.dtype) if value.ndim and not len(value) else value for value in outputs)


# The toolkit with a fault in its nodes, inputs or outputs


def toolkit(
    node: Callable[[Node], Node] = lambda node: node,
    inputs: Callable[[Network, Arrays], Arrays] = lambda _, inputs: inputs,
    outputs: Callable[[Network, Arrays, Arrays], Arrays] = lambda *arguments: arguments[2],
) -> Plant:
    class Compiled(PlainExecutable):
        def __init__(self, network: Network) -> None:
            super().__init__(network)
            self._program = compile_program(replace(network, nodes=tuple(map(node, network.nodes))))

        def run(self, feeds: Arrays, context: RunContext) -> Arrays:
            return outputs(self.network, feeds, self._program.run(inputs(self.network, feeds)))

    class Toolkit(PlainDevice):
        def find_refusal(self, node: Node, network: Network) -> str | None:
            return find_refusals(network).get(node.name)

        def make_executable(self, network: Network) -> Executable:
            return Compiled(network)

    return Toolkit


def forgetting(operator: str, name: str) -> Plant:
    """Returns a device class that ignores the attribute `name` of `operator`."""

    def forget(node: Node) -> Node:
        attributes = {key: value for key, value in node.attributes.items() if key != name}
        return replace(node, attributes=attributes) if node.op_type == operator else node

    return toolkit(node=forget)


def first_attributes() -> Plant:
    def keep_first(network: Network) -> Network:
        first: dict[str, Any] = {}
        nodes = tuple(replace(node, attributes=first.setdefault(node.op_type, node.attributes)) for node in network.nodes)
        return replace(network, nodes=nodes)

    class Toolkit(toolkit()):  # type: ignore[misc]  # a class made by a function
        def make_executable(self, network: Network) -> Executable:
            return super().make_executable(keep_first(network))

    return Toolkit


def clamping(least: int) -> Plant:
    def clamp(network: Network, inputs: Arrays) -> Arrays:
        return (inputs[0], np.clip(inputs[1], least, 2)) if network.nodes[0].op_type.startswith("Gather") else inputs

    return toolkit(inputs=clamp)


def losing_nan(operator: str) -> Plant:
    return toolkit(
        outputs=lambda network, _, outputs: tuple(map(np.nan_to_num, outputs)) if network.nodes[0].op_type == operator else outputs
    )


def casting(dtype: Any, through: Any) -> Plant:
    """Returns a device class that casts outputs of `dtype` to `through` and back."""
    return toolkit(
        outputs=lambda *arguments: tuple(
            value.astype(through).astype(dtype) if value.dtype == dtype else value for value in arguments[2]
        )
    )


def round_inputs(network: Network, inputs: Arrays) -> Arrays:
    return tuple(x.astype(ml_dtypes.bfloat16).astype(x.dtype) if x.dtype == np.float32 else x for x in inputs)


def floor_quotients(network: Network, inputs: Arrays, outputs: Arrays) -> Arrays:
    is_integer = network.nodes[0].op_type == "Div" and inputs[0].dtype.kind == "i"
    return (np.floor_divide(*inputs),) if is_integer else outputs


def compute_sixteen_rows(network: Network, inputs: Arrays, outputs: Arrays) -> Arrays:
    return tuple(zero_from(16, value) if value.ndim > 1 else value for value in outputs)


def formula(operator: str, compute: Callable[..., Any]) -> Plant:
    """Returns a device class that computes networks that begin with `operator` by this formula on their inputs."""

    def change(network: Network, inputs: Arrays, outputs: Arrays) -> Arrays:
        if network.nodes[0].op_type != operator:
            return outputs
        return (np.asarray(compute(*inputs)).astype(outputs[0].dtype),)

    return toolkit(outputs=change)


def each_output(change: Callable[[Any], Any]) -> Plant:
    return toolkit(outputs=lambda *arguments: tuple(map(change, arguments[2])))


def swap_pads(node: Node) -> Node:
    pads = node.attributes.get("pads")
    return replace(node, attributes={**node.attributes, "pads": pads[2:] + pads[:2]}) if pads else node


def sum_halves(x: Any, w: Any) -> Any:
    return np.add.accumulate((x[:, :, None] * w[None]).astype(x.dtype), axis=1, dtype=x.dtype)[:, -1]


def estimate_erf(x: Any) -> Any:
    """Source: Abramowitz and Stegun 7.1.25, right to 2.5e-5."""
    t = 1 / (1 + 0.47047 * np.abs(x))
    return np.sign(x) * (1 - (0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3) * np.exp(-(x**2)))


def overflow_softmax(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.exp(x) / np.exp(x).sum()


def estimate_gelu(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


# Devices with a fault in a hook


class OneForAll(PlainDevice):
    @hookimpl
    def metrics(self) -> dict[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1")}

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        result = super().query_network(device, network)
        return QueryResult(dict.fromkeys(result.supported, "PLANTED.0"), result.refused)


class Understated(PlainDevice):
    requires_api = (1, 1)

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, query: QueryResult | None) -> Executable:
        return super().load_network(device, network)


class Unquestioned(PlainDevice):
    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        return PlainExecutable(network)


class Fickle(PlainDevice):
    count = 0

    def find_refusal(self, node: Node, network: Network) -> str | None:
        self.count += 1
        reason = super().find_refusal(node, network)
        return reason and f"{reason}, asked {self.count} times"


class Boaster(PlainDevice):
    def find_refusal(self, node: Node, network: Network) -> str | None:
        return None


class WithoutDomains(PlainDevice):
    def find_refusal(self, node: Node, network: Network) -> str | None:
        return None if node.op_type in {name for name, _ in KERNELS} else f"this device has no kernel for {node.operator}"


class Forgetful(PlainDevice):
    """Refuses the operators that the network 'mixed' had, once that network was queried."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def find_refusal(self, node: Node, network: Network) -> str | None:
        return "this device has no memory left" if node.op_type in self._asked else super().find_refusal(node, network)

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        result = super().query_network(device, network)
        self._asked |= {node.op_type for node in network.nodes if network.name == "mixed"}
        return result


class Promising(PlainDevice):
    """Claims Abs in the query and refuses it at load."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        refused = {node.name: "no memory for tables" for node in network.nodes if node.op_type == "Abs"}
        supported = {node.name: str(device) for node in network.nodes if node.op_type != "Abs"}
        require_all_supported(device, network, QueryResult(supported, refused))
        return super().load_network(device, network)


class ByKey(PlainDevice):
    """Caches compiled networks by key: on a hit, a network gets the nodes, or only the constants, of the cached network."""

    def __init__(self, make_key: Callable[[Network], Any], *, keeps_nodes: bool = True) -> None:
        self._networks: dict[Any, Network] = {}
        self._make_key, self._keeps_nodes = make_key, keeps_nodes

    def make_executable(self, network: Network) -> Executable:
        first = self._networks.setdefault(self._make_key(network), network)
        return PlainExecutable(first if self._keeps_nodes else replace(network, initializers=first.initializers))


def list_nodes_and_types(network: Network) -> str:
    return str(([(node.op_type, node.inputs, node.outputs) for node in network.nodes], network.inputs, network.outputs))


class Racing(PlainDevice):
    """Stores the network of a load in an attribute, which a concurrent load overwrites."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)

    def make_executable(self, network: Network) -> Executable:
        self._network = network
        meet(self._both)
        return PlainExecutable(self._network)


class SharedEngine(PlainDevice):
    """Shares an engine between equal networks, and frees it when the first of them is closed."""

    def make_executable(self, network: Network) -> Executable:
        freed = vars(self).setdefault("freed", set())
        freed.discard(network.fingerprint)

        class Shared(PlainExecutable):
            def run(self, inputs: Arrays, context: RunContext) -> Arrays:
                outputs = super().run(inputs, context)
                return tuple(map(np.zeros_like, outputs)) if self.network.fingerprint in freed else outputs

            def close(self) -> None:
                freed.add(self.network.fingerprint)

        return Shared(network)


class Choosing(PlainDevice):
    """Has a configuration key MODE; its second choice loads networks with the executable class `chosen`."""

    choices: ClassVar[tuple[str, ...]] = ("SAFE", "FAST")
    chosen: Any = staticmethod(lambda network: WrongNeg(network))

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"MODE": ConfigKey(str, self.choices[0], "How it computes.", choices=self.choices)}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        require_all_supported(device, network, self.query_network(device, network))
        return self.chosen(network) if config["MODE"] == self.choices[1] else PlainExecutable(network)


class WrongNeg(PlainExecutable):
    def compute(self, node: Node, inputs: list[Any]) -> Any:
        return inputs[0] if node.op_type == "Neg" else super().compute(node, inputs)


class Halved(PlainExecutable):
    def run(self, inputs: Arrays, context: RunContext) -> Arrays:
        return tuple(value.astype(np.float16).astype(value.dtype) for value in super().run(inputs, context))


class FirstChoice(Choosing):
    """Uses the MODE of the first load for every later load."""

    choices, chosen, first = ("FULL", "HALF"), Halved, ""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        self.first = self.first or config["MODE"]
        return super().load_network(device, network, {"MODE": self.first})


class FirstChoicePlugin:
    @hookimpl
    def create_device(self) -> FirstChoice:
        return FirstChoice()


class Rounding(Choosing):
    """Loses its configuration at import, unless `remembers` is set."""

    choices, chosen, remembers = ("FULL", "HALF"), Halved, False

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"ROUNDING": super().config_keys()["MODE"]}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        return super().load_network(device, network, {"MODE": config["ROUNDING"]})

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        payload.require_version(1)
        return self.load_network(device, unpack_network(payload.sections), config if self.remembers else {"ROUNDING": "FULL"})


class Mute(Choosing):
    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"MODE": ConfigKey(str, "", "")}


class Heedless(PlainDevice):
    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"MODE": ConfigKey(str, "SAFE", "How it computes.", choices=("SAFE", "FAST"))}


class Exporter:
    """PlainDevice with an export and no import."""

    query_network, load_network, export_network = (
        getattr(PlainDevice, name) for name in ("query_network", "load_network", "export_network")
    )
    find_refusal, make_executable = PlainDevice.find_refusal, PlainDevice.make_executable


class Importer(Exporter):
    """PlainDevice with an import and no export."""

    export_network = None
    import_network = PlainDevice.import_network


class Remembering(PlainDevice):
    """Changes the default of MODE to the value of the last query."""

    mode = "SAFE"

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"MODE": ConfigKey(str, self.mode, "How it computes.", choices=("SAFE", "FAST"))}

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Any:
        self.mode = config["MODE"]
        return super().query_network(device, network)


class MeasuredAtLoad(PlainDevice):
    """Reads PERF_COUNT at load and ignores the profile of a run."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        loaded = super().load_network(device, network)
        if not config["PERF_COUNT"]:
            compute = loaded.run
            loaded.run = lambda inputs, context: compute(inputs, RunContext(context.state))  # type: ignore[method-assign]  # the fault
        return loaded


class Naming(PlainDevice):
    """Lists the given capabilities; claims every node if `is_boastful`."""

    def __init__(self, *capabilities: str, is_boastful: bool = False) -> None:
        self._capabilities, self._is_boastful = capabilities, is_boastful

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"OPTIMIZATION_CAPABILITIES": self._capabilities}

    def find_refusal(self, node: Node, network: Network) -> str | None:
        return None if self._is_boastful else super().find_refusal(node, network)


class Secretive(PlainDevice):
    @hookimpl
    def export_network(self, executable: Any) -> Payload:
        raise NotImplementedByDeviceError("this device keeps its code to itself")


class Stating(PlainDevice):
    """Has two ids, the given metrics and the given executable class."""

    def __init__(self, executable: Callable[[Network], Executable] = PlainExecutable, **metrics: Any) -> None:
        self._executable, self._metrics = executable, metrics

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1"), "OPTIMIZATION_CAPABILITIES": ("FP32", "FP16", "FP64"), **self._metrics}

    def make_executable(self, network: Network) -> Executable:
        return self._executable(network)


class Growing(Stating):
    """Changes its DEVICE_TYPE at the first load."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        self._metrics = {"DEVICE_TYPE": "discrete"}
        return super().load_network(device, network)


class Narrow(PlainExecutable):
    def run(self, inputs: Arrays, context: RunContext) -> Arrays:
        if any(len(value) > 32 for value in inputs):
            raise InferenceError("no room for more than 32 images")
        return super().run(inputs, context)


class Cropping(PlainExecutable):
    def run(self, inputs: Arrays, context: RunContext) -> Arrays:
        return tuple(zero_from(8, value) for value in super().run(inputs, context))


class TwoArchitectures(Stating):
    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        return {**super().metrics(device), "DEVICE_ARCHITECTURE": f"v{device.id or 0}"}


class BoundToId(Stating):
    """Compiles for a single id, although both ids state the same architecture."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        loaded = super().load_network(device, network)
        loaded.compiled_for = device.id or "0"  # type: ignore[attr-defined]  # read by the export
        return loaded

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Payload:
        payload = super().export_network(executable)
        return replace(payload, sections={**payload.sections, "id": executable.compiled_for.encode()})  # type: ignore[attr-defined]  # as above

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        sections = dict(payload.sections)
        compiled_for = bytes(sections.pop("id")).decode()
        imported = super().import_network(device, replace(payload, sections=sections))
        imported.compiled_for = compiled_for  # type: ignore[attr-defined]  # for another export
        return imported if compiled_for == (device.id or "0") else self.refuse(imported)

    def refuse(self, imported: Executable) -> Executable:
        raise InferenceError("the driver refuses this code")


class SilentlyBoundToId(BoundToId):
    def refuse(self, imported: Executable) -> Executable:
        compute = imported.run
        imported.run = lambda inputs, context: tuple(map(np.zeros_like, compute(inputs, context)))  # type: ignore[method-assign]  # the fault
        return imported


class Quadratic(PlainDevice):
    def find_refusal(self, node: Node, network: Network) -> str | None:
        assert any(other.name == node.name for other in sorted(network.nodes, key=lambda other: other.name))
        return super().find_refusal(node, network)


class Dated(PlainDevice):
    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Payload:
        return Payload({**pack_network(executable.network), "date": str(time.time_ns()).encode()})


class Versionless(PlainDevice):
    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        return self.load_network(device, unpack_network(payload.sections))


class LastExported(PlainDevice):
    """Imports the network of its last export and ignores the content of the blob."""

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Payload:
        self._last = executable.network
        return super().export_network(executable)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        stored = unpack_network(payload.sections)
        imported = PlainExecutable(self._last if len(self._last.inputs) == len(stored.inputs) else stored)
        imported.inputs, imported.outputs = stored.inputs, stored.outputs
        return imported


class Fixing(PlainDevice):
    """Fixes open sizes to 1 at import."""

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        imported = super().import_network(device, payload)
        for side in ("inputs", "outputs"):
            setattr(imported, side, tuple(replace(spec, type=_close(spec.type)) for spec in getattr(imported, side)))
        return imported


def _close(value_type: Any) -> Any:
    return replace(value_type, shape=tuple(size if isinstance(size, int) else 1 for size in value_type.shape))


class Negating(PlainDevice):
    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        imported = super().import_network(device, payload)
        compute = imported.run
        imported.run = lambda inputs, context: tuple(-value for value in compute(inputs, context))  # type: ignore[method-assign]  # the fault
        return imported


def exporting(pack: Callable[[object], bytes]) -> Plant:
    """Returns a device class that adds an object to its blobs, serialized by `pack` and not marked as code."""

    class Exporting(PlainDevice):
        @hookimpl
        def export_network(self, executable: PlainExecutable) -> Payload:
            payload = super().export_network(executable)
            return Payload({**payload.sections, "plan": pack({"order": [1, 2, 3]})})

    return Exporting


def save_objects(value: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([value], object), allow_pickle=True)
    return stream.getvalue()


def steps_of(change: Callable[[Arrays], Any]) -> Plant:
    """Returns a device class that applies `change` to the steps of its executed graph."""

    class Steps(PlainExecutable):
        def executed_nodes(self) -> Any:
            return change(list_nodes(self.network.nodes, self.network.types))

    return of(Steps)


# Devices with a memory of their own


class Aliasing(TemplateDevice):
    @hookimpl
    def from_host(self, array: Any, spec: Any) -> TemplateArray:
        return TemplateArray(spec.memory, array)


class GivingAway(TemplateDevice):
    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        return array.read(array.memory)


class Live(GivingAway):
    """Computes into a fixed buffer for each output, and returns an alias of the buffer to the host."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        executable = super().load_network(device, network, config, None)
        compute, buffers = executable.run, {}

        def run(inputs: Arrays, context: RunContext) -> Arrays:
            outputs = []
            for index, value in enumerate(compute(inputs, context)):
                elements = value.read(value.memory)
                buffer = buffers.setdefault((index, *elements.shape), np.empty_like(elements))
                buffer[...] = elements
                outputs.append(TemplateArray(value.memory, buffer))
            return tuple(outputs)

        executable.run = run  # type: ignore[method-assign]  # the fault
        return executable


class OneName(TemplateDevice):
    """Has two ids with separate memories of the same name: if an id reads an array of the second memory, it gets zeros."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        loaded: Any = super().load_network(device, network, config, None)
        own, compute = loaded.memory, loaded.run
        loaded.inputs, loaded.outputs = (
            tuple(replace(spec, memory="card") for spec in specs) for specs in (loaded.inputs, loaded.outputs)
        )

        def read(value: TemplateArray) -> TemplateArray:
            elements = value.read(value.memory)
            return TemplateArray(own, elements if value.memory == own else np.zeros_like(elements))

        loaded.run = lambda inputs, context: compute(tuple(map(read, inputs)), context)
        return loaded

    @hookimpl
    def from_host(self, device: DeviceName, array: Any, spec: Any) -> TemplateArray:
        return TemplateArray(f"{device.name}:{device.id}", array.copy())


# Devices that start runs by themselves


class Queued(PlainExecutable):
    """Starts runs on its own queue and reports each end correctly."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._queue = ThreadPoolExecutor(max_workers=1)
        self._first = threading.Event()

    def start(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        self._queue.submit(self.run_started, inputs, context, done)

    def run_started(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        try:
            if context.limits is not None:
                context.limits.enter("")
                context.limits.hold(inputs)
            outputs = self.run(inputs, context)
        except BaseException as error:  # noqa: BLE001  # every end is reported
            done(None, error)
        else:
            done(outputs, None)

    def close(self) -> None:
        self._queue.shutdown(wait=False)


class Twice(Queued):
    def run_started(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        super().run_started(inputs, context, done)
        done(None, RuntimeError("told again"))


class NeverAfterAnError(Queued):
    """Does not report the errors of its kernels. It counts no memory, so the core ends a run that exceeds MEMORY_LIMIT."""

    def run_started(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        try:
            outputs = self.run(inputs, context)
        except ValueError:
            return
        done(outputs, None)


class NeverAfterALimit(Queued):
    def run_started(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        super().run_started(inputs, context, lambda outputs, error: done(outputs, None) if error is None else None)


class Never(Queued):
    def run_started(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        self.run(inputs, context)


class Blocking(Queued):
    def start(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        self.run_started(inputs, context, done)


class Waiting(Queued):
    def start(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        self._queue.submit(self.run_started, inputs, context, done).result()


class Dropping(Queued):
    """Queues a run without computing it, and drops the queue at close."""

    def start(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        self._waiting = (inputs, context, done)

    def close(self) -> None:
        del self._waiting
        super().close()


class NeverAfterACancellation(Queued):
    def run_started(self, inputs: Arrays, context: RunContext, done: Done) -> None:
        self._first.wait(0.1)
        if not context.cancelled():
            super().run_started(inputs, context, done)


class Boundless(PlainExecutable):
    """Starts runs on its own threads and counts no memory."""

    def start(self, inputs: Arrays, context: RunContext, done: Any) -> None:
        threading.Thread(target=lambda: done(self.run(inputs, context), None)).start()


# Devices with wrong times, and devices that leave traces in the process


def measure_from_one_begin(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    values = {**executable._constants, **{spec.name: value for spec, value in zip(executable.inputs, inputs, strict=True)}}
    began = perf_counter()
    for node in executable.network.nodes:
        values[node.outputs[0]] = executable.compute(node, [values[name] for name in node.inputs])
        if context.profile is not None:
            context.profile.add(node, perf_counter() - began)
    return tuple(values.get(spec.name) for spec in executable.outputs)


def measuring(change: Callable[[float], float], read_clock: Callable[[], float] = perf_counter) -> Plant:
    """Returns a device class whose time of the first node is changed, and begins on another clock."""

    def measure(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
        begin, began = read_clock(), perf_counter()
        outputs = timeless(executable, inputs, context)
        if context.profile is not None:
            context.profile.add(executable.network.nodes[0], change(perf_counter() - began), begin=begin)
        return outputs

    return running(measure)


def hold_lock(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    if inputs[0].size > 1 << 18:
        ctypes.PyDLL(None).usleep(300_000)
    return PlainExecutable.run(executable, inputs, context)


def measure_nothing(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
    outputs = timeless(executable, inputs, context)
    for node in executable.network.nodes if context.profile is not None else ():
        context.profile.add(node, 0.0, begin=perf_counter())
    return outputs


def keeping(keep: Callable[[Any], Any]) -> Plant:
    """Returns a device class that stores `keep(input)` of every run, and so leaks memory."""

    def run(executable: Any, inputs: Arrays, context: RunContext) -> Arrays:
        vars(executable).setdefault("inputs_of_runs", []).append([keep(value) for value in inputs])
        return PlainExecutable.run(executable, inputs, context)

    return running(run)


LEFT_BEHIND: list[Any] = []
"""Executables, thread events and file descriptors that planted devices leak; a fixture releases them."""


def leaving(leave: Callable[[], object], *, keeps: bool = False) -> Plant:
    """Returns a device class that calls `leave` at each load, and never frees its executables if `keeps`."""

    class Leaving(PlainExecutable):
        def __init__(self, network: Network) -> None:
            super().__init__(network)
            leave()
            if keeps:
                # A new list, which is no part of the frozen heap, so that it is found as the holder.
                LEFT_BEHIND.append([self])

    return of(Leaving)


class LeavingThread(PlainDevice):
    """Starts a thread when it is made, as a driver does, and does not end it in `close_device`."""

    @hookimpl
    def create_device(self) -> PlainDevice:
        start_thread()
        return PlainDevice()


def leave_temporary_file() -> None:
    descriptor, _ = tempfile.mkstemp()
    os.close(descriptor)


def allocate(nbytes: int) -> int:
    """Returns the address of memory that C allocates and writes."""
    address: int = LIBC.malloc(ctypes.c_size_t(nbytes))
    ctypes.memset(address, 1, nbytes)
    return address


def print_from_c() -> None:
    LIBC.puts(b"a banner of the driver")


def flush_denormals() -> None:
    """Sets the bits FTZ and DAZ of MXCSR, which follow the 28 bytes of x87 in glibc's fenv_t, for the calling thread."""
    environment = (ctypes.c_uint32 * 8)()
    maths = ctypes.CDLL("libm.so.6")
    maths.fegetenv(environment)
    environment[7] |= 0x8040
    maths.fesetenv(environment)


LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
LIBC.signal.restype = ctypes.c_void_p
HOST_BYTES = (read_host_memory() or (1 << 34, 0))[0]
IGNORED = 1
"""SIG_IGN of C."""
UNSEEN = {
    "bound to a processor": os.cpu_count() == 1,
    "floating-point mode changed": platform.machine() != "x86_64" or sys.platform != "linux",
}
"""Fault -> whether this machine cannot show it."""


def start_thread() -> None:
    event = threading.Event()
    LEFT_BEHIND.append(event)
    threading.Thread(target=event.wait, daemon=True).start()


MODULE = '''
"""SHELVED: its blobs hold a key of a table that only this process has."""
from hetero_core import hookimpl
from hetero_core.contract import Payload
from hetero_core.testing.plain_device import PlainDevice

TABLE = {}


class Shelved(PlainDevice):
    @hookimpl
    def export_network(self, executable):
        TABLE["7"] = executable.network
        return Payload({"key": b"7"})

    @hookimpl
    def import_network(self, device, payload):
        return self.load_network(device, TABLE[bytes(payload.sections["key"]).decode()])


@hookimpl
def create_device():
    return Shelved()
'''
CACHED = '''
"""CACHED: a table of the process holds each network as it was loaded first, whatever the configuration."""
from hetero_core import hookimpl
from hetero_core.contract import ConfigKey
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

TABLE = {}


class Cached(PlainDevice):
    @hookimpl
    def config_keys(self):
        return {"MODE": ConfigKey(str, "SAFE", "How it computes.", choices=("SAFE", "FAST"))}

    @hookimpl
    def load_network(self, device, network, config):
        return TABLE.setdefault(network.fingerprint, Scaled(network, 1 if config["MODE"] == "SAFE" else 1.125))


class Scaled(PlainExecutable):
    def __init__(self, network, factor):
        super().__init__(network)
        self.factor = factor

    def compute(self, node, inputs):
        return super().compute(node, inputs) * inputs[0].dtype.type(self.factor)


@hookimpl
def create_device():
    return Cached()
'''
OF_PROCESSES = {
    "blob that refers to its process": ("SHELVED", MODULE),
    "cache of the process without the configuration": ("CACHED", CACHED),
}

PLANTS: dict[str, Plant] = {
    "cache by network name": lambda: ByKey(lambda network: network.name),
    "load takes less than query": Promising,
    "race in load": Racing,
    "query depends on history": Forgetful,
    "empty tensors": running(add_row),
    "engine used after it was closed": SharedEngine,
    "`to_host` of a live buffer": lambda: Live("PLANTED"),
    "wrong under a choice": Choosing,
    "wrong in a part": changing("Relu", lambda inputs, _: np.abs(inputs[0])),
    "wrong operator": changing("Abs", lambda inputs, _: inputs[0]),
    "wrong dtype": changing("", lambda _, value: value.astype(np.float64)),
    "inner values overwritten": computing(negate_in_place),
    "configuration ignored": running(timeless),
    "id ignored": OneForAll,
    "newer than `requires_api`": Understated,
    "state that threads share": of(Mixing),
    "output buffers reused": running(reuse_buffers),
    "results overwritten by the next run": running(reuse_buffers),
    "load takes more than query": Unquestioned,
    "refusal texts that differ": Fickle,
    "unknown operator taken": Boaster,
    "reference evaluator in secret": computing(evaluate),
    "blob of something else": Negating,
    "`done` called twice": of(Twice),
    "`done` never called": of(Never),
    "`done` not called after an error": of(NeverAfterAnError),
    "`done` not called after a limit": of(NeverAfterALimit),
    "`start` that computes": of(Blocking),
    "`start` that waits": of(Waiting),
    "queue dropped at close": of(Dropping),
    "`done` not called after a cancellation": of(NeverAfterACancellation),
    "executables never freed": leaving(lambda: None, keeps=True),
    "times in milliseconds": measuring(lambda seconds: seconds * 1000),
    "times in kiloseconds": measuring(lambda seconds: seconds / 1000),
    "times of another clock": measuring(lambda seconds: seconds, time.time),
    "interpreter's lock held": running(hold_lock),
    "query that is quadratic": Quadratic,
    "memory in KiB": lambda: Stating(DEVICE_TOTAL_MEM_SIZE=HOST_BYTES // 1024, DEVICE_FREE_MEM_SIZE=1),
    "memory of a card in KiB": lambda: Stating(DEVICE_TYPE="discrete", DEVICE_TOTAL_MEM_SIZE=1 << 20, DEVICE_FREE_MEM_SIZE=1),
    "export that differs each time": Dated,
    "payload.version ignored": Versionless,
    "pickle not marked as code": exporting(pickle.dumps),
    "packed pickle not marked as code": exporting(lambda value: gzip.compress(pickle.dumps(value))),
    "array of objects not marked as code": exporting(save_objects),
    "configuration lost by import": Rounding,
    "Softmax's axis ignored": forgetting("Softmax", "axis"),
    "integer Div rounds down": toolkit(outputs=floor_quotients),
    "negative Gather indices": clamping(0),
    "indices clamped": clamping(-3),
    "bfloat16 inside": toolkit(inputs=round_inputs),
    "rows beyond 16": toolkit(outputs=compute_sixteen_rows),
    **{f"NaN lost in {operator}": losing_nan(operator) for operator in ("Relu", "MaxPool")},
    "int64 through int32": casting(np.int64, np.int32),
    "weights drift": running(drift),
    "halves rounded away from zero": formula("QuantizeLinear", lambda x: np.floor(x / 2 + 0.5) + 3),
    "quantized integers a step off, in a case": each_output(lambda y: y ^ 1 if y.dtype == np.uint8 else y),
    "casts that round": formula("Cast", np.rint),
    "pads of both sides exchanged": toolkit(node=swap_pads),
    "products of depth 0 left out": formula("MatMul", lambda x, w: x @ w if x.shape[-1] else np.ones((len(x), w.shape[-1]))),
    "denormals flushed": each_output(lambda y: np.where(np.abs(y) < 1.1e-38, 0, y).astype(y.dtype)),
    "sums in float16": formula("MatMul", sum_halves),
    "float16 saturates": each_output(lambda y: np.clip(y, -65504, 65504) if y.dtype == np.float16 else y),
    "Gelu by tanh": formula("Gelu", estimate_gelu),
    "Erf by a fast formula": formula("Erf", estimate_erf),
    "Gelu by tanh, in a case": formula("Gelu", estimate_gelu),
    "Erf by a fast formula, in a case": formula("Erf", estimate_erf),
    "products in TF32, in a case": computing(round_factors),
    "data moved in bfloat16": toolkit(inputs=round_inputs),
    "strides of an inner value ignored": formula("Transpose", lambda x: -x.reshape(x.shape[::-1])),
    "batches above 4": each_output(lambda y: zero_from(4, y) if y.ndim == 3 else y),
    "linear_before_reset ignored": forgetting("GRU", "linear_before_reset"),
    "results of rank 0 with a dimension": each_output(lambda y: y.reshape(1) if not y.ndim else y),
    "Softmax overflows": formula("Softmax", overflow_softmax),
    "bounds of Clip exchanged": formula("Clip", lambda x: np.maximum(np.minimum(x, 1), 2)),
    "results that jitter": running(jitter),
    "products in TF32": computing(round_factors),
    "a key without a text": Mute,
    "own key ignored": Heedless,
    "an export without an import": Exporter,
    "an import without an export": Importer,
    "cached by the identity of an array": cached_by(lambda value: value.__array_interface__["data"][0]),
    "cached by a part of an array": cached_by(lambda value: (value.shape, value.reshape(-1)[[0, -1]].tobytes())),
    "stuck at the first batch size": running(keep_size),
    "inputs mutated": running(spoil_inputs),
    "inputs said to be the caller's own": running(lambda *arguments: OwnOutputs(PlainExecutable.run(*arguments))),
    "inputs mutated, in a case": running(spoil_inputs),
    "cache without constants": lambda: ByKey(list_nodes_and_types, keeps_nodes=False),
    "kernels kept without attributes": first_attributes(),
    "version of an operator ignored": toolkit(
        node=lambda node: replace(node, since_version=13) if node.op_type == "Softmax" else node
    ),
    "domain of an operator ignored": WithoutDomains,
    "choice of the first load kept": FirstChoicePlugin,
    "rows beyond 16 bits": changing("", lambda _, value: zero_from(0xFFFF, value)),
    "elements beyond a million": changing("", lambda _, value: zero_from(1 << 20, value.reshape(-1)).reshape(value.shape)),
    "sums of 512 products": computing(cut_sums),
    "columns that fill no tile": changing("MatMul", cut_columns),
    "float64 in float32": computing(narrow),
    "infinity lost": changing("", lambda _, value: np.clip(value, np.finfo(value.dtype).min, np.finfo(value.dtype).max)),
    "broadcasting kept from the first run": of(FirstBroadcast),
    "inputs of all runs kept": keeping(lambda value: value),
    "threads that never end": leaving(start_thread),
    "files that are never closed": leaving(lambda: LEFT_BEHIND.append(os.open(os.devnull, os.O_RDONLY))),
    "NumPy's random numbers seeded": leaving(lambda: np.random.seed(0)),
    "errors of NumPy raised": leaving(lambda: np.seterr(all="raise")),
    "environment changed": leaving(lambda: os.environ.update(PLANTED_THREADS="1")),
    "working folder changed": leaving(lambda: os.chdir("/")),
    "prints": leaving(lambda: sys.stdout.write("loaded\n")),
    "prints from C": leaving(print_from_c),
    "garbage collection disabled": leaving(gc.disable),
    "switch interval changed": leaving(lambda: sys.setswitchinterval(0.05)),
    "signal handler changed in C": leaving(lambda: LIBC.signal(signal.SIGUSR2, IGNORED)),
    "root logger changed": leaving(lambda: logging.getLogger().setLevel(logging.DEBUG)),
    "bound to a processor": leaving(lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})),
    "floating-point mode changed": leaving(flush_denormals),
    "64 KiB of Python's memory kept of each run": keeping(lambda _: list(map(float, range(2048)))),
    "64 KiB of C's memory kept of each run": keeping(lambda _: allocate(1 << 16)),
    "a thread left by `close_device`": LeavingThread,
    "temporary files": leaving(leave_temporary_file),
    "times that add up": running(measure_from_one_begin),
    "times that are all 0": running(measure_nothing),
    "INT8 named and refused": lambda: Naming("FP32", "INT8"),
    "a precision taken and not named": lambda: Naming("FP32", "INT8", "BF16", "FP16", is_boastful=True),
    "an export that is named and does not work": Secretive,
    "a new identifier for each question": lambda: Stating(DEVICE_UUID=lambda: uuid4().hex),
    "another type after a load": Growing,
    "one identifier for two ids": lambda: Stating(DEVICE_UUID="0123456789abcdef" * 2),
    "more memory free than there is": lambda: Stating(DEVICE_TOTAL_MEM_SIZE=8000, DEVICE_FREE_MEM_SIZE=4 * 2**30),
    "a limit that is not stated": lambda: Stating(Narrow, MAX_BATCH_SIZE=0),
    "a limit that is too high": lambda: Stating(Narrow, MAX_BATCH_SIZE=50),
    "images beyond the limit not computed": lambda: Stating(Cropping, MAX_BATCH_SIZE=8),
    "times only as a network was loaded": MeasuredAtLoad,
    "a default that follows what was set": Remembering,
    "`from_host` that aliases": lambda: Aliasing("PLANTED"),
    "`to_host` that aliases": lambda: GivingAway("PLANTED"),
    "two memories of one name": lambda: OneName("PLANTED"),
    "steps as a list": steps_of(list),
    "steps for nodes that are not there": steps_of(
        lambda nodes: tuple(replace(node, origins=(f"fused_{node.name}",)) for node in nodes)
    ),
    "a step left out": steps_of(lambda nodes: nodes[-1:]),
    "steps under other names than times": steps_of(
        lambda nodes: tuple(replace(node, name=f"kernel {node.name}") for node in nodes)
    ),
    "a blob for one id of several": BoundToId,
    "a blob for one id of several, in silence": SilentlyBoundToId,
    "imports what was exported last": LastExported,
    "open sizes lost by import": Fixing,
}


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shortens the timeouts of the checks, then restores the process state and releases the leaks of planted devices."""
    for module, name, seconds in (
        (contract_runs, "END_SECONDS", 1.0),
        (contract_runs, "BLOCK_SECONDS", 0.5),
        (contract_runs, "FREE_SECONDS", 1.0),
        (contract_runs, "HELD_SECONDS", 0.2),
        (contract_resources, "SETTLE_SECONDS", 0.2),
    ):
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr("hetero_core.runtime.request.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr("hetero_core.runtime.request.CANCEL_SECONDS", 0.1)
    environment, folder, states = dict(os.environ), Path.cwd(), (random.getstate(), np.random.get_state())
    interval, level = sys.getswitchinterval(), logging.getLogger().level
    handler = LIBC.signal(signal.SIGUSR2, None)
    yield
    gc.enable()
    sys.setswitchinterval(interval)
    logging.getLogger().setLevel(level)
    LIBC.signal(signal.SIGUSR2, handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.setstate(states[0])
    np.random.set_state(states[1])
    for trace in LEFT_BEHIND:
        if isinstance(trace, threading.Event):
            trace.set()
        elif isinstance(trace, int):
            os.close(trace)
    LEFT_BEHIND.clear()


def test_page_has_one_row_for_each_plant() -> None:
    assert set(ROWS) == {*PLANTS, *OF_PROCESSES}


@pytest.mark.parametrize("fault", PLANTS)
def test_fault_is_found_by_its_check(fault: str) -> None:
    check, message = ROWS[fault]
    if check.startswith("traces.") and not contract_resources.PROCESS.exists():
        pytest.skip("this system does not tell a process's memory, threads and files")
    if UNSEEN.get(fault):
        pytest.skip("this machine has a single processor, or no mode that flushes denormals")
    failed = list_failed(PLANTS[fault](), check)
    assert list(failed) == [check]
    assert message in failed[check]


@pytest.mark.parametrize("fault", OF_PROCESSES)
def test_fault_of_several_processes_is_found(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device, code = OF_PROCESSES[fault]
    name = device.lower()
    (tmp_path / f"{name}.py").write_text(code)
    about = tmp_path / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[hetero_core.devices]\n{device} = {name}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check, message = ROWS[fault]
    (outcome,) = run_checks(choose_checks((), [check]), make_target(device))
    assert outcome.status == "failed"
    assert message in outcome.reason


def test_device_without_a_bug_passes_every_check() -> None:
    cases = [f"operators.test_{op_type.lower()}*" for op_type, _ in KERNELS]
    outcomes = run_kit(PlainDevice(), levels=("contract", "export")) + run_kit(PlainDevice(), *cases)
    assert {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"} == {}
    skipped = {outcome.check.subject for outcome in outcomes if outcome.status == "skipped"} - {"operators"}
    assert skipped == {"properties", "extensions", "values", "formulas", "meaning", "exporting", "device_facts", "memory"}
    assert sum(outcome.check.level == "operators" and outcome.status == "passed" for outcome in outcomes) >= 20


@pytest.mark.parametrize(
    ("device", "patterns"),
    [
        (toolkit(), {check for check, _ in ROWS.values() if check.startswith(("values.", "meaning.", "dynamic_shapes."))}),
        (toolkit(), {ROWS[fault][0] for fault in PLANTS if fault.endswith(" ignored") and "'s " in fault}),
        (of(Queued), {"start.*", "perf_counts.*", "requests.*", "exporting.*"}),
        # The core counts inputs and outputs at the end of each run, so a device without counters is limited too.
        (of(Boundless), {"start.run_that_fails_ends"}),
        (running(lambda *arguments: tuple(map(np.from_dlpack, PlainExecutable.run(*arguments)))), {"start.run_that_fails_ends"}),
        (type("Remembering", (Rounding,), {"remembers": True}), {"exporting.*"}),
        (TwoArchitectures, {"exporting.blob_is_for_one_architecture"}),
        (Stating, {"exporting.blob_is_for_one_architecture"}),
        (lambda: Naming("FP64", "FP16", "FP32", "WINOGRAD"), {"capabilities.*"}),
    ],
)
def test_device_without_the_fault_passes(device: Plant, patterns: set[str]) -> None:
    assert list_failed(device(), *patterns) == {}


def test_wrong_part_of_a_split_is_found_with_seed_and_nodes() -> None:
    def transpose(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
        return right(node, [inputs[0], inputs[1].T.copy()] if node.op_type == "MatMul" else inputs)

    failed = list_failed(computing(transpose)(), "hetero.each_node_of_if", "hetero.random_parts_of_if")
    assert list(failed) == ["hetero.each_node_of_if", "hetero.random_parts_of_if"]
    assert "on the reference: output 'y': expected" in failed["hetero.each_node_of_if"]
    assert "seed 0, with" in failed["hetero.random_parts_of_if"]


def test_wrong_operator_is_found_by_its_case_alone() -> None:
    cases = ("operators.test_abs", "operators.test_neg", "operators.test_add", "operators.test_sub", "operators.test_tanh")
    assert list(list_failed(PLANTS["wrong operator"](), *cases)) == ["operators.test_abs"]


def test_operator_that_is_slow_is_named_in_the_report() -> None:
    def wait(node: Node, inputs: list[Any], right: Callable[[Node, list[Any]], Any]) -> Any:
        time.sleep(0.02 if node.op_type == "Abs" else 0.0)
        return right(node, inputs)

    outcomes = run_kit(computing(wait)(), "operators.test_abs", "operators.test_neg")
    report = report_to_json(Subject(device="PLANTED"), outcomes, {})
    assert [outcome.status for outcome in outcomes] == ["passed", "passed"]
    assert list(report["operators"]["times_of_numpy"]) == ["Abs-13", "Neg-13"]
    assert "more than 100 times as long: Abs-13 (" in describe_operators(report["operators"])


def test_choice_of_the_configuration_is_set_for_every_check() -> None:
    (outcome,) = run_kit(Choosing(), "query.claimed_network_loads", config={"MODE": "FAST"})
    assert outcome.status == "failed"
    assert "'fork' of Neg" in outcome.reason


def test_hanging_check_is_abandoned_and_the_rest_runs() -> None:
    free = threading.Event()
    plant = running(lambda *arguments: free.wait(60) and PlainExecutable.run(*arguments))
    checks = choose_checks(
        patterns=["tensors.inputs_are_never_written", "query.refused_network_is_refused_by_load_for_the_same_reasons"]
    )
    outcomes = list(run_checks(checks, make_target("PLANTED", plugin=plant()), limit=0.5))
    free.set()
    assert {outcome.check.name: (outcome.status, outcome.reason) for outcome in outcomes} == {
        "tensors.inputs_are_never_written": ("failed", "did not end within 0.5 seconds; the device, or the core, hangs"),
        "query.refused_network_is_refused_by_load_for_the_same_reasons": ("passed", ""),
    }


def test_device_that_runs_nothing_gets_a_message() -> None:
    plugin = type("Nothing", (PlainDevice,), {"find_refusal": lambda *_: "this device runs nothing at all"})()
    outcomes = {outcome.check.name: outcome for outcome in run_kit(plugin, "query.*", "load.*")}
    assert "it runs nothing that the other checks could use" in outcomes["query.claimed_network_loads"].reason
    assert outcomes["load.input_may_be_an_output"].status == "skipped"
    assert "takes none of Tanh, Sigmoid" in outcomes["load.input_may_be_an_output"].reason


def test_core_is_closed_after_each_passed_or_failed_check() -> None:
    opened: list[Core] = []

    def make_core() -> Core:
        core = Core()
        core.register_plugin("PLANTED", PLANTS["wrong dtype"]())
        opened.append(core)
        return core

    target = make_target("PLANTED", make_core=make_core)
    list(run_checks(choose_checks(patterns=["tensors.*", "operators.test_abs"]), target))
    assert len(opened) > 2
    assert all(core._is_closed for core in opened)
