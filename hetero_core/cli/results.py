"""The results of `hetero predict`: a journal while files are computed, and the output at the end.

The journal is a SQLite database beside the output, which an interrupted call leaves to the next call. When every file has a row, the output
is written and appears complete, and the journal is removed.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError, to_json
from hetero_core.cli.outputs import list_arrays, read_archive, write_archive
from hetero_core.dtypes import FLOAT_DTYPES, dtype_of_numpy
from hetero_core.files import replace_file

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

_TABLES = """
CREATE TABLE IF NOT EXISTS calls (field TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS files (file TEXT PRIMARY KEY, stamp TEXT, error TEXT, dtypes TEXT, npz BLOB);
"""
_COMMIT_SECONDS = 1.0


class Journal:
    """The results so far by file, in one thread. A context manager: results are kept at the end, also after an error or an interrupt."""

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        """Opens the journal, or creates it. Raises: UsageError for a journal of another call, and if it cannot be used."""
        self.path = path
        with self._explain():
            self._base = sqlite3.connect(path)
            self._base.executescript(_TABLES)
            earlier = dict(self._base.execute("SELECT field, value FROM calls"))
            differences = [field for field, value in identity.items() if earlier.get(field, value) != value]
            if not differences:
                self._base.executemany("REPLACE INTO calls VALUES (?, ?)", identity.items())
                self._base.commit()
        self._committed = monotonic()
        if differences:
            self._base.close()
            raise UsageError(
                f"'{path}' is of an interrupted call that differs in its {' and '.join(differences)}; repeat that call to complete "
                "it, or remove the file to begin anew"
            )

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UsageError(f"cannot use the journal '{self.path}': {error}") from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        with self._explain():
            self._base.commit()
            self._base.close()

    def list_done(self, stamps: Mapping[str, str]) -> set[str]:
        """Returns the files that have a result and have not changed since; forgets all others. `stamps` are those of today."""
        with self._explain():
            rows = self._base.execute("SELECT file, stamp FROM files WHERE error IS NULL").fetchall()
            done = {file for file, stamp in rows if stamps.get(file) == stamp}
            others = self._base.execute("SELECT file FROM files").fetchall()
            self._base.executemany("DELETE FROM files WHERE file = ?", [row for row in others if row[0] not in done])
        return done

    def add(self, file: str, stamp: str, outputs: Mapping[str, Any], error: str | None = None) -> None:
        """Keeps the outputs of a file, or the reason for their absence. Raises: UsageError."""
        arrays, body = list_arrays(outputs), BytesIO()
        write_archive(arrays, body)
        dtypes = json.dumps({name: dtype_of_numpy(array.dtype) for name, array in arrays.items()})
        with self._explain():
            self._base.execute("REPLACE INTO files VALUES (?, ?, ?, ?, ?)", (file, stamp, error, dtypes, body.getvalue()))
            if monotonic() - self._committed > _COMMIT_SECONDS:
                self._base.commit()
                self._committed = monotonic()

    def list_errors(self) -> dict[str, str]:
        """Returns the reason of each bad file, sorted."""
        return dict(self._base.execute("SELECT file, error FROM files WHERE error IS NOT NULL ORDER BY file"))

    def read(self) -> Iterator[tuple[str, str | None, Arrays]]:
        """Yields each file, sorted, with its error and its arrays."""
        for file, error, dtypes, npz in self._base.execute("SELECT file, error, dtypes, npz FROM files ORDER BY file"):
            yield file, error, read_archive(BytesIO(npz), json.loads(dtypes))


def _write_lines(stream: IO[bytes], journal: Journal) -> None:
    for file, error, arrays in journal.read():
        outputs = {name: list_values(array) for name, array in arrays.items()}
        fields = {"file": file, **({"outputs": outputs} if error is None else {"error": error})}
        stream.write(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def list_values(array: np.ndarray[Any, Any]) -> Any:
    """Returns an array as lists that JSON can hold: NaN and infinities as texts."""
    import numpy as np

    if array.dtype.kind == "V":
        array = array.astype("float64" if dtype_of_numpy(array.dtype) in FLOAT_DTYPES else "int64")
    values = array.tolist()
    return values if array.dtype.kind in "biuU" or (array.dtype.kind == "f" and np.isfinite(array).all()) else to_json(values)


def _write_archive(stream: IO[bytes], journal: Journal) -> None:
    """Writes `files`, an array of each output with a row for each of them, and the bad files with their reasons.

    An output with different shapes, or absent for some files, has an array OUTPUT/FILE for each file.
    """
    import numpy as np

    arrays_of_output: dict[str, Arrays] = {}
    errors: dict[str, str] = {}
    good = []
    for file, error, arrays in journal.read():
        if error is None:
            good.append(file)
        else:
            errors[file] = error
        for name, array in arrays.items():
            arrays_of_output.setdefault(name, {})[file] = array
    texts = {"files": good, "bad_files": list(errors), "bad_reasons": list(errors.values())}
    members = {name: np.array(values, dtype=str) for name, values in texts.items()}
    for name, arrays in arrays_of_output.items():
        if len(arrays) == len(good) and len({array.shape for array in arrays.values()}) == 1:
            members[name] = np.stack(list(arrays.values()))
        else:
            members |= {f"{name}/{file}": array for file, array in arrays.items()}
    write_archive(members, stream)


_GROUP_VALUES = 2**20
"""Numbers after which a group of rows is written; a group is held in memory."""


def _write_parquet(stream: IO[bytes], journal: Journal) -> None:
    """Writes a row for each file: `file`, `error`, and a column of nested lists for each output."""
    from pyarrow import lib, schema, string, table
    from pyarrow.parquet import ParquetWriter

    fields = {"file": string(), "error": string()}
    rows: list[dict[str, Any]] = []
    try:
        for _, _, arrays in journal.read():
            fields |= {name: _find_column_type(array) for name, array in arrays.items() if name not in fields}
        columns = schema(list(fields.items()))
        with ParquetWriter(stream, columns) as writer:

            def write_rows() -> None:
                writer.write_table(table({name: [row.get(name) for row in rows] for name in fields}, schema=columns))
                rows.clear()

            values = 0
            for file, error, arrays in journal.read():
                rows.append({"file": file, "error": error, **{name: array.tolist() for name, array in arrays.items()}})
                values += 1 + sum(array.size for array in arrays.values())
                if values > _GROUP_VALUES:
                    write_rows()
                    values = 0
            write_rows()
    except lib.ArrowException as error:
        raise UsageError(f"an output does not fit into a column of Parquet: {error}. Write .npz or .jsonl") from error


def _find_column_type(array: np.ndarray[Any, Any]) -> Any:
    from pyarrow import from_numpy_dtype, list_, string

    column = string() if array.dtype.kind == "U" else from_numpy_dtype(array.dtype)
    for _ in array.shape:
        column = list_(column)
    return column


WRITERS: Mapping[str, Callable[[IO[bytes], Journal], None]] = {
    ".jsonl": _write_lines,
    ".npz": _write_archive,
    ".parquet": _write_parquet,
}
"""Ending of the output -> the function that writes it."""
_OWN_NAMES = {".npz": ("bad_files", "bad_reasons", "files"), ".parquet": ("error", "file")}


def require_writable(target: Path, outputs: Collection[str]) -> None:
    """Raises: UsageError if an output has the name of a column of ours, and for Parquet without pyarrow, before any work."""
    for name in _OWN_NAMES.get(target.suffix.lower(), ()):
        if name in outputs:
            raise UsageError(f"output '{name}' has the name of a column that {target.suffix} needs itself; write .jsonl")
    if target.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401  # the optional extra
        except ImportError as error:
            raise UsageError(f"writing '{target}' needs pyarrow; install it with: pip install 'hetero-core[parquet]'") from error


def write_results(target: Path, journal: Journal) -> None:
    """Writes the output, which appears complete or not at all. Raises: UsageError."""
    try:
        with replace_file(target) as stream:
            WRITERS[target.suffix.lower()](stream, journal)
    except OSError as error:
        raise UsageError(f"cannot write '{target}': {error.strerror or error}") from error
