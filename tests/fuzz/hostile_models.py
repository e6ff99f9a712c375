"""Models of at most 1 MB that ask for all memory or all time: `list_models` returns a maker for each, by its name.

Each is valid as a file, most are valid as a network. Those with weights outside name a file that the runner makes.
"""

from __future__ import annotations

import hostile_bodies  # noqa: F401  # adds its makers
import hostile_constants
import numpy as np
import onnx
from hostile_builders import (
    FLOAT,
    INT64,
    MAKERS,
    Maker,
    add_to_input,
    hostile,
    make_chain,
    make_input,
    make_model,
    make_sparse,
    pack,
)
from onnx import helper


def list_models() -> dict[str, Maker]:
    """Returns the maker of each model."""
    hostile_constants.add_makers()
    return {maker.__name__: maker for maker in MAKERS}


@hostile
def concat_of_a_shape_34_times() -> bytes:
    nodes = [helper.make_node("Shape", ["x"], ["v0"]), *make_chain("Concat", 34, 2, axis=0)]
    return pack(make_model(nodes, "v34", [make_input("x", FLOAT, "N")]))


@hostile
def concat_of_a_constant_34_times() -> bytes:
    return add_to_input(make_chain("Concat", 34, 2, axis=0), "v34", {"v0": np.ones(1000, np.float32)})


@hostile
def concat_of_100_pieces_five_times() -> bytes:
    return add_to_input(make_chain("Concat", 5, 100, axis=0), "v5", {"v0": np.ones(10, np.float32)})


@hostile
def concat_of_an_input_34_times() -> bytes:
    return pack(make_model(make_chain("Concat", 34, 2, axis=0), "v34", [make_input("v0", FLOAT, 1000)]))


@hostile
def concat_of_texts_34_times() -> bytes:
    nodes = [*make_chain("Concat", 34, 2, axis=0), helper.make_node("StringNormalizer", ["v34"], ["y"])]
    return pack(make_model(nodes, "y", [], constants={"v0": np.array(["text"] * 100, object)}))


@hostile
def string_concat_40_times() -> bytes:
    return pack(make_model(make_chain("StringConcat", 40, 2), "v40", [], constants={"v0": np.array(["ab"], object)}))


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
def sparse_constant_just_within_the_limit() -> bytes:
    return add_sparse(1, (1 << 25) - 1000)


@hostile
def thousand_sparse_constants() -> bytes:
    return add_sparse(1000, 1 << 22)


@hostile
def sparse_constants_that_are_folded() -> bytes:
    count = 20
    nodes = [helper.make_node("Mul", [f"c{i}", f"c{i}"], [f"m{i}"]) for i in range(count)]
    nodes += [helper.make_node("Add", [f"v{i}", f"m{i}"], [f"v{i + 1}"]) for i in range(count)]
    model = make_model(nodes, f"v{count}", [make_input("v0", FLOAT, 1)])
    model.graph.sparse_initializer.extend(make_sparse(f"c{i}", 1 << 20) for i in range(count))
    return pack(model)


@hostile
def chain_of_15000() -> bytes:
    return pack(make_model(make_chain("Neg", 15_000), "v15000", [make_input("v0", FLOAT, 1)]))


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
def node_with_50000_outputs() -> bytes:
    outputs = [f"o{i}" for i in range(50_000)]
    return pack(
        make_model([helper.make_node("Split", ["x"], outputs, num_outputs=len(outputs))], "o0", [make_input("x", FLOAT, 50_000)])
    )


@hostile
def sum_over_30000_values() -> bytes:
    nodes = [helper.make_node("Neg", ["x"], [f"o{i}"]) for i in range(15_000)]
    return pack(make_model([*nodes, helper.make_node("Sum", [f"o{i}" for i in range(15_000)], ["y"])], "y"))


@hostile
def einsum_of_50_letters() -> bytes:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
    nodes = [helper.make_node("Einsum", ["x", "x"], ["y"], equation=f"{letters},{letters[::-1]}->{letters}")]
    return pack(make_model(nodes, "y", [make_input("x", FLOAT, *[1] * 50)]))


@hostile
def convolution_with_absurd_attributes() -> bytes:
    attributes = {"dilations": [1 << 40] * 2, "pads": [1 << 40] * 4, "strides": [1, 1]}
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    return pack(make_model([node], "y", [make_input("x", FLOAT, 1, 1, 8, 8)], constants={"w": np.ones((1, 1, 3, 3), np.float32)}))


@hostile
def convolution_with_wide_pads() -> bytes:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[30_000] * 4)
    return pack(make_model([node], "y", [make_input("x", FLOAT, 1, 1, 8, 8)], constants={"w": np.ones((1, 1, 3, 3), np.float32)}))


@hostile
def recurrence_with_absurd_size() -> bytes:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=1 << 40)
    constants = {"w": np.ones((1, 4, 1), np.float32), "r": np.ones((1, 4, 1), np.float32)}
    return pack(make_model([node], "y", [make_input("x", FLOAT, 1, 1, 1)], constants=constants))


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
def constant_of_400000_dimensions() -> bytes:
    model = make_model([helper.make_node("Add", ["x", "c"], ["y"])], "y")
    model.graph.initializer.add(name="c", data_type=FLOAT, dims=[1] * 400_000, float_data=[1.0])
    return pack(model)


@hostile
def constant_that_is_not_there() -> bytes:
    model = make_model([helper.make_node("Add", ["x", "c"], ["y"])], "y")
    model.graph.initializer.add(name="c", data_type=FLOAT, dims=[1 << 40], raw_data=b"1234")
    return pack(model)


@hostile
def types_declared_200000_times() -> bytes:
    model = make_model(make_chain("Neg", 1), "v1", [make_input("v0", FLOAT, 1)])
    for index in range(20_000):
        model.graph.value_info.add(name=f"t{index}").type.tensor_type.elem_type = FLOAT
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
def sequence_of_a_million_pieces() -> bytes:
    nodes = [
        helper.make_node("Expand", ["c", "n"], ["e"]),
        helper.make_node("SplitToSequence", ["e"], ["s"], axis=0),
        helper.make_node("SequenceAt", ["s", "zero"], ["a"]),
    ]
    return add_to_input(nodes, "a", {"c": np.ones(1, np.float32), "n": np.array([20_000_000]), "zero": np.array(0)})


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
def tree_with_more_targets_than_memory() -> bytes:
    attributes = {
        "nodes_treeids": [0],
        "nodes_nodeids": [0],
        "nodes_featureids": [0],
        "nodes_values": [0.0],
        "nodes_modes": ["LEAF"],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
        "target_ids": [(1 << 31) - 2],
        "target_nodeids": [0],
        "target_treeids": [0],
        "target_weights": [1.0],
        "n_targets": (1 << 31) - 1,
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
def weights_that_share_a_hole() -> bytes:
    count = 200
    nodes = [helper.make_node("Add", [f"v{i}", f"c{i}"], [f"v{i + 1}"]) for i in range(count)]
    model = make_model(nodes, f"v{count}", [make_input("v0", FLOAT, 1)])
    for index in range(count):
        tensor = model.graph.initializer.add(name=f"c{index}", data_type=FLOAT, dims=[1 << 24], data_location=1)
        tensor.external_data.add(key="location", value="hole.bin")
        tensor.external_data.add(key="offset", value=str(index << 20))
    return pack(model)


@hostile
def attribute_of_500000_numbers() -> bytes:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0] * 400_000)
    return pack(make_model([node], "y"))


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
