"""A network's inputs and outputs beyond names and types: states, defaults, bounds, layouts, how users describe them; and declared
shapes of values that inference does not confirm: hints, which are compared with the computed shapes and which no device gets.

A part that is cut out of a network has a border of its own, which says nothing of this. Imports neither onnx nor an array library.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from hetero_core.dtypes import DTYPES, numpy_dtype
from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.arrays import array_of_bytes, bytes_of_array
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import Dimension, TensorType, ValueSpec, ValueType, merge_types, read_record

FIRST_WITH_OPTIONAL_INPUTS = 4
"""The first IR version in which a constant that is listed as an input is meant to be replaced; before, each constant had to be listed."""
BORDER_KEY = "hetero.border"
"""The key of the border in `metadata_props` of an ONNX file."""

_DTYPE_OF_PRECISION = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("I", "int"), ("U", "uint")) for bits in (4, 8, 16, 32, 64)},
}
_PRECISION_OF_DTYPE = {dtype: precision for precision, dtype in _DTYPE_OF_PRECISION.items()}

LAYOUT_OF_RANK: Mapping[int, str] = {1: "C", 2: "NC", 3: "CHW", 4: "NCHW", 5: "NCDHW"}
"""Rank -> the default layout of a value. Source: the Inference Engine's default layouts."""


def precision_of_dtype(dtype: str | None) -> str | None:
    """Returns the Inference Engine's name of an element type ("FP32", "U8"); the ONNX name in capitals for other types."""
    return None if dtype is None else _PRECISION_OF_DTYPE.get(dtype, dtype.upper())


def dtype_of_precision(precision: str, where: str) -> str:
    """Returns the element type that a precision ("U8") or an ONNX name ("uint8") means. Raises: InvalidNetworkError."""
    text = str(precision)
    dtype = _DTYPE_OF_PRECISION.get(text.upper(), text.lower())
    if dtype not in DTYPES:
        known = (*_DTYPE_OF_PRECISION, *DTYPES)
        raise InvalidNetworkError(
            f"{where}: there is no precision '{precision}'{suggest(text, known) or ';'} use one of {enumerate_choices(known)}"
        )
    return dtype


@dataclass(frozen=True, slots=True)
class InputInfo:
    """The description of an input as the user has it, so that the network can convert it; fields that are None change nothing.

    `precision` ("U8", "FP32", or an ONNX name), `layout` ("NHWC": the order of the axes, a letter each) and `shape` (in that
    layout) describe the user's arrays. `color` converts colors ("BGR->RGB"). `crop` maps axes ("H", "W") to begin and end of the
    part that is used. `resize` ("nearest", "bilinear", "cubic", "area") scales this part to the height and width of the model.
    `pad` maps axes to the numbers of pixels before and after, which are part of the model's size: of value `pad_value`, or with
    `pad_mode` "reflect" the image mirrored at its outermost pixels. `mean` and `scale` compute (x - mean) / scale with a single
    number, or a number for each channel; `mean` may be an image in the model's layout. `model_layout` is the model's own order of
    axes.
    """

    precision: str | None = None
    layout: str | None = None
    shape: Sequence[Dimension] | None = None
    mean: Any = None
    scale: float | Sequence[float] | None = None
    resize: str | None = None
    color: str | None = None
    model_layout: str | None = None
    name: str | None = None
    crop: Mapping[str, tuple[int, int]] | None = None
    pad: Mapping[str, tuple[int, int]] | None = None
    pad_value: float = 0.0
    pad_mode: str = "constant"


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """The description of an output as the user wants it; fields that are None change nothing. `layout`, `model_layout`: see `InputInfo`."""

    precision: str | None = None
    layout: str | None = None
    shape: Sequence[Dimension] | None = None
    model_layout: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A tie: `input` reads the value of `output` in the next run of the same request; the first run reads `initial`."""

    output: str
    input: str
    initial: Initializer


@dataclass(frozen=True, slots=True, eq=False)
class Border:
    """Declarations about inputs and outputs. `defaults` belong to optional inputs; `replaceable` are constants that may become such inputs.

    `bounds` maps the name of a size to the smallest and the largest that it may have. `layouts` maps inputs and outputs to theirs.
    """

    states: tuple[State, ...] = ()
    defaults: Mapping[str, Initializer] = field(default_factory=lambda: MappingProxyType({}))
    replaceable: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    layouts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def shapes_runs(self) -> bool:
        """Says whether runs differ from those of the bare network."""
        return bool(self.states or self.defaults or self.bounds)


EMPTY_BORDER = Border()


Info = TypeVar("Info", InputInfo, OutputInfo)


def describe_values(kind: type[Info], specs: Sequence[ValueSpec], border: Border) -> Mapping[str, Info]:
    """Returns input or output -> name, precision, layout and shape."""
    layouts = {spec.name: LAYOUT_OF_RANK.get(len(spec.shape)) for spec in specs if spec.shape is not None} | dict(border.layouts)
    return MappingProxyType(
        {spec.name: kind(precision_of_dtype(spec.dtype), layouts.get(spec.name), spec.shape, name=spec.name) for spec in specs}
    )


NO_BORDER = "{}"
"""The text of a border that says nothing."""


def border_to_json(border: Border) -> str:
    """Returns the border as text; of defaults the names alone, since a file has their values as initializers."""
    fields = {
        "states": [[state.output, state.input, _constant_to_json(state.initial)] for state in border.states],
        "defaults": list(border.defaults),
        "replaceable": list(border.replaceable),
        "bounds": {name: list(bounds) for name, bounds in border.bounds.items()},
        "layouts": dict(border.layouts),
    }
    return json.dumps({key: value for key, value in fields.items() if value})


_Row = tuple[str, tuple[int, ...], str]
"""The element type, the shape and the bytes of a constant, as `_constant_to_json` writes them."""
_KINDS: Mapping[str, Any] = {
    "states": tuple[tuple[str, str, _Row], ...],
    "defaults": tuple[str, ...],
    "replaceable": tuple[str, ...],
    "bounds": Mapping[str, tuple[int, int]],
    "layouts": Mapping[str, str],
}


def border_of_json(text: str, defaults: Mapping[str, Initializer]) -> Border:
    """Returns the border that `border_to_json` wrote; `defaults` holds the values of the inputs that it may name.

    Raises: InvalidNetworkError for anything else.
    """
    if text == NO_BORDER:
        return EMPTY_BORDER
    with _refusing_damage(f"the '{BORDER_KEY}' of a model", "Remove it, or export the model again"):
        fields = {name: read_record(_KINDS[name], value, name) for name, value in json.loads(text).items()}
        states = tuple(State(output, name, _constant_of_json(*row)) for output, name, row in fields.pop("states", ()))
        return Border(states, MappingProxyType({name: defaults[name] for name in fields.pop("defaults", ())}), **fields)


@contextmanager
def _refusing_damage(title: str, cure: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InvalidNetworkError(f"{title} cannot be read: {type(error).__name__}: {error}. {cure}.") from error


def pack_border(border: Border) -> bytes:
    """Returns the border as the bytes of a section of a blob, with the values of defaults."""
    defaults = {name: _constant_to_json(constant) for name, constant in border.defaults.items()}
    return json.dumps({"border": border_to_json(border), "defaults": defaults}).encode()


def unpack_border(content: bytes) -> Border:
    """Returns the border that `pack_border` wrote. Raises: InvalidNetworkError."""
    with _refusing_damage(f"the '{BORDER_KEY}' of a blob", "Export the network again"):
        fields = json.loads(content)
        rows = read_record(Mapping[str, _Row], fields["defaults"], "defaults")
        defaults = {name: _constant_of_json(*row) for name, row in rows.items()}
        text = read_record(str, fields["border"], "border")
    return border_of_json(text, defaults)


def _constant_to_json(constant: Initializer) -> list[Any]:
    if constant.dtype == "string":
        raise InvalidNetworkError(
            "a state or a default that holds strings cannot be written into a blob; ONNX gives strings no bytes. Make it a required input."
        )
    import base64  # few borders hold constants

    raw = bytes_of_array(constant.array)
    # Most states begin at zeros, of which the shape is enough.
    return [constant.dtype, list(constant.shape), base64.b64encode(raw.tobytes()).decode() if raw.any() else ""]


def _constant_of_json(dtype: str, sizes: tuple[int, ...], encoded: str) -> Initializer:
    import base64  # as above

    if dtype not in DTYPES or dtype == "string":
        raise ValueError(f"a constant of type {dtype!r}")
    raw = base64.b64decode(encoded, validate=True)
    if not raw:
        # Made on first use: a few bytes of a foreign file may ask for more than fits into memory.
        return Initializer(dtype, sizes, lambda: np.zeros(sizes, numpy_dtype(dtype)))
    array = array_of_bytes(raw, dtype, sizes)
    return Initializer(dtype, sizes, lambda: array)


def find_contradiction(border: Border, inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec]) -> str | None:
    """Returns the contradiction between a border and inputs and outputs, or None: other tools may have changed a file."""
    spec_of_input, spec_of_output = {spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs}
    tied = [name for state in border.states for name in (f"output {state.output}", f"input {state.input}")]
    if len(set(tied)) < len(tied):
        return "an input or an output is tied twice"
    for state in border.states:
        source, target = spec_of_input.get(state.input), spec_of_output.get(state.output)
        if source is None or target is None:
            return f"output '{state.output}' is tied to input '{state.input}', and one of them is not there"
        if merge_types(source.type, target.type) is None or merge_types(source.type, state.initial.type) is None:
            return f"output {target} and the first value {state.initial.type} are tied to input {source}"
    for name, constant in border.defaults.items():
        if name not in spec_of_input or merge_types(spec_of_input[name].type, constant.type) is None:
            return f"the default of input '{name}' is {constant.type}, which the input does not take"
    for name, layout in border.layouts.items():
        spec = spec_of_input.get(name, spec_of_output.get(name))
        if spec is not None and spec.shape is not None and len(layout) != len(spec.shape):
            return f"the layout of {spec} is '{layout}'"
    return None


def word_contradiction(value: str, graph: str, declared: ValueType, computed: ValueType, source: str) -> str:
    """Returns the text of a declaration that inference has proved wrong; `source` gives the computed type."""
    return (
        f"value '{value}' of '{graph}' is declared as {declared}, but {source} gives {computed}; "
        "the computed shape is used. Correct the declaration or remove it."
    )


@dataclass(frozen=True, slots=True)
class Hint:
    """A declared shape that says more than inference proves; `source` is the node that makes the value."""

    value: str
    declared: TensorType
    proved: TensorType
    source: str

    @property
    def may_fail(self) -> bool:
        """Says whether a run may contradict the hint: it states a rank or a size that is not proved, and not only names."""
        declared, proved = self.declared.shape, self.proved.shape
        if declared is None or proved is None:
            return declared is not None
        return any(isinstance(size, int) and not isinstance(own, int) for size, own in zip(declared, proved, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Declarations:
    """All that a model declares and that is not so: `contradictions` in any graph, and `hints`, by value of the root graph, which inference
    does not confirm.

    `are_stated` says whether the network's types include the hints, as a caller sees them; a device is given a network without.
    `reported` are the values that a warning has named; a network and its parts share it, so that each value is named once.
    """

    contradictions: tuple[str, ...] = ()
    hints: Mapping[str, Hint] = field(default_factory=lambda: MappingProxyType({}))
    reported: set[str] = field(default_factory=set)
    are_stated: bool = False

    def of_part(self, values: Collection[str]) -> Declarations:
        """Returns the hints about these values; the network and the part share the reported values."""
        hints = {value: hint for value, hint in self.hints.items() if value in values}
        return Declarations((), MappingProxyType(hints), self.reported, self.are_stated) if hints else NO_DECLARATIONS


NO_DECLARATIONS = Declarations()


def pack_hints(declarations: Declarations, values: Collection[str]) -> bytes:
    """Returns the hints about these values that a run may contradict, as the bytes of a section of a blob; empty if there are none."""
    hints = [declarations.hints[value] for value in values if value in declarations.hints]
    rows = [[hint.value, hint.declared.dtype, hint.declared.shape, hint.source] for hint in hints if hint.may_fail]
    return json.dumps(rows).encode() if rows else b""


def unpack_hints(content: bytes) -> Declarations:
    """Returns the hints that `pack_hints` wrote. Raises: InvalidNetworkError."""
    hints = {}
    with _refusing_damage("the declared shapes in a blob", "Export the network again"):
        for value, dtype, shape, source in json.loads(content):
            declared = read_record(ValueType, ["tensor", dtype, shape])
            hints[str(value)] = Hint(str(value), declared, TensorType(declared.dtype), str(source))
    return Declarations((), MappingProxyType(hints))
