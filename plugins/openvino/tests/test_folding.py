"""A Loop of constants, which the engine would run at load, is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hetero_core import Core, Network

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")


@pytest.mark.parametrize(("start", "is_refused"), [("s", True), ("x", False)])
def test_loop_that_would_run_at_compile_time_is_refused(
    core: Core, read: Callable[..., Network], start: str, *, is_refused: bool
) -> None:
    constants = "<int64 n = {100000000}, bool t = {1}, float[1] s = {0.0}, float[1] one = {1.0}>"
    body = "body = b (int64 i, bool c, float[1] a) => (bool d, float[1] o) { d = Identity (c) o = Add (a, one) }"
    text = f"g (float[1] x) => (float[1] y) {constants} {{ m = Add (n, n) r = Loop <{body}> (m, t, {start}) y = Add (x, r) }}"
    refused = core.query_network(read(text, 13), "OPENVINO").refused
    assert any("runs a Loop of constants when it compiles" in reason for reason in refused.values()) == is_refused
