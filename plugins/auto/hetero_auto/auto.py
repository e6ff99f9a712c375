"""The AUTO device: the best device of a list, or of all installed devices, for each network, with the next devices as a fallback.

Loading: the devices that take the whole network, in order of preference; one that loads fast serves at once. With a list
the first device takes over when it is compiled; without a list all devices are timed, and the fastest takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from hetero_auto.candidates import Candidates, configure_lazily, find_precision, list_installed
from hetero_auto.executable import MemberSource, export_members, import_members
from hetero_auto.measuring import name_choice, read_choice
from hetero_auto.multi import POLICY, PRIORITIES_KEY, PROPERTIES
from hetero_auto.pool import POLICIES, POLICY_KEY, Pool
from hetero_auto.startup import CUMULATIVE, MEASURE_KEY, RUNTIME_KEY, AutoExecutable, Loader, may_repeat_nodes
from hetero_core import Core
from hetero_core.composing.composer import Composer
from hetero_core.composing.properties import PROPERTIES_KEY
from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import ListedDevice, parse_device_name
from hetero_core.devices.query import require_all_supported
from hetero_core.devices.threads import HINT_KEY, STREAMS_KEY, THREADS_KEY
from hetero_core.errors import ConfigValueError, DeviceUnavailableError, HeteroError, enumerate_choices, suggest
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network

DEVICE_POLICY_KEY = "AUTO_DEVICE_POLICY"
MAX_PERFORMANCE, PREFER_CPU, MIN_OVERALL_POWER = "MAX_PERFORMANCE", "PREFER_CPU", "MIN_OVERALL_POWER"
DEVICE_POLICIES = (MAX_PERFORMANCE, MIN_OVERALL_POWER, PREFER_CPU)

Choose = Callable[[Network, tuple[str, ...]], str | Sequence[str]]


def order_devices(
    core: Core, device: DeviceName, children: tuple[str, ...], network: Network, config: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the devices in the order of the policy. Raises: ConfigValueError; errors of the user's function, as they are."""
    policy = config[DEVICE_POLICY_KEY]
    if policy is None or policy.upper() in (MAX_PERFORMANCE, MIN_OVERALL_POWER):
        return children
    if policy.upper() == PREFER_CPU:
        return tuple(sorted(children, key=lambda child: not _is_processor(core, child)))
    where = f"configuration key {DEVICE_POLICY_KEY} of device {device}: {policy}"
    chosen = _import_function(policy, device)(network, children)
    names = [chosen] if isinstance(chosen, str) else list(chosen) if isinstance(chosen, Sequence) else []
    if not names or not all(name in children for name in names):
        raise ConfigValueError(f"{where} returned {chosen!r}; expected one or several of the devices {', '.join(children)}")
    return tuple(dict.fromkeys(names))


def stays_on_first(config: Mapping[str, Any]) -> bool:
    """Says whether the first device that takes the whole network stays, so that no second device is loaded. Raises: ConfigValueError."""
    policy, measure = config[DEVICE_POLICY_KEY], config[MEASURE_KEY]
    if policy is None:
        return False
    is_measured = policy.upper() == MAX_PERFORMANCE
    rival = f"{MEASURE_KEY}={'YES' if measure else 'NO'}" if measure in (True, False) and measure != is_measured else ""
    if not is_measured and config[HINT_KEY] == CUMULATIVE:
        rival = f"{HINT_KEY}={CUMULATIVE}"
    if rival:
        way = "measures each device" if is_measured else "uses one device, unmeasured"
        raise ConfigValueError(f"{DEVICE_POLICY_KEY}={policy} {way}, and {rival} contradicts it; leave one of the keys out")
    return not is_measured


def _is_processor(core: Core, name: str) -> bool:
    try:
        return core.find_kind(name) == "processor"
    except HeteroError:
        return False  # a device that cannot be used is named when it is its turn


def _import_function(policy: str, device: DeviceName) -> Choose:
    try:
        function = resolve_name(policy) if ":" in policy else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigValueError(
            f"configuration key {DEVICE_POLICY_KEY} of device {device}: {policy} cannot be imported: {error}"
        ) from error
    if not callable(function):
        raise ConfigValueError(
            f"configuration key {DEVICE_POLICY_KEY} of device {device}: expected {enumerate_choices(DEVICE_POLICIES)}, or a function as "
            f"'module:function', got {policy!r}{suggest(policy.upper(), DEVICE_POLICIES)}"
        )
    return function  # type: ignore[no-any-return]  # the user's


STARTUP_KEY = "ENABLE_STARTUP_FALLBACK"
HINTS = ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT")
"""Keys of several devices that AUTO takes without a list, too, and hands to those that know them."""


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
                bool,
                None,
                "Whether every device is loaded and timed, and the fastest one chosen. Not set: without a list, and a choice is kept for "
                "later processes; YES measures anew.",
                runtime=True,
            ),
            DEVICE_POLICY_KEY: ConfigKey(
                str,
                None,
                "How a device is chosen: MAX_PERFORMANCE, MIN_OVERALL_POWER, PREFER_CPU, or a function as 'module:function'. Not set: "
                "MAX_PERFORMANCE without a list, the order of the list with it.",
                runtime=True,
            ),
            STARTUP_KEY: ConfigKey(
                bool,
                True,
                "Whether a device that loads fast, the last of a list, serves while the chosen one compiles.",
                runtime=True,
            ),
            RUNTIME_KEY: ConfigKey(bool, True, "Whether the next device takes over where one fails in a run.", runtime=True),
            POLICY_KEY: POLICY,
            HINT_KEY: ConfigKey(
                str,
                "LATENCY",
                "CUMULATIVE_THROUGHPUT: all devices at once, as MULTI; else one device, with the streams of the hint.",
                choices=(*STANDARD_KEYS[HINT_KEY].choices, CUMULATIVE),
                runtime=True,
            ),
            PROPERTIES_KEY: PROPERTIES,
        }
    )
    example = "AUTO:GPU,CPU"
    purpose = "choose from"
    takes_exclusions = True

    def list_entries(self, device: DeviceName) -> tuple[ListedDevice, ...]:
        """Returns the devices of the list (all installed devices if it is empty), without the excluded devices."""
        entries = super().list_entries(device)
        excluded = [entry.device for entry in entries if entry.is_excluded]
        listed = tuple(entry for entry in entries if not entry.is_excluded)
        if listed:
            return tuple(entry for entry in listed if entry.device not in excluded)
        installed = (ListedDevice(parse_device_name(name)) for name in list_installed(self._core, itself=device.name))
        return tuple(entry for entry in installed if entry.device not in excluded)

    def _is_listed(self, device: DeviceName) -> bool:
        """Says whether the list names devices; else all installed devices are candidates, created one at a time."""
        return any(not entry.is_excluded for entry in super().list_entries(device))

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        """The keys of every composer; without a list AUTO's own and the hints, as devices with further keys may never be created."""
        if self._is_listed(device):
            return super().config_keys(device)
        return {**self.own_keys, **{name: ConfigKey(str, None, "Handed to the devices that have this key.") for name in HINTS}}

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The answer of the first device that takes the whole network, else of the device that takes most of it."""
        return self._explain(device, self._find_candidates(device, network, config))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Loads the network on the device that serves first; the chosen device is loaded meanwhile."""
        candidates = self._find_candidates(device, network, config)
        is_cumulative = config[HINT_KEY] == CUMULATIVE
        stays = stays_on_first(config)
        starts_early = config[STARTUP_KEY] and not is_cumulative and not stays
        is_kept = config[MEASURE_KEY] is None and not self._is_listed(device) and starts_early
        is_fastest = config[DEVICE_POLICY_KEY] is not None and not stays
        measures = bool(config[MEASURE_KEY]) or ((is_kept or is_fastest) and may_repeat_nodes(network.nodes))
        entry = name_choice(network, candidates.names, config) if measures and is_kept else ""
        choice = read_choice(entry) if entry else None
        if choice is not None and not {choice.device, choice.quick} <= set(candidates.names):
            choice = None
        quick = None if choice is None or not candidates.takes_all(choice.quick) else choice.quick
        if quick is None:
            quick = candidates.find_quick() if starts_early else next(iter(candidates), None)
        if quick is None:
            require_all_supported(device, network, self._explain(device, candidates))
        if is_cumulative:
            # Every device has as many streams as its part of the processors.
            processors, sharers = config[THREADS_KEY] * config[STREAMS_KEY], len(list(candidates))
            streams = max(1, processors // sharers)
            whole = freeze_mapping({**config, THREADS_KEY: max(1, processors // streams), STREAMS_KEY: streams})
            candidates.source = replace(candidates.source, config=whole, sharers=sharers)
        return AutoExecutable.load(Loader(candidates, quick if starts_early else None, entry, choice, measures=measures))

    @hookimpl
    def export_network(self, executable: AutoExecutable) -> Payload:
        """The blob of the chosen device; waits until it is loaded."""
        executable.wait_until_settled()
        return export_members(executable)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Imports the network on the device that was chosen when it was exported."""
        children = self.list_children(device)
        configure = configure_lazily(self._core, device, children, config)
        inputs, outputs, members, _ = import_members(self._core, payload, config, children, configure, owner=device.name)
        pool = Pool(str(device), POLICIES["DEVICE_PRIORITY"]())
        pool.set_members(members)
        executable = AutoExecutable(inputs, outputs, pool)
        if len(members) == 1:
            executable.hand_over()
        return executable

    def _find_candidates(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Candidates:
        """Returns the devices that take the whole network. Raises: as `configure_children`, for a list."""
        children = self.require_children(device)
        order = order_devices(self._core, device, children, network, config)
        configure = configure_lazily(self._core, device, children, config)
        is_listed = self._is_listed(device)
        for child in order if is_listed else ():
            with suppress(DeviceUnavailableError):
                configure(child)
        precision = "" if stays_on_first(config) else find_precision(network)
        source = MemberSource(self._core, str(device), network, self.list_entries(device), config, configure, sharers=1)
        return Candidates(source, order, precision, is_listed=is_listed)

    def _explain(self, device: DeviceName, candidates: Candidates) -> QueryResult:
        """Returns the answer of the first candidate, else of the device that takes most, with the reasons of all that were asked.

        Raises: DeviceUnavailableError if no device works.
        """
        name = next(iter(candidates), None)
        answers = {child: candidates.answers[child] for child in candidates.names if child in candidates.answers}
        if not answers:
            reasons = "; ".join(f"{child}: {reason}" for child, reason in candidates.unavailable.items())
            raise DeviceUnavailableError(f"device {device} is not available: no device of its list is: {reasons}")
        best = answers[max(answers, key=lambda child: len(answers[child].supported)) if name is None else name]
        refused = {
            node: "; ".join(f"{child}: {answer.refused[node]}" for child, answer in answers.items() if node in answer.refused)
            for node in best.refused
        }
        return QueryResult(freeze_mapping(dict.fromkeys(best.supported, str(device))), freeze_mapping(refused))
