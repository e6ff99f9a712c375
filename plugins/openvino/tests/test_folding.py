"""Constants that the engine would multiply when it loads a network are refused."""

from __future__ import annotations

import pytest

from hetero_core import Core
from hetero_core.testing.growing_models import build_many_constants

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")


def test_nodes_with_which_constants_pass_the_limit_are_refused_and_those_before_are_not(core: Core) -> None:
    """Without it 600 of these take 70 s and 770 MB, more where they are larger."""
    content, _ = build_many_constants(130)
    refused = core.query_network(core.read_network(content), "OPENVINO").refused
    assert refused
    assert {name.partition("_")[0] for name in refused} == {"Add", "Concat"}
    assert all("OpenVINO computes constants ahead, here of 13" in reason for reason in refused.values())
    few, _ = build_many_constants(20)
    assert not core.query_network(core.read_network(few), "OPENVINO").refused
