"""Custom operators for several devices: for a whole list or for no device of it; by default for every device that takes extensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hetero_core import Core, Executable, Extension, Network, QueryResult, hookimpl
from hetero_core.errors import NotImplementedByDeviceError


class Device:
    """A device that takes neither extensions nor nodes."""

    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({}, {node.name: "no kernel" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        raise NotImplementedError(network.name)


def test_extension_is_added_to_a_whole_list_or_not_at_all(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("BARE", Device())
    text = "g (float[3] x) => (float[3] y) { y = com.acme.Twist(x) }"
    extension = Extension("com.acme", "Twist", 1, lambda x: x, lambda types, attributes: types)
    assert [core.takes_extensions(name) for name in ("CPU", "BARE", "HETERO:CPU,TEMPLATE")] == [True, False, True]
    for device in ("HETERO:CPU,BARE", "HETERO:CPU,(HETERO:TEMPLATE,BARE)"):
        assert not core.takes_extensions(device)
        with pytest.raises(NotImplementedByDeviceError, match="of its devices takes none, and none was given it"):
            core.add_extension(extension, device)
        assert core.query_network(read(text), "CPU").refused


def test_extension_without_a_device_is_added_to_all_takers(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("BARE", Device())
    text = "g (float[3] x) => (float[3] y) { y = com.acme.Twist(x) }"
    takers = core.add_extension(Extension("com.acme", "Twist", 1, lambda x: x, lambda types, attributes: types))
    assert {"CPU", "TEMPLATE"} <= set(takers)
    assert not {"BARE", "HETERO"} & set(takers)
    assert all(not core.query_network(read(text), device).refused for device in ("CPU", "TEMPLATE"))
