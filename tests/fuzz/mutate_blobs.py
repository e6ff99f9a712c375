"""Mutations of blobs with valid digests: header, table, sections, containers within containers, packed networks, JSON.

After each change, size and digest are computed again, so that only the readers can detect it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from random import Random
from typing import Any

from mutate_protos import INTEGERS, TEXTS, mutate_bytes, mutate_model

HEAD = struct.Struct("<8sIIQQ")
MAGIC = b"HETEROBL"


def mutate_blob(random: Random, blob: bytes) -> bytes:
    """Returns the container with a random change and a valid digest."""
    header_size = HEAD.unpack_from(blob)[3]
    fields = json.loads(blob[HEAD.size : HEAD.size + header_size])
    start = align(HEAD.size + header_size)
    table = fields.pop("sections")
    sections = {row["name"]: blob[start + row["offset"] : start + row["offset"] + row["size"]] for row in table}
    match random.randrange(10):
        case 0:
            return close(mutate_bytes(random, blob[:-32]))
        case 1:
            return close(mutate_head(random, blob))
        case 2 | 3:
            return write(mutate_json(random, fields), sections)
        case 4:
            return write_with_table(random, fields, sections)
        case 5 if sections:
            del sections[random.choice(sorted(sections))]
        case _ if sections:
            name = random.choice(sorted(sections))
            sections[name] = mutate_section(random, sections[name])
    return write(fields, sections)


def mutate_section(random: Random, section: bytes) -> bytes:
    """Returns a section with a change that fits its kind: container, JSON, model or bytes."""
    if section.startswith(MAGIC):
        return mutate_blob(random, section)
    if section[:1] in (b"{", b"["):
        return json.dumps(mutate_json(random, json.loads(section))).encode()
    if section[:1] == b"\x08" and random.random() < 0.9:
        return mutate_model(random, section)
    return mutate_bytes(random, section)


def mutate_json(random: Random, root: Any) -> Any:
    """Returns the value with a single item replaced, removed, repeated or renamed."""
    places = list(iterate_places(root))
    if not places:
        return pick_json(random)
    holder, key = random.choice(places)
    match random.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.append(holder[key])
        case 2 if isinstance(holder, dict):
            holder[random.choice(TEXTS)] = holder.pop(key)
        case 3:
            # A value from another place of the document: valid form, wrong place.
            source, source_key = random.choice(places)
            holder[key] = json.loads(json.dumps(source[source_key]))
        case _:
            holder[key] = pick_json(random)
    return root


def iterate_places(value: Any) -> Any:
    """Yields (container, key) of every item of every list and object."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from iterate_places(value[key])


def pick_json(random: Random) -> Any:
    """Returns a random JSON value, including the infinities and NaN that Python reads."""
    return random.choice(
        [
            None,
            True,
            False,
            [],
            {},
            [[]],
            0.5,
            -1.5,
            1e400,
            float("nan"),
            10**30,
            random.choice(INTEGERS),
            random.choice(TEXTS),
            ["x"] * 3,
        ]
    )


def mutate_head(random: Random, blob: bytes) -> bytes:
    """Returns the container without its digest and with a single number of its head changed."""
    numbers = list(HEAD.unpack_from(blob))
    index = random.randrange(1, 5)
    limit = 1 << (32 if index < 3 else 64)
    numbers[index] = random.choice((numbers[index] + random.choice((-1, 1, 64, -64)), random.choice(INTEGERS))) % limit
    return HEAD.pack(*numbers) + blob[HEAD.size : -32]


def write_with_table(random: Random, fields: dict[str, Any], sections: dict[str, bytes]) -> bytes:
    """Returns a container with a mutated table of sections."""
    table, body = lay_out(sections)
    return assemble({**fields, "sections": mutate_json(random, table)}, body)


def write(fields: Any, sections: dict[str, bytes]) -> bytes:
    table, body = lay_out(sections)
    return assemble({**fields, "sections": table} if isinstance(fields, dict) else fields, body)


def lay_out(sections: dict[str, bytes]) -> tuple[list[dict[str, Any]], bytes]:
    """Returns the table of sections and their bytes, aligned to 64."""
    table, body = [], b""
    for name, section in sections.items():
        table.append({"name": name, "offset": len(body), "size": len(section), "digest": digest_section(section)})
        body += section.ljust(align(len(section)), b"\0")
    return table, body


def assemble(fields: Any, body: bytes) -> bytes:
    """Returns a valid container of head, header and body."""
    text = json.dumps(fields, sort_keys=True).encode()
    start = align(HEAD.size + len(text))
    prefix = (HEAD.pack(MAGIC, 2, 0, len(text), start + len(body) + 32) + text).ljust(start, b"\0")
    return prefix + body + hashlib.sha256(prefix).digest()


def digest_section(section: bytes) -> str:
    """Returns the digest of a section in the form of the table."""
    pieces = (section[begin : begin + 2**20] for begin in range(0, len(section), 2**20))
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def close(content: bytes) -> bytes:
    """Returns the content with its length in the head and its digest at the end, if it is long enough for a head."""
    if len(content) >= HEAD.size and content[:8] == MAGIC and len(content) % 3:
        content = content[:24] + struct.pack("<Q", len(content) + 32) + content[32:]
    header_size = HEAD.unpack_from(content)[3] if len(content) >= HEAD.size else 0
    return content + hashlib.sha256(content[: align(HEAD.size + header_size)]).digest()


def align(offset: int) -> int:
    """Returns the next multiple of 64."""
    return -(-offset // 64) * 64
