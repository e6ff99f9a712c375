"""mypy reports each difference between an implementation and its hook, and nothing about implementations that are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

ROOT = Path(__file__).parents[2]
DEVICE = """
from __future__ import annotations
from collections.abc import Mapping
from typing import Any
from hetero_core import Core, Executable, Network, QueryResult, hookimpl
from hetero_core.contract import DeviceName, Payload

class Own(Executable): ...

@hookimpl
def create_device(name: str) -> object:
    return Right()

class Right:
    @hookimpl
    def query_network(self, network: Network, device: DeviceName) -> QueryResult: raise NotImplementedError
    @hookimpl
    def load_network(self, config: Mapping[str, Any], network: Network, query: QueryResult | None) -> Own: raise NotImplementedError
    @hookimpl
    def export_network(self, executable: Own) -> Payload: raise NotImplementedError
    @hookimpl(optionalhook=True)
    def warm_up(self, network: Network) -> bool: raise NotImplementedError

class Wrong:
    @hookimpl
    {wrong}: raise NotImplementedError
"""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "def qery_network(self, network: Network) -> QueryResult",
            "unknown hook \"qery_network\", did you mean 'query_network'",
        ),
        (
            "def query_network(self, netwrk: Network) -> QueryResult",
            "query_network has no argument \"netwrk\", did you mean 'network'? its arguments are device, network, config",
        ),
        ("def query_network(self, device: str) -> QueryResult", 'query_network gets "device" of the type'),
        ("def load_network(self, network: Network, query: QueryResult) -> Executable", 'load_network gets "query" of the type'),
        ("def load_network(self, network: bytes) -> Executable", 'load_network gets "network" of the type'),
        ("def close_device(self) -> str", "close_device returns bool, not str"),
    ],
)
def test_wrong_implementation_is_reported_alone(wrong: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    file = tmp_path / "device.py"
    file.write_text(DEVICE.replace("{wrong}", wrong))
    printed, errors, _ = api.run(["--hide-error-context", "--no-error-summary", str(file)])
    line = DEVICE[: DEVICE.index("{wrong}")].count("\n")
    assert errors == ""
    assert [(number, text[: len(message)]) for number, text in re.findall(r"device\.py:(\d+): error: (.*)", printed)] == [
        (str(line), message)
    ]
