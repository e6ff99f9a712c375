"""`Einsum` becomes products that have machine code; the answers are those of float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper
import pytest
from hetero_cpu.transforms.einsum import express_einsum
from hetero_tests.passes import draw_array, list_operators

from hetero_core import Core

SIZES = {letter: 2 + index % 5 for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
EQUATIONS = (
    "bcxd,bcyd->bcxy", "ibh,hnd->ibnd", "ibnd,jbnd->bnij", "bnij,jbnd->ibnd", "ibnd,hnd->ibh", "nd,edf->enf", "enf,efd->end",
    "end,ne->nd", "nlhd,nhmd,nlh->nlhm", "ij,jk", "ij,kj->ik", "i,j->ij", "bi,bi->b", "ij,j->i", "j,ij->i", "abc,cde->abde",
    "cd,abc->abd", "bcd,bcd->bcd", "b,bcd->bcd", "cd,bcd->bdc", "ab,bc,cd->ad", "xy,yz->zx", "ba, ac -> bc", "ijbn->bnij",
)  # fmt: skip


def make_model(equation: str, *, is_open: bool = False, constants: tuple[int, ...] = ()) -> tuple[Any, dict[str, Any], Any]:
    """Returns the model of an equation, arrays for its inputs, and the answer in float64."""
    terms = equation.replace(" ", "").split("->")[0].split(",")
    arrays = [draw_array(index, *(SIZES[letter] for letter in term)) for index, term in enumerate(terms)]
    names = [f"x{index}" for index in range(len(terms))]
    inputs = [
        oh.make_tensor_value_info(name, 1, [f"{name}_{letter}" if is_open else SIZES[letter] for letter in term])
        for name, term in zip(names, terms, strict=True)
    ]
    graph = oh.make_graph(
        [oh.make_node("Einsum", names, ["y"], equation=equation)],
        "g",
        [each for index, each in enumerate(inputs) if index not in constants],
        [oh.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(arrays[index], names[index]) for index in constants],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)
    feeds = {name: array for index, (name, array) in enumerate(zip(names, arrays, strict=True)) if index not in constants}
    return model, feeds, np.einsum(equation, *(array.astype(np.float64) for array in arrays))


CASES = [
    (equation, constants, is_open)
    for equation, is_open in product(EQUATIONS, (False, True))
    for constants in ((), *((index,) for index in range(equation.count(",") + 1)))
    if len(constants) <= equation.count(",")
]


@pytest.mark.parametrize(("equation", "constants", "is_open"), CASES)
def test_answer_is_that_of_float64(core: Core, kernels: str, equation: str, constants: tuple[int, ...], is_open: bool) -> None:
    model, feeds, expected = make_model(equation, is_open=is_open, constants=constants)
    answer = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer(feeds)["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("equation", EQUATIONS)
def test_products_of_known_sizes_are_written_out(core: Core, equation: str) -> None:
    assert "Einsum" not in list_operators(express_einsum(core.read_network(make_model(equation)[0])))


@pytest.mark.parametrize("equation", ["ii,ij->j", "...ij,...jk->...ik", "ij,k->i"])
def test_other_equations_stay(core: Core, equation: str) -> None:
    model = make_model(equation.replace("...", "b"))[0]
    model.graph.node[0].attribute[0].s = equation.encode()
    assert list_operators(express_einsum(core.read_network(model))) == ["Einsum"]


def test_sizes_of_one_broadcast(core: Core) -> None:
    model, feeds, _ = make_model("ij,jk->ik", is_open=True)
    feeds["x0"] = feeds["x0"][:, :1]
    answer = core.load_network(model, "CPU").infer(feeds)["y"]
    np.testing.assert_allclose(answer, np.broadcast_to(feeds["x0"], (SIZES["i"], SIZES["j"])) @ feeds["x1"], rtol=1e-5, atol=1e-5)
