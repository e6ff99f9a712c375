"""The table of kernels: (domain, operator, since-version) -> the function that computes it, and why a node has none.

A kernel is one function. Its first parameter is `xp`, the array namespace (NumPy, CuPy or one like them); then come the ONNX inputs
by position, absent ones as None; ONNX attributes are keyword-only and carry the spec's defaults. It returns one array or a tuple,
and never writes into its inputs; its result may share their memory. `find_refusal` reads the same record that runs the node, so
that a claim and its execution cannot drift. The record is the only place that says anything about an operator: a new one is one
function in one file of `operators/`. Such a file is imported on the first question about one of its operators. Imports no array
library at its head.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from hetero_core.dtypes import DTYPES, dtype_of_onnx
from hetero_core.errors import enumerate_choices, suggest
from hetero_core.kernels import operators
from hetero_core.kernels.index import map_modules
from hetero_core.network.graph import EMPTY, Graph, Node
from hetero_core.network.types import MapType, TensorType, ValueType
from hetero_core.records import record

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
INT64: Dtypes = frozenset({"int64"})
STRING: Dtypes = frozenset({"string"})
NOT_STRING: Dtypes = ANY - STRING

# Attributes that hold the number of an element type.
_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})


Function = TypeVar("Function", bound=Callable[..., Any])


@record(frozen=True, slots=True)
class Declaration:
    """The author's statement about a kernel; written above the function as `@kernel(op_type, since=..., dtypes=...)`, it registers it.

    `since` are the since-versions for which the function is right. `dtypes` holds one set per input, the last one serves all further
    inputs. `host` are positions of inputs that stay in host memory as NumPy arrays; `choices` limits attribute values; `bodies` are
    attributes that arrive as callables; `outputs` is the largest number of outputs, None for any. A kernel that `reads_shapes` looks at
    its inputs' shapes only, so it runs on the host wherever they are; one that `runs_on_host` is always called with NumPy, on copies in
    host memory. `refuse` gives the reason for what the other fields cannot say. One that `counts_outputs` is told in a keyword
    `output_count` how many outputs are wanted. One that `takes_maps` allows dicts, whose values have the input's dtypes.
    `prepare(xp, input_types, **attributes)` makes, once for each bound node, what the function gets as `prepared`; the attributes are
    those of its signature, and a ValueError of it is the reason why the node is refused. `count_bytes(*inputs, **attributes)` says how
    many bytes a run makes; an operator has it if values or attributes, and not shapes alone, decide (`sizes`). `unread` are attributes,
    with their defaults, that these versions have and no result depends on; the function is not given them. `without` are attributes of
    the function that these versions do not have. With `halves`, float16 is taken wherever float32 is: the function gets float32, and the
    outputs at these positions are rounded to float16. `shared` are attributes, with their
    defaults, that several operators have in common; the function takes them in its ** parameter.
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
    counts_outputs: bool = False
    reads_shapes: bool = False
    runs_on_host: bool = False
    refuse: Callable[[Node, tuple[ValueType | None, ...]], str | None] | None = None
    takes_maps: bool = False
    prepare: Callable[..., Any] | None = None
    count_bytes: Callable[..., int] | None = None
    unread: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    without: tuple[str, ...] = ()
    halves: tuple[int, ...] | None = None
    shared: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    def __call__(self, function: Function) -> Function:
        """Registers the function; declarations may be stacked."""
        declared = _Declared(self, function)
        for version in self.since:
            key = (self.domain, self.op_type, version)
            assert key not in _TABLE, f"two kernels for {self.op_type}-{version}"
            _TABLE[key] = declared
        return function

    def complete(self, function: Callable[..., Any]) -> Kernel:
        """Returns the kernel that the function is, with what its signature says."""
        attributes, required, limits = _read_signature(function)
        if self.prepare is not None:
            assert required == ("prepared",), f"{self.op_type}: the attributes belong to what prepares them"
            attributes, required, _ = _read_signature(self.prepare)
        is_counting = "output_count" in attributes
        assert self.counts_outputs == is_counting, f"{self.op_type}: output_count is declared on one side only"
        assert attributes.keys() >= set(self.without), f"{self.op_type}: the function has no such attribute to be without"
        attributes |= self.shared
        hidden = {"output_count", *self.without}
        declared = {name: getattr(self, name) for name in _DECLARED}
        if self.halves is not None:
            from hetero_core.kernels.precision import compute_halves  # imports NumPy, as every file of kernels does

            function = compute_halves(function, self.halves)
            declared["dtypes"] = (
                tuple(map(_with_halves, self.dtypes)) if isinstance(self.dtypes, tuple) else _with_halves(self.dtypes)
            )
        return Kernel(
            **declared,
            function=function,
            attributes={**self.unread, **{name: default for name, default in attributes.items() if name not in hidden}},
            required=tuple(name for name in required if name not in hidden),
            input_limits=limits,
        )


def _with_halves(dtypes: Dtypes) -> Dtypes:
    return dtypes | {"float16"} if "float32" in dtypes else dtypes


kernel = Declaration
_DECLARED = tuple(declared.name for declared in fields(Declaration))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Kernel(Declaration):
    """One function and what it is right for: what its author declared, and what its signature says of attributes and inputs."""

    function: Callable[..., Any]
    attributes: Mapping[str, Any]
    required: tuple[str, ...]
    input_limits: tuple[int, int | None]

    def dtypes_of_input(self, index: int) -> Dtypes:
        """Returns the element types that the kernel computes at an input."""
        return self.dtypes[min(index, len(self.dtypes) - 1)] if isinstance(self.dtypes, tuple) else self.dtypes


class _Declared:
    """A declaration and its function; the kernel is made when it is first asked for, as a file declares many more than a network has."""

    def __init__(self, declaration: Declaration, function: Callable[..., Any]) -> None:
        self._declaration, self._function = declaration, function

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self._declaration.complete(self._function)


NO_EXTENSIONS: Mapping[tuple[str, str], Any] = MappingProxyType({})
_TABLE: dict[tuple[str, str, int], _Declared] = {}


def _read_signature(function: Callable[..., Any]) -> tuple[dict[str, Any], tuple[str, ...], tuple[int, int | None]]:
    """Returns the attributes with their defaults, those without, and how many inputs there may be; the first parameter is none of them."""
    # What inspect.signature tells, without its objects: 300 functions are read before the first network.
    code = function.__code__
    inputs = code.co_argcount - 1
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__kwdefaults__ or {}
    least = inputs - min(len(function.__defaults__ or ()), inputs)
    is_variadic = bool(code.co_flags & inspect.CO_VARARGS)
    required = tuple(name for name in keywords if name not in defaults)
    return {name: defaults.get(name) for name in keywords}, required, (least, None if is_variadic else inputs)


@cache
def read_table() -> Mapping[tuple[str, str, int], Kernel]:
    """Returns the whole table, sorted by domain, operator and version; imports all kernel modules on the first call."""
    from pkgutil import iter_modules  # few networks need the whole table

    for module in iter_modules(operators.__path__):
        importlib.import_module(f"{operators.__name__}.{module.name}")
    return {key: declared.kernel for key, declared in sorted(_TABLE.items())}


_MODULES = map_modules()
_DOMAINS = frozenset(domain for domain, _ in _MODULES)


@cache
def _import_kernels(domain: str, op_type: str) -> None:
    for module in _MODULES.get((domain, op_type), ()):
        importlib.import_module(f"{operators.__name__}.{module}")


def find_kernel(node: Node) -> Kernel | None:
    """Returns the kernel of a node's operator in the node's version, or None; imports the modules that have the operator."""
    key = (node.domain, node.op_type, node.since_version)
    _import_kernels(node.domain, node.op_type)
    if key not in _TABLE and node.domain in _DOMAINS:
        return read_table().get(key)  # an operator that has been added since the index was written, or one without a kernel
    declared = _TABLE.get(key)
    return None if declared is None else declared.kernel


def find_refusal(
    node: Node,
    input_types: Sequence[ValueType | None],
    *,
    extensions: Mapping[tuple[str, str], Any] = NO_EXTENSIONS,
    dtypes: Dtypes = ANY,
    type_of: Callable[[str], ValueType | None] | None = None,
) -> str | None:
    """Returns the reason why the toolkit cannot run a node, None when it can.

    An input whose type is None is not checked here; the compiled program checks it when it runs. `dtypes` are those of the device.
    `type_of` gives the types of outer values, which the bodies of If, Loop and Scan may read.
    """
    record = find_kernel(node)
    if record is None:
        return None if (node.domain, node.op_type) in extensions else _explain_missing(node)
    return (
        _refuse_attributes(node, record)
        or _refuse_inputs(node, record, input_types, dtypes)
        or _refuse_bodies(node, extensions, dtypes, type_of)
        or (record.refuse(node, tuple(input_types)) if record.refuse is not None else None)
        or _refuse_preparation(node, record, tuple(input_types))
    )


_PLAIN_SIZES = (int, str, type(None))


def find_refusals(
    graph: Graph,
    *,
    extensions: Mapping[tuple[str, str], Any] = NO_EXTENSIONS,
    dtypes: Dtypes = ANY,
    type_of: Callable[[str], ValueType | None] | None = None,
) -> dict[str, str]:
    """Returns node name -> reason for each node of a graph that the toolkit cannot run. `type_of` types values of outer graphs."""

    def type_of_value(value: str) -> ValueType | None:
        value_type = graph.type_of(value)
        if value_type is None and value in graph.initializers:
            return graph.initializers[value].type
        return type_of(value) if value_type is None and type_of is not None else value_type

    refusals: dict[str, str] = {}
    accepted: set[tuple[object, ...]] = set()
    for node in graph.nodes:
        input_types = [type_of_value(value) if value else None for value in node.inputs]
        kind = None
        if not node.attributes and not node.domain and all(map(_has_plain_sizes, input_types)):
            # All that a node without attributes is asked for; long networks have few of these.
            ends = tuple(map(bool, node.inputs)), tuple(map(bool, node.outputs))
            kind = (node.op_type, node.since_version, ends, *input_types)
            if kind in accepted:
                continue
        reason = find_refusal(node, input_types, extensions=extensions, dtypes=dtypes, type_of=type_of_value)
        if reason is not None:
            refusals[node.name] = reason
        elif kind is not None:
            accepted.add(kind)
    return refusals


def _has_plain_sizes(value_type: ValueType | None) -> bool:
    """Says whether a type can be compared with others: a size that stands for a class of sizes would become one of them."""
    shape = value_type.shape if isinstance(value_type, TensorType) else None
    return shape is None or all(type(size) in _PLAIN_SIZES for size in shape)


def _explain_missing(node: Node) -> str:
    name = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    versions = [version for domain, op_type, version in read_table() if (domain, op_type) == (node.domain, node.op_type)]
    if versions:
        known = ", ".join(str(version) for version in versions)
        return f"{name}-{node.since_version} has no kernel; there are kernels for version {known}"
    others = [op_type for domain, op_type, _ in read_table() if domain == node.domain]
    return f"operator {name} has no kernel{suggest(node.op_type, others)}"


def _refuse_attributes(node: Node, record: Kernel) -> str | None:
    for name, value in node.attributes.items():
        if name not in record.attributes:
            return f"attribute '{name}' of {node.operator} is not implemented"
        if name in record.choices and (hasattr(value, "dtype") or value not in record.choices[name]):
            choices = enumerate_choices(str(choice) for choice in record.choices[name])
            return f"attribute '{name}' of {node.operator} is {value!r}; implemented: {choices}"
        if isinstance(value, Graph) and name not in record.bodies:
            return f"attribute '{name}' of {node.operator} is a graph"
        if name in _DTYPE_ATTRIBUTES and isinstance(value, int) and value != 0 and dtype_of_onnx(value) is None:
            return f"attribute '{name}' of {node.operator} is {value}, which is no element type"
    missing = [name for name in record.required if name not in node.attributes]
    return f"attribute '{missing[0]}' of {node.operator} is missing" if missing else None


def _refuse_inputs(node: Node, record: Kernel, input_types: Sequence[ValueType | None], dtypes: Dtypes) -> str | None:
    least, most = record.input_limits
    if len(node.inputs) < least or (most is not None and len(node.inputs) > most):
        return f"{node.operator} has {len(node.inputs)} inputs; implemented: {least} to {'any number' if most is None else most}"
    if record.outputs is not None and any(node.outputs[record.outputs :]):
        return f"{node.operator} has {len(node.outputs)} outputs; implemented: {record.outputs}"
    for name in _DTYPE_ATTRIBUTES & node.attributes.keys():
        value = node.attributes[name]
        dtype = dtype_of_onnx(value) if isinstance(value, int) else None
        if dtype is not None and dtype not in dtypes:
            return f"{node.operator} makes {dtype}; this device has {enumerate_choices(dtypes)}"
    for index, (name, value_type) in enumerate(zip(node.inputs, input_types, strict=False)):
        if not name or value_type is None:
            continue
        allowed = record.dtypes_of_input(index)
        # What a kernel reads on the host never enters the device, so only the kernel's own limits hold there.
        allowed = allowed if index in record.host else allowed & dtypes
        reason = refuse_type(value_type, allowed, takes_maps=record.takes_maps)
        if reason is not None:
            return f"input '{name}' of {node.operator} {reason}; implemented: {enumerate_choices(allowed)}"
    return None


def refuse_type(value_type: ValueType, allowed: Dtypes, *, takes_maps: bool = False) -> str | None:
    """Returns what is wrong with a value of this type ("has dtype string"), None when its elements are allowed or unknown."""
    if isinstance(value_type, MapType):
        return refuse_type(value_type.value, allowed) if takes_maps else "is a map"
    if isinstance(value_type, TensorType):
        return None if value_type.dtype is None or value_type.dtype in allowed else f"has dtype {value_type.dtype}"
    return refuse_type(value_type.element, allowed, takes_maps=takes_maps)


def _refuse_preparation(node: Node, record: Kernel, input_types: tuple[ValueType | None, ...]) -> str | None:
    if record.prepare is None:
        return None
    import numpy as np  # on the host, whatever the device: only the reason is wanted

    try:
        record.prepare(np, input_types, **{name: value for name, value in node.attributes.items() if name not in record.unread})
    except ValueError as error:
        return f"{node.operator} {error}"
    except (ArithmeticError, LookupError, TypeError) as error:
        # What a stranger's attributes can be is not foreseen everywhere; that they fit no formula is reason enough.
        return f"{node.operator} has attributes that do not fit together: {type(error).__name__}: {error}"
    return None


def _refuse_bodies(
    node: Node,
    extensions: Mapping[tuple[str, str], Any],
    dtypes: Dtypes,
    type_of: Callable[[str], ValueType | None] | None,
) -> str | None:
    for attribute, body in node.bodies.items():
        refusals = find_refusals(body, extensions=extensions, dtypes=dtypes, type_of=type_of)
        for name, reason in refusals.items():
            return f"node '{name}' in {attribute} of {node.operator}: {reason}"
    return None
