"""OPENVINO: removable nodes, which change nothing, are right with open sizes; the networks run in processes of their own.

The fault read freed memory, so that answers changed from run to run, and the process crashed now and then.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

ROWS = (5, 25, 7, 3, 25, 200, 7)
REMOVABLE = {
    "cast": "{y} = Cast <to = 1> ({x})",
    "castlike": "{y} = CastLike ({x}, zero)",
    "casts": "{y}_a = Cast <to = 1> ({x}) {y}_b = Identity ({y}_a) {y} = Cast <to = 1> ({y}_b)",
    "identity": "{y} = Identity ({x})",
    "dropout": "{y} = Dropout ({x})",
    "reshape": "{y} = Reshape ({x}, zeros)",
    "squeeze": "{y}_a = Unsqueeze ({x}, first) {y} = Squeeze ({y}_a, first)",
    "slice": "{y} = Slice ({x}, first, end)",
    "concat": "{y} = Concat <axis = 0> ({x})",
    "transpose": "{y} = Transpose <perm = [0, 1]> ({x})",
    "pad": "{y} = Pad ({x}, no_pads)",
    "expand": "{y}_s = Shape ({x}) {y} = Expand ({x}, {y}_s)",
    "tile": "{y} = Tile ({x}, ones)",
    "split": "{y} = Split <axis = 0, num_outputs = 1> ({x})",
    "add": "{y} = Add ({x}, zero)",
    "mul": "{y} = Mul ({x}, one)",
    "sum": "{y} = Sum ({x})",
    "negations": "{y}_a = Neg ({x}) {y} = Neg ({y}_a)",
    "branch": "{y} = If (true) <then_branch = t () => (float[N,M] {y}_a) {{ {y}_a = Cast <to = 1> ({x}) }},"
    " else_branch = e () => (float[N,M] {y}_b) {{ {y}_b = Neg ({x}) }}>",
}
CONSTANTS = """<float zero = {0}, float one = {1}, bool true = {1}, int64[1] first = {0}, int64[1] end = {9223372036854775807},
int64[2] zeros = {0, 0}, int64[2] ones = {1, 1}, int64[4] no_pads = {0, 0, 0, 0}>"""
CHILD = """
import sys
import numpy as np, onnx.parser
from hetero_core import Core
rows, texts = eval(sys.argv[1]), sys.stdin.read().split("\\n---\\n")
generator = np.random.default_rng(0)
with Core() as core:
    for text in texts:
        print("AT", text, flush=True)
        network = core.read_network(onnx.parser.parse_model(text))
        assert not core.query_network(network, "OPENVINO").refused, core.query_network(network, "OPENVINO").refused
        loaded = core.load_network(network, "OPENVINO")
        request = loaded.create_infer_request()
        for step, count in enumerate(rows):
            x = generator.standard_normal((count, 64)).astype(np.float32)
            outputs = request.infer({"x": x}) if step % 2 else loaded.infer({"x": x})
            taken = [np.full_like(x, 7) for _ in range(4)]
            for name, value in outputs.items():
                # Named in the model: n... is the negative of the input, every other output the input itself.
                np.testing.assert_array_equal(value, -x if name.startswith("n") else x, err_msg=f"{name} in run {step}")
                assert not np.shares_memory(value, x)
print("END")
"""


def write_models(removable: str) -> list[str]:
    """Returns graphs with the piece at an input, at inner values, twice in a row and beside other readers; sizes open, small and large."""

    def put(x: str, y: str) -> str:
        return removable.format(x=x, y=y)

    bodies = {
        "y": put("x", "y"),
        "y, z": f"{put('x', 'y')} {put('x', 'z')}",
        "n, y": f"n = Neg (x) {put('x', 'y')}",
        "y, n, nv": f"{put('x', 'y')} n = Neg (y) {put('n', 'nv')}",
        "y, z, w": f"{put('x', 'y')} {put('y', 'z')} {put('z', 'w')}",
        "n, nv, nw": f"n = Neg (x) {put('n', 'nv')} {put('n', 'nw')}",
        "ya, n": f"{put('x', 'v')} n = Neg (v) {put('v', 'va')} {put('va', 'ya')}",
    }
    return [
        f'<ir_version: 10, opset_import: ["": 18]> g (float[N,M] x) => '
        f"({', '.join(f'float[{name}0,{name}1] {name}' for name in outputs.split(', '))}) {CONSTANTS} {{ {body} }}"
        for outputs, body in bodies.items()
    ]


@pytest.mark.parametrize("part", range(3))
def test_removed_nodes_are_right_with_open_sizes(part: int) -> None:
    texts = [text for removable in list(REMOVABLE.values())[part::3] for text in write_models(removable)]
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, repr(ROWS * 2)],
        input="\n---\n".join(texts),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stdout[-500:]}\n{ended.stderr[-2000:]}"
    assert ended.stdout.endswith("END\n")
