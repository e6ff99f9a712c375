"""Models that list a constant or an output twice give the results of ONNX Runtime on every device."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime
import pytest
from hetero_tests.repeated_names import BUILDERS, check_device, constants_listed_twice, parse
from onnx import ModelProto

from hetero_core import Core
from hetero_core.errors import InvalidNetworkError, NetworkDeclarationWarning
from hetero_core.network.reader import read_network
from hetero_core.network.writer import network_to_proto


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
@pytest.mark.parametrize("build", BUILDERS)
def test_model_with_a_repeated_name_runs_as_in_onnxruntime(build: Callable[[], ModelProto], device: str) -> None:
    with Core() as core:
        check_device(core, device, build())


def test_repeated_output_gets_an_unused_name() -> None:
    network = read_network(parse('g (float[2] x) => (float[2] y, y, z) { y = Neg (x) "y_1" = Abs (x) z = Exp ("y_1") }'))
    assert [str(spec) for spec in network.outputs] == ["y: float32[2]", "y_1_1: float32[2]", "z: float32[2]"]
    again = read_network(network_to_proto(network))
    assert (again.outputs, again.fingerprint) == (network.outputs, network.fingerprint)


def test_unequal_constants_with_the_same_name_are_warned_about() -> None:
    message = "the constant 'c' is there twice with different values; the later one is used. Remove one of them."
    with pytest.warns(NetworkDeclarationWarning, match=f"^{message}$"):
        read_network(constants_listed_twice())
    same = constants_listed_twice()
    del same.graph.initializer[:1]
    same.graph.initializer.append(same.graph.initializer[0])
    assert read_network(same).initializers["c"].array.tolist() == [5, 6]


def test_constants_with_the_same_name_and_two_types_are_refused() -> None:
    model = parse("g (float[2] x) => (float[2] y) <int64[2] c = {3, 4}, float[2] c = {5, 6}> { y = Add (x, c) }")
    with pytest.raises(Exception, match="element type"):
        onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(InvalidNetworkError, match=r"as int64\[2\] and as float32\[2\]; expected one type. Remove one of them."):
        read_network(model)
