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
HEADS, GROUPS, SIZE, LAYERS = 4, 2, 16, 2
PASTS = tuple(f"past_{part}_{layer}" for layer in range(LAYERS) for part in ("key", "value"))


def make_decoder(**attributes: int) -> onnx.ModelProto:
    return make_genai_decoder(layers=LAYERS, width=HEADS * SIZE, heads=HEADS, groups=GROUPS, longest=256, **attributes)


def draw_feeds(mask: Array, steps: int, past: int) -> dict[str, Array]:
    rng, batch = np.random.default_rng(past), len(mask)
    caches = {name: rng.standard_normal((batch, GROUPS, past, SIZE)).astype(np.float32) for name in PASTS}
    return {"tokens": rng.integers(0, 1000, (batch, steps)), "attention_mask": mask, **caches}


def require_close(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=0, atol=2e-5, err_msg=name)


def count_plans(network: ExecutableNetwork) -> int:
    return int(network.get_metric("CPU_PLANS")[0])


@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 3}, {"local_window_size": 1}])
@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_of_any_length_of_the_past_share_a_plan(core: Core, attributes: dict[str, int], batch: int) -> None:
    model = make_decoder(**attributes)
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    for steps, lengths in ((1, (2, 3, 7, 8, 33)), (3, (2, 5, 17)), (9, (2, 40))):
        before = count_plans(network)
        for past in lengths:
            feeds = draw_feeds(np.ones((batch, past + steps), np.int64), steps, past)
            require_close(network.infer(feeds), toolkit.infer(feeds))
        assert count_plans(network) - before <= 1
    assert network.get_metric("CPU_FOREIGN_STEPS") == 0


def test_prompt_with_an_empty_past_equals_the_toolkit(core: Core) -> None:
    model = make_decoder()
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    for steps in (1, 2, 5, 8, 33):
        feeds = draw_feeds(np.ones((2, steps), np.int64), steps, 0)
        require_close(network.infer(feeds), toolkit.infer(feeds))


def cut(length: int, *zeros: slice) -> Array:
    """Returns a mask with a row for each slice, which is 0."""
    mask = np.ones((len(zeros), length), np.int64)
    for row, part in zip(mask, zeros, strict=True):
        row[part] = 0
    return mask


ALL = slice(0, 0)


@pytest.mark.parametrize(
    ("masks", "steps", "past"),
    [
        ([cut(length, slice(0, 2), ALL) for length in (6, 7, 9)], 1, None),
        ([cut(length, slice(-2, None), ALL) for length in (6, 7, 9)], None, 0),
        ([cut(length, ALL, ALL) for length in (6, 7, 9)], 1, 20),
        ([cut(length, slice(0, 1)) for length in (6, 7, 9)], 1, None),
    ],
    ids=["rows of two lengths", "padded prompts", "a buffer as the past", "a short row"],
)
def test_uneven_rows_equal_the_toolkit_in_a_class_of_sizes(
    core: Core, masks: list[Array], steps: int | None, past: int | None
) -> None:
    model = make_decoder()
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    for mask in masks:
        length = mask.shape[1]
        feeds = draw_feeds(mask, length if steps is None else steps, length - 1 if past is None else past)
        require_close(network.infer(feeds), toolkit.infer(feeds))
    assert count_plans(network) == 1


def test_even_and_uneven_rows_may_take_turns(core: Core) -> None:
    model = make_decoder()
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    for length in (5, 6, 7, 8):
        for zeros in (slice(0, 0), slice(0, 1)):
            feeds = draw_feeds(cut(length, zeros, ALL), 1, length - 1)
            require_close(network.infer(feeds), toolkit.infer(feeds))


def test_attention_with_a_soft_cap_stays_in_the_toolkit(core: Core) -> None:
    model = make_decoder()
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(helper.make_attribute("softcap", 2.0))
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    for past in (2, 3, 7):
        feeds = draw_feeds(np.ones((1, past + 1), np.int64), 1, past)
        require_close(network.infer(feeds), toolkit.infer(feeds))
    assert count_plans(network) == 1


@pytest.mark.parametrize("bits", [32, 4])
def test_greedy_tokens_are_those_of_the_toolkit(core: Core, bits: int) -> None:
    model, tokens = make_decoder(bits=bits), {}
    for kernels in ("NUMPY", "JIT"):
        network = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
        outputs = network.infer(draw_feeds(np.ones((1, 5), np.int64), 5, 0))
        tokens[kernels] = []
        for length in range(6, 18):
            tokens[kernels].append(int(outputs["logits"][0, -1].argmax()))
            caches = {name: outputs[name.replace("past", "present")] for name in PASTS}
            mask = np.ones((1, length), np.int64)
            outputs = network.infer({"tokens": np.array([[tokens[kernels][-1]]]), "attention_mask": mask, **caches})
    assert tokens["JIT"] == tokens["NUMPY"]


def test_states_grow_in_place(core: Core) -> None:
    model = make_genai_decoder(layers=1, width=256, heads=4, groups=2, longest=512)
    names, shape = ("past_key_0", "past_value_0"), (1, 2, 200, 64)
    ties = {name.replace("past", "present"): name for name in names}
    empty = {name: np.zeros((1, 2, 0, 64), np.float32) for name in names}
    network = core.load_network(edit(core.read_network(model)).with_state(ties, initial=empty), "CPU", {"CPU_KERNELS": "JIT"})
    request, rng = network.create_infer_request(), np.random.default_rng(0)
    for name in names:
        request.states[name].value = rng.standard_normal(shape).astype(np.float32)
    memories = []
    for length in range(201, 206):
        request.infer({"tokens": np.array([[length]]), "attention_mask": np.ones((1, length), np.int64)})
        memories.append(request.states["past_key_0"].array.base.base)
    assert isinstance(memories[0], CacheMemory)
    assert all(memory is memories[0] for memory in memories)


def test_blob_of_a_decoder_answers_as_before(core: Core) -> None:
    network = core.load_network(make_decoder(), "CPU", {"CPU_KERNELS": "JIT"})
    feeds = [draw_feeds(mask, 1, 5) for mask in (np.ones((2, 6), np.int64), cut(6, slice(0, 2), ALL))]
    expected = [network.infer(own) for own in feeds]
    blob = BytesIO()
    network.export_network(blob)
    imported = core.import_network(BytesIO(blob.getvalue()), "CPU", {"CPU_KERNELS": "JIT"})
    for own, outputs in zip(feeds, expected, strict=True):
        require_close(imported.infer(own), outputs)


@pytest.mark.parametrize(("length", "steps", "past"), [(6, 1, 5), (6, 1, 20), (6, 6, 0), (6, 2, 4)])
def test_fixed_sizes_equal_the_toolkit(core: Core, length: int, steps: int, past: int) -> None:
    model = make_decoder()
    sizes = {"batch": 2, "steps": steps, "past": past, "total": length}
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = (
                    max(past, length) if value.name.startswith("present") and dim.dim_param == "total" else sizes[dim.dim_param]
                )
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    for mask in (np.ones((2, length), np.int64), cut(length, slice(0, 1), ALL)):
        feeds = draw_feeds(mask, steps, past)
        require_close(network.infer(feeds), toolkit.infer(feeds))


# Single operators.


def compute(
    core: Core, op_type: str, inputs: Mapping[str, Array], constants: Mapping[str, Array], outputs: list[str], **attributes: Any
) -> tuple[dict[str, Array], int]:
    """Returns the outputs of a single node with machine code, and the number of its steps that the toolkit runs."""
    node = helper.make_node(op_type, [*inputs, *constants], outputs, domain="com.microsoft", **attributes)
    specs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "single", specs, results, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    network = core.load_network(helper.make_model(graph, opset_imports=opsets, ir_version=8), "CPU", {"CPU_KERNELS": "JIT"})
    return network.infer(dict(inputs)), int(network.get_metric("CPU_FOREIGN_STEPS"))


WIDTHS = (1, 7, 8, 9, 16, 17, 64)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_simplified", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_skip_normalizations_equal_float64(core: Core, width: int, is_simplified: bool, has_bias: bool) -> None:
    rng = np.random.default_rng(width)
    x, skip = (rng.standard_normal((2, 3, width)).astype(np.float32) for _ in range(2))
    gamma, beta, bias = (rng.standard_normal(width).astype(np.float32) for _ in range(3))
    constants = {"gamma": gamma, **({} if is_simplified else {"beta": beta}), **({"bias": bias} if has_bias else {})}
    op_type = "SkipSimplifiedLayerNormalization" if is_simplified else "SkipLayerNormalization"
    outputs, foreign = compute(core, op_type, {"x": x, "skip": skip}, constants, ["y", "", "", "total"], epsilon=1e-5)
    total = x.astype(np.float64) + skip + (bias if has_bias else 0)
    centred = total if is_simplified else total - total.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + (0 if is_simplified else beta)
    assert foreign == 0
    require_close(outputs, {"total": total})
    np.testing.assert_allclose(outputs["y"], y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu", "QuickGelu"])
@pytest.mark.parametrize("width", WIDTHS)
def test_activations_equal_float64(core: Core, op_type: str, width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((3, width)).astype(np.float32) * 3
    x[0, 0], x[1, 0], x[2, 0] = np.nan, np.inf, -100.0
    bias = {} if op_type == "QuickGelu" else {"bias": rng.standard_normal(width).astype(np.float32)}
    outputs, foreign = compute(core, op_type, {"x": x}, bias, ["y"])
    z = x.astype(np.float64) + bias.get("bias", 0)
    if op_type == "BiasGelu":
        expected = z * (1 + np.vectorize(erf)(z / sqrt(2))) / 2
    elif op_type == "FastGelu":
        expected = z * (1 + np.tanh(sqrt(2 / np.pi) * (z + 0.044715 * z**3))) / 2
    else:
        expected = z / (1 + np.exp(-1.702 * z))
    assert foreign == 0
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "turned"), [(2, 16), (3, 8)])
@pytest.mark.parametrize("is_split", [True, False])
def test_rotary_embedding_equals_float64(core: Core, heads: int, turned: int, is_split: bool) -> None:
    rng, size = np.random.default_rng(turned), 16
    x = rng.standard_normal((2, heads, 5, size)).astype(np.float32)
    positions, angles = rng.integers(0, 20, (2, 5)), rng.uniform(-3, 3, (20, turned // 2))
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    fed = x if is_split else x.transpose(0, 2, 1, 3).reshape(2, 5, -1)
    attributes = {"num_heads": heads, "rotary_embedding_dim": turned} if turned < size else {}
    outputs, foreign = compute(
        core, "RotaryEmbedding", {"x": fed, "positions": positions}, {"cos": cos, "sin": sin}, ["y"], **attributes
    )
    first, second, rest = np.split(x.astype(np.float64), [turned // 2, turned], axis=-1)
    c, s = (table[positions][:, None] for table in (cos, sin))
    expected = np.concatenate([first * c - second * s, second * c + first * s, rest], axis=-1)
    require_close(outputs, {"y": expected if is_split else expected.transpose(0, 2, 1, 3).reshape(2, 5, -1)})
    assert foreign == 0


@pytest.mark.parametrize("past", [None, 4])
@pytest.mark.parametrize("has_bias", [True, False])
def test_multi_head_attention_equals_float64(core: Core, past: int | None, has_bias: bool) -> None:
    rng, heads, size, steps = np.random.default_rng(3), 2, 9, 5
    q, k, v = (rng.standard_normal((2, steps, heads * size)).astype(np.float32) for _ in range(3))
    bias = rng.standard_normal(3 * heads * size).astype(np.float32) * has_bias
    mask = rng.standard_normal((1, heads, steps, steps + (past or 0))).astype(np.float32)
    inputs = {"q": q, "k": k, "v": v, "bias": bias, "": np.zeros(0, np.int32), "mask": mask}
    caches = {} if past is None else {n: rng.standard_normal((2, heads, past, size)).astype(np.float32) for n in ("pk", "pv")}
    node_inputs = {name: x for name, x in inputs.items() if name and (name != "bias" or has_bias)} | caches
    order = ["q", "k", "v", "bias" if has_bias else "", "", "mask", *caches]
    node = helper.make_node(
        "MultiHeadAttention", order, ["y", *(("key", "value") if caches else ())], domain="com.microsoft", num_heads=heads
    )
    specs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in node_inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "single", specs, results), opset_imports=opsets, ir_version=8)
    network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    parts = [x.astype(np.float64) + own for x, own in zip((q, k, v), np.split(bias, 3), strict=True)]
    wide_q, *joined = (x.reshape(2, steps, heads, size).transpose(0, 2, 1, 3) for x in parts)
    if caches:
        joined = [np.concatenate([cache, x], axis=2) for cache, x in zip(caches.values(), joined, strict=True)]
    weights = np.exp(wide_q @ joined[0].swapaxes(2, 3) / sqrt(size) + mask)
    y = (weights / weights.sum(-1, keepdims=True)) @ joined[1]
    expected = {
        "y": y.transpose(0, 2, 1, 3).reshape(2, steps, -1),
        **(dict(zip(("key", "value"), joined, strict=True)) if caches else {}),
    }
    require_close(network.infer(node_inputs), expected)
    assert network.get_metric("CPU_FOREIGN_STEPS") == 0
