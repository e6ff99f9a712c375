"""Frozen dataclasses that are cheap to define: a start of the program defines about a hundred of them.

`dataclasses.dataclass(frozen=True, slots=True)` compiles six methods from text for each class, half a millisecond. Here one is compiled,
`__init__`; the others are written once for all classes and read the names of the fields. What comes out is a dataclass as `dataclasses`
knows it: `replace`, `fields`, `field` and pattern matching work. Imports nothing of the project.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["record"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as record
else:

    def record(cls: type | None = None, *, eq: bool = True, frozen: bool = True, slots: bool = True) -> Any:
        """Makes a class a frozen dataclass with slots.

        With eq=False instances are compared and hashed by identity. `frozen` and `slots` are written out where a class is defined, for
        readers and type checkers, and have to be True. The class has no base with fields.

        Raises: TypeError for what is not covered; what `dataclasses.dataclass` raises.
        """
        if not (frozen and slots):
            raise TypeError("a record is frozen and has slots; use dataclasses.dataclass for anything else")
        if cls is None:
            return lambda later: _make(later, eq=eq)
        return _make(cls, eq=eq)


def _make(cls: type, *, eq: bool) -> type:
    if any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:]):
        raise TypeError(f"{cls.__name__} has a base with fields, which a record cannot have; use dataclasses.dataclass")
    written = frozenset(cls.__dict__)
    record_class: Any = _dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    own = fields(record_class)
    methods = {
        "__init__": _compile_init(record_class, own),
        "__setattr__": _refuse_setting,
        "__delattr__": _refuse_deleting,
        "__getstate__": _get_state,
        "__setstate__": _set_state,
        "__repr__": _show_as(tuple(field.name for field in own if field.repr)),
    }
    if eq:
        methods["__eq__"], methods["__hash__"] = _compare_by(tuple(field.name for field in own if field.compare))
    for name, method in methods.items():
        if name not in written:
            setattr(record_class, name, method)
    record_class.__dataclass_params__.frozen = True
    record_class.__dataclass_params__.eq = eq
    return record_class  # type: ignore[no-any-return]  # a class, made by dataclass


def _compile_init(cls: type, own: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Returns `__init__`, which takes the fields in order and sets each slot; then `__post_init__`, where there is one."""
    names: dict[str, Any] = {"_MISSING": MISSING}
    parameters, named, lines = ["self"], ["*"], []
    for index, field in enumerate(own):
        if not field.init and field.default_factory is MISSING:
            continue
        names[f"_set_{index}"] = getattr(cls, field.name).__set__
        value, place = field.name, named if field.kw_only else parameters
        if field.default_factory is not MISSING:
            names[f"_make_{index}"] = field.default_factory
            value = f"_make_{index}()"
            if field.init:
                place.append(f"{field.name}=_MISSING")
                value = f"{value} if {field.name} is _MISSING else {field.name}"
        elif field.default is not MISSING:
            names[f"_default_{index}"] = field.default
            place.append(f"{field.name}=_default_{index}")
        else:
            place.append(field.name)
        lines.append(f"    _set_{index}(self, {value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()\n")
    parameters += named if len(named) > 1 else []
    exec(f"def __init__({', '.join(parameters)}):\n{''.join(lines) or '    pass'}", names)  # names of fields alone
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**{field.name: field.type for field in own}, "return": None}
    return init


def _refuse_setting(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: list[object]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


def _show_as(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def show(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return show


def _compare_by(names: tuple[str, ...]) -> tuple[Callable[[Any, Any], Any], Callable[[Any], int]]:
    key: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def is_equal(self: Any, other: Any) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def find_hash(self: Any) -> int:
        return hash((key(self),))

    return is_equal, find_hash
