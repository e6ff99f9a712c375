"""The results of `hetero predict`: a journal while files are computed, and the output at the end.

The journal stands beside the output. Its first line is JSON that identifies the call. A record is a line of JSON, and behind it the arrays
of a file as .npy; a record that an interruption cut off is dropped. When every file has a record the output is written and
appears complete; then the journal is removed. Arrays are read back one file at a time, so that memory does not grow with the folder.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError, to_json
from hetero_core.cli.outputs import iterate_tensors, to_storable, write_array
from hetero_core.dtypes import FLOAT_DTYPES, dtype_of_numpy, numpy_dtype
from hetero_core.files import replace_file

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Record:
    """The result of a file: `arrays` maps output -> element type, type in NumPy's spelling and shape; `error` is the reason without arrays.

    `stamp` is the size and the time of the file; `nbytes` is the length of the arrays in the journal.
    """

    file: str
    stamp: list[int]
    arrays: Mapping[str, tuple[str, str, list[int]]]
    error: str | None
    nbytes: int


class Journal:
    """The records so far, by file; an interrupted call leaves it, and the same call takes it up. Not safe for threads."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Opens the journal, or creates it. Raises: UsageError for a journal of another call; OSError."""
        self.path = path
        self.records: dict[str, Record] = {}
        self._place_of_file: dict[str, int] = {}
        self._stream = path.open("a+b")
        try:
            self._read(identity)
        except BaseException:
            self._stream.close()
            raise

    def _read(self, identity: Mapping[str, Any]) -> None:
        end = self._stream.seek(0, 2)
        self._stream.seek(0)
        line = self._stream.readline()
        if not line.endswith(b"\n"):
            self._stream.truncate(0)
            self._stream.write(json.dumps(to_json(identity)).encode() + b"\n")
            return
        earlier = json.loads(line)
        differences = [name for name, value in to_json(identity).items() if earlier.get(name) != value]
        if differences:
            raise UsageError(
                f"'{self.path}' is of an interrupted call that differs in its {' and '.join(differences)}; repeat that call to "
                "complete it, or remove the file to begin anew"
            )
        place = self._stream.tell()
        while line := self._stream.readline():
            record = Record(**json.loads(line)) if line.endswith(b"\n") else None
            if record is None or self._stream.tell() + record.nbytes > end:
                self._stream.truncate(place)
                break
            self._note(record, self._stream.tell())
            place = self._stream.seek(record.nbytes, 1)

    def _note(self, record: Record, place: int) -> None:
        self.records[record.file] = record
        self._place_of_file[record.file] = place

    def is_done(self, file: str, stamp: list[int]) -> bool:
        """Says whether this file has a result; a file that was bad, or has changed since, has none."""
        record = self.records.get(file)
        return record is not None and record.error is None and record.stamp == stamp

    def add(self, file: str, stamp: list[int], outputs: Mapping[str, Any] | None, error: str | None = None) -> None:
        """Appends the outputs of a file, or the reason for their absence. Raises: OSError."""
        body, kinds = BytesIO(), {}
        for name, value in iterate_tensors({} if outputs is None else outputs):
            if value is not None:
                array = to_storable(value)
                write_array(array, body)
                kinds[name] = (str(dtype_of_numpy(array.dtype)), array.dtype.str, list(array.shape))
        record = Record(file, stamp, kinds, error, len(body.getbuffer()))
        fields = {name: getattr(record, name) for name in Record.__slots__}
        self._stream.seek(0, 2)
        self._stream.write(json.dumps(fields).encode() + b"\n")
        self._note(record, self._stream.tell())
        self._stream.write(body.getbuffer())
        self._stream.flush()

    def read(self, record: Record) -> Arrays:
        """Returns the arrays of a record."""
        import numpy as np

        self._stream.seek(self._place_of_file[record.file])
        body = BytesIO(self._stream.read(record.nbytes))
        arrays = {name: np.lib.format.read_array(body, allow_pickle=False) for name in record.arrays}
        return {
            name: array.view(numpy_dtype(record.arrays[name][0])) if array.dtype.kind == "V" else array
            for name, array in arrays.items()
        }

    def close(self) -> None:
        """Closes the file, which stays for the next call."""
        self._stream.close()


def _write_lines(stream: IO[bytes], journal: Journal, records: Sequence[Record]) -> None:
    for record in records:
        outputs = {name: list_values(array) for name, array in journal.read(record).items()}
        fields = {"file": record.file, **({"outputs": outputs} if record.error is None else {"error": record.error})}
        stream.write(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def list_values(array: np.ndarray[Any, Any]) -> Any:
    """Returns an array as lists that JSON can hold: NaN and infinities as texts."""
    import numpy as np

    if array.dtype.kind == "V":
        array = array.astype("float64" if dtype_of_numpy(array.dtype) in FLOAT_DTYPES else "int64")
    values = array.tolist()
    return values if array.dtype.kind in "biuU" or (array.dtype.kind == "f" and np.isfinite(array).all()) else to_json(values)


def _write_archive(stream: IO[bytes], journal: Journal, records: Sequence[Record]) -> None:
    """Writes `files`, an array of each output with a row for each of them, and the bad files with their reasons.

    An output with different shapes, or absent for some files, has an array OUTPUT/FILE for each file.
    """
    import numpy as np

    good = [record for record in records if record.error is None]
    bad = [record for record in records if record.error is not None]
    texts = {
        "files": [record.file for record in good],
        "bad_files": [record.file for record in bad],
        "bad_reasons": [str(record.error) for record in bad],
    }
    with zipfile.ZipFile(stream, "w") as archive:
        for name, lines in texts.items():
            with archive.open(f"{name}.npy", "w") as member:
                write_array(np.array(lines, dtype=str), member)
        for name in dict.fromkeys(name for record in good for name in record.arrays):
            _write_output(archive, journal, name, good)


def _write_output(archive: zipfile.ZipFile, journal: Journal, name: str, records: Sequence[Record]) -> None:
    import numpy as np

    having = [record for record in records if name in record.arrays]
    if len(having) < len(records) or len({tuple(record.arrays[name][2]) for record in having}) > 1:
        for record in having:
            with archive.open(f"{name}/{record.file}.npy", "w", force_zip64=True) as member:
                write_array(journal.read(record)[name], member)
        return
    dtype = np.result_type(*{record.arrays[name][1] for record in having})  # texts have lengths
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, {**header, "shape": (len(having), *having[0].arrays[name][2])})
        for record in having:
            array = journal.read(record)[name]
            member.write((array.astype(dtype) if dtype.kind == "U" else array).tobytes())


_GROUP_VALUES = 2**20
"""Numbers after which a group of rows is written; a group is held in memory."""


def _write_parquet(stream: IO[bytes], journal: Journal, records: Sequence[Record]) -> None:
    """Writes a row for each file: `file`, `error`, and a column of nested lists for each output."""
    from pyarrow import field, lib, schema, string, table
    from pyarrow.parquet import ParquetWriter

    fields = {"file": string(), "error": string()}
    for record in records:
        fields |= {name: _find_column_type(name, kind) for name, kind in record.arrays.items() if name not in fields}
    columns = schema([field(name, kind) for name, kind in fields.items()])
    rows: list[dict[str, Any]] = []
    values = 0
    with ParquetWriter(stream, columns) as writer:
        for position, record in enumerate(records, 1):
            arrays = journal.read(record)
            values += sum(array.size for array in arrays.values())
            rows.append({"file": record.file, "error": record.error, **{name: array.tolist() for name, array in arrays.items()}})
            if values > _GROUP_VALUES or position == len(records):
                try:
                    writer.write_table(table({name: [row.get(name) for row in rows] for name in fields}, schema=columns))
                except lib.ArrowException as error:
                    raise UsageError(f"an output does not fit into a column of Parquet: {error}. Write .npz or .jsonl") from error
                rows, values = [], 0


def _find_column_type(name: str, kind: tuple[str, str, list[int]]) -> Any:
    from pyarrow import from_numpy_dtype, lib, list_, string

    dtype, _, shape = kind
    try:
        column = string() if dtype == "string" else from_numpy_dtype(numpy_dtype(dtype))
    except lib.ArrowException as error:
        raise UsageError(f"output '{name}' is {dtype}, for which Parquet has no column; write .npz or .jsonl") from error
    for _ in shape:
        column = list_(column)
    return column


WRITERS: Mapping[str, Callable[[IO[bytes], Journal, Sequence[Record]], None]] = {
    ".jsonl": _write_lines,
    ".npz": _write_archive,
    ".parquet": _write_parquet,
}
"""Ending of the output -> the function that writes it."""
_OWN_NAMES = {".jsonl": (), ".npz": ("bad_files", "bad_reasons", "files"), ".parquet": ("error", "file")}


def require_writable(target: Path, outputs: Sequence[str]) -> None:
    """Raises: UsageError if an output has the name of a column of ours, and for Parquet without pyarrow, before any work."""
    suffix = target.suffix.lower()
    for name in outputs:
        if name in _OWN_NAMES[suffix]:
            raise UsageError(f"output '{name}' has the name of a column that {suffix} needs itself; write another format")
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401  # the optional extra
        except ImportError as error:
            raise UsageError(f"writing '{target}' needs pyarrow; install it with: pip install 'hetero-core[parquet]'") from error


def write_results(target: Path, journal: Journal, files: Sequence[str]) -> None:
    """Writes the output, which appears complete or not at all, with the files in this order. Raises: UsageError."""
    try:
        with replace_file(target) as stream:
            WRITERS[target.suffix.lower()](stream, journal, [journal.records[file] for file in files])
    except OSError as error:
        raise UsageError(f"cannot write '{target}': {error.strerror or error}") from error
