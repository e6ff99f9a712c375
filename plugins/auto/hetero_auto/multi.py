"""The MULTI device: a network on every device of its list, each request on a free device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero_auto.executable import MemberSource, PoolExecutable, export_members, import_members
from hetero_auto.pool import POLICIES, POLICY_KEY, Pool
from hetero_core.composing.composer import Composer
from hetero_core.composing.properties import PROPERTIES_KEY, computes_on_host, configure_children
from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.devices.names import normalise_arguments, parse_device_name
from hetero_core.devices.query import answer_query
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network

PRIORITIES_KEY = "MULTI_DEVICE_PRIORITIES"

PROPERTIES = ConfigKey(dict, None, "Keys for one device of the list alone: {device: {key: value}}.")
POLICY = ConfigKey(
    str,
    "DEVICE_PRIORITY",
    "Which free device gets a request: the first of the list, the next in turn, or the one where it ends soonest.",
    choices=tuple(POLICIES),
    runtime=True,
)


class MultiDevice(Composer):
    """Loads a network once on each device of its list."""

    title = "MULTI: each request on a device that is free"
    own_keys = freeze_mapping(
        {
            PRIORITIES_KEY: ConfigKey(
                str, None, "The devices in order of priority, as behind the colon of MULTI:GPU(4),CPU.", is_arguments=True
            ),
            POLICY_KEY: POLICY,
            PROPERTIES_KEY: PROPERTIES,
        }
    )
    example = "MULTI:GPU(4),CPU"
    purpose = "give requests to"
    takes_counts = True
    names_common_abilities = True  # a request runs on any of the devices

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The nodes that every device of the list takes."""
        children = self.require_children(device)
        configs = configure_children(self._core, device, children, config)
        answers = {child: self._core.query_network(network, child, configs[child]) for child in children}
        reasons: dict[str, list[str]] = {}
        for child, answer in answers.items():
            for name, reason in answer.refused.items():
                reasons.setdefault(name, []).append(f"{child}: {reason}")
        return answer_query(device, network, {name: "; ".join(texts) for name, texts in reasons.items()})

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> Executable:
        """Loads the network on each device. A query that found every node supported is the answer of each device."""
        source = self._describe_source(device, network, config)
        if query is not None and not query.refused:
            answers = {child: answer_query(parse_device_name(child), network, {}) for child in self.list_children(device)}
            source = replace(source, answers=answers)
        pool = Pool(str(device), POLICIES[config[POLICY_KEY]]())
        pool.set_members(source.load_all([str(entry.device) for entry in source.entries]), processors=source.processors)
        return MultiExecutable(pool, source, self)

    @hookimpl
    def export_network(self, executable: PoolExecutable) -> Payload:
        """The blob of each device."""
        return export_members(executable)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Imports the network on each device of the blob."""
        children = self.require_children(device)
        configure = configure_children(self._core, device, children, config).__getitem__
        inputs, outputs, members, processors = import_members(self._core, payload, config, children, configure, owner=device.name)
        pool = Pool(str(device), POLICIES[config[POLICY_KEY]]())
        pool.set_members(members, processors=processors)
        return PoolExecutable(inputs, outputs, pool)

    def _describe_source(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> MemberSource:
        children = self.require_children(device)
        configure = configure_children(self._core, device, children, config).__getitem__
        entries = self.list_entries(device)
        on_host = [
            str(entry.device) for entry in entries if entry.count is None and computes_on_host(self._core, str(entry.device))
        ]
        # Several without a count take turns: runs in parallel would take as long as in sequence, and the faster device should not wait.
        shared = frozenset(on_host if len(on_host) > 1 else ())
        sharers = len(children) - max(len(shared) - 1, 0)
        return MemberSource(self._core, str(device), network, entries, config, configure, sharers=sharers, shared=shared)

    def change_members(self, source: MemberSource, pool: Pool, text: str) -> MemberSource:
        """Replaces the devices of the pool by another list; devices in both stay loaded. Returns the new source."""
        device = DeviceName("MULTI", "", normalise_arguments(text))
        properties = source.config.get(PROPERTIES_KEY) or {}
        listed = self.require_children(device)
        values_of_member = {name: values for name, values in properties.items() if name in listed}
        new = self._describe_source(device, source.network, {**source.config, PROPERTIES_KEY: values_of_member})
        member_of_device = {member.name: member for member in pool.members}
        for member in new.load_all([name for name in listed if name not in member_of_device]):
            member_of_device[member.name] = member
        for index, entry in enumerate(new.entries):
            member = member_of_device[str(entry.device)]
            member.index = index
            member.slots = entry.count or member.slots
            member.processors = new.count_processors(member.loaded)
        pool.set_members([member_of_device[name] for name in listed], processors=new.processors)
        return replace(new, owner=source.owner)


class MultiExecutable(PoolExecutable):
    """A network on every device of a list that may change while it runs."""

    settable_keys = (PRIORITIES_KEY,)

    def __init__(self, pool: Pool, source: MemberSource, device: MultiDevice) -> None:
        super().__init__(source.network.inputs, source.network.outputs, pool)
        self.source: MemberSource = source
        self._device = device

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Takes another list of devices. Raises: DeviceNameError; errors of a new device, and nothing changes then."""
        self.source = self._device.change_members(self.source, self.pool, config[PRIORITIES_KEY])
