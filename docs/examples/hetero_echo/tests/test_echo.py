"""ECHO: it runs what it claims, refuses the rest with the reason, and works as a part of HETERO."""

from __future__ import annotations

from collections.abc import Iterator

import hetero_echo
import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import UnsupportedNodesError

COPY = (
    '<ir_version: 8, opset_import: ["": 17]> copy (float[N] x) => (float[N] y) { [first] a = Identity (x) [last] y = Identity (a) }'
)
MIXED = (
    '<ir_version: 8, opset_import: ["": 17]> mixed (float[N] x) => (float[N] y) { [copy] a = Identity (x) [double] y = Add (a, a) }'
)
X = np.array([1, -2, 3], np.float32)


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        if "ECHO" not in opened.device_names:  # installed by pip, it is there already
            opened.register_plugin("ECHO", hetero_echo)
        yield opened


def test_identity_gives_its_input_in_memory_of_its_own(core: Core) -> None:
    x = X.copy()
    y = core.load_network(onnx.parser.parse_model(COPY), "ECHO").infer({"x": x})["y"]
    assert y.tolist() == [1, -2, 3]
    assert not np.may_share_memory(x, y)


def test_query_names_each_node_once_with_device_or_reason(core: Core) -> None:
    result = core.query_network(onnx.parser.parse_model(MIXED), "ECHO")
    assert dict(result.supported) == {"copy": "ECHO"}
    assert dict(result.refused) == {"double": "ECHO runs Identity only, not Add-14"}


def test_load_refuses_what_the_query_refuses(core: Core) -> None:
    with pytest.raises(UnsupportedNodesError, match=r"node 'double' \(Add-14\), ECHO: ECHO runs Identity only"):
        core.load_network(onnx.parser.parse_model(MIXED), "ECHO")


def test_hetero_gives_the_rest_to_the_next_device(core: Core) -> None:
    network = core.load_network(onnx.parser.parse_model(MIXED), "HETERO:ECHO,CPU")
    assert network.get_metric("HETERO_SUBGRAPHS") == (("ECHO", ("copy",)), ("CPU", ("double",)))
    assert network.infer({"x": X})["y"].tolist() == [2, -4, 6]
