"""ONNX Runtime's operators of language models: steps of machine code, classes of sizes, and float64 formulas as expected values."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from math import erf, sqrt
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_cpu.run.caches import CacheMemory
from hetero_tests.genai_models import make_genai_decoder
from onnx import TensorProto, helper, numpy_helper

from hetero_core import Core, ExecutableNetwork
from hetero_core.transforms.editing import edit

pytest.importorskip("llvmlite")

Array = np.ndarray[Any, Any]
PASTS = tuple(f"past_{part}_{layer}" for layer in range(2) for part in ("key", "value"))
JIT, ALL = {"CPU_KERNELS": "JIT"}, slice(0, 0)


def make_decoder(**attributes: Any) -> onnx.ModelProto:
    return make_genai_decoder(layers=2, width=64, heads=4, groups=2, longest=64, **attributes)


def draw_feeds(length: int, steps: int, past: int, *zeros: slice) -> dict[str, Array]:
    """Returns inputs with a row for each slice, in which the mask is 0."""
    rng, batch = np.random.default_rng(past), len(zeros)
    caches = {name: rng.standard_normal((batch, 2, past, 16)).astype(np.float32) for name in PASTS}
    mask = np.ones((batch, length), np.int64)
    for row, part in zip(mask, zeros, strict=True):
        row[part] = 0
    return {"tokens": rng.integers(0, 1000, (batch, steps)), "attention_mask": mask, **caches}


def require_close(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=2e-5, err_msg=name)


def compare(core: Core, model: onnx.ModelProto, runs: list[dict[str, Array]]) -> ExecutableNetwork:
    """Returns the network with machine code, after it has answered as the toolkit does."""
    network, toolkit = (core.load_network(model, "CPU", {"CPU_KERNELS": kernels}) for kernels in ("JIT", "NUMPY"))
    for feeds in runs:
        require_close(network.infer(feeds), toolkit.infer(feeds))
    return network


@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 3}, {"local_window_size": 1}])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("steps", [1, 3, 9])
def test_runs_of_any_length_of_the_past_share_a_plan(core: Core, attributes: dict[str, int], rows: int, steps: int) -> None:
    pasts = (2, 3, 7, 8, 33)
    network = compare(core, make_decoder(**attributes), [draw_feeds(past + steps, steps, past, *[ALL] * rows) for past in pasts])
    assert network.get_metric("CPU_PLANS")[0] <= 2
    assert network.get_metric("CPU_FOREIGN_STEPS") == 0


def normalize_heads(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a decoder with queries and keys normalized by heads before each attention. Source: Qwen3."""
    nodes = list(model.graph.node)
    integers = {"sizes": [64, 32, 32], "heads": [0, -1, 16], "query_rows": [0, -1, 64], "key_rows": [0, -1, 32]}
    arrays = {**{name: np.array(numbers) for name, numbers in integers.items()}, "scale": np.linspace(0.5, 2, 16, dtype=np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "GroupQueryAttention":
            packed, label = node.input[0], node.output[0]
            parts = [f"{label}_{part}" for part in ("query", "key", "value")]
            model.graph.node.append(helper.make_node("Split", [packed, "sizes"], parts, axis=-1))
            for part, rows in zip(parts[:2], ("query_rows", "key_rows"), strict=True):
                model.graph.node.extend(
                    [
                        helper.make_node("Reshape", [part, "heads"], [f"{part}_heads"]),
                        helper.make_node(
                            "SimplifiedLayerNormalization", [f"{part}_heads", "scale"], [f"{part}_normed"], epsilon=1e-6
                        ),
                        helper.make_node("Reshape", [f"{part}_normed", rows], [f"{part}_rows"]),
                    ]
                )
            node.input[:3] = [f"{parts[0]}_rows", f"{parts[1]}_rows", parts[2]]
        model.graph.node.append(node)
    return model


@pytest.mark.parametrize("steps", [1, 3])
def test_heads_that_are_normalized_share_a_plan(core: Core, steps: int) -> None:
    runs = [draw_feeds(past + steps, steps, past, ALL) for past in (2, 3, 7, 8, 33)]
    network = compare(core, normalize_heads(make_decoder()), runs)
    assert network.get_metric("CPU_PLANS")[0] <= 2
    assert network.get_metric("CPU_FOREIGN_STEPS") == 0


LENGTHS = (6, 7, 9)
OTHER_RUNS = {
    "rows of two lengths": [draw_feeds(length, 1, length - 1, slice(0, 2), ALL) for length in LENGTHS],
    "padded prompts": [draw_feeds(length, length, 0, slice(-2, None), ALL) for length in LENGTHS],
    "a buffer as past": [draw_feeds(length, 1, 20, ALL, ALL) for length in LENGTHS],
    "a short row": [draw_feeds(length, 1, length - 1, slice(0, 1)) for length in LENGTHS],
    "soft cap": [draw_feeds(length, 1, length - 1, ALL) for length in LENGTHS],
    "prompts": [draw_feeds(length, length, 0, ALL) for length in LENGTHS],
}


@pytest.mark.parametrize("kind", OTHER_RUNS)
def test_other_runs_have_a_class_of_sizes(core: Core, kind: str) -> None:
    model = make_decoder(softcap=2.0) if kind == "soft cap" else make_decoder()
    assert compare(core, model, OTHER_RUNS[kind]).get_metric("CPU_PLANS")[0] == 1


@pytest.mark.parametrize("bits", [32, 4])
def test_greedy_tokens_are_those_of_the_toolkit(core: Core, bits: int) -> None:
    model, tokens = make_decoder(bits=bits), dict[str, list[int]]()
    for kernels in ("NUMPY", "JIT"):
        network = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
        outputs, tokens[kernels] = network.infer(draw_feeds(1, 1, 0, ALL)), []
        for length in range(2, 14):
            tokens[kernels].append(int(outputs["logits"][0, -1].argmax()))
            caches = {name: outputs[name.replace("past", "present")] for name in PASTS}
            feeds = {"tokens": np.array([tokens[kernels][-1:]]), "attention_mask": np.ones((1, length), np.int64)}
            outputs = network.infer({**feeds, **caches})
    assert tokens["JIT"] == tokens["NUMPY"]


@pytest.mark.parametrize("open_axes", [(), (1, 3)], ids=["", "heads declared as open"])
def test_states_grow_in_place(core: Core, open_axes: tuple[int, ...]) -> None:
    model, names = make_genai_decoder(layers=1, width=256, heads=4), ("past_key_0", "past_value_0")
    for value in model.graph.input[2:]:
        for axis in open_axes:
            value.type.tensor_type.shape.dim[axis].dim_param = f"cache axis {axis}"
    ties = {name.replace("past", "present"): name for name in names}
    empty = {name: np.zeros((1, 2, 0, 64), np.float32) for name in names}
    request = core.load_network(edit(core.read_network(model)).with_state(ties, initial=empty), "CPU", JIT).create_infer_request()
    for name in names:
        request.states[name].value = np.ones((1, 2, 200, 64), np.float32)
    memories = []
    for length in range(201, 206):
        request.infer({"tokens": np.array([[length]]), "attention_mask": np.ones((1, length), np.int64)})
        memories.append(request.states["past_key_0"].array.base.base)
    assert all(type(memory) is CacheMemory and memory is memories[0] for memory in memories)


@pytest.mark.parametrize(("length", "steps", "past"), [(6, 1, 5), (6, 1, 20), (6, 6, 0), (6, 2, 4)])
def test_fixed_sizes_equal_the_toolkit_also_in_a_blob(core: Core, length: int, steps: int, past: int) -> None:
    model, sizes = make_decoder(), {"batch": 2, "steps": steps, "past": past, "total": length}
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = sizes.get(dim.dim_param, dim.dim_value)
    runs, blob = [draw_feeds(length, steps, past, zeros, ALL) for zeros in (ALL, slice(0, 1))], BytesIO()
    network = compare(core, model, runs)
    network.export_network(blob)
    imported = core.import_network(BytesIO(blob.getvalue()), "CPU", JIT)
    for feeds in runs:
        require_close(imported.infer(feeds), network.infer(feeds))


# Single operators, with float64 formulas.


def require_steps(core: Core, node: str, arrays: Mapping[str, Array], expected: Mapping[str, Array], **attributes: Any) -> None:
    """Checks the answers of a node, and that no step is the toolkit's."""
    network = require_answers(core, node, arrays, expected, **attributes)
    assert network.get_metric("CPU_FOREIGN_STEPS") == 0


def require_answers(
    core: Core, node: str, arrays: Mapping[str, Array], expected: Mapping[str, Array], **attributes: Any
) -> ExecutableNetwork:
    """Checks a node written as "Operator input input", whose inputs in capitals are constants."""
    op_type, *names = node.replace("_", "").split(" ")
    protos = [helper.make_node(op_type, names, [*expected], domain="com.microsoft", **attributes)]
    fed = {name: x for name, x in arrays.items() if name in names and name.islower()}
    specs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in fed.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in expected if name.strip()]
    weights = [numpy_helper.from_array(x, name) for name, x in arrays.items() if name in names and name.isupper()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(protos, "g", specs, results, weights), opset_imports=opsets, ir_version=8)
    network = core.load_network(model, "CPU", JIT)
    require_close(network.infer(fed), expected)
    return network


@pytest.mark.parametrize("width", [2, 7, 8, 9, 16, 17, 64])
def test_normalizations_and_activations_equal_float64(core: Core, width: int) -> None:
    rng = np.random.default_rng(width)
    arrays = {name: rng.standard_normal((3, width) if name.islower() else width).astype(np.float32) for name in "xsGBA"}
    x, skip, gamma, beta, bias = (array.astype(np.float64) for array in arrays.values())
    total = x + skip
    for more, own in (("", total), (" A", total + bias)):
        root = own / np.sqrt((own**2).mean(-1, keepdims=True) + 1e-3)
        require_steps(core, f"SkipSimplifiedLayerNormalization x s G{more}", arrays, {"y": root * gamma}, epsilon=1e-3)
        centred = own - own.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * gamma + beta
        require_steps(core, f"SkipLayerNormalization x s G B{more}", arrays, {"y": y}, epsilon=1e-3)
    arrays["x"][:, 0] = np.nan, np.inf, -100.0
    x = arrays["x"].astype(np.float64)
    z = x + bias
    require_steps(core, "BiasGelu x A", arrays, {"y": z * (1 + np.vectorize(erf)(z / sqrt(2))) / 2})
    require_steps(core, "FastGelu x A", arrays, {"y": z * (1 + np.tanh(sqrt(2 / np.pi) * (z + 0.044715 * z**3))) / 2})
    require_steps(core, "QuickGelu x", arrays, {"y": x / (1 + np.exp(-1.702 * x))})


@pytest.mark.parametrize("turned", [16, 8])
def test_rotary_embedding_equals_float64(core: Core, turned: int) -> None:
    rng = np.random.default_rng(turned)
    x, positions, angles = rng.standard_normal((2, 3, 5, 16)), rng.integers(0, 20, (2, 5)), rng.uniform(-3, 3, (20, turned // 2))
    arrays = {
        "x": x.astype(np.float32),
        "p": positions,
        "C": np.cos(angles).astype(np.float32),
        "S": np.sin(angles).astype(np.float32),
    }
    first, second, rest = np.split(x, [turned // 2, turned], axis=-1)
    c, s = (f(angles)[positions][:, None] for f in (np.cos, np.sin))
    y = np.concatenate([first * c - second * s, second * c + first * s, rest], axis=-1)
    require_steps(core, "RotaryEmbedding x p C S", arrays, {"y": y}, num_heads=3, rotary_embedding_dim=turned)


@pytest.mark.parametrize("past", [0, 4])
def test_multi_head_attention_equals_float64(core: Core, past: int) -> None:
    rng = np.random.default_rng(3)
    shapes = {**dict.fromkeys("qkv", (2, 5, 18)), "B": (54,), "m": (1, 2, 5, 5 + past), **dict.fromkeys("cd", (2, 2, past, 9))}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    parts = [arrays[name].astype(np.float64) + own for name, own in zip("qkv", np.split(arrays["B"], 3), strict=True)]
    q, k, v = (x.reshape(2, 5, 2, 9).transpose(0, 2, 1, 3) for x in parts)
    k, v = np.concatenate([arrays["c"], k], axis=2), np.concatenate([arrays["d"], v], axis=2)
    weights = np.exp(q @ k.swapaxes(2, 3) / 3 + arrays["m"])
    y = ((weights / weights.sum(-1, keepdims=True)) @ v).transpose(0, 2, 1, 3).reshape(2, 5, -1)
    expected = {"y": y, "key": k, "value": v} if past else {"y": y}
    require_steps(core, f"MultiHeadAttention q k v B _ m{' c d' if past else ''}", arrays, expected, num_heads=2)


def attend_exactly(q: Array, k: Array, v: Array, mask: Array, heads: int) -> Array:
    """Returns softmax(q k^T / sqrt(size) + mask) v of (batch, steps, width), in float64."""
    cut = [x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v)]
    weights = np.exp(cut[0] @ cut[1].swapaxes(2, 3) / sqrt(cut[0].shape[3]) + mask)
    mixed: Array = ((weights / weights.sum(-1, keepdims=True)) @ cut[2]).transpose(0, 2, 1, 3)
    return mixed.reshape(*mixed.shape[:2], -1)


MASKS = {"none": None, "keys": np.array([[1, 1, 0, 1, 1], [1, 0, 0, 1, 0]], np.int32), "ends": np.array([5, 2], np.int32)}


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("widths", [(12, 12, 12), (12, 12, 20)])
def test_attention_that_projects_equals_float64(core: Core, masked: str, widths: tuple[int, int, int]) -> None:
    rng, mask = np.random.default_rng(5), MASKS[masked]
    shapes = {"x": (2, 5, 7), "W": (7, sum(widths)), "B": (sum(widths),)}
    arrays: dict[str, Array] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    added = np.zeros((2, 5))
    if mask is not None:
        arrays["m"] = mask
        added = np.where(mask > 0 if mask.ndim == 2 else np.arange(5) < mask[:, None], 0.0, -10000.0)
    projected = arrays["x"].astype(np.float64) @ arrays["W"] + arrays["B"]
    parts = np.split(projected, np.cumsum(widths)[:2], axis=2)
    expected = {"y": attend_exactly(*parts, added[:, None, None], 2)}
    names = "x W B" + " m" * (mask is not None)
    require_steps(core, f"Attention {names}", arrays, expected, num_heads=2, qkv_hidden_sizes=list(widths))


@pytest.mark.parametrize("zeros", [(3, 0), (200, 5)])
def test_quantized_attention_equals_exact_integers(core: Core, zeros: tuple[int, int]) -> None:
    rng = np.random.default_rng(7)
    arrays = {
        "x": rng.integers(0, 256, (2, 5, 8)).astype(np.uint8), "W": rng.integers(-128, 128, (8, 36)).astype(np.int8),
        "B": rng.standard_normal(36).astype(np.float32), "S": np.array(0.02, np.float32), "T": np.array(0.01, np.float32),
        "Z": np.array(zeros[0], np.uint8), "Y": np.array(zeros[1], np.int8),
    }  # fmt: skip
    sums = (arrays["x"].astype(np.int64) - zeros[0]) @ (arrays["W"].astype(np.int64) - zeros[1])
    projected = sums * (0.02 * 0.01) + arrays["B"]
    expected = {"y": attend_exactly(*np.split(projected, 3, axis=2), np.zeros(()), 2)}
    network = require_answers(core, "QAttention x W B S T _ Z Y", arrays, expected, num_heads=2)
    assert network.get_metric("CPU_NATIVE_STEPS") >= 2
