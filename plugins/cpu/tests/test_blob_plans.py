"""Plans beside blobs: written like class plans, with memories in the blob's sections; unwritable plans are refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_tests.fixed_plans import list_numbers

pytest.importorskip("llvmlite", reason="plans of machine code are named by its version")

from hetero_cpu.machine.calls import NativeCall, address_of
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.operators.recipe import Recipe
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.plan import Block, ExecutionPlan, PlannedStep
from hetero_cpu.plan.tabulating import tabulate_fixed_plan
from hetero_cpu.stored.payload import KIND, name_blob_plan
from hetero_cpu.stored.plans import Memories, NotStorableError, WrittenPlan, read_plan, write_plan
from hetero_cpu.symbols.terms import NotOpenError

from hetero_core import Core
from hetero_core.blobs.store import FOLDER, open_private_folder
from hetero_core.network.graph import Node
from hetero_core.network.initializers import Initializer

Array = np.ndarray[Any, Any]
Bind = Callable[[Sequence[Any], Sequence[Any], Any], Sequence[Any]]


def refuse(name: str, width: int) -> Any:
    raise AssertionError("nothing is emitted here")


KERNEL = Kernel("kernel_of_the_test", refuse)
FLOATS, NUMBERS = np.arange(5000, dtype=np.float32), np.arange(4000, dtype=np.int64)


def make_plan(bind: Bind) -> ExecutionPlan:
    """Returns a plan with a single step, which reads 16 elements of x and writes 16 of y, with 64 bytes of scratch memory."""
    block = Block((2, 8), np.dtype(np.float32), (1, 0))
    node = Node("n", "Neg", ("x",), ("y",), origins=("a", "b"))
    step = PlannedStep(node, Recipe(("x",), bind, 64, kernels=(KERNEL,)), ("y",), 128)
    return ExecutionPlan((step,), {"x": block, "y": block}, {"x": 0, "y": 64}, {}, ("x",), ("y",), 192)


def write(bind: Bind) -> tuple[WrittenPlan, list[Any]]:
    """Returns the written plan and the owners of its memories."""
    memories = Memories({"floats": Initializer.of_array(FLOATS)}, PackedWeights())
    return write_plan(tabulate_fixed_plan(make_plan(bind), ((2, 8),)), memories), memories.owners


def test_every_kind_of_address_is_written_and_set_again() -> None:
    def bind(reads: Sequence[Any], writes: Sequence[Any], scratch: Any) -> list[NativeCall]:
        table = np.array([-64, 0, 64], np.int64)
        addresses = [address_of(reads[0]) - 256, address_of(writes[0]) + 8, address_of(scratch), 400 + address_of(FLOATS)]
        numbers = (*addresses, address_of(table), address_of(NUMBERS[2:]), 7, -3)
        return [NativeCall(KERNEL, numbers, 5, (table,))]

    written, owners = write(bind)
    assert written.kernels == (KERNEL.name,)
    assert owners[0] == "floats"
    assert owners[1].tolist() == [-64, 0, 64]
    assert owners[2].ctypes.data == NUMBERS[2:].ctypes.data

    section = np.zeros(40000, np.uint8)
    begins = [64, 20480, 20544]
    plan = read_plan(pickle.loads(pickle.dumps(written)), lambda place: section[begins[place] :])
    products = plan.sizes.match(((2, 8),))
    assert products is not None
    (calls, chunks), base = list_numbers(plan, products), section.ctypes.data
    assert calls.tolist() == [-256, 72, 128, base + 464, base + 20480, base + 20544, 7, -3]
    assert chunks.tolist() == [5]
    assert plan.measure_arena(products) == 192
    laid = plan.describe(products).laid
    assert [laid[plan.numbers.inside[name]] for name in "xy"] == [(0, (2, 8), (4, 8)), (64, (2, 8), (4, 8))]
    assert [(step.node.name, step.node.operator, step.node.origins) for step in plan.steps] == [("n", "Neg-1", ("a", "b"))]
    assert plan.sizes.match(((2, 9),)) is None


def test_array_without_memory_in_one_piece_refuses() -> None:
    strided = np.ndarray((2, 2), np.float32, memoryview(bytes(4096)), strides=(1024, 512))
    with pytest.raises(NotStorableError):
        write(lambda reads, writes, scratch: [NativeCall(KERNEL, (address_of(strided),), 1, (strided,))])


def test_number_that_has_lost_its_array_refuses() -> None:
    with pytest.raises(NotStorableError, match="a number that looks like an address"):
        write(lambda reads, writes, scratch: [NativeCall(KERNEL, (int(NUMBERS.ctypes.data) + 8,), 1, (NUMBERS,))])


def test_number_that_the_table_does_not_hold_refuses() -> None:
    with pytest.raises(NotOpenError, match="a number that is too large: 9007199254740993"):
        write(lambda reads, writes, scratch: [NativeCall(KERNEL, ((1 << 53) + 1,), 1)])


def test_function_without_a_name_refuses() -> None:
    with pytest.raises(NotOpenError, match="a function that cannot be bound again"):
        write(lambda reads, writes, scratch: [lambda: None])
    with pytest.raises(NotStorableError, match="<lambda>"):
        write(lambda reads, writes, scratch: [partial(lambda: None)])


def test_name_of_a_plan_depends_on_content_names_and_threads() -> None:
    digests = ({"packed": b"1"}, {"packed": b"2"}, {"weights": b"1"}, {"packed": b"1", "weights": b"1"})
    names = [name_blob_plan(own, workers) for own in digests for workers in (1, 2)]
    assert len(set(names)) == len(names)


TEXT = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2, 300] x) => (float[2, 2] y)
<float[300, 2] w = {{{", ".join(["0.5"] * 600)}}}> {{ y = MatMul (x, w) }}"""


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Core]:
    """A Core with an empty private folder."""
    if not find_width():
        pytest.skip("no machine code for this processor")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Core() as core:
        yield core


def export(core: Core, tmp_path: Path) -> Path:
    """Returns the path of the stored plan of the exported network."""
    loaded = core.load_network(onnx.parser.parse_model(TEXT), "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 1})
    loaded.export_network(tmp_path / "x.blob")
    (path,) = open_private_folder(FOLDER).glob(f"{KIND}-*")
    return path


def import_blob(core: Core, tmp_path: Path) -> bool:
    """Checks the answer of the imported network; returns whether it uses the stored plan."""
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
    answer = imported.infer({"x": np.ones((2, 300), np.float32)})
    assert answer["y"].tolist() == [[150.0] * 2] * 2
    return imported.executable.source.payload is not None


def test_stored_plan_writable_by_other_users_is_not_used(core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = export(core, tmp_path)
    path.chmod(0o666)
    assert not import_blob(core, tmp_path)
    assert f"an entry of the private store is not used: others may write to '{path}' (mode 0666)" in caplog.text


@pytest.mark.parametrize("size", ["2", "N"])
def test_plan_of_a_network_that_returns_an_input_is_taken_up(
    core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture, size: str
) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x, float[N] w) => (float[N] y, float[N] w) { y = Neg(x) }'
    x, w = np.array([1, 2], np.float32), np.array([5, 6], np.float32)
    config = {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 1}
    loaded = core.load_network(onnx.parser.parse_model(text.replace("[N]", f"[{size}]")), "CPU", config)
    loaded.infer({"x": x, "w": w})
    loaded.export_network(tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "CPU", config)
    assert imported.executable.source.payload is not None
    answer = imported.infer({"x": x, "w": w})
    assert (answer["y"].tolist(), answer["w"].tolist()) == ([-1, -2], [5, 6])
    assert caplog.text == ""
