"""Registry: a device and its versions under its name, unknown and taken names, and two Cores that share no state."""

from __future__ import annotations

from typing import Any

from hetero_core.conformance.check import CheckContext, Skip, check, require, require_equal, require_error
from hetero_core.conformance.samples import load_sample, make_mixed, make_sample
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.errors import ClosedError, DeviceNameError, DeviceNotFoundError, PluginError

SECOND_NAME = "CONFORMANCE"


@check("contract")
def device_is_listed_as_working(context: CheckContext) -> None:
    """The device is in the list of devices, with its ids, its full name and no reason for being unavailable."""
    (row,) = [row for row in context.core.list_devices() if row.name == context.facts.name]
    require_equal(row.reason, "", f"the reason in the row of {row.name}")
    require_equal(row.ids, context.facts.ids, f"the ids in the row of {row.name}")
    require(row.full_name.strip(), f"{row.name} has an empty FULL_DEVICE_NAME")


@check("contract")
def versions_name_the_device_and_every_listed_one(context: CheckContext) -> None:
    """`get_versions` has one entry for the device, and one for each device behind its colon; ids change nothing."""
    parsed = parse_device_name(context.device)
    listed = [parse_device_name(entry) for entry in split_device_list(parsed.arguments)] if parsed.arguments else []
    versions = context.core.get_versions(context.device)
    require(
        {parsed.name, *(entry.name for entry in listed)} <= set(versions),
        f"get_versions('{context.device}') names {sorted(versions)}",
    )
    require(all(text.strip() for text in versions.values()), f"get_versions('{context.device}') has an empty version: {versions}")
    if context.facts.ids and context.facts.ids[0]:
        with_id = context.core.get_versions(f"{parsed.name}.{context.facts.ids[0]}")
        require_equal(with_id, context.core.get_versions(parsed.name), "get_versions with an id")


@check("contract", needs=["hetero", "single"])
def versions_of_a_list_have_an_entry_for_each(context: CheckContext) -> None:
    """`get_versions("HETERO:DEVICE")` has two entries; with a second device it has three."""
    require_equal(set(context.core.get_versions(f"HETERO:{context.device}")), {"HETERO", context.facts.name}, "versions of a list")
    both = set(context.core.get_versions(f"HETERO:{context.device},{context.reference}"))
    require_equal(both, {"HETERO", context.facts.name, context.reference}, "versions of a list of two")


@check("contract")
def unknown_device_is_refused_everywhere(context: CheckContext) -> None:
    """Every call with an unknown device name raises DeviceNotFoundError, which suggests the right name."""
    core, name = context.core, f"{context.facts.name}X"
    network, _ = make_mixed(context)
    for what, action in {
        "query_network": lambda: core.query_network(network, name),
        "load_network": lambda: core.load_network(network, name),
        "get_metric": lambda: core.get_metric(name, "FULL_DEVICE_NAME"),
        "get_config": lambda: core.get_config(name, "PERF_COUNT"),
        "set_config": lambda: core.set_config({"PERF_COUNT": True}, name),
        "get_versions": lambda: core.get_versions(name),
        "unregister_plugin": lambda: core.unregister_plugin(name),
    }.items():
        error = require_error(DeviceNotFoundError, action, f"{what} with the unknown device '{name}'")
        require(f"'{context.facts.name}'" in str(error), f"{what}: no 'did you mean {context.facts.name}' in: {error}")


@check("contract")
def unknown_id_is_refused(context: CheckContext) -> None:
    """An unknown id raises DeviceNotFoundError, in the device string and as DEVICE_ID."""
    core, name = context.core, context.facts.name
    network, _ = make_mixed(context)
    require_error(DeviceNotFoundError, lambda: core.get_metric(f"{name}.NO_SUCH_ID", "FULL_DEVICE_NAME"), "an unknown id")
    require_error(DeviceNotFoundError, lambda: core.query_network(network, f"{name}.L0"), "an unknown id in a query")
    # Without the id of the device under test, which the key would contradict.
    device = context.device if ":" in context.device else name
    require_error(DeviceNotFoundError, core.query_network, "an unknown DEVICE_ID", network, device, {"DEVICE_ID": "NO_SUCH_ID"})


@check("contract", needs=["single"])
def text_behind_a_colon_is_refused(context: CheckContext) -> None:
    """A device that is not composed of devices refuses text after a colon."""
    name = f"{context.facts.name}:OTHER"
    require_error(DeviceNameError, context.core.get_metric, "text behind a colon", name, "FULL_DEVICE_NAME")


@check("contract")
def name_that_is_taken_is_refused(context: CheckContext) -> None:
    """Registering a second plugin under the device's name raises PluginError, which names the first plugin."""
    require_error(PluginError, lambda: context.core.register_plugin(context.facts.name, object()), "a name that is taken")


def _require_plugin(context: CheckContext) -> Any:
    if context.facts.plugin is None:
        raise Skip("the plugin object is not known")
    return context.facts.plugin


@check("contract", needs=["plugin"])
def plugin_serves_two_names(context: CheckContext) -> None:
    """A plugin registered under a second name is a separate device there: its answers carry that name."""
    context.core.register_plugin(SECOND_NAME, _require_plugin(context))
    sample = make_sample(context, "chain")
    result = context.core.query_network(sample.network, SECOND_NAME)
    signed = {device.partition(".")[0] for device in result.supported.values()}
    require_equal(signed, {SECOND_NAME}, "the devices in the answer of the second name")
    inputs = sample.draw(context.seed)
    for name in (SECOND_NAME, context.facts.name, SECOND_NAME):
        sample.require_right(context.core.load_network(sample.network, name).infer(inputs), inputs, f"on {name}")


@check("contract")
def unregistered_name_is_unknown_and_its_networks_go_on(context: CheckContext) -> None:
    """After `unregister_plugin` the name is unknown; a network that was loaded before still runs."""
    sample, loaded = load_sample(context, "chain")
    context.core.unregister_plugin(context.facts.name)
    name = context.facts.name
    require_error(DeviceNotFoundError, context.core.get_metric, "a name that was unregistered", name, "FULL_DEVICE_NAME")
    sample.require_run(loaded, context.seed, what="after its name was unregistered")


@check("contract", needs=["plugin"])
def name_may_be_registered_again(context: CheckContext) -> None:
    """After `unregister_plugin` the plugin may be registered under its name again; a new device is made and works."""
    plugin, sample = _require_plugin(context), make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    for turn in range(3):
        context.core.unregister_plugin(context.facts.name)
        context.core.register_plugin(context.facts.name, plugin)
        outputs = context.load(sample.network).infer(inputs)
        sample.require_right(outputs, inputs, f"registered again, time {turn + 1}")


@check("contract")
def two_cores_share_no_configuration(context: CheckContext) -> None:
    """Configuration set in one Core is not set in another, and a Core still works after the other is closed."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    with context.make_core() as other:
        other.set_config({"PERF_COUNT": True}, context.device)
        require_equal(context.core.get_config(context.device, "PERF_COUNT"), False, "PERF_COUNT, set in another Core")
        network = other.load_network(sample.network, context.device)
        sample.require_right(network.infer(inputs), inputs, "in a second Core")
    sample.require_right(context.load(sample.network).infer(inputs), inputs, "after another Core closed")


@check("contract")
def closed_core_is_refused(context: CheckContext) -> None:
    """Every call of a closed Core raises ClosedError; it may be closed again."""
    network, _ = make_mixed(context)
    core = context.make_core()
    core.get_metric(context.device, "FULL_DEVICE_NAME")
    core.close()
    core.close()
    require_error(ClosedError, lambda: core.query_network(network, context.device), "a query of a closed Core")
    require_error(ClosedError, lambda: core.get_metric(context.device, "FULL_DEVICE_NAME"), "a metric of a closed Core")
