"""The hooks of a device that wraps an engine: a query tries each node in the engine, and a load compiles exactly the nodes that a query
takes.

The network is stamped with opsets that the engine knows. Nodes with a known error are refused; the engine is asked about the rest.
A blob holds the network and, if the engine can store it, its compiled form. The compiled form is code: an import uses it if the
blob is trusted and engine and machine are the same as at the export; otherwise the import compiles the network.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hetero_core.contract import BlobCheck, DeviceName, Executable, Payload, QueryResult
from hetero_core.devices.processors import read_processor_flags
from hetero_core.devices.query import answer_query, require_all_supported
from hetero_core.engines.stamping import apply_stamps, choose_stamps
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network, Node
from hetero_core.network.writer import needs_wrappers, pack_network, unpack_network

logger = logging.getLogger(__name__)

_ENGINE, _MACHINE, _COMPILED = "engine", "machine", "compiled/"


class EngineDevice:
    """The base class of a device that wraps an engine; there is a single object per Core and registered name.

    A subclass sets `title` and `version` of the engine, and implements the methods that raise NotImplementedError here. Their argument
    `network` is the user's own network, `stamped` the same network with the opsets of `newest_opsets`.
    """

    title: str
    version: str
    newest_ir_version: int

    def newest_opsets(self, network: Network) -> Mapping[str, int]:
        """Returns the newest opset of each domain that the engine accepts."""
        raise NotImplementedError

    def find_known_errors(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the nodes that the engine is known to compute wrongly, by name, each with the reason."""
        return {}

    def find_refusals(self, device: DeviceName, nodes: Iterable[Node], stamped: Network) -> Mapping[str, str]:
        """Returns the nodes that the engine itself refuses, by name, each with the engine's reason; see `NodeProber`."""
        raise NotImplementedError

    def compile(self, device: DeviceName, network: Network, stamped: Network, config: Mapping[str, Any]) -> Executable:
        """Returns the compiled network, which has the attribute `network`. Raises: LoadError with the engine's message."""
        raise NotImplementedError

    def store(self, executable: Any) -> Mapping[str, Any]:
        """Returns the compiled form as named sections of bytes; empty if the engine cannot store it."""
        return {}

    def restore(
        self, device: DeviceName, network: Network, stored: Mapping[str, memoryview], config: Mapping[str, Any]
    ) -> Executable:
        """Returns the compiled network of sections that `store` returned. If it raises any error, the import compiles the network."""
        raise NotImplementedError

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """Returns the nodes that the engine takes; nodes without a common opset or with a known error are refused."""
        stamps = choose_stamps(network, self.newest_opsets(network))
        stamped = apply_stamps(network, stamps, self.newest_ir_version)
        reasons = {**self.find_known_errors(device, network, config), **stamps.refusals}
        asked = [node for node in stamped.nodes if node.name not in reasons]
        reasons.update(self.find_refusals(device, asked, stamped))
        return answer_query(device, network, reasons)

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> Executable:
        """Returns the compiled network. Raises: UnsupportedNodesError for nodes that the query refuses; LoadError."""
        require_all_supported(device, network, self.query_network(device, network, config) if query is None else query)
        return self.compile(device, network, self.stamp(network), config)

    @hookimpl
    def export_network(self, executable: Any) -> Payload:
        """Returns the network, the engine's version, and the compiled form with a description of this machine."""
        try:
            stored = {_COMPILED + name: section for name, section in self.store(executable).items()}
        except Exception as error:  # noqa: BLE001  # engines may raise anything; the network is exported without its compiled form
            logger.warning("%s gives no compiled form of network '%s' (%s)", self.title, executable.network.name, error)
            stored = {}
        sections = {**pack_network(executable.network), _ENGINE: self.version.encode()}
        if stored:
            sections |= {_MACHINE: describe_machine().encode(), **stored}
        return Payload(sections, code=tuple(stored), spare=tuple(stored))

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload) -> BlobCheck:
        """Compares the installed engine and this machine with the engine and the machine of the compiled form, if there is one."""
        fault = self._find_fault(payload)
        return BlobCheck(str(device), "works after recompiling", f"the network {fault}") if fault else BlobCheck(str(device))

    def _find_fault(self, payload: Payload) -> str:
        """Returns why the compiled form cannot be used here even if it is trusted; "" if it can, or if none was exported."""
        payload.require_version(1)
        written = bytes(payload.sections[_ENGINE]).decode()
        if _MACHINE not in payload.sections:
            return ""
        if written != self.version:
            return f"was compiled by {self.title} {written}, and {self.version} is installed"
        return "" if bytes(payload.sections[_MACHINE]).decode() == describe_machine() else "was compiled on another machine"

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Returns the stored compiled form if it is trusted and fits engine and machine; otherwise compiles the network."""
        fault = self._find_fault(payload)
        network = unpack_network(payload.sections)
        names = [name for name in payload.sections if name.startswith(_COMPILED)]
        if fault and names:
            logger.warning("network '%s' %s; it is compiled again", network.name, fault)
        elif names:
            stored = {name.removeprefix(_COMPILED): payload.read_code(name) for name in names}
            try:
                return self.restore(device, network, stored, config)
            except Exception as error:  # noqa: BLE001  # engines may raise anything; the network is then compiled
                logger.warning(
                    "%s does not take what it compiled of network '%s' (%s); it is compiled again", self.title, network.name, error
                )
        return self.load_network(device, network, config, None)

    def stamp(self, network: Network) -> Network:
        """Returns the network in opsets and a file format that the engine knows."""
        stamped = apply_stamps(network, choose_stamps(network, self.newest_opsets(network)), self.newest_ir_version)
        assert not needs_wrappers(stamped), "a stamped network has one opset per domain"
        return stamped


@cache
def describe_machine() -> str:
    """Returns, as text, the machine properties that compiled code may depend on: system, kind of processor and, on Linux, instructions."""
    return "\n".join((platform.system(), platform.machine(), platform.processor(), *sorted(read_processor_flags())))
