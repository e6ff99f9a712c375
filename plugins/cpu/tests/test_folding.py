"""Constants are folded at load within a limit; the rest is computed in each run."""

from __future__ import annotations

import pytest
from hetero_tests.child_loads import load_in_child
from hetero_tests.growing_models import build_many_constants


def test_constants_that_nodes_multiply_are_not_all_made_at_load() -> None:
    content, expected = build_many_constants(100, mebibytes=6)
    load = load_in_child(content, "CPU")
    assert load.outputs["y"] == pytest.approx([expected])
    assert load.peak < 500
