"""Maps as inputs and outputs, in transfers between devices, and in blobs."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import hetero_cpu
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_core import Core
from hetero_core.errors import InputTypeError
from hetero_core.network.subnetwork import cut_subnetwork


def make_model(key: int = TensorProto.STRING, value: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Returns the model x -> DictVectorizer -> Add(row, row) -> ZipMap."""
    spec = helper.make_value_info("x", helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, [])))
    words = {"string_vocabulary": ["a", "b"]} if key == TensorProto.STRING else {"int64_vocabulary": [1, 2]}
    nodes = [
        helper.make_node("DictVectorizer", ["x"], ["row"], "vectorize", domain="ai.onnx.ml", **words),
        helper.make_node("Add", ["row", "row"], ["twice"], "double"),
        helper.make_node("ZipMap", ["twice"], ["y"], "zip", domain="ai.onnx.ml", classlabels_int64s=[7, 9]),
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("y", "twice")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [spec], outputs), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    "value",
    [{"a": 1.0, "b": 2.0}, {"b": np.float32(2), "a": np.int64(1)}, {"a": np.array(1.0), "b": 2}],
    ids=["plain", "numpy", "without_dimensions"],
)
def test_map_goes_in_and_comes_out(core: Core, value: dict[str, Any]) -> None:
    outputs = core.load_network(make_model(), "CPU").infer({"x": value})
    assert outputs["twice"].tolist() == [[2, 4]]
    assert outputs["y"] == [{7: 2.0, 9: 4.0}]
    assert [type(number) for number in outputs["y"][0].values()] == [float, float]


def test_map_crosses_from_one_device_to_the_next(core: Core) -> None:
    core.register_plugin("D0", hetero_cpu)
    core.register_plugin("D1", hetero_cpu)
    network = core.read_network(make_model()).with_affinity({"vectorize": "D0", "double": "D1", "zip": "D0"})
    loaded = core.load_network(network, "HETERO:D0,D1")
    assert loaded.get_metric("HETERO_NUMBER_OF_SUBMODELS") == 3
    assert loaded.infer({"x": {"a": 1, "b": 2}})["y"] == [{7: 2.0, 9: 4.0}]


def test_blob_holds_the_types_of_maps(core: Core) -> None:
    stream = BytesIO()
    core.load_network(make_model(), "CPU").export_network(stream)
    stream.seek(0)
    imported = core.import_network(stream, "CPU")
    assert str(imported.inputs[0]) == "x: map(string, float32[])"
    assert str(imported.outputs[0]) == "y: sequence(map(int64, float32[]))"
    assert imported.infer({"x": {"a": 3.0}})["y"] == [{7: 6.0, 9: 0.0}]


def test_integers_of_a_map_stay_exact(core: Core) -> None:
    network = core.read_network(make_model(TensorProto.STRING, TensorProto.INT64))
    outputs = core.load_network(cut_subnetwork(network, ["vectorize", "double"]), "CPU").infer({"x": {"a": 2**61 + 1}})
    assert outputs["twice"].tolist() == [[2**62 + 2, 0]]
    assert outputs["twice"].dtype == np.int64


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: 1.0}, "input 'x' of network 'g': expected keys of string for map(string, float32[]), got 1"),
        ({"a": "one"}, "input 'x' of network 'g', key 'a': expected one float32 for map(string, float32[]), got 'one'"),
        ({"a": True}, "input 'x' of network 'g', key 'a': expected one float32 for map(string, float32[]), got True"),
        ([1.0], "input 'x' of network 'g': expected a dict for map(string, float32[]), got list"),
    ],
    ids=["key", "text", "bool", "list"],
)
def test_wrong_map_is_refused_at_the_door(core: Core, value: Any, text: str) -> None:
    loaded = core.load_network(make_model(), "CPU")
    with pytest.raises(InputTypeError) as caught:
        loaded.infer({"x": value})
    assert text in str(caught.value)


def test_array_in_a_map_of_numbers_is_refused_at_the_door(core: Core) -> None:
    with pytest.raises(ValueError, match=r"input 'x' of network 'g', key 'a': expected shape \[\], got \[2\]"):
        core.load_network(make_model(), "CPU").infer({"x": {"a": np.zeros(2, np.float32)}})


def test_bool_is_no_integer_key(core: Core) -> None:
    loaded = core.load_network(make_model(TensorProto.INT64), "CPU")
    with pytest.raises(InputTypeError, match="expected keys of int64 for map\\(int64, float32\\[\\]\\), got True"):
        loaded.infer({"x": {True: 1.0}})
