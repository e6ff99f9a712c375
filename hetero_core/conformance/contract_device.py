"""Contract of a device: its name and versions, metrics and configuration, capabilities, facts, extensions."""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from hetero_core import hookspecs
from hetero_core.conformance.check import (
    CheckContext,
    CheckFailed,
    Skip,
    check,
    require,
    require_equal,
    require_error,
    require_same,
)
from hetero_core.conformance.samples import export_bytes, load_sample, make_mixed, make_sample, read_text
from hetero_core.contract import Extension
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY, read_host_memory
from hetero_core.devices.threads import share_threads
from hetero_core.errors import ConfigKeyError, HeteroError, MetricNotFoundError, NotImplementedByDeviceError, UnsupportedNodesError

# Registry: a device under its own name and a second one, and the plugin API that it states.

SECOND_NAME = "CONFORMANCE"


@check("registry")
def device_is_listed_as_working(context: CheckContext) -> None:
    """The device is in the list of devices, with its ids, its full name and no reason for being unavailable."""
    (row,) = [row for row in context.core.list_devices() if row.name == context.facts.name]
    require_equal(row.reason, "", f"the reason in the row of {row.name}")
    require_equal(row.ids, context.facts.ids, f"the ids in the row of {row.name}")
    require(row.full_name.strip(), f"{row.name} has an empty FULL_DEVICE_NAME")


@check("registry", needs=["single"])
def plugin_serves_two_names(context: CheckContext) -> None:
    """A plugin registered under a second name is a separate device there: its answers carry that name, with an id if it has several."""
    context.core.register_plugin(SECOND_NAME, context.facts.plugin)
    sample = make_sample(context, "chain")
    for asked in (SECOND_NAME, context.facts.name, SECOND_NAME):
        for node, device in context.core.query_network(sample.network, asked).supported.items():
            name, _, device_id = device.partition(".")
            require_equal(name, asked, f"the device that takes node '{node}' on {asked}")
            require(not device_id or device_id in context.facts.ids, f"node '{node}' is taken by {device}, which has no such id")
        sample.require_run(context.core.load_network(sample.network, asked), context.seed, what=f"on {asked}")


@check("registry")
def plugin_states_the_api_that_it_uses(context: CheckContext) -> None:
    """No hook and no argument of the plugin is newer than its `requires_api`: an older core refuses the plugin by version."""
    stated = getattr(context.facts.plugin, "requires_api", None) or (1, 0)
    hooks = context.core._registry.device(context.facts.name).manager.hook
    for hook in (name for name, spec in vars(hookspecs).items() if hasattr(spec, f"{hookspecs.PROJECT}_spec")):
        for implementation in getattr(hooks, hook).get_hookimpls():
            # Wrappers are plugins of others; a base class of the core has the API of its core.
            if implementation.wrapper or implementation.function.__module__.partition(".")[0] == hookspecs.PROJECT:
                continue
            for name in (hook, *(f"{hook}({argument})" for argument in implementation.argnames)):
                major, minor = since = hookspecs.SINCE.get(name, (1, 0))
                brought = f"{name} came with the plugin API {major}.{minor}"
                require(since <= stated, f"{brought}; the plugin states requires_api = {stated}")


# Properties: metrics can be read and have their types; configuration is declared, read, and changed and restored on a loaded network.


@check("properties")
def standard_metrics_have_their_types(context: CheckContext) -> None:
    """Every name in SUPPORTED_METRICS, itself among them, has a value, whatever its letter case. Ids are unique texts, names are not empty,
    the range of requests goes up in steps of 1 or more."""
    names = context.get_metric("SUPPORTED_METRICS")
    require("SUPPORTED_METRICS" in names, "SUPPORTED_METRICS does not list itself")
    require_equal(list(names), sorted(set(names)), "the order of SUPPORTED_METRICS")
    for name in names:
        require(context.get_metric(name) is not None, f"the metric {name} is None")
        context.get_metric(name.lower())
    ids = context.get_metric("AVAILABLE_DEVICES")
    require_equal(len(set(ids)), len(ids), f"the number of different ids in {ids}")
    for name in ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE"):
        require(context.get_metric(name).strip(), f"the metric {name} is empty")
    lowest, highest, step = context.get_metric("RANGE_FOR_ASYNC_INFER_REQUESTS")
    require(0 < lowest <= highest and step >= 1, f"RANGE_FOR_ASYNC_INFER_REQUESTS is ({lowest}, {highest}, {step})")
    require(isinstance(context.get_metric("HOLDS_INTERPRETER_LOCK"), bool), "HOLDS_INTERPRETER_LOCK is no bool")
    require(context.get_metric("OPTIMIZATION_CAPABILITIES"), "OPTIMIZATION_CAPABILITIES is empty")


@check("properties")
def keys_have_their_declared_defaults(context: CheckContext) -> None:
    """Every key of SUPPORTED_CONFIG_KEYS can be read, has an explaining text, and has its default until it is set.

    A key without a default may still have a value, which is that of the machine.
    """
    keys = context.core.config_keys(context.device)
    require_equal(list(context.get_metric("SUPPORTED_CONFIG_KEYS")), sorted(keys), "SUPPORTED_CONFIG_KEYS")
    for name, key in keys.items():
        value = context.core.get_config(context.device, name)
        is_free = name != "DEVICE_ID" and name not in context.configured
        if key.default is not None and not key.is_arguments and is_free:
            require_equal(value, key.default, f"the value of {name} before it is set")
        what = "say in a sentence what the key does, 'hetero devices -v' shows it"
        require(key.doc.strip(), f"the key {name} has an empty doc; {what}")


class _ReadConfig(UserDict[str, Any]):
    """A configuration that adds the name of each key that is read to a set."""

    def __init__(self, config: Mapping[str, Any], names: set[str]) -> None:
        super().__init__(config)
        self._names = names

    def __getitem__(self, name: str) -> Any:
        self._names.add(name)
        return super().__getitem__(name)


@check("properties", needs=["single"])
def own_keys_are_read(context: CheckContext) -> None:
    """Each configuration key of the device's own is read by a query, a load, a run or an import; others are ignored."""
    names: set[str] = set()
    sample = make_sample(context, "chain")

    def share_and_watch(config: Mapping[str, Any]) -> Mapping[str, Any]:
        return _ReadConfig(share_threads(config), names)

    # pluggy hands each hook the core's own mapping, which no wrapper can replace, so the core's last step before the hooks is replaced.
    with patch("hetero_core.devices.device.share_threads", share_and_watch):
        context.query(sample.network)
        loaded = context.load(sample.network, {"PERF_COUNT": True})
        loaded.infer(sample.draw(context.seed))
        if "export" in context.facts.capabilities:
            context.import_blob(export_bytes(loaded))
    unread = sorted(set(context.facts.keys) - names)
    require_equal(unread, [], "the keys that the device declares and never reads from `config`, which are ignored")


@check("properties")
def loaded_network_tells_its_configuration_and_metrics(context: CheckContext) -> None:
    """A loaded network has every key and metric that it lists, and refuses unknown names."""
    sample, loaded = load_sample(context, "chain")
    for name in loaded.get_metric("SUPPORTED_METRICS"):
        require(loaded.get_metric(name) is not None, f"the metric {name} of the loaded network is None")
    for name in loaded.get_metric("SUPPORTED_CONFIG_KEYS"):
        loaded.get_config(name)
    require_equal(loaded.get_metric("NETWORK_NAME"), sample.network.name, "NETWORK_NAME")
    require(loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1, "OPTIMAL_NUMBER_OF_INFER_REQUESTS is below 1")
    require(loaded.get_metric("EXECUTION_DEVICES"), "EXECUTION_DEVICES is empty")
    names = {node.name for node in sample.network.nodes}
    require(set(loaded.get_metric("REFERENCE_NODES")) <= names, "REFERENCE_NODES names nodes that the network does not have")
    require_error(MetricNotFoundError, lambda: loaded.get_metric("NO_SUCH_METRIC"), "an unknown metric of a loaded network")
    require_error(ConfigKeyError, lambda: loaded.get_config("NO_SUCH_KEY"), "an unknown key of a loaded network")


@check("properties")
def loaded_network_takes_new_values_and_gives_them_back(context: CheckContext) -> None:
    """`network.set_config` changes PERF_COUNT and MODEL_PRIORITY for the following runs; None restores the value of the load."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    for first in (False, True):
        loaded = context.load(sample.network, {"PERF_COUNT": first})
        request = loaded.create_infer_request()
        for value, expected in ((True, True), (False, False), (None, first)):
            what = f"PERF_COUNT, set to {value} on a network that was loaded with {first}"
            loaded.set_config({"PERF_COUNT": value})
            require_equal(loaded.get_config("PERF_COUNT"), expected, what)
            sample.require_right(request.infer(inputs), inputs, what)
            require_equal(bool(request.perf_counts), expected, f"{what}: whether the next run has times of nodes")
        loaded.set_config({"MODEL_PRIORITY": "HIGH"})
        loaded.set_config({"MODEL_PRIORITY": None})
        priority = context.core.get_config(context.device, "MODEL_PRIORITY")
        require_equal(loaded.get_config("MODEL_PRIORITY"), priority, "MODEL_PRIORITY")


@check("properties")
def none_takes_a_setting_back(context: CheckContext) -> None:
    """None in `set_config` removes the device's setting of a key; the key then has its earlier value, also after a query."""
    core, device = context.core, context.device
    network, _ = make_mixed(context)
    for name, key in core.config_keys(device).items():
        if name == "DEVICE_ID" or name in context.configured or key.is_arguments:
            continue
        before = core.get_config(device, name)
        for choice in (True, False) if key.type is bool else key.choices:
            core.set_config({name: choice}, device)
            with suppress(HeteroError):  # this machine may not support the choice
                core.query_network(network, device)
            core.set_config({name: None}, device)
            require_equal(core.get_config(device, name), before, f"{name}, set to {choice!r} and taken back by None")


@check("properties", needs=["ids"])
def id_of_a_call_is_the_id_in_use(context: CheckContext) -> None:
    """Answer and network name the chosen id, which is given in the device string, as DEVICE_ID of the call or as DEVICE_ID set before."""
    core, name, device_id = context.core, context.facts.name, context.facts.ids[-1]
    network = make_sample(context, "chain").network
    if context.device != name:
        raise Skip("an id is under test already")
    for what, device, config in (
        ("device string", f"{name}.{device_id}", None),
        ("DEVICE_ID of a call", name, {"DEVICE_ID": device_id}),
    ):
        signed = set(core.query_network(network, device, config).supported.values())
        require_equal(signed, {f"{name}.{device_id}"}, f"the devices of the answer, with the id as {what}")
        loaded = core.load_network(network, device, config)
        require_equal(str(loaded.device), f"{name}.{device_id}", f"the network, with the id as {what}")
    core.set_config({"DEVICE_ID": device_id}, name)
    signed = set(core.query_network(network, name).supported.values())
    require_equal(signed, {f"{name}.{device_id}"}, "with a DEVICE_ID that was set")


# Capabilities: OPTIMIZATION_CAPABILITIES names exactly the capabilities of the device; AUTO selects devices by these names.

_UNARY = tuple(f"(T[4] x) => (T[4] y) {{ [one] y = {operator} (x) }}" for operator in ("Relu", "Neg", "Abs", "Identity", "Sqrt"))
_BINARY = tuple(f"(T[4, 4] x) => (T[4, 4] y) {{ [one] y = {operator} (x, x) }}" for operator in ("Add", "Mul", "MatMul", "Gemm"))
_TYPES_OF_PRECISION: Mapping[str, str] = {"FP32": "float", "FP64": "double", "FP16": "float16", "BF16": "bfloat16"}
_QUANTIZED = (
    "(uint8[4] x, float s, uint8 z) => (float[4] y) { [one] y = DequantizeLinear (x, s, z) }",
    "(float[4] x, float s, uint8 z) => (uint8[4] y) { [one] y = QuantizeLinear (x, s, z) }",
    "(uint8[4, 4] x) => (int32[4, 4] y) { [one] y = MatMulInteger (x, x) }",
    "(float[4, 4] x) => (float[4, 4] y) <float s = {0.1}, int8 z = {0}, int8[4, 4] w = "
    "{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> { [left] a = QuantizeLinear (x, s, z) [back] b = DequantizeLinear (a, s, z) "
    "[weights] c = DequantizeLinear (w, s, z) [one] y = MatMul (b, c) }",
)
NETWORKS_OF_CAPABILITY: Mapping[str, tuple[str, ...]] = {
    "INT8": _QUANTIZED,
    **{name: tuple(text.replace("T[", f"{dtype}[") for text in (*_UNARY, *_BINARY)) for name, dtype in _TYPES_OF_PRECISION.items()},
}
"""Capability -> networks; a device that names the capability takes at least one of them."""


def _query_precision(context: CheckContext, capability: str) -> list[Mapping[str, str]]:
    """Returns the refusals of each network of a capability."""
    texts = NETWORKS_OF_CAPABILITY.get(capability, ())
    return [context.query(read_text(context, text, name=capability.lower())).refused for text in texts]


@check("capabilities")
def named_precision_is_taken(context: CheckContext) -> None:
    """The device takes a common operator in each precision that OPTIMIZATION_CAPABILITIES names."""
    for capability in context.get_metric("OPTIMIZATION_CAPABILITIES"):
        refused = _query_precision(context, capability)
        reasons = [reason for each in refused for reason in each.values()][:1]
        what = f"OPTIMIZATION_CAPABILITIES names {capability}, and the device takes none of {len(refused)} networks of it"
        require(not refused or not all(refused), f"{what}: {reasons}")


@check("capabilities")
def taken_precision_is_named(context: CheckContext) -> None:
    """OPTIMIZATION_CAPABILITIES names each precision in which the device takes every common operator.

    FP16 is left out: engines name it only if the processor computes in it, but take it on every processor.
    """
    named = context.get_metric("OPTIMIZATION_CAPABILITIES")
    for capability in sorted(NETWORKS_OF_CAPABILITY.keys() - {"FP16", *named}):
        refused = _query_precision(context, capability)
        what = (
            f"the device takes all {len(refused)} networks of {capability}, and OPTIMIZATION_CAPABILITIES does not name it: {named}"
        )
        require(any(refused), what)


@check("capabilities")
def export_is_named_where_it_works(context: CheckContext) -> None:
    """EXPORT_IMPORT is named, and the cache has its keys, if and only if a loaded network can be exported."""
    core, device = context.core, context.device
    is_named = "EXPORT_IMPORT" in core.get_metric(device, "OPTIMIZATION_CAPABILITIES")
    require_equal(core.get_metric(device, "IMPORT_EXPORT_SUPPORT"), is_named, "IMPORT_EXPORT_SUPPORT, beside EXPORT_IMPORT")
    require_equal("CACHE_DIR" in core.config_keys(device), is_named, "whether there is a key CACHE_DIR, beside EXPORT_IMPORT")
    for hook, other in itertools.permutations(("export_network", "import_network")):
        entry = core._registry.device(context.facts.name)
        has_both = entry.implements(other) or not entry.implements(hook)
        require(has_both, f"it has {hook} and no {other}; a device has both hooks, or neither")
    if not is_named:
        return
    loaded = core.load_network(make_sample(context, "chain").network, device)
    try:
        require(export_bytes(loaded), "the blob is empty")
    except NotImplementedByDeviceError as error:
        raise CheckFailed(f"EXPORT_IMPORT is named, and the device cannot export: {error}") from error


# Facts that programs rely on: identity, batch limit and memory of a device are correct and do not change between reads.

LASTING = ("DEVICE_TYPE", "DEVICE_UUID", "DEVICE_ARCHITECTURE", "MAX_BATCH_SIZE", TOTAL_MEMORY)
LARGE_BATCH = 67
"""A batch that no device may refuse which names no limit; above the powers of two that engines are built for."""
SMALL_MEMORY = 1 << 27
"""Bytes of a memory below which the kit tries whether a larger input runs."""


@check("device_facts")
def facts_stay_the_same(context: CheckContext) -> None:
    """DEVICE_TYPE, DEVICE_UUID and other identifying metrics have the same values when read again, after a load, and in another Core."""
    names = [name for name in LASTING if name in context.get_metric("SUPPORTED_METRICS")]
    first = {name: context.get_metric(name) for name in names}
    context.load(make_sample(context, "chain").network)
    with context.make_core() as other:
        for name, value in first.items():
            require_equal(context.get_metric(name), value, f"{name}, read again")
            require_equal(other.get_metric(context.device, name), value, f"{name}, read in another Core")


@check("device_facts", needs=["ids"])
def ids_have_identifiers_of_their_own(context: CheckContext) -> None:
    """DEVICE_UUID tells physical devices apart: it is different for each id."""
    id_of_uuid: dict[str, str] = {}
    for device_id in context.facts.ids:
        uuid = context.core.get_metric(f"{context.facts.name}.{device_id}", "DEVICE_UUID")
        require(uuid not in id_of_uuid, f"the ids {id_of_uuid.get(uuid)} and {device_id} have one DEVICE_UUID, {uuid}")
        id_of_uuid[uuid] = device_id


@check("device_facts")
def memory_that_is_free_is_part_of_all(context: CheckContext) -> None:
    """DEVICE_FREE_MEM_SIZE is at most DEVICE_TOTAL_MEM_SIZE, both in bytes, and larger inputs than the latter do not run."""
    names = context.get_metric("SUPPORTED_METRICS")
    stated = [name for name in (TOTAL_MEMORY, FREE_MEMORY) if name in names]
    if not stated:
        raise Skip(f"the device does not state {TOTAL_MEMORY}")
    require_equal(stated, [TOTAL_MEMORY, FREE_MEMORY], "the metrics of memory that the device states")
    total, free = (context.get_metric(name) for name in stated)
    require(0 < total >= free, f"{FREE_MEMORY} is {free}, and {TOTAL_MEMORY} is {total}; both are in bytes")
    host = read_host_memory()
    if host is not None and context.get_metric("DEVICE_TYPE") == "integrated":
        what = f"{TOTAL_MEMORY} of an integrated device is {total}, and the host has {host[0]} bytes; it is in bytes"
        require(total > host[0] / 512, what)
    if total < SMALL_MEMORY:
        sample = make_sample(context, "dynamic")
        with suppress(HeteroError):
            context.load(sample.network).infer({"x": np.ones((total // 4, 2), sample.dtype)})
            what = f"a run with an input of more than {total} bytes works, and {TOTAL_MEMORY} is {total}; it is in bytes"
            raise CheckFailed(what)


@check("device_facts")
def batches_up_to_the_limit_run(context: CheckContext) -> None:
    """A run with MAX_BATCH_SIZE images is right (67 images if it is 0); with one image more it is right or raises an error."""
    sample = make_sample(context, "dynamic")
    limit = context.get_metric("MAX_BATCH_SIZE")
    loaded = context.load(sample.network)
    inputs = sample.draw(context.seed, x=(min(limit, 1024) or LARGE_BATCH, 2))
    what = f"a batch of {len(inputs['x'])}, where MAX_BATCH_SIZE is {limit}{'' if limit else ', which means no limit'}"
    sample.require_working(partial(loaded.infer, inputs), inputs, what)
    if 0 < limit <= 1024:
        inputs = sample.draw(context.seed, x=(limit + 1, 2))
        try:
            outputs = loaded.infer(inputs)
        except HeteroError:
            return
        sample.require_right(outputs, inputs, f"a batch of {limit + 1} is not refused, where MAX_BATCH_SIZE is {limit}")


# Extensions: a custom operator is refused until its extension is added, then runs; for devices that take extensions.

TEXT = "(float[N,2] x) => (float[N,2] y) { [custom] y = com.acme.Scale <factor = 3.0> (x) }"


def _make_extension(function: Callable[..., Any]) -> Extension:
    return Extension("com.acme", "Scale", 1, function, lambda types, attributes: (types[0],))  # type: ignore[arg-type, return-value]  # x has a type


@check("extensions", needs=["extensions"])
def extension_is_refused_before_and_runs_after(context: CheckContext) -> None:
    """The operator is refused until `add_extension`, and in other Cores; then its function gets inputs and attributes."""
    core, device = context.core, context.device
    require("custom" in core.query_network(read_text(context, TEXT), device).refused, "an operator is taken before it was given")
    core.add_extension(_make_extension(lambda x, factor: x * np.float32(factor)), device)
    network = read_text(context, TEXT)
    require_equal(dict(core.query_network(network, device).refused), {}, "what is refused after the extension was given")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    require_same(core.load_network(network, device).infer({"x": x})["y"], x * np.float32(3), "the output of the extension")
    with context.make_core() as other:
        network = read_text(replace(context, core=other), TEXT)
        require_error(UnsupportedNodesError, other.load_network, "an extension of another Core", network, device)


@check("extensions", needs=["extensions"])
def error_of_an_extension_names_it(context: CheckContext) -> None:
    """An error in the function reaches the caller with its text; the network can be run again."""
    fails = [True]

    def scale(x: Any, factor: float) -> Any:
        if fails[0]:
            raise LookupError("raised by the extension")
        return x * np.float32(factor)

    context.core.add_extension(_make_extension(scale), context.device)
    loaded = context.load(read_text(context, TEXT))
    x = np.ones((1, 2), np.float32)
    error = require_error(Exception, lambda: loaded.infer({"x": x}), "an extension that raises")
    require("raised by the extension" in str(error), f"the text of the extension's error is lost: {error}")
    fails[0] = False
    require_same(loaded.infer({"x": x})["y"], x * np.float32(3), "the run after an extension has failed")
