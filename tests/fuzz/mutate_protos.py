"""Mutations of model files: of their bytes, and of any field of any message, listed by protobuf's descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, 1, -1, 2, 3, 7, 16, 21, 27, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "x",
    "y",
    "a",
    "\0",
    "/",
    "../w.bin",
    "/etc/passwd",
    "ai.onnx",
    "com.acme",
    "re:(",
    "CPU",
    "-1",
    "99999999999999999999",
    "ü" * 300,
)
OPERATORS = (
    "Add",
    "Conv",
    "Constant",
    "If",
    "Loop",
    "Reshape",
    "Cast",
    "Split",
    "Concat",
    "Identity",
    "SequenceAt",
    "Expand",
    "LSTM",
    "Nope",
)

Slot = tuple[Message, FieldDescriptor]


def mutate_bytes(random: Random, content: bytes) -> bytes:
    """Returns the content with a few bytes changed, removed, repeated or inserted."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        position = random.randrange(len(changed) + 1)
        length = random.choice((1, 1, 2, 8, 64))
        match random.randrange(5):
            case 0 if changed:
                changed[position % len(changed)] ^= 1 << random.randrange(8)
            case 1 if changed:
                changed[position % len(changed)] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[position : position + length]
            case 3:
                changed[position:position] = changed[position : position + length]
            case _:
                changed[position:position] = random.randbytes(length)
    return bytes(changed)


def mutate_model(random: Random, content: bytes) -> bytes:
    """Returns the model with up to four changed fields."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        slots = list(iterate_slots(model))
        message, field = random.choice(slots)
        mutate_field(random, message, field, slots)
    return model.SerializeToString(deterministic=True)


def iterate_slots(message: Message) -> Iterator[Slot]:
    """Yields every field, set or unset, of a message and its submessages."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            present = getattr(message, field.name)
            if is_repeated(field):
                for each in present:
                    yield from iterate_slots(each)
            elif message.HasField(field.name):
                yield from iterate_slots(present)


def is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def mutate_field(random: Random, message: Message, field: FieldDescriptor, slots: list[Slot]) -> None:
    """Changes a field in place."""
    if is_repeated(field):
        mutate_list(random, message, field, slots)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        messages = [getattr(owner, slot.name) for owner, slot in slots if is_of_type(owner, slot, field)]
        if random.random() < 0.3 or not messages:
            message.ClearField(field.name)
        else:
            copy = type(messages[0])()
            copy.CopyFrom(random.choice(messages))
            getattr(message, field.name).CopyFrom(copy)
    elif random.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, pick_scalar(random, field, getattr(message, field.name), slots))


def is_of_type(owner: Message, slot: FieldDescriptor, field: FieldDescriptor) -> bool:
    """Says whether a slot holds a single message of the type of `field`."""
    return slot.message_type is field.message_type and not is_repeated(slot) and owner.HasField(slot.name)


def mutate_list(random: Random, message: Message, field: FieldDescriptor, slots: list[Slot]) -> None:
    """Removes, repeats, swaps, changes or adds an element of a list."""
    items = getattr(message, field.name)
    position = random.randrange(len(items)) if items else 0
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    match random.randrange(5):
        case 0 if items:
            del items[position]
        case 1 if items:
            items.append(copy_of(items[position]) if is_message else items[position])
        case 2 if len(items) > 1:
            swapped = [copy_of(item) if is_message else item for item in items]
            partner = random.randrange(len(items))
            swapped[position], swapped[partner] = swapped[partner], swapped[position]
            del items[:]
            items.extend(swapped)
        case 3 if items and not is_message:
            items[position] = pick_scalar(random, field, items[position], slots)
        case _ if is_message:
            items.add()
        case _:
            items.extend([pick_scalar(random, field, None, slots)] * random.choice((1, 1, 2, 50)))


def copy_of(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def pick_scalar(random: Random, field: FieldDescriptor, old: Any, slots: list[Slot]) -> Any:
    """Returns a value for a field: an unusual value, a neighbour of the old value, or a value from another place of the model."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_BYTES:
        content = old if isinstance(old, bytes) else b""
        return mutate_bytes(random, content)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.name == "op_type":
            return random.choice(OPERATORS)
        names = [name for owner, slot in slots if (name := read_name(owner, slot))]
        return random.choice(names) if names and random.random() < 0.6 else random.choice(TEXTS)
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return random.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return random.choice([value.number for value in field.enum_type.values])
    near = (old or 0) + random.choice((-1, 1, 2)) if random.random() < 0.4 else random.choice(INTEGERS)
    return fit_integer(near, kind)


def read_name(owner: Message, field: FieldDescriptor) -> str:
    """Returns the (first) string of a slot, "" if the slot holds no string."""
    if field.type != FieldDescriptor.TYPE_STRING:
        return ""
    value = getattr(owner, field.name)
    return (value[0] if value else "") if is_repeated(field) else value


def fit_integer(value: int, kind: int) -> int:
    """Returns the value clipped to the range of a field of this kind."""
    if kind == FieldDescriptor.CPPTYPE_INT32:
        return (value + (1 << 31)) % (1 << 32) - (1 << 31)
    if kind == FieldDescriptor.CPPTYPE_INT64:
        return (value + (1 << 63)) % (1 << 64) - (1 << 63)
    return value % (1 << (64 if kind == FieldDescriptor.CPPTYPE_UINT64 else 32))
