from __future__ import annotations

import onnx.parser
import pytest

from hetero_core.errors import AffinityError
from hetero_core.network.affinity import resolve_pins
from hetero_core.network.reader import read_network

NODES = [("conv1", "Conv"), ("conv2", "Conv"), ("block/relu", "Relu"), ("block/add", "Add")]


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"conv1": "GPU"}, {"conv1": "GPU"}),
        ({"conv*": "GPU"}, {"conv1": "GPU", "conv2": "GPU"}),
        ({"block/*": "CPU"}, {"block/relu": "CPU", "block/add": "CPU"}),
        ({"re:conv[2-9]": "GPU"}, {"conv2": "GPU"}),
        ({"op:Conv": "GPU"}, {"conv1": "GPU", "conv2": "GPU"}),
        ({"op:Conv": "GPU", "conv*": "NPU", "conv2": "CPU"}, {"conv1": "NPU", "conv2": "CPU"}),
        ({"conv2": "CPU", "conv*": "NPU", "op:Conv": "GPU"}, {"conv1": "NPU", "conv2": "CPU"}),
        ({"conv*": "GPU", "re:.*1": "GPU"}, {"conv1": "GPU", "conv2": "GPU"}),
        ({}, {}),
    ],
)
def test_pins_resolve_by_rank(pins: dict[str, str], expected: dict[str, str]) -> None:
    assert resolve_pins(NODES, pins) == expected


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"conv3": "GPU"}, r"pin 'conv3' -> GPU matches none of the 4 nodes, did you mean 'conv[12]' or 'conv[12]'\?"),
        ({"op:Cnv": "GPU"}, r"pin 'op:Cnv' -> GPU matches none of the 4 nodes, did you mean 'Conv'\?"),
        ({"re:zzz": "GPU"}, "pin 're:zzz' -> GPU matches none of the 4 nodes"),
        ({"re:(": "GPU"}, r"pin 're:\(' is no regular expression"),
        ({"conv1": " "}, "pin 'conv1': expected a device name, got ' '"),
        ({"conv1": 3}, "pin 'conv1': expected a device name, got 3"),
        (
            {"conv*": "GPU", "re:.*1": "CPU"},
            r"pins 'conv\*' -> GPU and 're:\.\*1' -> CPU are of one rank and disagree on node 'conv1'; pin the node by its",
        ),
    ],
)
def test_pins_that_mean_nothing_or_two_things_are_refused(pins: dict[str, str], message: str) -> None:
    with pytest.raises(AffinityError, match=message):
        resolve_pins(NODES, pins)


def test_network_keeps_earlier_pins_and_later_ones_replace_them() -> None:
    network = read_network(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (y) { [a] a = Relu(x) [b] y = Neg(a) }')
    )
    pinned = network.with_affinity({"a": "GPU", "b": "CPU"}).with_affinity({"op:Neg": "NPU"})
    assert pinned.affinity == {"a": "GPU", "b": "NPU"}
    assert network.affinity == {}
    assert pinned.nodes is network.nodes
