"""Models of a few kilobytes with constants that take much memory after folding, for tests of the memory of a load."""

from __future__ import annotations

import numpy as np


def build_many_constants(count: int, mebibytes: int = 1) -> tuple[bytes, float]:
    """Returns a model that adds `count` different constants, each of some MiB, to its scalar input, and its output for 1."""
    import onnx  # heavy
    from onnx import helper, numpy_helper

    nodes = [helper.make_node("Tile", ["one", "r"], ["ones"])]
    for index in range(count):
        nodes += [
            helper.make_node("Add", ["ones", f"k{index}"], [f"a{index}"]),
            helper.make_node("Concat", ["ones", f"a{index}"], [f"c{index}"], axis=0),
            helper.make_node("Add", [f"c{index}", "x"], [f"s{index}"]),
            helper.make_node("ReduceMean", [f"s{index}"], [f"m{index}"], keepdims=1),
        ]
    nodes.append(helper.make_node("Sum", ["x", *(f"m{index}" for index in range(count))], ["y"]))
    constants = {
        "one": np.ones(1, np.float32),
        "r": np.array([mebibytes << 17]),
        **{f"k{index}": np.full(1, index, np.float32) for index in range(count)},
    }
    graph = helper.make_graph(
        nodes,
        "growing",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # Half of the elements are 2, the rest 2 + index, so the mean is 2 + index / 2.
    return model.SerializeToString(), 1 + sum(2 + index / 2 for index in range(count))
