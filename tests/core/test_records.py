"""Records beside the dataclasses that they stand for: same results, and one compiled method in place of six."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any

import pytest

from hetero_core.records import record


@record(frozen=True, slots=True)
class Point:
    """A point with a name, and where it came from."""

    x: int
    y: int = 2
    name: str = field(default="origin", compare=False)
    path: list[str] = field(default_factory=list, repr=False)
    distance: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", abs(self.x) + abs(self.y))


@record(frozen=True, slots=True, eq=False)
class Handle:
    """A number, compared by identity."""

    number: int


Plain: Any = dataclasses.dataclass(frozen=True, slots=True)(
    type(
        "Point",
        (),
        {"__annotations__": {"x": int, "y": int}, "y": 2, "__doc__": "The same by the standard library.", "__module__": __name__},
    )
)


@record(frozen=True, slots=True)
class Pair:
    """Two numbers."""

    x: int
    y: int = 2


def test_instances_hold_what_was_given_the_defaults_and_what_is_computed() -> None:
    point = Point(-3)
    assert (point.x, point.y, point.name, point.path, point.distance) == (-3, 2, "origin", [], 5)
    assert Point(1, y=4, path=["a"]).path == ["a"]
    assert Point(1).path is not Point(1).path


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4, 5), (1, 2, "a", [], 5.0)])
def test_wrong_number_of_arguments_is_an_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"Point.__init__\(\)"):
        Point(*arguments)


def test_instances_equal_hash_and_show_as_dataclasses_do() -> None:
    values = [(1, 2), (2, 1), (1, 2)]
    records, plain = [Pair(*value) for value in values], [Plain(*value) for value in values]
    for first in range(3):
        for second in range(3):
            assert (records[first] == records[second]) is (plain[first] == plain[second])
    assert hash(records[0]) == hash(records[2])
    assert len(set(records)) == len(set(plain)) == 2
    assert repr(records[0]).replace("Pair", "Point") == repr(plain[0])
    assert records[0] != plain[0]
    assert Point(1, name="a") == Point(1, name="b")
    assert repr(Point(1, path=["a"])) == "Point(x=1, y=2, name='origin', distance=3)"


def test_unhashable_field_cannot_be_hashed() -> None:
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(Point(1))


def test_records_compared_by_identity_are_equal_to_themselves_alone() -> None:
    handle = Handle(1)
    assert handle == handle
    assert handle != Handle(1)
    assert len({handle, Handle(1)}) == 2


def test_fields_cannot_be_set_or_deleted() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]  # what is refused
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(FrozenInstanceError):
        point.other = 2  # type: ignore[attr-defined]  # what is refused
    assert not hasattr(point, "__dict__")


def test_functions_for_dataclasses_take_records() -> None:
    assert replace(Pair(1), y=5) == Pair(1, 5)
    assert [one.name for one in fields(Pair)] == ["x", "y"]
    assert dataclasses.asdict(Pair(1)) == {"x": 1, "y": 2}
    assert list(inspect.signature(Pair).parameters) == list(inspect.signature(Plain).parameters)
    match Pair(7, 8):
        case Pair(x, y):
            assert (x, y) == (7, 8)


def test_copies_and_pickles_are_equal() -> None:
    for clone in (copy.copy(Pair(3)), copy.deepcopy(Pair(3)), pickle.loads(pickle.dumps(Pair(3)))):
        assert clone == Pair(3)


def test_init_is_made_when_it_is_asked_for_and_stays() -> None:
    @record(frozen=True, slots=True)
    class Late:
        number: int

    class Derived(Late):
        pass

    assert not inspect.isfunction(vars(Late)["__init__"])
    assert (Derived(3).number, Late(4).number) == (3, 4)
    constructor = vars(Late)["__init__"]
    assert inspect.isfunction(constructor)
    assert "__init__" not in vars(Derived)
    assert Late.__init__ is constructor


def test_method_that_a_class_writes_itself_stays() -> None:
    @record(frozen=True, slots=True)
    class Loud:
        """Shows itself in its own way."""

        x: int

        def __repr__(self) -> str:
            return f"LOUD {self.x}"

    assert repr(Loud(1)) == "LOUD 1"


def test_fields_behind_the_mark_are_given_by_name() -> None:
    @record(frozen=True, slots=True)
    class Named:
        """One number by position, two by name."""

        x: int
        _: dataclasses.KW_ONLY
        y: int
        z: int = 3

    named = Named(1, y=2)
    assert (named.x, named.y, named.z) == (1, 2, 3)
    with pytest.raises(TypeError, match="positional"):
        Named(1, 2)  # type: ignore[call-arg, misc]  # what is refused


def test_base_with_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="Child has a base with fields"):

        @record(frozen=True, slots=True)
        class Child(Pair):
            """A record of more."""

            z: int = 0


def test_fields_of_a_record_that_is_not_frozen_can_be_set() -> None:
    @record(frozen=False, slots=True, eq=False)
    class Draft:
        """A list that grows."""

        names: list[str] = field(default_factory=list)
        count: int = 0

    draft = Draft()
    draft.count += 1
    draft.names.append("a")
    assert (draft.names, draft.count, Draft().names) == (["a"], 1, [])
    assert draft != Draft(["a"], 1)
    assert not hasattr(draft, "__dict__")


def test_classes_with_the_same_places_have_parameters_of_their_own() -> None:
    @record(frozen=True, slots=True)
    class Other:
        """Two numbers under other names."""

        left: int
        right: int = 7

    assert (Other(left=1).right, Pair(x=1).y) == (7, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        Other(x=1)  # type: ignore[call-arg]  # what is refused


def test_default_that_can_be_changed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Shared\.names has a default that can be changed"):

        @record(frozen=True, slots=True)
        class Shared:
            """A list of all instances."""

            names: list[str] = []  # noqa: RUF012  # what is refused


@pytest.mark.parametrize("options", [{"frozen": False}, {"slots": False}])
def test_anything_but_slots_and_frozen_or_identity_is_refused(options: dict[str, bool]) -> None:
    with pytest.raises(TypeError, match="a record has slots, and is frozen or compared by identity"):
        record(**options)  # type: ignore[call-overload]  # flags as a dictionary
