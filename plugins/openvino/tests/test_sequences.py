"""Recurrent nodes with a second reader of their transposed input are refused; similar nodes are accepted and right."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.testing.compare import describe_mismatch

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

from hetero_openvino import device

Read = Callable[..., Network]


SHAPES = {"w1": (1, 8, 5), "r1": (1, 8, 2), "w2": (2, 8, 5), "r2": (2, 8, 2), "w3": (1, 2, 5), "r3": (1, 2, 2)}


def write(read: Read, nodes: str, outputs: str, sizes: str = "3,4,5") -> Network:
    generator = np.random.default_rng(4)
    weights = [
        f"float[{','.join(map(str, shape))}] {name} = {{{','.join(f'{number:.3f}' for number in generator.standard_normal(prod(shape)))}}}"
        for name, shape in SHAPES.items()
    ]
    return read(f"g (float[{sizes}] x) => ({outputs}) <{', '.join(weights)}> {{ {nodes} }}", 18)


LSTM = "y, h, c = LSTM <hidden_size = 2> (x, w1, r1)"
BOTH = 'z, k, d = LSTM <hidden_size = 2, direction = "bidirectional"> (x, w2, r2)'
RNN = 'z, k = RNN <hidden_size = 2, direction = "reverse"> (x, w3, r3)'
BACK = "s = Transpose <perm = [1, 0, 2]> (t) y, h, c = LSTM <hidden_size = 2> (s, w1, r1)"
TURN = "t = Transpose <perm = [1, 0, 2]> (x)"
Y, Z, T = "float[A,B,C,D] y", "float[E,F,G,H] z", "float[I,J,K] t"
WRONG = {
    "turned beside": (f"{LSTM} {TURN}", f"{Y}, {T}", {"LSTM_0"}),
    "turned for another": (f"{LSTM} {TURN} n = Neg (t)", f"{Y}, float[I,J,K] n", {"LSTM_0"}),
    "turned in two steps": (f"{LSTM} a = Transpose (x) t = Transpose <perm = [1, 2, 0]> (a)", f"{Y}, {T}", {"LSTM_0"}),
    "turned there and back": (f"{TURN} {BACK} n = Neg (t)", f"{Y}, float[I,J,K] n", {"LSTM_2"}),
    "turned from a copy": (f"{LSTM} s = Identity (x) {TURN.replace('(x)', '(s)')}", f"{Y}, {T}", {"LSTM_0"}),
    "two of one direction": (f"{LSTM} {RNN}", f"{Y}, {Z}", {"LSTM_0", "RNN_1"}),
    "one and both directions": (f"{LSTM} {BOTH}", f"{Y}, {Z}", {"LSTM_0"}),
}  # fmt: skip
RIGHT = {
    "alone": (LSTM, Y, "3,4,5"),
    "negated beside": (f"{LSTM} t = Neg (x)", f"{Y}, {T}", "3,4,5"),
    "batch first": (f"{TURN} {LSTM.replace('(x', '(t')} n = Neg (x)", f"{Y}, float[I,J,K] n", "3,4,5"),
    "both directions": (f"{BOTH} {TURN}", f"{Z}, {T}", "3,4,5"),
    "length 1": (f"{LSTM} {TURN}", f"{Y}, {T}", "1,4,5"),
    "batch 1": (f"{LSTM} {RNN} {TURN}", f"{Y}, {Z}, {T}", "3,1,5"),
}


def find_mismatch(core: Core, network: Network) -> str | None:
    generator = np.random.default_rng(5)
    inputs = {spec.name: generator.standard_normal(spec.shape).astype(np.float32) for spec in network.inputs}  # type: ignore[arg-type]  # static
    answer, expected = (core.load_network(network, name).infer(inputs) for name in ("OPENVINO", "CPU"))
    pairs = ((name, answer[name], expected[name]) for name in expected)
    return next(filter(None, (describe_mismatch(value, expected_value, name=name) for name, value, expected_value in pairs)), None)


@pytest.mark.parametrize(("nodes", "outputs", "names"), WRONG.values(), ids=WRONG)
def test_input_read_turned_is_refused_and_still_wrong(
    core: Core, read: Read, monkeypatch: pytest.MonkeyPatch, nodes: str, outputs: str, names: set[str]
) -> None:
    network = write(read, nodes, outputs)
    refused = core.query_network(network, "OPENVINO").refused
    assert set(refused) == names
    assert all("OpenVINO reorders what a recurrent node of one direction reads" in reason for reason in refused.values())
    monkeypatch.setattr(device, "find_known_error", lambda node, network, **_: None)
    assert find_mismatch(core, network) is not None


@pytest.mark.parametrize(("nodes", "outputs", "sizes"), RIGHT.values(), ids=RIGHT)
def test_transposed_input_with_a_single_reader_is_right(core: Core, read: Read, nodes: str, outputs: str, sizes: str) -> None:
    network = write(read, nodes, outputs, sizes)
    assert not core.query_network(network, "OPENVINO").refused
    assert find_mismatch(core, network) is None
