"""Plans: shared memory stays correct, the number of plans, and their metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_tests.larger_models import bert_model, gpt2_step_model, mobilenet_v2_model, u_net_model, vit_tiny_model

from hetero_core import Core, Extension
from hetero_core.errors import InferenceError, MemoryLimitError
from hetero_core.testing.compare import assert_same
from hetero_core.testing.models import dynamic_batch_model, light_inputs, light_model
from hetero_core.testing.reference_session import open_reference_session

RELATIVE = 1e-4


@pytest.fixture
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


@pytest.fixture
def native_core(kernels: str, core: Core) -> Core:
    """A Core with plans, which only machine code makes."""
    if kernels == "NUMPY":
        pytest.skip("the toolkit has no plans")
    return core


def parse(text: str, **constants: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def run_engine(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """The oracle: ONNX Runtime with its optimisations off."""
    return list(open_reference_session(model.SerializeToString()).run(None, inputs))


def check(core: Core, model: onnx.ModelProto, *, foreign: int = 0) -> None:
    inputs = light_inputs(model)
    loaded = core.load_network(model, "CPU")
    request = loaded.create_infer_request()
    expected_values = run_engine(model, inputs)
    for _ in range(2):
        for value, expected in zip(request.infer(inputs).values(), expected_values, strict=True):
            assert_same(value, expected, rtol=RELATIVE)
    assert loaded.get_metric("CPU_FOREIGN_STEPS") <= foreign


BRANCHES = """g (float[2, 12, 9, 7] x) => (float[2, 48, 9, 7] y, float[2, 12, 9, 7] kept) {
    a = Conv <pads = [1, 1, 1, 1], group = 12> (x, deep)
    b = Conv (x, point)
    r = Relu (b)
    c = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)
    left = Concat <axis = 1> (a, r)
    kept = Sigmoid (c)
    s = Add (c, r)
    y = Concat <axis = 1> (left, c, s)
}"""


def test_branches_computed_in_their_places_equal_the_engine(core: Core) -> None:
    check(core, parse(BRANCHES, deep=draw_array(1, 12, 1, 3, 3), point=draw_array(2, 12, 12, 1, 1)))


@pytest.mark.parametrize(
    "text",
    [
        # A value twice in a Concat; a transposed square beside the square; a view read after its source's memory was reused.
        "g (float[3, 3] x) => (float[9, 3] y) { a = Neg (x) b = Transpose (a) y = Concat <axis = 0> (a, b, a) }",
        "g (float[4, 4] x) => (float[4, 4] y) { a = Neg (x) b = Transpose (a) c = MatMul (a, b) d = Add (a, b) y = Mul (c, d) }",
        "g (float[2, 6] x) => (float[3, 4] y) { a = Neg (x) b = Reshape (a, three) c = Exp (a) d = Reshape (c, three) y = Sub (b, d) }",
        "g (float[2, 6] x) => (float[2, 6] y) { a = Exp (x) b = Relu (a) c = Neg (b) d = Abs (a) y = Add (c, d) }",
        """g (float[6] x) => (float[1] y) {
           a = Neg (x) f = Gather (a, last) g = Exp (a) h = Gather (g, last) s = Sub (f, h) y = Reshape (s, one) }""",
        "g (float[2, 3, 4] x) => (float[2, 6, 4] y) { a = LayerNormalization (x, s) b = Softmax (x) y = Concat <axis = 1> (a, b) }",
        "g (float[2, 8, 3, 3] x) => (float[2, 72] y) { a = Conv (x, w) b = Flatten (a) c = Relu (b) d = Flatten (a) y = Sub (c, d) }",
    ],
)
def test_values_that_share_memory_equal_the_engine(core: Core, text: str) -> None:
    constants = {"three": [3, 4], "last": 5, "one": [1], "s": draw_array(2, 4), "w": draw_array(1, 8, 8, 1, 1)}
    check(core, parse(text, **{name: np.asarray(value) for name, value in constants.items() if f" {name})" in text}))


@pytest.mark.parametrize(
    ("model", "foreign"),
    [
        (lambda: bert_model(layers=1, length=16), 0),
        (lambda: bert_model(batch=2, layers=1, length=5), 0),
        (lambda: gpt2_step_model(batch=2, layers=1, past=7, words=997), 1),
        (lambda: vit_tiny_model(batch=2, layers=1), 0),
        (lambda: mobilenet_v2_model(batch=2), 0),
        (lambda: u_net_model(batch=2, size=64, width=8), 0),
    ],
    ids=["bert", "bert-odd", "gpt2", "vit", "mobilenet", "u-net"],
)
def test_architecture_equals_the_engine(core: Core, model: Any, foreign: int) -> None:
    check(core, model(), foreign=foreign)


def test_outputs_stay_valid_in_later_runs(core: Core) -> None:
    model = light_model("squeezenet")
    loaded = core.load_network(model, "CPU")
    (first,) = loaded.infer(light_inputs(model, 0)).values()
    copy = first.copy()
    (second,) = loaded.infer(light_inputs(model, 1)).values()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, copy)
    first[...] = 0
    np.testing.assert_array_equal(next(iter(loaded.infer(light_inputs(model, 1)).values())), second)


def test_requests_at_the_same_time_have_memory_of_their_own(core: Core) -> None:
    model = light_model("squeezenet")
    loaded = core.load_network(model, "CPU")
    draws = [light_inputs(model, seed) for seed in range(3)]
    expected = [next(iter(loaded.infer(draw).values())) for draw in draws]
    wrong: list[int] = []

    def run(index: int) -> None:
        request = loaded.create_infer_request()
        answers = [next(iter(request.infer(draws[index]).values())).copy() for _ in range(4)]
        wrong.extend(index for value in answers if not np.array_equal(value, expected[index]))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_plans_are_made_once_per_class_and_only_the_last_remain(core: Core) -> None:
    model = dynamic_batch_model()
    loaded = core.load_network(model, "CPU")
    assert loaded.get_metric("CPU_PLANS") == (0, 16)
    for batch in (*range(1, 19), 18, 17):
        images = draw_array(batch, batch, 3, 16, 16)
        assert_same(loaded.infer({"images": images})["scores"], run_engine(model, {"images": images})[0], rtol=RELATIVE)
    plans = loaded.get_metric("CPU_PLANS")[0]
    # Plans are for classes of sizes: one for a single image, a few for larger batches; the toolkit makes no plans.
    assert 0 < plans <= 6 if core.get_config("CPU", "CPU_KERNELS") == "JIT" else plans == 0
    loaded.infer({"images": draw_array(1, 1, 3, 16, 16)})
    assert loaded.get_metric("CPU_PLANS") == (plans, 16)
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0


def test_profile_names_the_nodes_of_the_model(core: Core) -> None:
    model = parse(
        """g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) {
            [conv] a = Conv (x, w) [norm] b = BatchNormalization (a, s, s, s, v) [relu] c = Relu (b) [last] y = Softmax <axis = 1> (c) }""",
        w=draw_array(1, 8, 8, 1, 1),
        s=draw_array(2, 8),
        v=np.ones(8, np.float32),
    )
    request = core.load_network(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer(light_inputs(model))
    steps = [("conv+norm+relu", "Conv-11"), ("last", "Softmax-13")]
    nodes = [("conv+norm", "Conv-11"), ("relu", "Relu-14"), ("last", "Softmax-13")]
    is_planned = core.get_config("CPU", "CPU_KERNELS") == "JIT"
    assert [(entry.node, entry.operator) for entry in request.profile.entries] == (steps if is_planned else nodes)


def test_value_of_unexpected_shape_is_computed_without_the_plan(native_core: Core, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def shorten(x: Any) -> Any:
        calls.append(x.size)
        return x[:2].copy()

    native_core.add_extension(Extension("com.acme", "Shorten", 1, shorten, lambda types, attributes: types), "CPU")
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.acme": 1]>
           g (float[4] x) => (float[1] y) { a = com.acme.Shorten (x) b = Neg (a) y = ReduceMax (b) }"""
    )
    loaded = native_core.load_network(model, "CPU")
    with caplog.at_level(logging.INFO, "hetero_cpu.executable"):
        for _ in range(2):
            assert loaded.infer({"x": np.array([3, 2, 1, 0], np.float32)})["y"].tolist() == [-2]
    assert calls == [4, 4, 4]
    (record,) = caplog.records
    assert record.getMessage() == "network 'g': value 'a' is float32[2], not float32[4]; it runs without a plan for these shapes"


def test_memory_limit_below_the_arena_names_the_node(native_core: Core) -> None:
    model = parse("g (float[1000] x) => (float[1000] y) { a = Neg (x) b = Exp (a) y = Neg (b) }")
    x = draw_array(1, 1000)
    plain = native_core.load_network(model, "CPU")
    expected = plain.infer({"x": x})["y"]
    arena = plain.get_metric("CPU_ARENA_BYTES")
    assert 4000 <= arena < 4100
    np.testing.assert_array_equal(native_core.load_network(model, "CPU", {"MEMORY_LIMIT": arena}).infer({"x": x})["y"], expected)
    with pytest.raises(MemoryLimitError, match="node 'Neg_0'"):
        native_core.load_network(model, "CPU", {"MEMORY_LIMIT": 3999}).infer({"x": x})


def test_random_nodes_draw_anew_in_every_run(core: Core) -> None:
    model = parse("g (float[4] x) => (float[4] y) { r = RandomNormal <shape = [4]> () y = Add (x, r) }")
    loaded = core.load_network(model, "CPU")
    first, second = (loaded.infer({"x": np.zeros(4, np.float32)})["y"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_same_network_gives_the_same_numbers_every_time(core: Core) -> None:
    model = light_model("squeezenet")
    inputs = light_inputs(model)
    answers = [next(iter(core.load_network(model, "CPU").infer(inputs).values())) for _ in range(2)]
    np.testing.assert_array_equal(*answers)


def test_impossible_empty_result_fails_in_the_run_not_at_load(core: Core) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g () => (float[a,b,c] y)
    <int64[3] s = {0, 4611686018427387904, 4611686018427387904}> { y = ConstantOfShape (s) }"""
    with (
        core.load_network(onnx.parser.parse_model(text), "CPU") as loaded,
        pytest.raises(InferenceError, match="ConstantOfShape_0"),
    ):
        loaded.infer({})
