"""Models of a few kilobytes decoded here, so that a process that reads nothing else need not import protobuf, which takes 12 ms.

What comes out has the fields that the reader asks for, under the names and with the defaults of onnx's messages, `HasField`, `WhichOneof`
and `ByteSize`. Rules: only what is encoded as writers do it is decoded; for anything else (an unknown field, one that is there twice, a
function, a name that is not UTF-8, damage) the answer is None and protobuf is asked, so that it says what is wrong. Source: protobuf's
encoding, and onnx.proto for the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

from hetero_core.dtypes import dtype_of_onnx

LARGEST_SMALL_MODEL = 32 * 1024
"""Bytes without large weights; a larger one takes longer here than protobuf takes to import."""
_DEEPEST = 50
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
FIELD_OF_DTYPE = {"float32": "float_data", "float64": "double_data", "int32": "int32_data", "int64": "int64_data"}
"""The fields that hold elements of a tensor as they are; in others they are packed or encoded, which onnx reads."""


class _UnusualError(Exception):
    """The content is not what writers make of a small model."""


class _Message:
    """A message: what is in it are attributes of the instance, defaults those of its class."""

    fields: ClassVar[dict[int, tuple[str, Any, bool]]]
    """Tag -> name, kind of the value, and whether the field is a list."""
    one_of: ClassVar[tuple[str, ...]] = ()
    is_checked: ClassVar[bool] = False
    """Whether `_check_message` may find something in messages of this kind."""
    nbytes: int

    def HasField(self, name: str) -> bool:  # noqa: N802  # protobuf's name
        """Says whether a field is there."""
        return name in self.__dict__

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802  # as above
        """Returns the field of the only group of fields that exclude each other, None where none is there."""
        return next((name for name in self.one_of if name in self.__dict__), None)

    def ByteSize(self) -> int:  # noqa: N802  # as above
        """Returns the number of bytes that the message was decoded from."""
        return self.nbytes


_PACKED = frozenset({"packed int", "packed float", "packed double"})
_WIRES = {"int": _VARINT, "float": _FOUR_BYTES, "double": _EIGHT_BYTES}
_DEFAULTS: Mapping[Any, Any] = {"int": 0, "float": 0.0, "text": "", "bytes": b""}


def _define(title: str, one_of: str = "", /, **kinds: tuple[int, Any] | tuple[int, Any, bool]) -> type[_Message]:
    """Returns a class of messages. A kind is "int", "float", "double", "text", "bytes", "skipped" or a class; True marks lists."""
    choices = tuple(one_of.split())
    is_checked = len(choices) > 1 or title in ("_Tensor", "_Attribute", "_TensorType")
    kind_of_message = type(title, (_Message,), {"fields": {}, "one_of": choices, "is_checked": is_checked})
    _add_fields(kind_of_message, **kinds)
    return kind_of_message


def _add_fields(message: type[_Message], /, **kinds: tuple[int, Any] | tuple[int, Any, bool]) -> None:
    for name, (number, kind, *listed) in kinds.items():
        is_list = bool(listed)
        message.fields[number << 3 | _WIRES.get(kind, _LENGTH)] = name, kind, is_list
        if is_list and kind in _WIRES:
            message.fields[number << 3 | _LENGTH] = name, f"packed {kind}", True
        if kind != "skipped":
            setattr(message, name, () if is_list else _DEFAULTS[kind] if kind in _DEFAULTS else kind())


_Entry = _define("_Entry", key=(1, "text"), value=(2, "text"))
_Segment = _define("_Segment", begin=(1, "int"), end=(2, "int"))
_Tensor = _define(
    "_Tensor",
    dims=(1, "int", True),
    data_type=(2, "int"),
    segment=(3, _Segment),
    float_data=(4, "float", True),
    int32_data=(5, "int", True),
    string_data=(6, "bytes", True),
    int64_data=(7, "int", True),
    name=(8, "text"),
    raw_data=(9, "bytes"),
    double_data=(10, "double", True),
    doc_string=(12, "skipped"),
    external_data=(13, _Entry, True),
    data_location=(14, "int"),
    metadata_props=(16, _Entry, True),
)
_Dimension = _define("_Dimension", "dim_value dim_param", dim_value=(1, "int"), dim_param=(2, "text"), denotation=(3, "skipped"))
_Shape = _define("_Shape", dim=(1, _Dimension, True))
_TensorType = _define("_TensorType", elem_type=(1, "int"), shape=(2, _Shape))
_Type = _define("_Type", "tensor_type", tensor_type=(1, _TensorType), denotation=(6, "skipped"))
_ValueInfo = _define("_ValueInfo", name=(1, "text"), type=(2, _Type), doc_string=(3, "skipped"), metadata_props=(4, _Entry, True))
_Graph = _define("_Graph")
_Attribute = _define(
    "_Attribute",
    name=(1, "text"),
    f=(2, "float"),
    i=(3, "int"),
    s=(4, "bytes"),
    t=(5, _Tensor),
    g=(6, _Graph),
    floats=(7, "float", True),
    ints=(8, "int", True),
    strings=(9, "bytes", True),
    tensors=(10, _Tensor, True),
    doc_string=(13, "skipped"),
    type=(20, "int"),
    ref_attr_name=(21, "text"),
)
_Node = _define(
    "_Node",
    input=(1, "text", True),
    output=(2, "text", True),
    name=(3, "text"),
    op_type=(4, "text"),
    attribute=(5, _Attribute, True),
    doc_string=(6, "skipped"),
    domain=(7, "text"),
    overload=(8, "text"),
    metadata_props=(9, _Entry, True),
)
_add_fields(
    _Graph,
    node=(1, _Node, True),
    name=(2, "text"),
    initializer=(5, _Tensor, True),
    doc_string=(10, "skipped"),
    input=(11, _ValueInfo, True),
    output=(12, _ValueInfo, True),
    value_info=(13, _ValueInfo, True),
    metadata_props=(16, _Entry, True),
)
_Graph.sparse_initializer = ()  # type: ignore[attr-defined]  # a file with some is protobuf's
_Opset = _define("_Opset", domain=(1, "text"), version=(2, "int"))
_Model = _define(
    "_Model",
    ir_version=(1, "int"),
    producer_name=(2, "skipped"),
    producer_version=(3, "skipped"),
    domain=(4, "skipped"),
    model_version=(5, "int"),
    doc_string=(6, "skipped"),
    graph=(7, _Graph),
    opset_import=(8, _Opset, True),
    metadata_props=(14, _Entry, True),
)
_Model.functions = ()  # type: ignore[attr-defined]  # as above
_REPEATED = frozenset({_Attribute, _Type})
"""The kinds of messages of which a model has many that are equal; each of these is decoded once, and nobody changes it."""
_LARGEST_REPEATED = 64
"""Bytes; a larger message is rarely there twice."""


def parse_small_model(content: bytes) -> Any:
    """Returns the model in `content`, None where protobuf has to be asked."""
    if len(content) > LARGEST_SMALL_MODEL:
        return None
    try:
        return _read_message(content, 0, len(content), _Model, 0, {})
    except (_UnusualError, IndexError, UnicodeDecodeError):
        return None


_Known = dict[tuple[type[_Message], bytes], _Message]


def _read_message(content: bytes, begin: int, end: int, kind_of_message: type[_Message], depth: int, known: _Known) -> _Message:
    if depth > _DEEPEST:
        raise _UnusualError
    message = kind_of_message()
    message.nbytes = end - begin
    values, fields = message.__dict__, kind_of_message.fields
    while begin < end:
        # Most numbers have one byte, and a call takes longer than all else about one.
        tag = content[begin]
        begin += 1
        if tag >= 0x80:
            tag, begin = _read_varint(content, begin - 1)
        field = fields.get(tag)
        if field is None:
            raise _UnusualError
        name, kind, is_list = field
        wire = tag & 7
        if wire == _LENGTH:
            length = content[begin]
            begin += 1
            if length >= 0x80:
                length, begin = _read_varint(content, begin - 1)
            stop = begin + length
            if stop > end:
                raise _UnusualError
            if kind == "text":
                value: Any = content[begin:stop].decode()
            else:
                value = _read_value(content, begin, stop, kind, depth, known)
            begin = stop
        elif wire == _VARINT:
            value, begin = _read_integer(content, begin)
        else:
            stop = begin + (4 if wire == _FOUR_BYTES else 8)
            if stop > end:
                raise _UnusualError
            value = _read_value(content, begin, stop, kind, depth, known)
            begin = stop
        if is_list:
            if kind in _PACKED:
                values.setdefault(name, []).extend(value)
            elif name in values:
                values[name].append(value)
            else:
                values[name] = [value]
        elif kind == "skipped":
            continue
        elif name in values:
            raise _UnusualError
        else:
            values[name] = value
    if begin != end:
        raise _UnusualError
    if kind_of_message.is_checked:
        _check_message(message)
    return message


def _read_value(content: bytes, begin: int, stop: int, kind: Any, depth: int, known: _Known) -> Any:
    if kind.__class__ is type:
        if kind not in _REPEATED or stop - begin > _LARGEST_REPEATED:
            return _read_message(content, begin, stop, kind, depth + 1, known)
        key = kind, content[begin:stop]
        message = known.get(key)
        if message is None:
            message = known[key] = _read_message(content, begin, stop, kind, depth + 1, known)
        return message
    if kind in ("bytes", "skipped"):
        return content[begin:stop]
    if kind == "packed int":
        numbers = []
        while begin < stop:
            number, begin = _read_integer(content, begin)
            numbers.append(number)
        if begin != stop:
            raise _UnusualError
        return numbers
    code, size = ("f", 4) if kind.endswith("float") else ("d", 8)
    if (stop - begin) % size:
        raise _UnusualError
    numbers_of_kind = struct.unpack(f"<{(stop - begin) // size}{code}", content[begin:stop])
    return numbers_of_kind if kind in _PACKED else numbers_of_kind[0]


def _read_varint(content: bytes, begin: int) -> tuple[int, int]:
    number = content[begin]
    begin += 1
    if number < 0x80:
        return number, begin
    number &= 0x7F
    for shift in range(7, 70, 7):
        byte = content[begin]
        begin += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, begin
    raise _UnusualError


def _read_integer(content: bytes, begin: int) -> tuple[int, int]:
    number, begin = _read_varint(content, begin)
    return number - (1 << 64) if number >> 63 else number, begin


_LARGEST_INT32 = 2**31 - 1
_LAST_KIND = 14


def _check_message(message: _Message) -> None:
    """Leaves to protobuf what its types of numbers change, and tensors whose elements are packed in fields of another type."""
    values = message.__dict__
    if isinstance(message, _Tensor):
        _check_tensor(message)
    elif isinstance(message, _Attribute):
        if not 0 <= values.get("type", 0) <= _LAST_KIND:
            raise _UnusualError
    elif isinstance(message, _TensorType):
        if not 0 <= values.get("elem_type", 0) <= _LARGEST_INT32:
            raise _UnusualError
    elif sum(name in values for name in message.one_of) > 1:
        raise _UnusualError


def _check_tensor(tensor: Any) -> None:
    values = tensor.__dict__
    if not 0 <= tensor.data_type <= _LARGEST_INT32 or tensor.data_location not in (0, 1) or any(size < 0 for size in tensor.dims):
        raise _UnusualError
    dtype = dtype_of_onnx(tensor.data_type)
    typed = [name for name in FIELD_OF_DTYPE.values() if name in values]
    if "raw_data" in values or tensor.data_location or dtype == "string":
        return
    field = FIELD_OF_DTYPE.get(dtype or "")
    if field is None or typed not in ([], [field]) or len(getattr(tensor, field)) != prod(tensor.dims):
        raise _UnusualError
    if field == "int32_data" and any(abs(number) > _LARGEST_INT32 for number in tensor.int32_data):
        raise _UnusualError
