"""Nested device lists: the number of hook calls to inner devices grows polynomially with the depth, not exponentially."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from hetero_core import Core, DeviceName, Network, hookimpl
from hetero_core.contract import ConfigKey
from hetero_core.testing.plain_device import PlainDevice

DEPTHS = 4, 7  # the maximum of a device string is eight levels
TEXT = "g (float[2] x) => (float[2] y) { y = Neg (x) }"


class CountingDevice(PlainDevice):
    """Counts the calls of its hook config_keys."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        self.count += 1
        return {"SPEED": ConfigKey(int, 1, "Of the innermost device.")}


@pytest.mark.parametrize("composer", ["HETERO", "MULTI", "AUTO", "BATCH"])
def test_calls_of_the_innermost_device_do_not_double_per_list(core: Core, read: Callable[[str], Network], composer: str) -> None:
    innermost = CountingDevice()
    core.register_plugin("INNERMOST", innermost)
    counts = []
    for depth in DEPTHS:
        nested = f"{composer}:" * depth + "INNERMOST"
        innermost.count = 0
        assert core.config_keys(nested)["SPEED"].type is int
        assert innermost.count <= depth + 1
        loaded = core.load_network(read(TEXT), nested)
        assert str(loaded.device) == nested
        counts.append(innermost.count)
    # Each list queries every list inside it, so the count grows with the square of the depth: 3 times. Doubling would give 8 times.
    assert counts[1] < 4 * counts[0]
