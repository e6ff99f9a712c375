"""Dataclasses with slots that are cheap to define: a start of the program defines about a hundred of them.

`dataclasses.dataclass(frozen=True, slots=True)` compiles six methods from text for each class, half a millisecond. Here `__init__` is
made when it is asked for, and compiled once for all classes with as many fields of the same places, which give their names to it; the
other methods are written once for all classes and read the names of the fields. What comes out is a dataclass as `dataclasses`
knows it: `replace`, `fields`, `field` and pattern matching work. Imports nothing of the project.
"""

from __future__ import annotations

from copy import copy
from dataclasses import KW_ONLY, MISSING, Field, FrozenInstanceError, field, fields
from dataclasses import dataclass as _dataclass
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["record"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as record
else:

    def record(cls: type | None = None, *, eq: bool = True, frozen: bool = True, slots: bool = True) -> Any:
        """Makes a class a frozen dataclass with slots.

        With eq=False instances are compared and hashed by identity, with frozen=False, which needs that, fields can be set. `slots` is
        written out where a class is defined, for readers and type checkers, and has to be True. The class has no base with fields.

        Raises: TypeError for what is not covered; what `dataclasses.dataclass` raises.
        """
        if not slots or not (frozen or not eq):
            raise TypeError(
                "a record has slots, and is frozen or compared by identity; use dataclasses.dataclass for anything else"
            )
        if cls is None:
            return lambda later: _make(later, eq=eq, frozen=frozen)
        return _make(cls, eq=eq, frozen=frozen)


@_dataclass(init=False, repr=False, eq=False, match_args=False)
class _Sample:
    """The marks of `dataclasses` on a field and a class, which have no public names."""

    field: int


def _mark(*, eq: bool, frozen: bool) -> Any:
    marks = copy(_Sample.__dataclass_params__)  # type: ignore[attr-defined]  # of typeshed, which leaves it out
    marks.eq, marks.frozen = eq, frozen
    return marks


_FIELD = fields(_Sample)[0]._field_type  # type: ignore[attr-defined]  # as above
_MARKS = {(eq, frozen): _mark(eq=eq, frozen=frozen) for eq in (False, True) for frozen in (False, True)}


def _make(cls: type, *, eq: bool, frozen: bool) -> type:
    if any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:]):
        raise TypeError(f"{cls.__name__} has a base with fields, which a record cannot have; use dataclasses.dataclass")
    namespace = dict(cls.__dict__)
    own = _take_fields(cls, namespace)
    names = tuple(own)
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    if hasattr(_Sample, "__replace__"):
        namespace.setdefault("__replace__", _Sample.__replace__)  # for copy.replace, from Python 3.13 on
    namespace |= {"__slots__": names, "__dataclass_fields__": own, "__dataclass_params__": _MARKS[eq, frozen]}
    namespace["__qualname__"] = cls.__qualname__
    namespace.setdefault("__match_args__", tuple(name for name, field in own.items() if field.init and not field.kw_only))
    methods = {
        **(_GUARDS if frozen else {}),
        "__getstate__": _get_state,
        "__setstate__": _set_state,
        "__repr__": _show_as(tuple(name for name in names if own[name].repr)),
    }
    if eq:
        methods["__eq__"], methods["__hash__"] = _compare_by(tuple(name for name in names if own[name].compare))
        # A class that is given no __hash__ has a None of Python's, where it has __eq__.
        namespace = {name: value for name, value in namespace.items() if name != "__hash__" or value is not None}
    record_class: Any = type(cls)(cls.__name__, cls.__bases__, methods | namespace)
    if "__init__" not in namespace:
        record_class.__init__ = _LaterInit(record_class, tuple(own.values()))
    return record_class  # type: ignore[no-any-return]  # a class, made by its type


def _take_fields(cls: type, namespace: dict[str, Any]) -> dict[str, Field[Any]]:
    """Returns name -> field, and takes the defaults out of the class. Raises: TypeError, ValueError for what is no field."""
    own: dict[str, Field[Any]] = {}
    is_named = False
    for name, annotation in cls.__annotations__.items():
        if annotation in (KW_ONLY, "KW_ONLY", "dataclasses.KW_ONLY"):
            is_named = True
            continue
        if "ClassVar" in str(annotation) or "InitVar" in str(annotation):
            raise TypeError(f"{cls.__name__}.{name} is no field, which a record cannot have; use dataclasses.dataclass")
        default = namespace.pop(name, MISSING)
        each = default if isinstance(default, Field) else field(default=default)
        if each.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name} has a default that can be changed: use default_factory")
        each.name, each.type = name, annotation
        each._field_type = _FIELD  # type: ignore[union-attr]  # as above
        each.kw_only = is_named if each.kw_only is MISSING else each.kw_only
        own[name] = each
    return own


class _LaterInit:
    """Stands for the `__init__` of a class until somebody asks for it: many classes that a start defines have no instance in it."""

    __slots__ = ("_own", "_record_class")

    def __init__(self, record_class: type, own: tuple[Field[Any], ...]) -> None:
        self._record_class, self._own = record_class, own

    def __get__(self, instance: object, owner: type) -> Any:
        init: Any = _make_init(self._record_class, self._own)
        self._record_class.__init__ = init  # type: ignore[misc]  # which is meant: it takes the place of this one
        return init if instance is None else init.__get__(instance, owner)


def _make_init(cls: type, own: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Returns `__init__`, which takes the fields in order and sets each slot; then `__post_init__`, where there is one."""
    own = tuple(each for each in own if each.init or each.default_factory is not MISSING)
    places = tuple((each.init, bool(each.kw_only), each.default_factory is not MISSING) for each in own)
    has_end = hasattr(cls, "__post_init__")
    code = _compile_init(places, has_end=has_end)
    parameters = sorted((each for each in own if each.init), key=lambda each: bool(each.kw_only))
    names: dict[str, Any] = {"MISSING": MISSING, "__name__": cls.__module__}
    for index, each in enumerate(own):
        names[f"set_{index}"] = getattr(cls, each.name).__set__
        names[f"make_{index}"] = each.default_factory
    code = code.replace(co_varnames=("self", *(each.name for each in parameters)), co_qualname=f"{cls.__qualname__}.__init__")
    init = FunctionType(code, names)
    defaults = {
        each.name: each.default if each.default_factory is MISSING else MISSING for each in parameters if _is_optional(each)
    }
    init.__defaults__ = tuple(defaults[each.name] for each in parameters if each.name in defaults and not each.kw_only)
    init.__kwdefaults__ = {each.name: defaults[each.name] for each in parameters if each.name in defaults and each.kw_only}
    init.__annotations__ = {**{each.name: each.type for each in own}, "return": None}
    return init


def _is_optional(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


@cache
def _compile_init(places: tuple[tuple[bool, bool, bool], ...], *, has_end: bool) -> CodeType:
    """Returns the code of `__init__` for fields of these places, under names of no class; classes with the same places share it."""
    parameters, named, lines = ["self"], ["*"], []
    for index, (is_given, is_named, is_made) in enumerate(places):
        value = f"value_{index}"
        if is_given:
            (named if is_named else parameters).append(value)
        if is_made:
            value = f"make_{index}() if {value} is MISSING else {value}" if is_given else f"make_{index}()"
        lines.append(f"    set_{index}(self, {value})\n")
    if has_end:
        lines.append("    self.__post_init__()\n")
    parameters += named if len(named) > 1 else []
    names: dict[str, Any] = {}
    exec(f"def __init__({', '.join(parameters)}):\n{''.join(lines) or '    pass'}", names)  # numbers alone
    code: CodeType = names["__init__"].__code__
    return code


def _refuse_setting(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_GUARDS = {"__setattr__": _refuse_setting, "__delattr__": _refuse_deleting}


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
