"""Typical mistakes in a first plugin: each error message shows the plugin's code or value and the expected form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero_core import ConfigKey, Core, Executable, ExecutableNetwork, Network, hookimpl
from hetero_core.devices.query import require_all_supported
from hetero_core.errors import PluginError
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

NEGATE = "g (float[2] x) => (float[2] y) { y = Neg (x) }"
X = np.array([1, 2], np.float32)
Load = Callable[[object], ExecutableNetwork]


@pytest.fixture
def load(core: Core, read: Callable[[str], Network]) -> Load:
    def load_network(plugin: object) -> ExecutableNetwork:
        core.register_plugin("MINE", plugin)
        return core.load_network(read(NEGATE), "MINE")

    return load_network


def device_with(change: Callable[[PlainExecutable], None]) -> PlainDevice:
    class Changed(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            executable = PlainExecutable(network)
            change(executable)
            return executable

    return Changed()


def test_class_in_place_of_an_object_is_said(load: Load) -> None:
    with pytest.raises(PluginError, match=r"is the class PlainDevice; a device is an object, as PlainDevice\(\)"):
        load(PlainDevice)


def test_default_of_another_type_than_its_key_is_refused(load: Load) -> None:
    class Texts(PlainDevice):
        @hookimpl
        def config_keys(self) -> Mapping[str, ConfigKey]:
            return {"MINE_LIMIT": ConfigKey(int, "5", "The limit.")}

    with pytest.raises(PluginError, match=r"'MINE_LIMIT' with the default '5' of str; its type is int"):
        load(Texts())


def test_metric_in_lower_case_is_refused(core: Core) -> None:
    class Lower(PlainDevice):
        @hookimpl
        def metrics(self) -> Mapping[str, Any]:
            return {"full_device_name": "Mine"}

    core.register_plugin("MINE", Lower())
    with pytest.raises(PluginError, match=r"returns the metric 'full_device_name'; metrics are upper case, as 'FULL_DEVICE_NAME'"):
        core.get_metric("MINE", "FULL_DEVICE_NAME")


def test_query_of_a_wrong_type_is_refused_by_load_too(load: Load) -> None:
    class Mapped(PlainDevice):
        @hookimpl
        def query_network(self, network: Network) -> Any:
            return {node.name: "MINE" for node in network.nodes}

        @hookimpl
        def load_network(self, device: Any, network: Network) -> Executable:
            require_all_supported(device, network, self.query_network(network))
            raise AssertionError("refused before")

    with pytest.raises(PluginError, match=r"the query_network of MINE returned dict; expected a QueryResult"):
        load(Mapped())


@pytest.mark.parametrize(
    ("side", "memory", "message"),
    [
        ("inputs", "card", r"'x' in the memory 'card', and has no hook from_host"),
        ("outputs", "card", r"'y' in the memory 'card', and has no hook to_host"),
    ],
)
def test_memory_that_the_core_cannot_reach_is_refused_by_load(load: Load, side: str, memory: Any, message: str) -> None:
    def place(executable: PlainExecutable) -> None:
        setattr(executable, side, tuple(replace(spec, memory=memory) for spec in getattr(executable, side)))

    with pytest.raises(PluginError, match=message):
        load(device_with(place))


def test_error_of_close_names_the_plugin(load: Load) -> None:
    def fail() -> None:
        raise OverflowError("freed twice")

    network = load(device_with(lambda executable: setattr(executable, "close", fail)))
    with pytest.raises(OverflowError) as caught:
        network.close()
    assert [note.startswith("raised by plugin MINE (module ") for note in caught.value.__notes__] == [True]
