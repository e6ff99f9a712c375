"""The content of an export of GPU: the network as it was prepared for the card, each of its large constants as a section of its own.

    gpu identity   JSON: the library and the compute capability that it is for
    gpu arena      JSON: where the arrays of runs lie
    gpu weights    JSON: what the constants were prepared for, and a row for each of them: name, section, place, dtype, ...
    model          an ONNX model of the prepared network, without its large constants
    weights/N      constant N as it lies on the card, C-contiguous

Constants are read back from the card, once, and written to it as they lie in the blob: nothing is folded, cast or copied at import.
Version 1 has the network as it was loaded instead, in the sections "model" and "weights"; it is prepared again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import DTYPES
from hetero_core.errors import BlobDamagedError, BlobMismatchError, NetworkReadError
from hetero_core.network.arrays import bytes_of_array
from hetero_core.network.graph import Network
from hetero_core.network.tensors import stored_size
from hetero_core.network.writer import pack_model, unpack_model

VERSION = 2
WEIGHTS, MODEL = "gpu weights", "model"
_LAYOUT = "C"


def pack_prepared(network: Network, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of a prepared network; what lies on the card alone is read back, and let go of again."""
    model, outside = pack_model(network)
    names = {id(constant): name for name, constant in network.initializers.items()}
    rows, sections = [], {}
    for number, (offset, constant) in enumerate(outside.initializers):
        section = f"weights/{number}"
        name = names.get(id(constant), "")
        shape = list(constant.shape)
        rows.append(
            {"name": name, "section": section, "offset": offset, "dtype": constant.dtype, "shape": shape, "layout": _LAYOUT}
        )
        sections[section] = bytes_of_array(constant.array).data
        constant.release()
    index = json.dumps({"recipe": dict(recipe), "constants": rows}, separators=(",", ":")).encode()
    return {WEIGHTS: index, MODEL: model, **sections}


def unpack_prepared(sections: Mapping[str, Any], recipe: Mapping[str, Any], where: str) -> Network:
    """Returns the prepared network, its large constants views of their sections.

    Raises: BlobMismatchError where it was prepared for something else than `recipe`; BlobDamagedError.
    """
    index = _read_index(sections[WEIGHTS], where)
    if index.recipe != recipe:
        raise BlobMismatchError(
            f"cannot import the blob on {where}: its weights were prepared for {describe_mapping(index.recipe)}, here they are needed for "
            f"{describe_mapping(recipe)}; load the model again and export it"
        )
    for row in index.rows.values():
        _check_row(row, sections, where)
    try:
        network = unpack_model(sections[MODEL], SectionWeights(index.rows, sections))
    except NetworkReadError as error:
        raise _describe_damage(where, str(error)) from error
    for row in index.rows.values():
        constant = network.initializers.get(row.name)
        if constant is not None and (constant.dtype, constant.shape) != (row.dtype, row.shape):
            raise _describe_damage(
                where,
                f"'{row.name}' in section '{row.section}' is {row.dtype}{list(row.shape)}, of which the model says "
                f"{constant.dtype}{list(constant.shape)}",
            )
    return network


@dataclass(frozen=True, slots=True)
class _ConstantEntry:
    """A constant: a name of it, "" for one in a body, its section, element type, shape and layout."""

    name: str
    section: str
    dtype: str
    shape: tuple[int, ...]
    layout: str


@dataclass(frozen=True, slots=True)
class _Index:
    """The card that the constants were prepared for, and the constants by their place in the model."""

    recipe: Mapping[str, Any]
    rows: Mapping[str, _ConstantEntry]


def _read_index(section: Any, where: str) -> _Index:
    try:
        index_fields = json.loads(bytes(section))
        rows = {str(int(row["offset"])): _read_row(row) for row in index_fields["constants"]}
        return _Index(dict(index_fields["recipe"]), rows)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise _describe_damage(where, f"its section '{WEIGHTS}' cannot be read: {type(error).__name__}: {error}") from error


def _read_row(row: Mapping[str, Any]) -> _ConstantEntry:
    name, section, dtype, layout = (str(row[field]) for field in ("name", "section", "dtype", "layout"))
    return _ConstantEntry(name, section, dtype, tuple(map(int, row["shape"])), layout)


def _check_row(row: _ConstantEntry, sections: Mapping[str, Any], where: str) -> None:
    if row.layout != _LAYOUT or row.dtype not in DTYPES or row.dtype == "string" or min(row.shape, default=0) < 0:
        raise _describe_damage(
            where,
            f"section '{row.section}' is said to hold {row.dtype}{list(row.shape)} in layout '{row.layout}'; no constant has that",
        )
    expected = stored_size(row.dtype, prod(row.shape))
    nbytes = memoryview(sections[row.section]).nbytes if row.section in sections else None
    if nbytes != expected:
        has = "is missing" if nbytes is None else f"has {nbytes} bytes"
        raise _describe_damage(where, f"section '{row.section}' {has}; {row.dtype}{list(row.shape)} takes {expected}")


def _describe_damage(where: str, what: str) -> BlobDamagedError:
    return BlobDamagedError(f"cannot import the blob on {where}: {what}; export the network again")


def describe_mapping(fields: Any) -> str:
    """Returns the fields of a blob as text; what is no mapping as Python writes it."""
    return ", ".join(f"{subject} {value}" for subject, value in fields.items()) if isinstance(fields, dict) else repr(fields)


class SectionWeights:
    """Constants that stand in a section each, by their place in the model."""

    def __init__(self, rows: Mapping[str, _ConstantEntry], sections: Mapping[str, Any]) -> None:
        self._rows = rows
        self._sections = sections

    def locate(self, entries: Iterable[Any], size: int, owner: str) -> Callable[[], Any]:
        """Returns a function that gives a view of the section. Raises: NetworkReadError if no section has that size."""
        offset = next((entry.value for entry in entries if entry.key == "offset"), "")
        row = self._rows.get(offset)
        nbytes = 0 if row is None else memoryview(self._sections[row.section]).nbytes
        if row is None or nbytes != size:
            raise NetworkReadError(f"{owner} at place {offset[:20]} takes {size} bytes, for which there are {nbytes}")
        return lambda: np.frombuffer(self._sections[row.section], np.uint8)
