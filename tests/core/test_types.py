from __future__ import annotations

import pytest

from hetero_core.network.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueSpec,
    ValueType,
    merge_types,
    type_of_json,
)

F32 = TensorType("float32", (2,))


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (TensorType("float32", (2, "N", None)), "float32[2,N,?]"),
        (TensorType("int64", ()), "int64[]"),
        (TensorType("int64"), "int64[...]"),
        (TensorType(None), "unknown[...]"),
        (SequenceType(F32), "sequence(float32[2])"),
        (OptionalType(SequenceType(F32)), "optional(sequence(float32[2]))"),
        (MapType("string", F32), "map(string, float32[2])"),
    ],
)
def test_types_are_shown_as_messages_write_them(value_type: ValueType, text: str) -> None:
    assert str(value_type) == text


@pytest.mark.parametrize(
    ("value_type", "size"),
    [
        (TensorType("float32", (2, 3)), 24),
        (TensorType("int4", (3,)), 3),
        (TensorType("float32", ()), 4),
        (TensorType("float32", (0, 3)), 0),
        (TensorType("float32", ("N",)), None),
        (TensorType("float32"), None),
        (TensorType("string", (2,)), None),
        (TensorType(None, (2,)), None),
    ],
)
def test_bytes_of_a_tensor(value_type: TensorType, size: int | None) -> None:
    assert value_type.nbytes == size


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        (TensorType(None), F32, F32),
        (TensorType(None), SequenceType(F32), SequenceType(F32)),
        (TensorType("float32"), TensorType(None, (2,)), F32),
        (TensorType("float32", (None, "N", 3)), TensorType("float32", (2, 4, None)), TensorType("float32", (2, 4, 3))),
        (TensorType("float32", ("N",)), TensorType("float32", ("M",)), TensorType("float32", ("N",))),
        (TensorType("float32", ("N",)), TensorType("float32", (None,)), TensorType("float32", ("N",))),
        (SequenceType(TensorType("float32")), SequenceType(F32), SequenceType(F32)),
        (OptionalType(F32), OptionalType(TensorType(None)), OptionalType(F32)),
        (MapType("string", TensorType(None)), MapType("string", F32), MapType("string", F32)),
        (F32, TensorType("float32", (3,)), None),
        (F32, TensorType("float32", (2, 1)), None),
        (F32, TensorType("float64", (2,)), None),
        (F32, SequenceType(F32), None),
        (SequenceType(F32), OptionalType(F32), None),
        (MapType("string", F32), MapType("int64", F32), None),
    ],
)
def test_two_statements_about_a_type_merge_or_contradict(first: ValueType, second: ValueType, merged: ValueType | None) -> None:
    assert merge_types(first, second) == merged
    if "N" not in str(first):
        assert merge_types(second, first) == merged


def test_spec_shows_name_type_and_foreign_memory() -> None:
    assert str(ValueSpec("x", F32)) == "x: float32[2]"
    assert str(ValueSpec("x", F32, "cuda:0")) == "x: float32[2] in cuda:0"
    assert ValueSpec("x", SequenceType(F32)).dtype is None
    assert ValueSpec("x", F32).shape == (2,)


@pytest.mark.parametrize(
    "fields",
    [
        ["tensor", "com.acme", [2]],
        ["tensor", ["float32"], None],
        ["tensor", "float32", [-1]],
        ["tensor", "float32", [True]],
        ["tensor", "float32", [1.5]],
        ["map", "nothing", ["tensor", "float32", []]],
        ["sequence"],
        ["optional", "tensor"],
        None,
        {},
    ],
)
def test_json_that_is_no_type_is_refused(fields: object) -> None:
    with pytest.raises(ValueError, match="expected the type of a value, got"):
        type_of_json(fields)
