"""A decoder in the form of exporters, split at random over OPENVINO, ORT and CPU: `python tests/engines/decoder.py --divisions 200`.

Batch and both lengths are open, the mask is computed from integers and contains their minimum, and there are casts to the same
type. The weights are random. Each division runs three sets of lengths, then the first set repeatedly. The script prints the number of
compared outputs; exit code 1 if an output differs from ONNX Runtime without optimizations, or between two runs. A crash
of an engine ends this process, unless `--openvino PROCESS:OPENVINO` moves the engine to a child process.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.reference_session import open_reference_session

DEVICES = ("OPENVINO", "ORT", "CPU")
WIDTH, HEADS, LAYERS, VOCABULARY, BUCKETS = 32, 4, 2, 61, 8
SIZES = ((1, 5, 7), (2, 25, 3), (1, 3, 25))
"""Batch, length of the decoder and length of the encoder; the first set has a batch of 1."""
TOLERANCE = 1e-4
REPEATED = 1e-6
"""The tolerance between two runs: CPU may switch from NumPy to machine code, which sums in a different order."""

_HEAD = f"""<ir_version: 8, opset_import: ["": 17]>
decoder (int64[batch, length] tokens, int64[batch, length] mask, float[batch, source, {WIDTH}] encoded, int64[batch, source] encoded_mask)
=> (float[batch, length, {VOCABULARY}] logits, float[b, {HEADS}, l, d] keys, int64[l2, l3] buckets)
<int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}, int64[1] next = {{1}}, int64[1] last = {{-1}},
 int64 lowest = {{-9223372036854775808}}, int64[1] end = {{9223372036854775807}}, int64 most = {{{BUCKETS - 1}}},
 float lowest_float = {{-3.4028234663852886e+38}},
 float small = {{0.000001}}, float two = {{2}}, float one_float = {{1}}, float scale = {{0.35355339}},
 int64[4] heads = {{0, 0, {HEADS}, {WIDTH // HEADS}}}, int64[3] flat = {{0, 0, {WIDTH}}}>
{{
    shape = Shape (tokens)
    length_0 = Gather (shape, one)
    length_1 = Cast <to = 7> (length_0)
    positions = Range (zero, length_1, one)
    row = Unsqueeze (positions, first)
    column = Unsqueeze (positions, last)
    causal = LessOrEqual (row, column)
    distance_0 = Sub (column, row)
    distance_1 = Max (distance_0, zero)
    distance_f = Cast <to = 1> (distance_1)
    distance_p = Add (distance_f, one_float)
    distance_l = Log (distance_p)
    distance_s = Mul (distance_l, two)
    distance_i = Cast <to = 6> (distance_s)
    distance_j = Cast <to = 7> (distance_i)
    buckets = Min (distance_j, most)
    bias_0 = Gather (bucket_table, buckets)
    bias_1 = Transpose <perm = [2, 0, 1]> (bias_0)
    bias_2 = Unsqueeze (bias_1, first)
    bias = Cast <to = 1> (bias_2)
    mask_4 = Unsqueeze (mask, mask_axes)
    mask_b = Cast <to = 9> (mask_4)
    seen = And (mask_b, causal)
    self_integer = Where (seen, zero, lowest)
    self_float = Cast <to = 1> (self_integer)
    self_mask_0 = Max (self_float, lowest_float)
    self_mask = Cast <to = 1> (self_mask_0)
    cross_4 = Unsqueeze (encoded_mask, mask_axes)
    cross_f = Cast <to = 1> (cross_4)
    cross_i = Sub (one_float, cross_f)
    cross_mask = Mul (cross_i, lowest_float)
    encoded_0 = Cast <to = 1> (encoded)
    encoded_1 = Identity (encoded_0)
    embedded = Gather (token_table, tokens)
    hidden_0 = Cast <to = 1> (embedded)
"""

_NORM = """
    {0}_c = Cast <to = 1> ({1})
    {0}_s = Pow ({0}_c, two)
    {0}_m = ReduceMean <axes = [-1]> ({0}_s)
    {0}_e = Add ({0}_m, small)
    {0}_r = Sqrt ({0}_e)
    {0}_q = Div ({0}_c, {0}_r)
    {0}_t = Cast <to = 1> ({0}_q)
    {0} = Mul ({0}_t, {0}_weight)
"""

_ATTEND = """
    {0}_q0 = MatMul ({1}, {0}_weight_q)
    {0}_k0 = MatMul ({2}, {0}_weight_k)
    {0}_v0 = MatMul ({2}, {0}_weight_v)
    {0}_q1 = Reshape ({0}_q0, heads)
    {0}_k1 = Reshape ({0}_k0, heads)
    {0}_v1 = Reshape ({0}_v0, heads)
    {0}_q = Transpose <perm = [0, 2, 1, 3]> ({0}_q1)
    {0}_kt = Transpose <perm = [0, 2, 1, 3]> ({0}_k1)
    {0}_k = Cast <to = 1> ({0}_kt)
    {0}_v = Transpose <perm = [0, 2, 1, 3]> ({0}_v1)
    {0}_kk = Transpose <perm = [0, 1, 3, 2]> ({0}_k)
    {0}_w0 = MatMul ({0}_q, {0}_kk)
    {0}_w1 = Mul ({0}_w0, scale)
    {0}_w2 = Add ({0}_w1, {3})
    {0}_w3 = Softmax <axis = -1> ({0}_w2)
    {0}_w = Cast <to = 1> ({0}_w3)
    {0}_d, {0}_unused = Dropout ({0}_w)
    {0}_a = MatMul ({0}_d, {0}_v)
    {0}_b = Transpose <perm = [0, 2, 1, 3]> ({0}_a)
    {0}_f = Reshape ({0}_b, flat)
    {0}_o = MatMul ({0}_f, {0}_weight_o)
    {0} = Add ({4}, {0}_o)
"""


def build_decoder() -> onnx.ModelProto:
    """Returns the model, with weights from a fixed seed."""
    text = [_HEAD, "self_bias = Add (bias, self_mask)"]
    names = {"matrix": [], "norm": []}  # type: dict[str, list[str]]
    hidden = "hidden_0"
    for layer in range(LAYERS):
        steps = (("self", f"n0_{layer}", "self_bias"), ("cross", "encoded_1", "cross_mask"))
        for index, (kind, keys, bias) in enumerate(steps):
            norm, attention = f"n{index}_{layer}", f"{kind}_{layer}"
            text += [_NORM.format(norm, hidden), _ATTEND.format(attention, norm, keys, bias, hidden)]
            names["norm"].append(f"{norm}_weight")
            names["matrix"] += [f"{attention}_weight_{part}" for part in "qkvo"]
            hidden = attention
        text.append(_NORM.format(f"n2_{layer}", hidden))
        text.append(f"up_{layer} = MatMul (n2_{layer}, up_weight_{layer}) on_{layer} = Relu (up_{layer})")
        text.append(f"down_{layer} = MatMul (on_{layer}, down_weight_{layer}) hidden_{layer + 1} = Add ({hidden}, down_{layer})")
        names["norm"].append(f"n2_{layer}_weight")
        names["matrix"] += [f"up_weight_{layer}", f"down_weight_{layer}"]
        hidden = f"hidden_{layer + 1}"
    text.append(_NORM.format("n_last", hidden))
    names["norm"].append("n_last_weight")
    text.append("tail = Slice (n_last, first, end, next) logits_0 = MatMul (tail, head) logits = Cast <to = 1> (logits_0)")
    text.append("keys = Cast <to = 1> (self_0_k) }")
    model = onnx.parser.parse_model("\n".join(text))
    generator = np.random.default_rng(7)
    arrays = {name: generator.normal(0, 0.3, (WIDTH, WIDTH)) for name in names["matrix"]}
    arrays |= {name: generator.uniform(0.5, 1.5, (WIDTH,)) for name in names["norm"]}
    arrays |= {"bucket_table": generator.normal(0, 1, (BUCKETS, HEADS)), "token_table": generator.normal(0, 1, (VOCABULARY, WIDTH))}
    arrays["head"] = generator.normal(0, 0.3, (WIDTH, VOCABULARY))
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items())
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2]), "mask_axes"))
    return model


def draw_inputs(sizes: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """Returns inputs of these sizes; the mask hides the last token of each row but never the first."""
    batch, length, source = sizes
    generator = np.random.default_rng(seed)
    mask, encoded_mask = np.ones((batch, length), np.int64), np.ones((batch, source), np.int64)
    mask[:, -1] = 0
    encoded_mask[:, -1] = 0
    return {
        "tokens": generator.integers(0, VOCABULARY, (batch, length)),
        "mask": mask,
        "encoded": generator.standard_normal((batch, source, WIDTH)).astype(np.float32),
        "encoded_mask": encoded_mask,
    }


def compute_expected(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ONNX Runtime's outputs without its optimizations."""
    session = open_reference_session(model.SerializeToString())
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, dict(inputs)), strict=True))


def divide(core: Core, network: Network, seed: int, devices: Sequence[str] = DEVICES) -> dict[str, str]:
    """Returns node -> a random device that supports it."""
    draw = random.Random(seed)
    supported = {device: set(core.query_network(network, device).supported) for device in devices}
    return {node.name: draw.choice([device for device in devices if node.name in supported[device]]) for node in network.nodes}


def load_divided(
    core: Core, network: Network, pins: dict[str, str], devices: Sequence[str] = DEVICES
) -> tuple[ExecutableNetwork, int]:
    """Returns the loaded network, and the number of removed pins: OPENVINO refuses some nodes in the subnetwork that the pins cut."""
    freed = 0
    while True:
        try:
            return core.load_network(network.with_affinity(pins), "HETERO:" + ",".join(devices)), freed
        except UnsupportedNodesError as error:
            for name in error.refusals:
                if pins.pop(name) != devices[0]:
                    raise
                freed += 1


def find_fault(expected: Mapping[str, Any], outputs: Mapping[str, Any], *, tolerance: float = TOLERANCE) -> str | None:
    """Returns a description of the first output that differs, None if all agree."""
    for name, value in expected.items():
        if outputs[name].shape != value.shape:
            return f"{name} has shape {outputs[name].shape}, expected {value.shape}"
        error = float(np.abs(outputs[name].astype(np.float64) - value).max() / max(1e-9, np.abs(value.astype(np.float64)).max()))
        if not error <= (tolerance if value.dtype.kind == "f" else 0):
            return f"{name} differs by {error:.3g}"
    return None


def main() -> int:
    """Runs the divisions; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--divisions", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--openvino", default=DEVICES[0], metavar="DEVICE", help="the device that stands first")
    options = parser.parse_args()
    devices = (options.openvino, *DEVICES[1:])
    model = build_decoder()
    cases = [draw_inputs(sizes, index) for index, sizes in enumerate(SIZES)]
    expected = [compute_expected(model, inputs) for inputs in cases]
    faults, freed, compared, nodes = [], 0, 0, dict.fromkeys(devices, 0)
    with Core() as core:
        network = core.read_network(model)
        for seed in range(options.first, options.first + options.divisions):
            pins = divide(core, network, seed, devices)
            loaded, count = load_divided(core, network, pins, devices)
            freed += count
            for device in pins.values():
                nodes[device] += 1
            before: dict[int, dict[str, Any]] = {}
            with loaded:
                for run in range(options.runs):
                    index = run % len(cases)
                    outputs = loaded.infer(cases[index])
                    fault = find_fault(expected[index], outputs)
                    change = find_fault(before.get(index, outputs), outputs, tolerance=REPEATED)
                    fault = f"from one run to another {change}" if fault is None and change is not None else fault
                    if fault is not None:
                        faults.append(f"seed {seed}, run {run}: {fault}")
                    before[index] = outputs
                    compared += len(outputs)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    sys.stdout.write(
        f"{options.divisions} divisions, {freed} pins freed, nodes {nodes}; {compared} answers compared, {len(faults)} wrong\n"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
