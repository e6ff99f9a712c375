"""Properties: metrics can be read and have their types; configuration is declared, checked, stored and does not leak."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hetero_core.conformance.check import CheckContext, Skip, check, require, require_equal, require_error
from hetero_core.conformance.samples import load_sample, make_mixed, make_sample
from hetero_core.errors import ConfigKeyError, ConfigValueError, HeteroError, MetricNotFoundError

WRONG_VALUES: dict[type, tuple[Any, ...]] = {
    bool: ("perhaps", 2),
    int: ("many", "1.5", 0.5, True),
    float: ("much", ()),
    str: (5.5,),
    tuple: (5, (1, 2)),
    dict: ("{", 5, "[1]"),
}
"""Type of a key -> values that are not of this type. None belongs to no type and takes back what was set."""


@check("contract")
def every_listed_metric_can_be_read(context: CheckContext) -> None:
    """Every name in SUPPORTED_METRICS has a value, whatever its letter case, and the list contains SUPPORTED_METRICS."""
    names = context.get_metric("SUPPORTED_METRICS")
    require("SUPPORTED_METRICS" in names, "SUPPORTED_METRICS does not list itself")
    require_equal(list(names), sorted(set(names)), "the order of SUPPORTED_METRICS")
    for name in names:
        require(context.get_metric(name) is not None, f"the metric {name} is None")
        context.get_metric(name.lower())


@check("contract")
def standard_metrics_have_their_types(context: CheckContext) -> None:
    """Ids are unique texts, names are not empty, the range of requests goes up in steps of 1 or more."""
    core, device = context.core, context.device
    ids = core.get_metric(device, "AVAILABLE_DEVICES")
    require_equal(len(set(ids)), len(ids), f"the number of different ids in {ids}")
    for name in ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE"):
        require(core.get_metric(device, name).strip(), f"the metric {name} is empty")
    lowest, highest, step = core.get_metric(device, "RANGE_FOR_ASYNC_INFER_REQUESTS")
    require(0 < lowest <= highest and step >= 1, f"RANGE_FOR_ASYNC_INFER_REQUESTS is ({lowest}, {highest}, {step})")
    require(isinstance(core.get_metric(device, "HOLDS_INTERPRETER_LOCK"), bool), "HOLDS_INTERPRETER_LOCK is no bool")
    require(core.get_metric(device, "OPTIMIZATION_CAPABILITIES"), "OPTIMIZATION_CAPABILITIES is empty")


@check("contract")
def unknown_metric_is_refused(context: CheckContext) -> None:
    """Reading an unknown metric raises MetricNotFoundError, which suggests the most similar name."""
    error = require_error(MetricNotFoundError, lambda: context.get_metric("FULL_DEVICE_NAMES"), "an unknown metric")
    require("'FULL_DEVICE_NAME'" in str(error), f"the near metric is not offered: {error}")


@check("contract")
def unknown_key_is_refused_everywhere(context: CheckContext) -> None:
    """An undeclared key raises ConfigKeyError, which suggests the most similar key, in every call that takes configuration."""
    core, device = context.core, context.device
    network, _ = make_mixed(context)
    wrong = {"PERF_COUNTS_": "YES"}
    for what, action in {
        "get_config": lambda: core.get_config(device, "PERF_COUNTS_"),
        "set_config": lambda: core.set_config(wrong, device),
        "query_network": lambda: core.query_network(network, device, wrong),
        "load_network": lambda: core.load_network(network, device, wrong),
    }.items():
        error = require_error(ConfigKeyError, action, f"{what} with an unknown key")
        require("'PERF_COUNT'" in str(error), f"{what}: the near key is not offered: {error}")


@check("contract")
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
        require(key.doc.strip(), f"the key {name} has no text")


@check("contract")
def every_key_takes_its_own_value_back(context: CheckContext) -> None:
    """`set_config` accepts every value that `get_config` returns; the value does not change."""
    for name in context.core.config_keys(context.device):
        value = context.core.get_config(context.device, name)
        if value is not None:
            context.core.set_config({name: value}, context.device)
            require_equal(context.core.get_config(context.device, name), value, f"{name}, set to its own value")


@check("contract")
def every_choice_is_kept(context: CheckContext) -> None:
    """A key that is a bool or has choices returns each value that was set, whether it was set as itself or as text."""
    for name, key in context.core.config_keys(context.device).items():
        for choice in (True, False) if key.type is bool else key.choices:
            for value in (choice, str(choice)):
                context.core.set_config({name: value}, context.device)
                require_equal(context.core.get_config(context.device, name), choice, f"{name}, set to {value!r}")


@check("contract")
def wrong_values_are_refused(context: CheckContext) -> None:
    """A value of another type, or outside the choices, raises ConfigValueError, which names the key; the earlier value stays."""
    for name, key in context.core.config_keys(context.device).items():
        before = context.core.get_config(context.device, name)
        for value in (*WRONG_VALUES[key.type], *(("NO_SUCH_CHOICE",) if key.choices else ())):
            error = require_error(ConfigValueError, context.core.set_config, f"{name} = {value!r}", {name: value}, context.device)
            require(name in str(error), f"{name} = {value!r}: the error does not name the key: {error}")
        require_equal(context.core.get_config(context.device, name), before, f"{name}, after wrong values were refused")


@check("contract")
def settings_are_taken_together_or_not_at_all(context: CheckContext) -> None:
    """If one of several settings in a call is wrong, the call changes nothing."""
    core, device = context.core, context.device
    require_error(ConfigKeyError, lambda: core.set_config({"PERF_COUNT": True, "NO_SUCH_KEY": 1}, device), "a wrong setting")
    require_equal(core.get_config(device, "PERF_COUNT"), False, "PERF_COUNT, set beside a wrong key")


@check("contract")
def setting_of_a_call_does_not_leak(context: CheckContext) -> None:
    """The configuration of one load holds for that network alone; a value of `set_config` holds for later loads, not for earlier ones."""
    core, device = context.core, context.device
    network = make_sample(context, "chain").network
    read: Callable[..., Any] = lambda loaded: loaded.get_config("PERF_COUNT")  # noqa: E731  # shorter than a function
    first = core.load_network(network, device, {"PERF_COUNT": True})
    require_equal((read(first), core.get_config(device, "PERF_COUNT")), (True, False), "PERF_COUNT of the load, and of the device")
    second = core.load_network(network, device)
    core.set_config({"PERF_COUNT": "YES"}, device)
    third = core.load_network(network, device)
    fourth = core.load_network(network, device, {"PERF_COUNT": "NO"})
    settings = tuple(map(read, (second, third, fourth)))
    require_equal(settings, (False, True, False), "PERF_COUNT before set_config, after it, and over it")


@check("contract")
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


@check("contract")
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
        require_equal(
            loaded.get_config("MODEL_PRIORITY"), context.core.get_config(context.device, "MODEL_PRIORITY"), "MODEL_PRIORITY"
        )


@check("contract")
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


@check("contract", needs=["ids"])
def setting_of_an_id_is_for_that_id(context: CheckContext) -> None:
    """A setting with an id applies to that id only; a setting without an id applies to all ids that have no setting of their own."""
    core, name = context.core, context.facts.name
    first, second = (f"{name}.{device_id}" for device_id in context.facts.ids[:2])
    core.set_config({"PERF_COUNT": True}, first)
    require_equal((core.get_config(first, "PERF_COUNT"), core.get_config(second, "PERF_COUNT")), (True, False), "set for one id")
    core.set_config({"PERF_COUNT": True}, name)
    core.set_config({"PERF_COUNT": False}, second)
    require_equal(
        (core.get_config(first, "PERF_COUNT"), core.get_config(second, "PERF_COUNT")), (True, False), "set for all, then one"
    )


@check("contract", needs=["ids"])
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
        require_equal(
            str(core.load_network(network, device, config).device), f"{name}.{device_id}", f"the network, with the id as {what}"
        )
    core.set_config({"DEVICE_ID": device_id}, name)
    require_equal(
        set(core.query_network(network, name).supported.values()), {f"{name}.{device_id}"}, "with a DEVICE_ID that was set"
    )
