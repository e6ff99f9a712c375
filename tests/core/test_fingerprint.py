from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx.parser
import pytest

from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.reader import read_network
from hetero_core.network.writer import network_to_bytes

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (y) <float[2] w = {1, 2}> {
    [a] a = Add(x, w)
    [e] b = Elu<alpha = 0.5>(a)
    [if] y = If(c) <then_branch = t () => (p) { p = Neg(b) }, else_branch = f () => (q) { q = Abs(b) }>
}"""


def read(text: str = TEXT) -> Network:
    return read_network(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha = 0.5", "alpha = 0.25"),
        ("{1, 2}", "{1, 3}"),
        ("Neg(b)", "Exp(b)"),
        ("Neg(b)", "Neg(a)"),
        ("[e]", "[f]"),
        ("float[2] x", "float[1] x"),
        ("float[2] x", "float[N] x"),
        ("[a] a = Add(x, w)", "[a] a = Add(w, x)"),
        ('"": 17', '"": 13'),
        ("bool c) => (y)", "bool c) => (y, b)"),
    ],
)
def test_change_of_the_result_changes_the_fingerprint(old: str, new: str) -> None:
    assert old in TEXT
    assert read(TEXT.replace(old, new)).fingerprint != read().fingerprint


@pytest.mark.parametrize(("old", "new"), [("g (float", "h (float"), ("ir_version: 8", "ir_version: 10"), ("t () =>", "then () =>")])
def test_change_without_effect_leaves_the_fingerprint(old: str, new: str) -> None:
    assert read(TEXT.replace(old, new)).fingerprint == read().fingerprint


def test_affinity_metadata_and_origins_leave_the_fingerprint() -> None:
    network = read()
    changed = replace(network.with_affinity({"*": "CPU"}), metadata=MappingProxyType({"author": "me"}))
    node = replace(network.nodes[0], origins=("z",), original_name="other")
    assert replace(changed, nodes=(node, *network.nodes[1:])).fingerprint == network.fingerprint


def test_fingerprint_is_the_same_in_another_process() -> None:
    program = (
        "import sys; from hetero_core.network.reader import read_network; print(read_network(sys.stdin.buffer.read()).fingerprint)"
    )
    content = network_to_bytes(read())
    actual = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True)
    assert actual.stdout.decode().strip() == read().fingerprint


def test_strings_of_constants_count() -> None:
    network = read()

    def with_strings(*texts: str | bytes) -> Network:
        array = np.array(texts, dtype=object)
        return replace(network, initializers=MappingProxyType({"w": Initializer.of_array(array)}))

    different = [with_strings("ab", "c"), with_strings("a", "bc"), with_strings("abc"), with_strings("abc", "")]
    assert len({each.fingerprint for each in different}) == len(different)
    assert with_strings("ab", "c").fingerprint == with_strings(b"ab", "c").fingerprint


def test_memory_layout_of_a_constant_does_not_count() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert Initializer.of_array(rows).digest == Initializer.of_array(np.asfortranarray(rows)).digest
    assert Initializer.of_array(rows).digest != Initializer.of_array(rows.reshape(3, 2)).digest


@pytest.mark.filterwarnings("ignore:overflow")  # NumPy warns when 1e300 becomes infinity
@pytest.mark.parametrize("value", [0.1, 1e300, float("inf"), float("nan")])
def test_float_attribute_counts_as_the_32_bits_that_onnx_stores(value: float) -> None:
    network = read()
    node = replace(network.nodes[1], attributes=MappingProxyType({"alpha": value}))
    stored = replace(node, attributes=MappingProxyType({"alpha": float(np.float64(value).astype(np.float32, casting="unsafe"))}))
    prints = [replace(network, nodes=(network.nodes[0], each, network.nodes[2])).fingerprint for each in (node, stored)]
    assert prints[0] == prints[1]
