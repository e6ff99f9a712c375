"""Reads and writes at indices, pads and moves of elements are steps, and give the results of NumPy or the reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper
import pytest
from hetero_cpu.plan.plan import Foreign
from onnx.reference import ReferenceEvaluator

from hetero_core import Core
from hetero_core.errors import InferenceError

from ..trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def draw_indices(limit: int, *shape: int) -> Any:
    return np.random.default_rng([limit, *shape]).integers(-limit, limit, shape)


def make_model(operator: str, feeds: dict[str, Any], constants: dict[str, Any], *, is_open: bool = False, **attributes: Any) -> Any:
    """Returns the model of a node with these inputs in order, computed or constant."""
    everything = {**feeds, **constants}
    names = sorted(everything, key=lambda name: int(name[1:]))
    graph = oh.make_graph(
        [oh.make_node(operator, names, ["y"], **attributes)],
        "g",
        [
            oh.make_tensor_value_info(
                name,
                oh.np_dtype_to_tensor_dtype(array.dtype),
                [f"{name}_{axis}" for axis in range(array.ndim)] if is_open else array.shape,
            )
            for name, array in feeds.items()
        ],
        [oh.make_tensor_value_info("y", oh.np_dtype_to_tensor_dtype(everything["x0"].dtype), None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


def run(core: Core, model: Any, feeds: dict[str, Any]) -> Any:
    """Returns the answer of a network whose only node is a step of machine code."""
    loaded: Any = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 2})
    answer = loaded.infer(feeds)["y"]
    (plan,) = loaded.executable._plans
    assert not [step.node.name for step in plan.plan.steps if isinstance(step.work, Foreign)]
    return answer


# Operator, inputs, attributes.
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"
)  # fmt: skip
CASES: tuple[tuple[str, list[Any], dict[str, Any]], ...] = (
    ("GatherElements", [draw(2, 5, 3), draw_indices(5, 2, 7, 3)], {"axis": 1}),
    ("GatherElements", [draw(4, 6), draw_indices(6, 4, 2)], {"axis": 1}),
    ("GatherElements", [draw(4, 6).astype(np.float64), draw_indices(4, 9, 6)], {}),
    ("GatherElements", [draw_indices(90, 4, 6), draw_indices(6, 4, 2)], {"axis": 1}),
    ("GatherND", [draw(3, 4, 5), draw_indices(3, 6, 1)], {}),
    ("GatherND", [draw(3, 4, 40), draw_indices(3, 2, 3, 2)], {}),
    ("GatherND", [draw(3, 4, 5), draw_indices(3, 3, 2, 1)], {"batch_dims": 1}),
    ("GatherND", [draw_indices(9, 3, 4), draw_indices(3, 7, 2)], {}),
    ("ScatterElements", [draw(4, 6), draw_indices(6, 4, 2), draw(4, 2)], {"axis": 1}),
    ("ScatterElements", [draw(4, 6), draw_indices(4, 9, 6), draw(9, 6)], {"reduction": "add"}),
    ("ScatterND", [draw(5, 3), draw_indices(5, 9, 1), draw(9, 3)], {"reduction": "add"}),
    ("ScatterND", [draw(5, 40), draw_indices(5, 9, 1), draw(9, 40)], {"reduction": "add"}),
    ("ScatterND", [draw(5, 40), np.array([[4], [0], [-3]]), draw(3, 40)], {}),
    ("ScatterND", [draw(5, 4, 3), np.array([[[4, 1]], [[0, -1]]]), draw(2, 1, 3)], {}),
    ("Pad", [draw(2, 3, 4), np.array([0, 1, 2, 0, 0, 3])], {}),
    ("Pad", [draw(2, 3, 4), np.array([1, 0, 2, 0, 2, 1]), np.array(2.5, np.float32)], {}),
    ("Pad", [draw(2, 3, 4), np.array([2, 1]), np.array(2.5, np.float32), np.array([-1])], {}),
    ("Expand", [draw_indices(9, 3, 1), np.array([2, 3, 4])], {}),
    ("Expand", [draw(3, 1) > 0, np.array([3, 5])], {}),
    ("Transpose", [draw_indices(9, 3, 4, 5)], {"perm": (2, 0, 1)}),
    ("Transpose", [draw(3, 4, 5)], {"perm": (2, 1, 0)}),
    *(
        (operator, [draw(3, 5, 2, 37, seed=seed), np.array(axes)], {"keepdims": keep})
        for seed, operator in enumerate(REDUCTIONS)
        for axes, keep in (([1], 0), ([0, 1], 1), ([1, -2], 0), ([-1], 1))
    ),
)  # fmt: skip


def is_constant(operator: str, position: int, *, is_bound: bool) -> bool:
    return position > 0 and (operator in ("Expand", "Pad") or operator.startswith("Reduce") or (is_bound and position == 1))


@pytest.mark.parametrize("is_bound", [False, True], ids=["computed", "constant"])
@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_step_gives_the_result_of_the_reference(
    core: Core, operator: str, inputs: list[Any], attributes: dict[str, Any], is_bound: bool
) -> None:
    named = {f"x{position}": array for position, array in enumerate(inputs)}
    constants = {
        name: array for position, (name, array) in enumerate(named.items()) if is_constant(operator, position, is_bound=is_bound)
    }
    feeds = {name: array for name, array in named.items() if name not in constants}
    model = make_model(operator, feeds, constants, **attributes)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    answer = run(core, model, feeds)
    assert answer.shape == expected.shape
    assert answer.dtype == expected.dtype
    np.testing.assert_allclose(answer, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_open_sizes_give_the_result_of_the_reference(
    core: Core, operator: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    """The second run has other sizes along the first axis of the inputs that share it."""
    named = {f"x{position}": array for position, array in enumerate(inputs)}
    constants = {
        name: array for position, (name, array) in enumerate(named.items()) if is_constant(operator, position, is_bound=False)
    }
    feeds = {name: array for name, array in named.items() if name not in constants}
    model = make_model(operator, feeds, constants, is_open=True, **attributes)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    grown = {name: np.concatenate([array, array]) for name, array in feeds.items()}
    for arrays in (feeds, grown if operator != "Expand" else feeds, feeds):
        (expected,) = ReferenceEvaluator(model).run(None, arrays)
        np.testing.assert_allclose(loaded.infer(arrays)["y"], expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("index", [3, -4])
@pytest.mark.parametrize(
    ("operator", "rest"), [("GatherElements", []), ("GatherND", []), ("ScatterElements", [draw(1, 1)]), ("ScatterND", [draw(1)])]
)
def test_index_out_of_range_raises(core: Core, operator: str, rest: list[Any], index: int) -> None:
    indices = [[index]] if operator.endswith("Elements") else [[index, 0]]
    arrays = [draw(3, 1), np.array(indices), *rest]
    feeds = {f"x{position}": array for position, array in enumerate(arrays)}
    loaded = core.load_network(make_model(operator, feeds, {}), "CPU", {"CPU_KERNELS": "JIT"})
    with pytest.raises(Exception, match=f"index {index} is out of bounds for axis 0 with size 3"):
        loaded.infer(feeds)


@pytest.mark.parametrize(("operator", "attributes"), [("Gather", {"axis": 1}), ("GatherElements", {"axis": 1}), ("GatherND", {})])
def test_index_out_of_range_names_its_axis(core: Core, operator: str, attributes: dict[str, int]) -> None:
    feeds = {"x0": draw(1, 3), "x1": np.array([[0, 7]])}
    loaded = core.load_network(make_model(operator, feeds, {}, **attributes), "CPU", {"CPU_KERNELS": "JIT"})
    with pytest.raises(InferenceError, match=r"index 7 is out of bounds for axis 1 with size 3"):
        loaded.infer(feeds)


def test_negative_pads_take_elements_away(core: Core) -> None:
    x = draw(3, 4)
    answer = run(core, make_model("Pad", {"x0": x}, {"x1": np.array([1, -1, 0, -2])}), {"x0": x})
    assert np.array_equal(answer, np.concatenate([np.zeros((1, 1), np.float32), x[:, 1:2]]))


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
@pytest.mark.parametrize(("begin", "end"), [(4, -5), (-5, 4), (3, -2), (-2, 3), (-2, -1)])
def test_a_cut_beyond_the_elements_goes_on_in_the_other_border(core: Core, begin: int, end: int, kernels: str) -> None:
    """Element i of the result is element i - begin of the input, or the filler if the input has no such element."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (y)
        <int64[2] pads = {{{begin}, {end}}}, float filler = {{9}}> {{ [border] y = Pad (x, pads, filler) }}"""
    loaded = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": kernels})
    for size in (9, 3, 1, 2, 4, 6):
        x = np.arange(size, dtype=np.float32)
        if size + begin + end < 0:
            with pytest.raises(Exception, match=r"take away more than there is of a tensor of shape.*'border'"):
                loaded.infer({"x": x})
            continue
        places = range(-begin, size + end)
        assert loaded.infer({"x": x})["y"].tolist() == [place if 0 <= place < size else 9 for place in places]


def test_updates_and_operands_may_lie_apart(core: Core) -> None:
    """The rows that are written are a view with gaps, and so are operands of a sum."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3,4] x, float[3,8] u) => (float[3,4] y, float[3,4] z) {
        every = Slice (u, begin, end, axis, step) y = ScatterND (x, rows, every) z = Add (x, every)
    }"""
    model = onnx.parser.parse_model(text)
    constants = {"begin": [0], "end": [8], "axis": [1], "step": [2], "rows": [[2], [0], [1]]}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
    x, u = draw(3, 4), draw(3, 8)
    loaded: Any = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    answers = loaded.infer({"x": x, "u": u})
    (plan,) = loaded.executable._plans
    assert not [step.node.name for step in plan.plan.steps if isinstance(step.work, Foreign)]
    assert np.array_equal(answers["y"], u[[1, 2, 0], ::2])
    assert np.array_equal(answers["z"], x + u[:, ::2])


TABLE, ROWS = np.arange(40_000.0, dtype=np.float32).reshape(2_500, 16), np.array([7, -1, 2_499])


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    ("operator", "indices", "expected"),
    [
        ("Gather", ROWS, TABLE[ROWS]),
        ("GatherND", ROWS[:, None], TABLE[ROWS]),
        ("GatherElements", ROWS[:, None].repeat(16, 1), TABLE[ROWS]),
    ],
)
def test_large_table_is_read_where_the_caller_has_it(
    core: Core, operator: str, indices: Any, expected: Any, *, is_open: bool
) -> None:
    feeds = {"x0": TABLE, "x1": indices}
    model = make_model(operator, feeds, {}, is_open=is_open)
    loaded: Any = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    for _ in range(2):
        np.testing.assert_array_equal(loaded.infer(feeds)["y"], expected)
    (plan,) = loaded.executable._plans
    assert plan.plan.external.inputs == ("x0",)
    with pytest.raises(InferenceError, match=r"index 2500 is out of bounds for axis 0 with size 2500"):
        loaded.infer({**feeds, "x1": np.full_like(indices, 2_500)})


@pytest.mark.parametrize("shape", [(2_048, 33), (3, 300, 64)])
def test_sums_over_columns_are_made_row_by_row(core: Core, shape: tuple[int, ...]) -> None:
    """Another order would be as right; but models that subtract nearly equal sums then differ from what other runtimes give."""
    x, axis = draw(*shape), len(shape) - 2
    model = make_model("ReduceSum", {"x0": x}, {"x1": np.array([axis])}, keepdims=0)
    expected = np.cumsum(x, axis, dtype=np.float32).take(-1, axis)
    np.testing.assert_array_equal(run(core, model, {"x0": x}), expected)
