"""Constants: computed on first use, cached, and released only if they can be computed again."""

from __future__ import annotations

import gc
from weakref import ref

import numpy as np
import onnx.parser
import pytest

from hetero_core.kernels.program import evaluate_node
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.reader import read_network
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import LARGEST_KEPT, fold_constants

SIZE = LARGEST_KEPT // 4


class Maker:
    """Makes an array of ones, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> np.ndarray:
        self.calls += 1
        return np.ones(3, np.float32)


def test_released_renewable_constant_is_freed_and_made_again() -> None:
    make = Maker()
    constant = Initializer("float32", (3,), make, is_renewable=True)
    held = ref(constant.array)
    assert constant.array is held()
    constant.release()
    gc.collect()
    assert held() is None
    assert constant.array.tolist() == [1, 1, 1]
    assert not constant.array.flags.writeable
    assert make.calls == 2


def test_held_constant_is_not_made_a_second_time() -> None:
    make = Maker()
    constant = Initializer("float32", (3,), make, is_renewable=True)
    held = constant.array
    constant.release()
    assert constant.array is held
    assert make.calls == 1


def test_nonrenewable_constant_is_not_released() -> None:
    make = Maker()
    constant = Initializer("float32", (3,), make)
    held = ref(constant.array)
    constant.release()
    gc.collect()
    assert constant.array is held()
    assert make.calls == 1


def test_digest_does_not_keep_an_array_alive() -> None:
    constant = Initializer("float32", (3,), Maker(), is_renewable=True)
    assert constant.digest == Initializer.of_array(np.ones(3, np.float32)).digest
    held = ref(constant.array)
    constant.release()
    gc.collect()
    assert held() is None


@pytest.fixture
def convolution() -> Network:
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1, 8, 9, 9] x) => (float[1, 16, 7, 7] y) '
        "{ c = Conv(x, w)  y = BatchNormalization(c, scale, bias, mean, variance) }"
    )
    shapes = {"w": (16, 8, 3, 3), "scale": (16,), "bias": (16,), "mean": (16,), "variance": (16,)}
    for name, shape in shapes.items():
        array = rng.uniform(0.5, 2.0, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return read_network(model)


def test_folded_weights_are_made_on_use_and_can_be_released(convolution: Network) -> None:
    folded = fold_affines(convolution)
    weight = folded.initializers[folded.nodes[0].inputs[1]]
    own = {name: initializer.array.astype(np.float64) for name, initializer in convolution.initializers.items()}
    factor = own["scale"] / np.sqrt(own["variance"] + 1e-5)
    expected = (own["w"] * factor[:, None, None, None]).astype(np.float32)
    first = ref(weight.array)
    assert np.array_equal(weight.array, expected)
    weight.release()
    gc.collect()
    assert first() is None
    assert np.array_equal(weight.array, expected)


@pytest.mark.parametrize(("rows", "is_renewable"), [(SIZE // 16, True), (SIZE // 16 - 1, False)])
def test_large_folded_result_is_made_again_after_a_release(rows: int, is_renewable: bool) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1, N] x) => (float[1, M] y) { t = Transpose(w)  y = MatMul(x, t) }'
    )
    w = np.random.default_rng(4).standard_normal((rows, 16)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    folded = fold_constants(read_network(model), evaluate_node)
    constant = folded.initializers["t"]
    first = ref(constant.array)
    constant.release()
    gc.collect()
    assert (first() is None) == is_renewable
    assert np.array_equal(constant.array, w.T)


def test_constant_of_a_transposed_array_is_contiguous() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    constant = Initializer.of_array(turned)
    assert constant.array.flags.c_contiguous
    assert constant.array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_constant_that_arithmetic_makes_a_scalar_is_an_array() -> None:
    """NumPy's arithmetic over arrays without dimensions returns a scalar, whose flags cannot be set."""
    codes, scale = np.array(5, np.int8), np.array(0.5, np.float32)
    constant = Initializer("float32", (), lambda: codes.astype(np.float32) * scale)
    assert isinstance(constant.array, np.ndarray)
    assert (constant.array.shape, constant.array.item(), constant.array.flags.writeable) == ((), 2.5, False)
