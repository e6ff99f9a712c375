"""Capturing a plan: addresses are counted from their places, counts stay, and a call of Python refuses the whole plan."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core.blobs.private_cache import open_private_folder, write_private_file

pytest.importorskip("llvmlite", reason="plans of machine code are named by its version")

from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import NativeCall, address_of
from hetero_cpu.planning.instance import allocate_arena, lay_arrays
from hetero_cpu.planning.plan import Block, Plan, PlannedStep
from hetero_cpu.planning.recipe import Recipe
from hetero_cpu.stored.captured_plan import CapturedPlan, capture_plan, restore_plan
from hetero_cpu.stored.stored_plans import FOLDER, make_key, move_places, read_plan, write_plan

from hetero_core.network.graph import Node

Array = np.ndarray[Any, Any]
Bind = Callable[[Sequence[Array], Sequence[Array], Array], Sequence[Any]]


def refuse(name: str, width: int) -> Any:
    raise AssertionError("nothing is emitted here")


KERNEL = Kernel("kernel_of_the_test", refuse)
FLOATS, NUMBERS = np.arange(5000, dtype=np.float32), np.arange(4000, dtype=np.int64)


def make_plan(bind: Bind) -> Plan:
    """Returns a plan of one step that reads x and writes y, both of 16 numbers, with 64 bytes to work in."""
    block = Block((2, 8), np.dtype(np.float32), (1, 0))
    step = PlannedStep(
        Node("n", "Neg", ("x",), ("y",), origins=("a", "b")), Recipe(("x",), bind, 64, kernels=(KERNEL,)), ("y",), 128
    )
    return Plan((step,), {"x": block, "y": block}, {"x": 0, "y": 64}, {}, ("x",), ("y",), 192)


def capture(bind: Bind) -> tuple[CapturedPlan, dict[str, Array]] | None:
    return capture_plan(make_plan(bind), {"weights": FLOATS})


def test_every_kind_of_address_is_found_and_set_again() -> None:
    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        table = np.array([-64, 0, 64], np.int64)
        addresses = [address_of(reads[0]) - 256, address_of(writes[0]) + 8, address_of(scratch), 400 + address_of(FLOATS)]
        # A count that happens to be an address is none.
        numbers = (*addresses, address_of(table), address_of(NUMBERS[2:]), 7, -3, int(NUMBERS.ctypes.data))
        return [NativeCall(KERNEL, numbers, 5, (reads, writes[0], table, NUMBERS, FLOATS))]

    captured = capture(bind)
    assert captured is not None
    plan, found = captured
    ((node, (call,)),) = plan.steps
    assert (node.name, node.operator, node.origins, call.chunks) == ("n", "Neg-1", ("a", "b"), 5)
    assert call.numbers == (-256, 72, 128, 400, 0, 0, 7, -3, NUMBERS.ctypes.data)
    assert dict(call.addresses) == {0: "arena", 1: "arena", 2: "arena", 3: "weights", 4: "array/0", 5: "array/1"}
    assert found["array/0"].tolist() == [-64, 0, 64]
    assert found["array/1"].ctypes.data == NUMBERS[2:].ctypes.data

    memory = np.zeros(40000, np.uint8)
    areas = {"weights": np.array(FLOATS), "packed": memory}
    restored = restore_plan(move_places(plan, {"array/0": ("packed", 1024), "array/1": ("packed", 2048)}), areas)
    arena = allocate_arena(restored.arena_bytes)
    work = restored.steps[0].work
    assert isinstance(work, Recipe)
    (bound,) = work.bind((), (), arena)
    assert isinstance(bound, NativeCall)
    base, weights, packed = arena.ctypes.data, areas["weights"].ctypes.data, memory.ctypes.data
    assert bound.numbers == (
        base - 256,
        base + 72,
        base + 128,
        weights + 400,
        packed + 1024,
        packed + 2048,
        7,
        -3,
        NUMBERS.ctypes.data,
    )
    arrays = lay_arrays(restored, arena)
    assert {name: (arrays[name].ctypes.data - base, arrays[name].shape, arrays[name].strides) for name in "xy"} == {
        "x": (0, (2, 8), (4, 8)),
        "y": (64, (2, 8), (4, 8)),
    }


def test_array_without_memory_in_one_piece_refuses() -> None:
    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        memory = memoryview(bytes(4096))
        strided = np.ndarray((2, 2), np.float32, memory, strides=(1024, 512))
        return [NativeCall(KERNEL, (address_of(strided),), 1, (strided,))]

    assert capture(bind) is None


def test_call_of_python_refuses() -> None:
    assert capture(lambda reads, writes, scratch: [lambda: None]) is None


def test_plan_that_is_kept_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    captured = capture(lambda reads, writes, scratch: [NativeCall(KERNEL, (address_of(scratch), 3, -(1 << 40)), 2, (scratch,))])
    assert captured is not None
    key = make_key({"packed": b"1"}, 1)
    assert read_plan(key) is None
    write_plan(key, captured[0])
    read = read_plan(key)
    assert read is not None
    assert (read.values, read.inputs, read.outputs, read.arena_bytes) == (captured[0].values, ("x",), ("y",), 192)
    assert [calls for _, calls in read.steps] == [calls for _, calls in captured[0].steps]
    assert [(node.name, node.origins) for node, _ in read.steps] == [("n", ("a", "b"))]


def test_name_of_a_plan_depends_on_content_names_and_threads() -> None:
    digests = ({"packed": b"1"}, {"packed": b"2"}, {"weights": b"1"}, {"packed": b"1", "weights": b"1"})
    keys = [make_key(found, workers) for found in digests for workers in (1, 2)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("content", ["", "1", "[]", "{}", '{"steps": [[1]]}', '{"steps": [], "values": []}', "[" * 100_000])
def test_stored_plan_of_another_form_behind_a_right_digest_is_said_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = open_private_folder(FOLDER) / "key.json"
    write_private_file(path, hashlib.sha256(content.encode()).digest() + content.encode())
    assert read_plan("key") is None
    assert f"'{path}' holds no plan" in caplog.text


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (["values", "x", 0], 5000, "value 'x' lies at .*, outside of the arena"),
        (["values", "x", 0], -4, "value 'x' lies at"),
        (["values", "y", 3], [32], "value 'y' lies at"),
        (["values", "y", 3], [-128, 4], "value 'y' lies at .*, outside of the arena"),
        (["values", "y", 1], "O", "value 'y' has elements 'O'"),
        (["values", "y", 1], "no type", "no type"),
        (["outputs"], ["z"], "its output 'z' lies nowhere"),
        (["arena_bytes"], 1e30, "its arena has 1e.30 bytes"),
        (["steps", 0, 1, 0, 0], [1], r"it calls \[1\]"),
        (["steps", 0, 1, 0, 1, 1], 1 << 70, "a number for 'kernel_of_the_test' is none of 64 bits"),
        (["steps", 0, 1, 0, 1, 1], "3", "a number for 'kernel_of_the_test' is none of 64 bits"),
        (["steps", 0, 1, 0, 2], 0, "in 0 chunks"),
        (["steps", 0, 1, 0, 3, 0], [7, "arena"], "an address for 'kernel_of_the_test' is none of its numbers"),
        (["steps", 0, 1, 0, 3, 0], [0, "stack"], "an address for 'kernel_of_the_test' lies in 'stack'"),
        (["steps", 0, 0, 0], 3, "it has a node 3"),
        (["outside"], [["z"], {}], "what lies outside is"),
        (["outside"], [[], {"y": "z"}], "what lies outside is"),
        (["outside"], [["x"], {}], "value 'x' lies outside, and is not all of the block of 'x'"),
        (["outside"], [[], {"y": "x"}], "value 'y' lies outside, and is not all of the block of 'x'"),
    ],
)
def test_stored_plan_that_cannot_be_bound_is_said_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: list[Any], value: Any, fault: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    captured = capture(lambda reads, writes, scratch: [NativeCall(KERNEL, (address_of(scratch), 3), 2, (scratch,))])
    assert captured is not None
    write_plan("key", captured[0])
    assert read_plan("key") is not None
    file = open_private_folder(FOLDER) / "key.json"
    fields = json.loads(file.read_bytes()[32:])
    owner = fields
    for step in path[:-1]:
        owner = owner[step]
    owner[path[-1]] = value
    content = json.dumps(fields).encode()
    write_private_file(file, hashlib.sha256(content).digest() + content)
    assert read_plan("key") is None
    assert re.search(fault, caplog.text)


def test_stored_plan_that_others_may_write_is_said_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = open_private_folder(FOLDER) / "key.json"
    write_private_file(path, b"")
    path.chmod(0o666)
    assert read_plan("key") is None
    assert f"a stored plan is not used: others may write to '{path}' (mode 0666)" in caplog.text
