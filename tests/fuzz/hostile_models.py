"""Models of at most 1 MB that ask for all memory or all time: `list_models` returns name -> maker.

Each is a valid file, most are valid networks. Models with external weights name a file that the runner creates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
LOCAL = "local"
OPSETS = (("", 21), (LOCAL, 1), ("ai.onnx.ml", 3))
Maker = Callable[[], bytes]


MAKERS: list[Maker] = []


def hostile(maker: Maker) -> Maker:
    MAKERS.append(maker)
    return maker


def make_model(
    nodes: list[onnx.NodeProto],
    output: str,
    inputs: list[onnx.ValueInfoProto] | None = None,
    *,
    constants: dict[str, Any] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """Returns a model with a single output; by default its only input is `x`, a single float."""
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    listed = [make_input("x", FLOAT, 1)] if inputs is None else inputs
    graph = helper.make_graph(nodes, "hostile", listed, [helper.make_empty_tensor_value_info(output)], initializers)
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=10)


def make_input(name: str, element: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


def make_chain(op_type: str, length: int, reads: int = 1, **attributes: Any) -> list[onnx.NodeProto]:
    """Returns a chain of nodes from the value v0 to v<length>; each node reads its predecessor `reads` times."""
    return [helper.make_node(op_type, [f"v{i}"] * reads, [f"v{i + 1}"], **attributes) for i in range(length)]


def make_function(name: str, nodes: list[onnx.NodeProto], source: str, result: str) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS]
    return helper.make_function(LOCAL, name, [source], [result], nodes, opsets)


def add_to_input(nodes: list[onnx.NodeProto], value: str, constants: dict[str, Any]) -> bytes:
    """Returns a model that adds a constant-folded value to its input."""
    return pack(make_model([*nodes, helper.make_node("Add", ["x", value], ["y"])], "y", constants=constants))


def pack(model: onnx.ModelProto) -> bytes:
    content: bytes = model.SerializeToString()
    return content


def make_sparse(name: str, size: int) -> onnx.SparseTensorProto:
    values = helper.make_tensor(name, FLOAT, [1], [1.0])
    return helper.make_sparse_tensor(values, helper.make_tensor(f"{name} index", INT64, [1], [5]), [size])


def make_loop(trips: int, body: list[onnx.NodeProto], start: str, result: str, *, scanned: str = "") -> onnx.NodeProto:
    """Returns a Loop with a body that computes the value t from the value s."""
    outputs = ["d", "t", *([scanned] if scanned else [])]
    inputs = [make_input("i", INT64), make_input("c", BOOL), helper.make_tensor_value_info("s", FLOAT, None)]
    nodes = [helper.make_node("Identity", ["c"], ["d"]), *body]
    graph = helper.make_graph(nodes, "b", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs])
    return helper.make_node("Loop", ["trips", "", start], [result, *([f"{result} all"] if scanned else [])], body=graph)


Constants = dict[str, Any]


def grow(op_type: str, constants: Constants, **attributes: Any) -> bytes:
    """Returns a model that adds the output of a node over constants to its input."""
    return add_to_input([helper.make_node(op_type, list(constants), ["e"], **attributes)], "e", constants)


def fill(op_type: str, shapes: list[list[int]], **attributes: Any) -> bytes:
    """Returns a model of a single node over constants from ConstantOfShape."""
    nodes = [helper.make_node("ConstantOfShape", [f"s{index}"], [f"c{index}"]) for index in range(len(shapes))]
    nodes.append(helper.make_node(op_type, [f"c{index}" for index in range(len(shapes))], ["e"], **attributes))
    nodes.append(helper.make_node("ReduceMax", ["e"], ["m"], keepdims=0))
    return add_to_input(nodes, "m", {f"s{index}": np.array(shape) for index, shape in enumerate(shapes)})


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


CONSTANT_MAKERS: dict[str, Maker] = {
    "expand": lambda: grow("Expand", {"c": ones(1), "s": np.array([1 << 40])}),
    "tile": lambda: grow("Tile", {"c": ones(8), "r": np.array([1 << 31])}),
    "pad": lambda: grow("Pad", {"c": ones(8), "p": np.array([1 << 33, 1 << 33])}),
    "fill": lambda: grow("ConstantOfShape", {"s": np.array([1 << 20, 1 << 20])}),
    "range": lambda: grow("Range", {"a": np.float32(0), "b": np.float32(1e12), "c": np.float32(1)}),
    "outer_product": lambda: grow("MatMul", {"a": ones(100_000, 1), "b": ones(1, 100_000)}),
    "broadcast": lambda: grow("Add", {"a": ones(100_000, 1), "b": ones(100_000)}),
    "one_hot": lambda: grow("OneHot", {"i": np.arange(9), "d": np.array([1 << 36]), "v": np.array([0, 1], np.float32)}),
    "upsample": lambda: grow("Resize", {"c": ones(1, 1, 9, 9), "r": ones(0), "s": np.float32([1, 1, 1e5, 1e5])}),
    "gather": lambda: grow("Gather", {"a": ones(1, 90_000), "i": np.zeros(70_000, np.int64)}),
    "fold_back": lambda: grow("Col2Im", {"c": ones(1, 1, 1), "s": np.array([1 << 20, 1 << 20]), "b": np.array([1, 1])}),
    "transposed_convolution": lambda: grow("ConvTranspose", {"c": ones(1, 1, 9, 9), "w": ones(1, 1, 1, 1)}, strides=[100_000] * 2),
    "fourier": lambda: grow("DFT", {"c": ones(1, 8, 1), "n": np.array(1 << 38), "a": np.array(1)}),
    "maximum_of_a_wide_window": lambda: grow("MaxPool", {"c": ones(1, 1, 9, 9)}, kernel_shape=[1 << 20] * 2, pads=[1 << 19] * 4),
    "wide_convolution": lambda: fill("Conv", [[1, 1, 2000, 2000], [1, 1, 1001, 1001]], pads=[500] * 4),
    "sum_of_three_axes": lambda: fill("Einsum", [[20_000], [20_000], [20_000]], equation="i,j,k->"),
    "product": lambda: fill("MatMul", [[2000, 4000], [4000, 2000]]),
}


@hostile
def functions_within_branches() -> bytes:
    functions = [make_function("f0", make_chain("Neg", 4), "v0", "v4")]
    for level in range(1, 12):
        call = helper.make_node(f"f{level - 1}", ["v0"], ["w"], domain=LOCAL)
        body = helper.make_graph([call], "b", [], [helper.make_empty_tensor_value_info("w")])
        nodes = [
            helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", BOOL, [], [True])),
            helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=body),
        ]
        functions.append(make_function(f"f{level}", nodes, "v0", "r"))
    chain = make_chain("f11", 100, domain=LOCAL)
    return pack(make_model(chain, "v100", [make_input("v0", FLOAT, 1)], functions=functions))


@hostile
def function_that_calls_itself() -> bytes:
    functions = [make_function("f", make_chain("f", 1, domain=LOCAL), "v0", "v1")]
    return pack(make_model(make_chain("f", 1, domain=LOCAL), "v1", [make_input("v0", FLOAT, 1)], functions=functions))


@hostile
def function_with_a_sparse_constant() -> bytes:
    sparse = make_sparse("c", 1 << 24)
    nodes = [helper.make_node("Constant", [], ["c"], sparse_value=sparse), helper.make_node("Add", ["a", "c"], ["b"])]
    functions = [make_function("f", nodes, "a", "b")]
    return pack(make_model(make_chain("f", 1000, domain=LOCAL), "v1000", [make_input("v0", FLOAT, 1)], functions=functions))


@hostile
def loop_that_doubles_a_constant() -> bytes:
    loop = make_loop(40, [helper.make_node("Concat", ["s", "s"], ["t"], axis=0)], "k", "r")
    return add_to_input([loop], "r", {"trips": np.array(40), "k": np.ones(100, np.float32)})


@hostile
def loop_that_stacks_constants() -> bytes:
    loop = make_loop(1 << 40, [helper.make_node("Neg", ["s"], ["t"]), helper.make_node("Abs", ["s"], ["u"])], "k", "r", scanned="u")
    return add_to_input(
        [loop, helper.make_node("ReduceSum", ["r all"], ["q"], keepdims=0)],
        "q",
        {"trips": np.array(1 << 40), "k": np.ones(100, np.float32)},
    )


@hostile
def scan_over_a_long_constant() -> bytes:
    inputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("s", "e")]
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Expand", ["t", "n"], ["u"])]
    body = helper.make_graph(nodes, "b", inputs, [helper.make_empty_tensor_value_info(name) for name in ("t", "u")])
    scan = helper.make_node("Scan", ["k", "l"], ["r", "q"], body=body, num_scan_inputs=1)
    constants = {"k": np.ones(1, np.float32), "l": np.ones((100_000, 1), np.float32), "n": np.array([100_000])}
    return add_to_input([scan, helper.make_node("ReduceMax", ["q"], ["m"], keepdims=0)], "m", constants)


def nest(depth: int, width: int) -> bytes:
    """Returns a model with branches within branches; each level has `width` of them."""
    nodes = [helper.make_node("Neg", ["x"], [f"a{depth}"])]
    outputs = [helper.make_empty_tensor_value_info(f"a{depth}")]
    graph = helper.make_graph(nodes, "b", [], outputs)
    for level in range(depth - 1, -1, -1):
        nodes = [helper.make_node("If", ["c"], [f"w{level} {i}"], then_branch=graph, else_branch=graph) for i in range(width)]
        nodes.append(helper.make_node("Sum", [f"w{level} {i}" for i in range(width)], [f"a{level}"]))
        graph = helper.make_graph(nodes, "b", [], [helper.make_empty_tensor_value_info(f"a{level}")])
    return pack(make_model(list(graph.node), "a0", [make_input("x", FLOAT, 1), make_input("c", BOOL)]))


@hostile
def branches_six_deep() -> bytes:
    return nest(6, 2)


@hostile
def branches_thirteen_deep() -> bytes:
    return nest(13, 1)


@hostile
def concat_of_a_shape_34_times() -> bytes:
    nodes = [helper.make_node("Shape", ["x"], ["v0"]), *make_chain("Concat", 34, 2, axis=0)]
    return pack(make_model(nodes, "v34", [make_input("x", FLOAT, "N")]))


@hostile
def concat_of_an_input_34_times() -> bytes:
    return pack(make_model(make_chain("Concat", 34, 2, axis=0), "v34", [make_input("v0", FLOAT, 1000)]))


@hostile
def concat_of_texts_34_times() -> bytes:
    nodes = [*make_chain("Concat", 34, 2, axis=0), helper.make_node("StringNormalizer", ["v34"], ["y"])]
    return pack(make_model(nodes, "y", [], constants={"v0": np.array(["text"] * 100, object)}))


@hostile
def gather_by_itself_30_times() -> bytes:
    return pack(make_model(make_chain("Gather", 30, 2), "v30", [make_input("v0", INT64, 2, 2)]))


def add_sparse(count: int, size: int) -> bytes:
    nodes = [helper.make_node("Add", [f"v{i}", f"c{i}"], [f"v{i + 1}"]) for i in range(count)]
    model = make_model(nodes, f"v{count}", [make_input("v0", FLOAT, 1)])
    model.graph.sparse_initializer.extend(make_sparse(f"c{i}", size) for i in range(count))
    return pack(model)


@hostile
def sparse_constant_of_a_gigabyte() -> bytes:
    return add_sparse(1, 1 << 28)


@hostile
def sums_of_equal_halves() -> bytes:
    return pack(make_model(make_chain("Add", 10_000, 2), "v10000", [make_input("v0", FLOAT, "N", "M")]))


@hostile
def sizes_that_multiply() -> bytes:
    nodes = [
        helper.make_node("Shape", ["x"], ["v0"]),
        *make_chain("Mul", 8_000, 2),
        helper.make_node("Expand", ["x", "v8000"], ["y"]),
    ]
    return pack(make_model(nodes, "y", [make_input("x", FLOAT, "N", "M")]))


@hostile
def node_with_100000_inputs() -> bytes:
    return pack(make_model([helper.make_node("Concat", ["x"] * 100_000, ["y"], axis=0)], "y"))


@hostile
def einsum_of_50_letters() -> bytes:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
    nodes = [helper.make_node("Einsum", ["x", "x"], ["y"], equation=f"{letters},{letters[::-1]}->{letters}")]
    return pack(make_model(nodes, "y", [make_input("x", FLOAT, *[1] * 50)]))


@hostile
def convolution_with_wide_pads() -> bytes:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[30_000] * 4)
    return pack(make_model([node], "y", [make_input("x", FLOAT, 1, 1, 8, 8)], constants={"w": np.ones((1, 1, 3, 3), np.float32)}))


@hostile
def expressions_that_backtrack() -> bytes:
    node = helper.make_node("RegexFullMatch", ["s"], ["y"], pattern="(a*)*(a*)*(a*)*(a|a)*b")
    return pack(make_model([node], "y", [], constants={"s": np.array(["a" * 10_000] * 20, object)}))


@hostile
def constants_of_no_elements() -> bytes:
    model = make_model(make_chain("Neg", 1), "v1", [make_input("v0", FLOAT, 1)])
    for index in range(15_000):
        model.graph.initializer.add(name=f"c{index}", data_type=FLOAT, dims=[0, 1 << 40])
    return pack(model)


@hostile
def constant_that_is_not_there() -> bytes:
    model = make_model([helper.make_node("Add", ["x", "c"], ["y"])], "y")
    model.graph.initializer.add(name="c", data_type=FLOAT, dims=[1 << 40], raw_data=b"1234")
    return pack(model)


@hostile
def sequences_within_sequences() -> bytes:
    model = make_model(make_chain("Identity", 1), "v1", [make_input("v0", FLOAT, 1)])
    deep = onnx.TypeProto()
    deep.tensor_type.elem_type = FLOAT
    for _ in range(40):
        outer = onnx.TypeProto()
        outer.sequence_type.elem_type.CopyFrom(deep)
        deep = outer
    model.graph.input[0].type.CopyFrom(deep)
    return pack(model)


@hostile
def tree_that_leads_to_itself() -> bytes:
    attributes = {
        "nodes_treeids": [0, 0],
        "nodes_nodeids": [0, 1],
        "nodes_featureids": [0, 0],
        "nodes_values": [0.5, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF"],
        "nodes_truenodeids": [0, 0],
        "nodes_falsenodeids": [0, 0],
        "nodes_missing_value_tracks_true": [0, 0],
        "target_ids": [0],
        "target_nodeids": [1],
        "target_treeids": [0],
        "target_weights": [1.0],
        "n_targets": 1,
    }
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    return pack(make_model([node], "y", [make_input("x", FLOAT, 1, 1)]))


@hostile
def words_with_absurd_indices() -> bytes:
    attributes = {
        "min_gram_length": 1,
        "max_gram_length": 1,
        "max_skip_count": 0,
        "mode": "TF",
        "ngram_counts": [0],
        "pool_int64s": [1],
    }
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], ngram_indexes=[(1 << 40)], **attributes)
    return pack(make_model([node], "y", [make_input("x", INT64, 4)]))


@hostile
def weights_that_are_a_hole_of_ten_gigabytes() -> bytes:
    model = make_model([helper.make_node("Mul", ["c", "c"], ["m"]), helper.make_node("Add", ["x", "m"], ["y"])], "y")
    tensor = model.graph.initializer.add(name="c", data_type=FLOAT, dims=[2_500_000_000], data_location=1)
    tensor.external_data.add(key="location", value="hole.bin")
    return pack(model)


@hostile
def name_of_900000_letters() -> bytes:
    node = helper.make_node("Neg", ["x"], ["y"], name="n" * 900_000)
    return pack(make_model([node], "y"))


@hostile
def opset_of_20000_domains() -> bytes:
    model = make_model(make_chain("Neg", 1), "v1", [make_input("v0", FLOAT, 1)])
    for index in range(20_000):
        model.opset_import.add(domain=f"domain{index}", version=1)
    return pack(model)


def list_models() -> dict[str, Maker]:
    """Returns the maker of each model."""
    constants = {f"constant_{name}": maker for name, maker in CONSTANT_MAKERS.items()}
    return {maker.__name__: maker for maker in MAKERS} | constants
