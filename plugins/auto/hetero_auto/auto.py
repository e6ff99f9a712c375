"""The AUTO device: the best device of a list, or of all that are installed, for each network, with others behind it.

Loading: the devices that take the whole network, in order of preference; the one that loads fastest serves at once while the best one
compiles behind it, and leaves when that is ready. Nothing of a request is lost, as both are members of one pool.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero_auto.choosing import find_precision, list_installed, prefer_precision
from hetero_auto.loading import MemberSource, export_members, import_members
from hetero_auto.multi import POLICY, POLICY_KEY, PROPERTIES
from hetero_auto.startup import AutoExecutable, Wishes
from hetero_core.composing.composer import Composer
from hetero_core.composing.properties import PROPERTIES_KEY, configure_children, find_unavailable
from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.core import Core
from hetero_core.devices.names import ListedDevice, parse_device_name
from hetero_core.devices.query import require_all_supported
from hetero_core.devices.threads import HINT_KEY, STREAMS_KEY, THREADS_KEY, THROUGHPUT
from hetero_core.errors import DeviceUnavailableError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network

logger = logging.getLogger(__name__)

PRIORITIES_KEY = "MULTI_DEVICE_PRIORITIES"
MEASURE_KEY = "AUTO_MEASURE"
STARTUP_KEY = "ENABLE_STARTUP_FALLBACK"
RUNTIME_KEY = "ENABLE_RUNTIME_FALLBACK"
CUMULATIVE = "CUMULATIVE_THROUGHPUT"


class AutoDevice(Composer):
    """Chooses a device for each network."""

    title = "AUTO: the best device for each network"
    own_keys = freeze_mapping(
        {
            PRIORITIES_KEY: ConfigKey(
                str,
                None,
                "The devices in order of preference, or those left out, as behind the colon of AUTO:-CPU.",
                is_arguments=True,
            ),
            MEASURE_KEY: ConfigKey(
                bool, False, "Whether every device is loaded and timed, and the fastest one chosen.", runtime=True
            ),
            STARTUP_KEY: ConfigKey(
                bool, True, "Whether the device that loads fastest serves while the chosen one compiles.", runtime=True
            ),
            RUNTIME_KEY: ConfigKey(bool, True, "Whether the next device takes over where one fails in a run.", runtime=True),
            POLICY_KEY: POLICY,
            HINT_KEY: ConfigKey(
                str,
                "LATENCY",
                "LATENCY and THROUGHPUT: one device, as its own hint has it; CUMULATIVE_THROUGHPUT: all devices at once, as MULTI.",
                choices=("LATENCY", THROUGHPUT, CUMULATIVE),
                runtime=True,
            ),
            PROPERTIES_KEY: PROPERTIES,
        }
    )
    example = "AUTO:GPU,CPU"
    purpose = "choose from"
    takes_exclusions = True

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.load_seconds: dict[str, float] = {}
        """The latest time that each device took to load a network; which loads fastest is known from it."""

    def list_entries(self, device: DeviceName) -> tuple[ListedDevice, ...]:
        """Returns the devices of the list, or where it names none all that are installed, without the excluded ones."""
        entries = super().list_entries(device)
        excluded = [entry.device for entry in entries if entry.is_excluded]
        listed = tuple(entry for entry in entries if not entry.is_excluded)
        if listed:
            return tuple(entry for entry in listed if entry.device not in excluded)
        installed = (ListedDevice(parse_device_name(name)) for name in list_installed(self._core, {}, itself=device.name))
        return tuple(entry for entry in installed if entry.device not in excluded)

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The answer of the first device that takes the whole network, else of the one that takes most of it."""
        return self._rank(device, network, config)[1]

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Loads the network on the device that serves first; the chosen one is loaded meanwhile."""
        names, result, source = self._rank(device, network, config)
        require_all_supported(device, network, result)
        is_cumulative = config[HINT_KEY] == CUMULATIVE
        if is_cumulative:
            # Every device has as many streams as its part of the processors.
            processors = config[THREADS_KEY] * config[STREAMS_KEY]
            streams = max(1, processors // len(names))
            whole = freeze_mapping({**config, THREADS_KEY: max(1, processors // streams), STREAMS_KEY: streams})
            source = replace(source, config=whole, sharers=len(names))
        wishes = Wishes(
            measure=config[MEASURE_KEY],
            starts_early=config[STARTUP_KEY],
            falls_back=config[RUNTIME_KEY],
            is_cumulative=is_cumulative,
            policy=config[POLICY_KEY],
        )
        return AutoExecutable.load(source, names, wishes, self.load_seconds)

    @hookimpl
    def export_network(self, executable: AutoExecutable) -> Payload:
        """The blob of the chosen device; waits until it is loaded."""
        executable.wait_until_settled()
        network = None if executable.source is None else executable.source.network
        return export_members(executable.pool.members, executable.inputs, executable.outputs, network)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Imports the network on the device that was chosen when it was exported."""
        children = self.usable_children(device)
        configs = configure_children(self._core, device, children, config)
        inputs, outputs, members = import_members(self._core, payload, config, configs, owner=device.name)
        return AutoExecutable.of_members(str(device), inputs, outputs, members)

    def _rank(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> tuple[list[str], QueryResult, MemberSource]:
        """Returns the devices that take the whole network in order of preference, the query's answer, and where members come from."""
        children = self.require_children(device)
        unavailable = find_unavailable(self._core, children)
        for child, reason in unavailable.items():
            logger.warning("%s goes on without %s: %s", device, child, reason)
        usable = [child for child in children if child not in unavailable]
        if not usable:
            reasons = "; ".join(f"{child}: {reason}" for child, reason in unavailable.items())
            raise DeviceUnavailableError(f"device {device} is not available: no device of its list is: {reasons}")
        configs = configure_children(self._core, device, children, config, unavailable=unavailable)
        order = prefer_precision(self._core, usable, find_precision(network))
        answers = {child: self._core.query_network(network, child, configs[child]) for child in order}
        whole = [child for child in order if not answers[child].refused]
        best = answers[whole[0] if whole else max(order, key=lambda child: len(answers[child].supported))]
        result = QueryResult(freeze_mapping(dict.fromkeys(best.supported, str(device))), self._explain(best, answers))
        entries = tuple(entry for entry in self.list_entries(device) if str(entry.device) in usable)
        return whole, result, MemberSource(self._core, str(device), network, entries, config, configs, sharers=1)

    def _explain(self, best: QueryResult, answers: Mapping[str, QueryResult]) -> Mapping[str, str]:
        """Returns refused node -> the reasons of all devices that refuse it."""
        return freeze_mapping(
            (name, "; ".join(f"{child}: {answer.refused[name]}" for child, answer in answers.items() if name in answer.refused))
            for name in best.refused
        )
