"""The HETERO device: its hooks. Loading reads top to bottom: affinity, subgraphs, stages, load each, executable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult, freeze_mapping
from hetero_core.core import Core
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.query import describe_refusals
from hetero_core.errors import DeviceNameError, UnsupportedNodesError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_hetero.affinity import Assignment, assign_devices
from hetero_hetero.executable import HeteroExecutable
from hetero_hetero.payload import export_stages, import_stages
from hetero_hetero.stages import build_plan, cut_stages

PRIORITIES_KEY = "TARGET_FALLBACK"
POLICY_KEY = "HETERO_SUBGRAPH_POLICY"
POLICIES = ("LARGEST_FIRST", "LEVELS", "FEWEST")


class HeteroDevice:
    """Composes the other devices of its Core; has no memory and no kernels of its own."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        """The device's own keys, and those of its children: a flat key goes to every child that knows it."""
        own = {
            PRIORITIES_KEY: ConfigKey(str, None, "The devices in order of priority, as in HETERO:GPU,CPU.", is_arguments=True),
            POLICY_KEY: ConfigKey(str, POLICIES[0], "How nodes of one device are joined to subgraphs.", choices=POLICIES),
        }
        for child in self._children(device):
            for name, key in self._core.config_keys(child).items():
                if name not in own and name not in STANDARD_KEYS:
                    own[name] = ConfigKey(key.type, None, f"{key.doc} (of {child})", key.choices, key.runtime)
        return own

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """HETERO is no physical device: it has no ids, and its architecture is that of its children."""
        children = self._children(device)
        return {
            "AVAILABLE_DEVICES": (),
            "FULL_DEVICE_NAME": "HETERO: one network over several devices",
            "OPTIMIZATION_CAPABILITIES": ("EXPORT_IMPORT",),
            "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda: (1, self._count_requests(children), 1),
            "HOLDS_INTERPRETER_LOCK": lambda: bool(children) and all(self._core.get_metric(c, "HOLDS_INTERPRETER_LOCK") for c in children),
            "DEVICE_ARCHITECTURE": lambda: " ".join(self._core.get_metric(child, "DEVICE_ARCHITECTURE") for child in children) or "HETERO",
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The device of each node, and the whole plan; where nodes are refused by all there is no plan."""
        assignment = self._assign(device, network, config)
        plan = None if assignment.refused else build_plan(network, assignment, cut_stages(network, assignment))
        return QueryResult(
            supported=freeze_mapping(assignment.device_of_node),
            refused=freeze_mapping((name, _join_reasons(assignment.refusals[name])) for name in assignment.refused),
            plan=plan,
        )

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Splits the network and loads each part on its device."""
        assignment = self._assign(device, network, config)
        if assignment.refused:
            refusals = {name: dict(assignment.refusals[name]) for name in assignment.refused}
            raise UnsupportedNodesError(
                describe_refusals(network, refusals, f"cannot load network '{network.name}' on {device}"), refusals
            )
        stages = cut_stages(network, assignment)
        loaded = [
            (self._load_part(stage.part, stage.device, index, len(stages), self._config_of(stage.device, config)), stage.part)
            for index, stage in enumerate(stages)
        ]
        plan = build_plan(network, assignment, stages)
        return HeteroExecutable(network.inputs, network.outputs, plan, loaded, _find_constants(network), core=self._core)

    @hookimpl
    def export_network(self, executable: HeteroExecutable) -> Payload:
        """The plan, and of each part the blob of its own device."""
        return export_stages(executable)

    @hookimpl
    def import_network(self, payload: Payload) -> Executable:
        """Imports each part on the device that the plan names."""
        return import_stages(self._core, payload)

    @hookimpl
    def add_extension(self, device: DeviceName, extension: Extension) -> bool:
        """Gives the operator to every device of the list; one that takes no extensions refuses for all."""
        for child in self._require_children(device):
            self._core.add_extension(extension, child)
        return True

    def _assign(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Assignment:
        children = self._require_children(device)
        configs = {child: self._config_of(child, config) for child in children}
        return assign_devices(self._core, network, configs, policy=config[POLICY_KEY])

    def _load_part(self, part: Network, device: str, index: int, count: int, config: Mapping[str, Any]) -> Any:
        try:
            return self._core.load_network(part, device, config)
        except Exception as error:
            error.add_note(f"while stage {index} of {count} ({len(part.nodes)} nodes, first {part.nodes[0].label}) was loaded on {device}")
            raise

    def _count_requests(self, children: tuple[str, ...]) -> int:
        """Returns how many requests keep all children busy: each of them works on another one."""
        return max(sum(int(self._core.get_metric(child, "RANGE_FOR_ASYNC_INFER_REQUESTS")[1]) for child in children), 1)

    def _children(self, device: DeviceName) -> tuple[str, ...]:
        """Returns the canonical names of the devices in the arguments; each once, in order."""
        if not device.arguments:
            return ()
        return tuple(dict.fromkeys(str(parse_device_name(text)) for text in split_device_list(device.arguments)))

    def _require_children(self, device: DeviceName) -> tuple[str, ...]:
        children = self._children(device)
        if not children:
            raise DeviceNameError(
                f"device {device} has no devices to split over; give them in order of priority, as in 'HETERO:GPU,CPU', "
                f"or in the configuration key {PRIORITIES_KEY}"
            )
        return children

    def _config_of(self, child: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those values of HETERO's configuration that are set and that a child knows."""
        keys = self._core.config_keys(child)
        return {
            name: value
            for name, value in config.items()
            if value is not None and name in keys and name not in STANDARD_KEYS and not keys[name].is_arguments
        }


def _find_constants(network: Network) -> dict[str, Any]:
    """Returns the outputs of the network that no node makes because they are constants."""
    return {spec.name: network.initializers[spec.name].array for spec in network.outputs if spec.name in network.initializers}


def _join_reasons(reason_of_device: Mapping[str, str]) -> str:
    return "; ".join(f"{device}: {reason}" for device, reason in reason_of_device.items())
