"""The results of `hetero predict`: a journal while files are computed, and the output at the end.

The journal is a SQLite database beside the output, which an interrupted call leaves to the next call. When every file has a row, the output
is written and appears complete, and the journal is removed. Arrays are read back one file at a time, so that memory does not grow with
the number of files.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError, to_json
from hetero_core.cli.outputs import iterate_tensors, to_storable, write_array
from hetero_core.dtypes import FLOAT_DTYPES, dtype_of_numpy, numpy_dtype
from hetero_core.files import replace_file

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

_TABLES = """
CREATE TABLE IF NOT EXISTS calls (field TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS files (file TEXT PRIMARY KEY, stamp TEXT, error TEXT);
CREATE TABLE IF NOT EXISTS arrays (file TEXT, name TEXT, dtype TEXT, npy BLOB, PRIMARY KEY (file, name));
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
            for (file,) in self._base.execute("SELECT file FROM files UNION SELECT file FROM arrays").fetchall():
                if file not in done:
                    self._base.execute("DELETE FROM files WHERE file = ?", (file,))
                    self._base.execute("DELETE FROM arrays WHERE file = ?", (file,))
        return done

    def add(self, file: str, stamp: str, outputs: Mapping[str, Any], error: str | None = None) -> None:
        """Keeps the outputs of a file, or the reason for their absence. Raises: UsageError."""
        with self._explain():
            for name, value in iterate_tensors(outputs):
                if value is not None:
                    array, body = to_storable(value), BytesIO()
                    write_array(array, body)
                    row = (file, name, dtype_of_numpy(array.dtype), body.getvalue())
                    self._base.execute("REPLACE INTO arrays VALUES (?, ?, ?, ?)", row)
            self._base.execute("REPLACE INTO files VALUES (?, ?, ?)", (file, stamp, error))  # last, for an interrupt in between
            if monotonic() - self._committed > _COMMIT_SECONDS:
                self._base.commit()
                self._committed = monotonic()

    def list_errors(self) -> dict[str, str]:
        """Returns the reason of each bad file, sorted."""
        return dict(self._base.execute("SELECT file, error FROM files WHERE error IS NOT NULL ORDER BY file"))

    def read(self, name: str | None = None) -> Iterator[tuple[str, str | None, Arrays]]:
        """Yields each file, sorted, with its error and its arrays; only those of an output if `name` is given."""
        chosen, values = ("", ()) if name is None else (" AND name = ?", (name,))
        for file, error in self._base.execute("SELECT file, error FROM files ORDER BY file"):
            rows = self._base.execute(f"SELECT name, dtype, npy FROM arrays WHERE file = ?{chosen} ORDER BY rowid", (file, *values))
            yield file, error, {} if error is not None else {name: _read_array(dtype, npy) for name, dtype, npy in rows}


def _read_array(dtype: str, npy: bytes) -> np.ndarray[Any, Any]:
    import numpy as np

    array = np.lib.format.read_array(BytesIO(npy), allow_pickle=False)
    return array.view(numpy_dtype(dtype)) if array.dtype.kind == "V" else array


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

    errors = journal.list_errors()
    kinds: dict[str, list[tuple[np.dtype[Any], tuple[int, ...]]]] = {}
    good = []
    for file, error, arrays in journal.read():
        good += [file] if error is None else []
        for name, array in arrays.items():
            kinds.setdefault(name, []).append((array.dtype, array.shape))
    with zipfile.ZipFile(stream, "w") as archive:

        def open_member(name: str) -> IO[bytes]:
            return archive.open(f"{name}.npy", "w", force_zip64=True)

        for name, texts in (("files", good), ("bad_files", list(errors)), ("bad_reasons", list(errors.values()))):
            with open_member(name) as member:
                write_array(np.array(texts, dtype=str), member)
        for name, forms in kinds.items():
            rows = ((file, arrays[name]) for file, _, arrays in journal.read(name) if name in arrays)
            if len(forms) < len(good) or len({shape for _, shape in forms}) > 1:
                for file, array in rows:
                    with open_member(f"{name}/{file}") as member:
                        write_array(array, member)
                continue
            dtype = np.result_type(*{dtype for dtype, _ in forms})  # texts have lengths
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (len(good), *forms[0][1])}
            with open_member(name) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for _, array in rows:
                    member.write(array.astype(dtype).tobytes())


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
