"""Hostile models of functions, loops and branches: what is within one another or runs for ever."""

from __future__ import annotations

import numpy as np
from hostile_builders import (
    BOOL,
    FLOAT,
    LOCAL,
    add_to_input,
    hostile,
    make_chain,
    make_function,
    make_input,
    make_loop,
    make_model,
    make_sparse,
    pack,
)
from onnx import helper


@hostile
def functions_of_ten_calls_nine_deep() -> bytes:
    functions = [make_function("f0", make_chain("Neg", 10), "v0", "v10")]
    functions += [make_function(f"f{i}", make_chain(f"f{i - 1}", 10, domain=LOCAL), "v0", "v10") for i in range(1, 9)]
    return pack(make_model([helper.make_node("f8", ["x"], ["y"], domain=LOCAL)], "y", functions=functions))


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
def loop_of_constants_without_end() -> bytes:
    loop = make_loop(1 << 62, [helper.make_node("Neg", ["s"], ["t"])], "k", "r")
    return add_to_input([loop], "r", {"trips": np.array(1 << 62), "k": np.ones(1, np.float32)})


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
