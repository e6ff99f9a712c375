"""The plan behind the answer of a query, and what the devices say that the plan did not need to ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hetero_core.contract import QueryResult, freeze_mapping
from hetero_core.core import Core
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.network.graph import Network
from hetero_core.plan import Plan
from hetero_core.reports.single import plan_single_device


def find_plan(core: Core, network: Network, result: QueryResult, device: str, config: Mapping[str, str]) -> Plan:
    """Returns the plan of a query, also where it gave none: of a single device, and of a split that some node has no device for."""
    if result.plan is not None:
        return result.plan
    parts = list_parts(core, device, config)
    if not parts:
        return plan_single_device(network, str(parse_device_name(device)), result)
    return Plan(
        network=network.name,
        priorities=parts,
        device_of_node=freeze_mapping(result.supported),
        operator_of_node=freeze_mapping((node.name, node.operator) for node in network.nodes),
        refusals=freeze_mapping({}),
        pins=freeze_mapping({name: str(parse_device_name(pinned)) for name, pinned in network.affinity.items()}),
        stages=(),
        boundaries=(),
    )


def list_parts(core: Core, device: str, config: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the devices that a device splits networks over, by priority; none for a device that runs the whole network itself."""
    key = next((name for name, key in core.config_keys(device).items() if key.is_arguments), None)
    if key is None:
        return ()
    arguments = parse_device_name(device).arguments or core.resolve_config(device, config)[key] or ""
    return tuple(dict.fromkeys(str(parse_device_name(part)) for part in split_device_list(arguments)))


def ask_every_device(core: Core, network: Network, plan: Plan, config: Mapping[str, str]) -> Plan:
    """Returns the plan with `refusals` and `candidates` of every device for every node; what a device said before stays.

    Each device is asked about the whole network, with those values of `config` that are its own.
    """
    refusals = {name: dict(reasons) for name, reasons in plan.refusals.items()}
    candidates: dict[str, tuple[str, ...]] = {}
    for device in plan.priorities:
        known = core.config_keys(device)
        own = {name: value for name, value in config.items() if name in known and name not in STANDARD_KEYS}
        result = core.query_network(network, device, own)
        for node in network.nodes:
            name = node.name
            if plan.device_of_node.get(name) == device or device in refusals.get(name, {}):
                continue
            if name in result.refused:
                refusals.setdefault(name, {})[device] = result.refused[name]
            else:
                candidates[name] = (*candidates.get(name, ()), device)
    return replace(plan, refusals=freeze_mapping(refusals), candidates=freeze_mapping(candidates))
