"""Tiny models that demand huge memory or time from the reader are refused, or read within the limits.

A child process with 3 GiB of address space reads each model. Without the limits of the reader, the child fails with a MemoryError,
is killed, or hangs.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper as helper
import onnx.numpy_helper
import onnx.shape_inference
import pytest

from hetero_core import Core
from hetero_core.errors import HeteroError, ReadLimitError
from hetero_core.limits import ReadLimits
from hetero_core.network.reader import read_network

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
LOCAL = "local"


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: str,
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    functions: list[onnx.FunctionProto] | None = None,
) -> bytes:
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(output)], initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(LOCAL, 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def make_function(name: str, nodes: list[onnx.NodeProto], inputs: str, output: str) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(LOCAL, 1)]
    return helper.make_function(LOCAL, name, [inputs], [output], nodes, opsets)


def make_input(name: str, element: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


def make_chain(op_type: str, length: int, *, domain: str = "", **attributes: Any) -> list[onnx.NodeProto]:
    return [helper.make_node(op_type, [f"v{i}"], [f"v{i + 1}"], domain=domain, **attributes) for i in range(length)]


def double_by_concat() -> bytes:
    nodes = [helper.make_node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(28)]
    return make_model([helper.make_node("Shape", ["x"], ["v0"]), *nodes], [make_input("x", FLOAT, "N")], "v28")


def double_ranks_by_gather() -> bytes:
    nodes = [helper.make_node("Gather", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(30)]
    return make_model(nodes, [make_input("v0", INT64, 2, 2)], "v30")


def expand_constant() -> bytes:
    nodes = [helper.make_node("Expand", ["c", "s"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", {"c": np.ones(1, np.float32), "s": np.array([1 << 40])})


def tile_constant() -> bytes:
    nodes = [helper.make_node("Tile", ["c", "r"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", {"c": np.ones(8, np.float32), "r": np.array([1 << 31])})


def pad_constant() -> bytes:
    nodes = [helper.make_node("Pad", ["c", "p"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", {"c": np.ones(8, np.float32), "p": np.array([1 << 33, 1 << 33])})


def declare_long_input() -> bytes:
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=INT64), helper.make_node("Add", ["c", "c"], ["y"])]
    return make_model(nodes, [make_input("x", FLOAT, 1 << 40)], "y")


def reduce_to_long_vector() -> bytes:
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0), helper.make_node("Mul", ["m", "m"], ["y"])]
    return make_model(nodes, [make_input("x", FLOAT, 1 << 40, 2)], "y")


def expand_by_computed_shape() -> bytes:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Mul", ["n", "k"], ["s"]),
        helper.make_node("Expand", ["x", "s"], ["e"]),
        helper.make_node("Add", ["e", "e"], ["y"]),
    ]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", {"k": np.array([1 << 40])})


def fill_a_long_shape() -> bytes:
    nodes = [
        helper.make_node("Tile", ["c", "r"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["y"]),
    ]
    return make_model(nodes, [], "y", {"c": np.ones(1, np.int64), "r": np.array([1 << 31])})


def unsqueeze_many_axes() -> bytes:
    return make_model(make_chain("Unsqueeze", 300, axes=list(range(500))), [make_input("v0", FLOAT, 1)], "v300", opset=11)


HARMLESS: dict[str, Callable[[], bytes]] = {
    each.__name__: each
    for each in (
        double_by_concat,
        double_ranks_by_gather,
        expand_constant,
        tile_constant,
        pad_constant,
        declare_long_input,
        reduce_to_long_vector,
        expand_by_computed_shape,
        fill_a_long_shape,
        unsqueeze_many_axes,
    )
}


def call_many_levels() -> bytes:
    functions = [make_function("f0", make_chain("Neg", 10), "v0", "v10")]
    functions += [make_function(f"f{i}", make_chain(f"f{i - 1}", 10, domain=LOCAL), "v0", "v10") for i in range(1, 9)]
    nodes = [helper.make_node("f8", ["x"], ["y"], domain=LOCAL)]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", functions=functions)


def call_in_each_other() -> bytes:
    functions = [make_function("f0", make_chain("Neg", 1), "v0", "v1")]
    functions += [make_function(f"f{i}", make_chain(f"f{i - 1}", 1, domain=LOCAL), "v0", "v1") for i in range(1, 3000)]
    nodes = [helper.make_node("f2999", ["x"], ["y"], domain=LOCAL)]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", functions=functions)


def repeat_a_large_constant() -> bytes:
    constant = helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.ones(50000, np.float32)))
    function = make_function("f", [constant, helper.make_node("Add", ["a", "c"], ["b"])], "a", "b")
    return make_model(make_chain("f", 15000, domain=LOCAL), [make_input("v0", FLOAT, 1)], "v15000", functions=[function])


def call_by_a_long_name() -> bytes:
    function = make_function("f", make_chain("Neg", 5000), "v0", "v5000")
    nodes = [helper.make_node("f", ["x"], ["y"], name="n" * 600_000, domain=LOCAL)]
    return make_model(nodes, [make_input("x", FLOAT, 1)], "y", functions=[function])


def name_a_size_by_a_long_name() -> bytes:
    return make_model(make_chain("Neg", 20000), [make_input("v0", FLOAT, "d" * 500_000)], "v20000")


def declare_many_sizes() -> bytes:
    return make_model(make_chain("Neg", 30000), [make_input("v0", FLOAT, *["a" * 200] * 63)], "v30000")


def keep_a_sparse_constant() -> bytes:
    values = helper.make_tensor("c", FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", INT64, [1], [5]), [1 << 28])
    model = onnx.ModelProto.FromString(make_model([helper.make_node("Add", ["x", "c"], ["y"])], [make_input("x", FLOAT, 1)], "y"))
    model.graph.sparse_initializer.append(sparse)
    content: bytes = model.SerializeToString()
    return content


# A tenth of the defaults: reading reaches them in a tenth of the time.
LOWER = ReadLimits(nodes=10_000, memory=1 << 24)
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    each.__name__: (each, limit)
    for each, limit in (
        (call_many_levels, "nodes"),
        (call_in_each_other, "depth"),
        (repeat_a_large_constant, "memory"),
        (call_by_a_long_name, "memory"),
        (name_a_size_by_a_long_name, "memory"),
        (declare_many_sizes, "memory"),
        (keep_a_sparse_constant, "memory"),
    )
}


def read_in_child(content: bytes, limits: ReadLimits | None = None) -> tuple[str, str, int, float]:
    """Reads a model in a child process. Returns (name of the error, its text, bytes of added memory, processor seconds)."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # Collecting an engine of an earlier test would wait for the engine's threads, which a forked process does not have.
        gc.freeze()
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        error: BaseException | None = None
        try:
            read_network(content, limits=limits)
        except BaseException as raised:  # noqa: BLE001  # its name is the answer
            error = raised
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        os.write(write_end, pickle.dumps((type(error).__name__, str(error), grown, time.process_time() - began)))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    assert said, f"the child ended with {os.waitstatus_to_exitcode(status)}"
    answer: tuple[str, str, int, float] = pickle.loads(said)
    return answer


@pytest.mark.parametrize("name", list(HARMLESS))
def test_types_that_could_grow_are_inferred_within_little_memory(name: str) -> None:
    content = HARMLESS[name]()
    assert len(content) < 2**20
    error, text, grown, seconds = read_in_child(content)
    assert error in ("NoneType", "InvalidNetworkError"), text
    assert grown < 2**28
    assert seconds < 20


@pytest.mark.parametrize("name", list(REFUSED))
def test_model_above_a_read_limit_is_refused_by_its_name(name: str) -> None:
    make, limit = REFUSED[name]
    content = make()
    assert len(content) < 2**20
    error, text, grown, seconds = read_in_child(content, LOWER)
    assert error == "ReadLimitError", text
    assert f"ReadLimits.{limit} is" in text
    assert f"Core(read_limits=ReadLimits({limit}=...))" in text
    assert len(text) < 1000
    assert grown < 2**27
    assert seconds < 5


def test_limits_of_the_core_hold_for_models_that_it_reads() -> None:
    functions = [make_function("f", make_chain("Neg", 10), "v0", "v10")]
    content = make_model(make_chain("f", 3, domain=LOCAL), [make_input("v0", FLOAT, 1)], "v3", functions=functions)
    with (
        Core(read_limits=ReadLimits(nodes=29)) as core,
        pytest.raises(ReadLimitError, match=r"to 30 nodes or more; ReadLimits.nodes is 29"),
    ):
        core.read_network(content)
    with Core(read_limits=ReadLimits(nodes=29)) as core, pytest.raises(ReadLimitError, match="ReadLimits.nodes"):
        core.load_network(content, "CPU")
    with Core(read_limits=ReadLimits(nodes=30)) as core:
        assert len(core.read_network(content).nodes) == 30


def test_reading_ends_when_its_time_is_over() -> None:
    content = make_model(make_chain("Neg", 2000), [make_input("v0", FLOAT, 1)], "v2000")
    with pytest.raises(ReadLimitError, match=r"Neg_0 was reached after 0 s .*ReadLimits.seconds is 1e-06"):
        read_network(content, limits=ReadLimits(seconds=1e-6))


def test_size_that_a_shape_names_is_followed_where_nothing_grows() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Concat", ["s", "k"], ["t"], axis=0),
        helper.make_node("Expand", ["c", "t"], ["y"]),
    ]
    content = make_model(nodes, [make_input("x", FLOAT, "N", 3)], "y", {"k": np.array([7]), "c": np.ones(1, np.float32)})
    expected = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(content), data_prop=True).graph.output[0]
    sizes = [each.dim_param or each.dim_value for each in expected.type.tensor_type.shape.dim]
    assert sizes == ["N", 3, 7]
    assert list(read_network(content).outputs[0].shape or ()) == sizes


@pytest.mark.parametrize("path", ["a\0b.onnx", "a\ud800.onnx"])
def test_impossible_path_is_a_hetero_error(path: str) -> None:
    with pytest.raises(HeteroError, match="is no path of a file"):
        read_network(path)


def test_location_with_a_zero_byte_is_an_error_of_ours(tmp_path: Any) -> None:
    model = onnx.ModelProto.FromString(make_model(make_chain("Neg", 1), [make_input("v0", FLOAT, 1)], "v1"))
    tensor = model.graph.initializer.add(name="w", data_type=FLOAT, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="w\0.bin")
    with pytest.raises(HeteroError, match="initializer 'w' has its weights in 'w.x00.bin'; a path holds no zero byte"):
        read_network(model, base=tmp_path)


@pytest.mark.parametrize(("rank", "is_refused"), [(64, False), (65, True)])
def test_type_of_more_dimensions_than_an_array_has_is_refused(rank: int, *, is_refused: bool) -> None:
    content = make_model(make_chain("Neg", 2), [make_input("v0", FLOAT, *[1] * rank)], "v2")
    with Core() as core:
        if is_refused:
            with pytest.raises(HeteroError, match="input 'v0' has 65 dimensions; an array has at most 64|value 'v0' has 65"):
                core.read_network(content)
            return
        outputs = core.load_network(content, "CPU").infer({"v0": np.full([1] * rank, 3, np.float32)})
        assert outputs["v2"].shape == (1,) * rank
        assert outputs["v2"].item() == 3


def test_output_that_is_a_constant_has_its_type() -> None:
    content = make_model([], [], "c", {"c": np.array([1, 2], np.int32)})
    (output,) = read_network(content).outputs
    assert (output.dtype, output.shape) == ("int32", (2,))
