"""Declares kernels into tables, and tells why a node has no kernel.

A kernel is a function. Its first parameter is `xp`, the array namespace (NumPy, CuPy or compatible); then come the ONNX inputs by
position, absent inputs as None; ONNX attributes are keyword-only and carry the spec's defaults. It returns an array or a tuple, and never
writes into its inputs; its result may share their memory. `find_refusal` reads the same record that runs the node, so that a claim and
its execution cannot drift. The record is the only description of an operator. Its decorator names the source, too: ONNX's text of the
newest version, or ONNX Runtime's operator for com.microsoft. A new operator is a single function in a file of `operators/`; these files
are imported on the first question. A device with kernels of its own declares them into a `KernelTable`; its claims follow in the same
way. Imports no array library at its head.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache, partial
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from hetero_core.dtypes import DTYPES, dtype_of_onnx
from hetero_core.errors import enumerate_choices
from hetero_core.kernels import operators
from hetero_core.kernels.tables import InputTypes, KernelTable, Key, read_signature
from hetero_core.network.graph import EMPTY, Graph, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import MapType, TensorType, ValueType

TypeOf = Callable[[str], ValueType | None]
Extensions = Mapping[tuple[str, str], Any]
"""(domain, op_type) -> a custom operator."""
Dtypes = frozenset[str]
ANY: Dtypes = frozenset(DTYPES)
FLOATS: Dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED: Dtypes = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: Dtypes = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS: Dtypes = SIGNED | UNSIGNED
NUMBERS: Dtypes = FLOATS | INTEGERS
FLOAT8: Dtypes = frozenset({"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"})
COMPLEX: Dtypes = frozenset({"complex64", "complex128"})
BOOL: Dtypes = frozenset({"bool"})
INDEX: Dtypes = frozenset({"int32", "int64"})
INT32: Dtypes = frozenset({"int32"})
INT64: Dtypes = frozenset({"int64"})
UINT8: Dtypes = frozenset({"uint8"})
BYTES: Dtypes = frozenset({"int8", "uint8"})
FLOAT32: Dtypes = frozenset({"float32"})
HALF: Dtypes = frozenset({"float32", "float16"})
SMALL_FLOATS: Dtypes = FLOATS - {"float64"}
STRING: Dtypes = frozenset({"string"})
NOT_STRING: Dtypes = ANY - STRING


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a kernel. `@kernel(op_type, since=..., dtypes=...)` above a function registers it.

    `since` lists the since-versions for which the function is right. `dtypes` holds a set per input; the last set serves all further
    inputs. `host` lists the positions of inputs that stay in host memory as NumPy arrays. `choices` limits attribute values. `bodies`
    names attributes that arrive as callables. `outputs` is the largest number of outputs, None for any; a function with the
    parameter `output_count` gets the number of requested outputs. With `reads_shapes` the kernel reads only shapes of its inputs, so it
    runs on the host wherever they are; with `runs_on_host` it is always called with NumPy, on copies in host memory. `takes_maps` allows
    dicts, whose values have the input's dtypes. `refuse` returns a reason for refusals that no other field expresses.
    `prepare(xp, input_types, **attributes)` runs once for each bound node; the function gets its result as `prepared`. The attributes are
    then those of its signature, and a ValueError that it raises is the reason for a refusal. `count_bytes(*inputs, **attributes)` returns
    the bytes that a run makes; it is needed if texts or intermediate results decide (`sizes`). `unread` maps attributes that
    these versions have, but no result depends on, to their defaults; the function does not get them. `without` lists attributes and last
    inputs of the function that these versions lack; `as_attributes` lists inputs of the function that these versions have as attributes.
    `shared` maps attributes that several operators have in common to their defaults; the function takes them in its ** parameter. With
    `halves`, float16 is allowed wherever float32 is: the function gets float32, and the outputs at these positions are rounded to float16.
    `largest` is the number of bytes that an input or output may have; a size that is open in the query is checked in the run. `table` is
    the table of the kernel, None for the toolkit's own.
    """

    op_type: str
    _: KW_ONLY
    since: tuple[int, ...]
    dtypes: Dtypes | tuple[Dtypes, ...]
    domain: str = ""
    host: tuple[int, ...] = ()
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: EMPTY)
    bodies: tuple[str, ...] = ()
    outputs: int | None = 1
    reads_shapes: bool = False
    runs_on_host: bool = False
    refuse: Callable[[Node, InputTypes], str | None] | None = None
    takes_maps: bool = False
    prepare: Callable[..., Any] | None = None
    count_bytes: Callable[..., int] | None = None
    unread: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    without: tuple[str, ...] = ()
    as_attributes: tuple[str, ...] = ()
    halves: tuple[int, ...] | None = None
    shared: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    largest: int | None = None
    table: KernelTable | None = None

    def __call__(self, function: Function) -> Function:
        """Registers the function; declarations may be stacked. Raises: TypeError for an argument of the declaration."""
        table = TOOLKIT if self.table is None else self.table
        complete = partial(self.complete, function)
        if self.table is not None:  # the toolkit's own hundreds of declarations are checked when they are first needed
            complete()
        for version in self.since:
            table.add((self.domain, self.op_type, version), complete)
        return function

    def complete(self, function: Callable[..., Any]) -> KernelRecord:
        """Returns the kernel of a function, with the attributes and inputs that its signature declares."""
        for name, (kind, element, expected) in _ARGUMENTS.items():
            if not _is_right(value := getattr(self, name), kind, element):
                raise TypeError(
                    f"the kernel {function.__name__} of {self.op_type} is declared with {name}={value!r}; expected {expected}"
                )
        attributes, required, limits = read_signature(function, (*self.as_attributes, *self.without))
        if self.prepare is not None:
            assert required == ("prepared",), f"{self.op_type}: the attributes belong to what prepares them"
            attributes, required, _ = read_signature(self.prepare)
        counts_outputs = "output_count" in attributes
        attributes |= self.shared
        names, most = {**self.unread, **attributes}, limits[1]
        absent = [
            *(f"host={place}" for place in self.host if most is not None and not 0 <= place < most),
            *(f"without {name!r}" for name in self.without if name not in names),
            *(f"{field} of {name!r}" for field in ("choices", "bodies") for name in getattr(self, field) if name not in names),
        ]
        if absent:
            inputs = "any number of inputs" if most is None else f"{most} inputs at most"
            raise TypeError(
                f"the kernel {function.__name__} of {self.op_type} is declared with {', '.join(absent)}; its signature has {inputs} and "
                f"the attributes {enumerate_choices(names)}"
            )
        hidden = {"output_count", *self.without}
        dtypes = self.dtypes
        if self.halves is not None:
            from hetero_core.kernels.precision import compute_halves  # imports NumPy, as every file of kernels does

            function = compute_halves(function, self.halves)
            dtypes = tuple(map(_with_halves, dtypes)) if isinstance(dtypes, tuple) else _with_halves(dtypes)
        return KernelRecord(
            **{declared.name: getattr(self, declared.name) for declared in fields(Declaration) if declared.name != "dtypes"},
            dtypes=dtypes,
            function=function,
            counts_outputs=counts_outputs,
            attributes={**self.unread, **{name: default for name, default in attributes.items() if name not in hidden}},
            required=tuple(name for name in required if name not in hidden),
            input_limits=limits,
        )


def _is_right(value: Any, kind: Any, element: Any) -> bool:
    """Says whether an argument of a declaration is of this type, and so are its elements or the values of a mapping."""
    if kind is frozenset:
        return all(isinstance(dtypes, kind) and dtypes <= ANY for dtypes in (value if isinstance(value, tuple) else (value,)))
    elements = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return isinstance(value, kind) and all(isinstance(each, element) for each in elements)


_ARGUMENTS: Mapping[str, tuple[Any, Any, str]] = {
    "since": (tuple, int, "a tuple of versions"),
    "dtypes": (
        frozenset,
        str,
        f"a frozenset of element types, or a tuple of such for the inputs; there are {enumerate_choices(ANY)}",
    ),
    "host": (tuple, int, "a tuple of positions of inputs"),
    "bodies": (tuple, str, "a tuple of attributes"),
    "outputs": (int | None, int, "the largest number of outputs, or None for any number"),
    "unread": (Mapping, object, "a mapping of attributes to their defaults"),
    "choices": (Mapping, tuple, "a mapping of attributes to tuples of values"),
    "without": (tuple, str, "a tuple of attributes"),
    "as_attributes": (tuple, str, "a tuple of inputs"),
    "shared": (Mapping, object, "a mapping of attributes to their defaults"),
    "largest": (int | None, int, "a number of bytes, or None"),
}
"""Argument of a declaration -> its type, the type of its elements, and the description of right values."""


def _with_halves(dtypes: Dtypes) -> Dtypes:
    return dtypes | {"float16"} if "float32" in dtypes else dtypes


kernel = Declaration
microsoft_kernel = partial(Declaration, since=(0,), domain="com.microsoft")
"""Declares an operator of ONNX Runtime's own, for which onnx has no schema."""
ml_kernel = partial(Declaration, domain="ai.onnx.ml")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelRecord(Declaration):
    """A kernel's function with its declaration, and with the attributes and inputs that its signature declares."""

    function: Callable[..., Any]
    counts_outputs: bool
    attributes: Mapping[str, Any]
    required: tuple[str, ...]
    input_limits: tuple[int, int | None]

    def dtypes_of_input(self, index: int) -> Dtypes:
        """Returns the element types that the kernel computes at an input."""
        return self.dtypes[min(index, len(self.dtypes) - 1)] if isinstance(self.dtypes, tuple) else self.dtypes


NO_EXTENSIONS: Extensions = MappingProxyType({})


_COMMON = ("elementwise", "layout", "linear", "normalization", "reductions", "indexing", "casts", "convolution")
"""The files of `operators/` that most networks need; they are imported first."""


@cache
def _list_operator_files(domain: str) -> tuple[str, ...]:
    """Returns the files of `operators/`, first those in which an operator of a domain is likely."""
    others = (module.name for module in iter_modules(operators.__path__) if module.name not in _COMMON)
    names = sorted((*_COMMON, *others), key=lambda name: name.startswith("ml_") != (domain == "ai.onnx.ml"))
    return tuple(f"{operators.__name__}.{name}" for name in names)


class _Toolkit(KernelTable):
    """The toolkit's table. `find` imports the files of `operators/` in turn until one has the kernel."""

    def find(self, node: Node) -> KernelRecord | None:
        record = super().find(node)
        for name in _list_operator_files(node.domain) if record is None else ():
            importlib.import_module(name)
            if (record := super().find(node)) is not None:
                break
        return record

    def read(self) -> Mapping[Key, KernelRecord]:
        for name in _list_operator_files(""):
            importlib.import_module(name)
        return super().read()


TOOLKIT = _Toolkit()
"""The kernels of `operators/`."""
find_kernel = TOOLKIT.find
read_table = cache(TOOLKIT.read)


def find_refusal(
    node: Node,
    input_types: Sequence[ValueType | None],
    *,
    extensions: Extensions = NO_EXTENSIONS,
    dtypes: Dtypes = ANY,
    type_of: TypeOf | None = None,
    table: KernelTable = TOOLKIT,
) -> str | None:
    """Returns the reason why the kernels of a table cannot run a node, None when they can.

    An input without a type is not checked here; the compiled program checks it when it runs. `dtypes` are those of the device.
    `type_of` gives the types of the node's outputs, and of outer values, which the bodies of If, Loop and Scan may read.
    """
    record = table.find(node)
    if record is None:
        return None if (node.domain, node.op_type) in extensions else table.explain_missing(node)
    return (
        _refuse_attributes(node, record)
        or _refuse_inputs(node, record, input_types, dtypes)
        or _refuse_sizes(node, record, input_types, type_of)
        or _refuse_bodies(node, extensions, dtypes, type_of, table)
        or (record.refuse(node, tuple(input_types)) if record.refuse is not None else None)
        or _refuse_preparation(node, record, tuple(input_types))
    )


def find_refusals(
    graph: Graph,
    *,
    extensions: Extensions = NO_EXTENSIONS,
    dtypes: Dtypes = ANY,
    type_of: TypeOf | None = None,
    table: KernelTable = TOOLKIT,
) -> dict[str, str]:
    """Returns node name -> reason for each node of a graph that a table's kernels cannot run. `type_of` types values of outer graphs."""
    type_of_value = partial(find_type, graph, graph.initializers, type_of)
    refusals: dict[str, str] = {}
    for node in graph.nodes:
        input_types = [type_of_value(value) if value else None for value in node.inputs]
        try:
            reason = find_refusal(node, input_types, extensions=extensions, dtypes=dtypes, type_of=type_of_value, table=table)
        except Exception as error:  # any error names the node
            error.add_note(f"while the kernels were asked about node {node.label}")
            raise
        if reason is not None:
            refusals[node.name] = reason
    return refusals


def find_type(graph: Graph, constants: Mapping[str, Initializer], type_of: TypeOf | None, value: str) -> ValueType | None:
    """Returns the type of a value of a graph; `type_of` types values of outer graphs."""
    value_type = graph.type_of(value)
    if value_type is None and value in constants:
        return constants[value].type
    return type_of(value) if value_type is None and type_of is not None else value_type


def _refuse_bodies(node: Node, extensions: Extensions, dtypes: Dtypes, type_of: TypeOf | None, table: KernelTable) -> str | None:
    for attribute, body in node.bodies.items():
        refusals = find_refusals(body, extensions=extensions, dtypes=dtypes, type_of=type_of, table=table)
        for name, reason in refusals.items():
            return f"node '{name}' in {attribute} of {node.operator}: {reason}"
    return None


DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})
"""Attributes that hold the number of an element type."""


def _refuse_attributes(node: Node, record: KernelRecord) -> str | None:
    """Returns the reason to refuse an attribute: not implemented, a value outside the choices, or missing."""
    for name, value in node.attributes.items():
        if name not in record.attributes:
            return f"attribute '{name}' of {node.operator} is not implemented"
        if name in record.choices and (hasattr(value, "dtype") or value not in record.choices[name]):
            choices = enumerate_choices(str(choice) for choice in record.choices[name])
            return f"attribute '{name}' of {node.operator} is {value!r}; implemented: {choices}"
        if isinstance(value, Graph) and name not in record.bodies:
            return f"attribute '{name}' of {node.operator} is a graph"
        if name in DTYPE_ATTRIBUTES and isinstance(value, int) and value != 0 and dtype_of_onnx(value) is None:
            return f"attribute '{name}' of {node.operator} is {value}, which is no element type"
    missing = [name for name in record.required if name not in node.attributes]
    return f"attribute '{missing[0]}' of {node.operator} is missing" if missing else None


def _refuse_inputs(node: Node, record: KernelRecord, input_types: Sequence[ValueType | None], dtypes: Dtypes) -> str | None:
    """Returns the reason to refuse the number of inputs or outputs, or an element type."""
    least, most = record.input_limits
    if len(node.inputs) < least or (most is not None and len(node.inputs) > most):
        return f"{node.operator} has {len(node.inputs)} inputs; implemented: {least} to {'any number' if most is None else most}"
    if record.outputs is not None and any(node.outputs[record.outputs :]):
        return f"{node.operator} has {len(node.outputs)} outputs; implemented: {record.outputs}"
    for name in DTYPE_ATTRIBUTES & node.attributes.keys():
        value = node.attributes[name]
        dtype = dtype_of_onnx(value) if isinstance(value, int | str) else None
        if dtype is not None and dtype not in dtypes:
            return f"{node.operator} makes {dtype}; this device has {enumerate_choices(dtypes)}"
    for index, (name, value_type) in enumerate(zip(node.inputs, input_types, strict=False)):
        if not name or value_type is None:
            continue
        allowed = record.dtypes_of_input(index)
        # An input that a kernel reads on the host never enters the device, so only the kernel's own limits hold there.
        allowed = allowed if index in record.host else allowed & dtypes
        reason = refuse_type(value_type, allowed, takes_maps=record.takes_maps)
        if reason is not None:
            return f"input '{name}' of {node.operator} {reason}; implemented: {enumerate_choices(allowed)}"
    return None


def _refuse_sizes(node: Node, record: KernelRecord, input_types: Sequence[ValueType | None], type_of: TypeOf | None) -> str | None:
    """Returns the reason to refuse an input or output that is larger than the kernel takes."""
    if record.largest is None:
        return None
    for name, value_type in (
        *zip(node.inputs, input_types, strict=False),
        *((name, type_of and type_of(name)) for name in node.writes),
    ):
        nbytes = value_type.nbytes if isinstance(value_type, TensorType) else None
        if nbytes is not None and nbytes > record.largest:
            return explain_size(node, name, nbytes, record.largest)
    return None


def explain_size(node: Node, name: str, nbytes: int, largest: int) -> str:
    """Returns the reason why a kernel does not take a value of so many bytes."""
    return f"value '{name}' of {node.operator} has {nbytes} bytes; implemented: {largest} at most"


def refuse_type(value_type: ValueType, allowed: Dtypes, *, takes_maps: bool = False) -> str | None:
    """Returns the reason why a value of this type is refused ("has dtype string"); None when its elements are allowed or unknown."""
    if isinstance(value_type, MapType):
        return refuse_type(value_type.value, allowed) if takes_maps else "is a map"
    if isinstance(value_type, TensorType):
        return None if value_type.dtype is None or value_type.dtype in allowed else f"has dtype {value_type.dtype}"
    return refuse_type(value_type.element, allowed, takes_maps=takes_maps)


_prepared: WeakKeyDictionary[Node, tuple[KernelRecord, InputTypes, Any]] = WeakKeyDictionary()
"""What a query has prepared for a node, until it is bound: the tables of a forest take longer than all other work of a load."""


def take_prepared(node: Node, record: KernelRecord, input_types: InputTypes) -> Any:
    """Returns what the query of a node has prepared, which is forgotten then, or prepares it. Raises: the errors of `prepare`."""
    earlier = _prepared.pop(node, None)
    if earlier is not None and earlier[0] is record and earlier[1] == input_types:
        return earlier[2]
    return prepare_node(node, record, input_types)


def prepare_node(node: Node, record: KernelRecord, input_types: InputTypes) -> Any:
    """Returns the result of the kernel's preparation, on the host for every device. Raises: the errors of `prepare`."""
    import numpy as np

    assert record.prepare is not None
    return record.prepare(np, input_types, **{name: value for name, value in node.attributes.items() if name not in record.unread})


def _refuse_preparation(node: Node, record: KernelRecord, input_types: InputTypes) -> str | None:
    """Returns the reason why the kernel's preparation (computed once, before its runs) fails."""
    if record.prepare is None:
        return None
    try:
        _prepared[node] = record, input_types, take_prepared(node, record, input_types)
    except ValueError as error:
        return f"{node.operator} {error}"
    except (ArithmeticError, LookupError, TypeError) as error:
        # Not every invalid combination of attributes is checked; an exception in `prepare` counts as a refusal.
        return f"{node.operator} has attributes that do not fit together: {type(error).__name__}: {error}"
    return None
