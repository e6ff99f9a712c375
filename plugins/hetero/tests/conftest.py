"""Fixtures for the tests of HETERO: a Core, networks from ONNX text, and devices that refuse and fail on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx.parser
import pytest
from hetero_template.device import TemplateDevice, TemplateExecutable

from hetero_core import ConfigKey, Core, Network, QueryResult, hookimpl
from hetero_core.contract import DeviceName, Executable
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Node

Refuse = Callable[[Node, Network], str | None]
Fail = Callable[[Network], Exception | None]


class PickyExecutable(TemplateExecutable):
    """Tells its device when it is closed."""

    def __init__(self, network: Network, closed: list[tuple[str, ...]]) -> None:
        super().__init__(network, compile_program(network), memory="picky")
        self._closed = closed

    def close(self) -> None:
        super().close()
        self._closed.append(tuple(node.name for node in self.network.nodes))


class PickyDevice(TemplateDevice):
    """Computes as TEMPLATE does; records the nodes of each part that was queried, loaded and closed, and the configuration."""

    def __init__(self, refuse: Refuse, fail: Fail) -> None:
        super().__init__("PICKY")
        self._refuse_node = refuse
        self._fail = fail
        self.asked: list[tuple[str, ...]] = []
        self.loaded: list[tuple[str, ...]] = []
        self.closed: list[tuple[str, ...]] = []
        self.configs: list[dict[str, Any]] = []

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {
            "PICKY_LEVEL": ConfigKey(int, 0, "a number"),
            "PICKY_NAMES": ConfigKey(tuple, (), "texts"),
            "PICKY_LIMITS": ConfigKey(dict, None, "a mapping"),
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        self.asked.append(tuple(node.name for node in network.nodes))
        reasons = {node.name: self._refuse_node(node, network) for node in network.nodes}
        return QueryResult(
            {name: str(device) for name, reason in reasons.items() if reason is None},
            {name: reason for name, reason in reasons.items() if reason is not None},
        )

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> Executable:
        self.loaded.append(tuple(node.name for node in network.nodes))
        self.configs.append({name: value for name, value in config.items() if name.startswith("PICKY")})
        error = self._fail(network)
        if error is not None:
            raise error
        return PickyExecutable(network, self.closed)


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Callable[[str], Network]:
    return lambda text: core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 21, "com.acme": 1]> {text}'))


@pytest.fixture
def add_device(core: Core) -> Callable[..., PickyDevice]:
    """Registers a device that refuses operators, by name or by `refuse`, and raises the error of `fail` at a load."""

    def add(name: str, refused: Sequence[str] = (), refuse: Refuse | None = None, fail: Fail = lambda _: None) -> PickyDevice:
        device = PickyDevice(refuse or (lambda node, _: "no kernel" if node.op_type in refused else None), fail)
        core.register_plugin(name, device)
        return device

    return add
