"""Lists in lists: what a device made of devices asks of those below it grows with the depth, and does not double with each level."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from hetero_core import Core, DeviceName, Network, hookimpl
from hetero_core.contract import ConfigKey
from hetero_core.testing.plain_device import PlainDevice

DEPTHS = 4, 7  # a device string nests eight levels at most
TEXT = "g (float[2] x) => (float[2] y) { y = Neg (x) }"


class CountingDevice(PlainDevice):
    """Counts how often it is asked for its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        self.count += 1
        return {"SPEED": ConfigKey(int, 1, "Of the innermost device.")}


@pytest.mark.parametrize("composer", ["HETERO", "MULTI", "AUTO", "BATCH"])
def test_questions_to_the_innermost_device_do_not_double_with_each_list(
    core: Core, read: Callable[[str], Network], composer: str
) -> None:
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
    # Each of the lists is asked some times by each of those around it: with the square of the depth. Doubling would give eight times.
    assert counts[1] < 4 * counts[0]
