"""`hetero predict`: runs a model on every file of a folder and writes the outputs to one file.

A file is one sample. Threads read and run, and this thread writes each result to the journal: a SQLite database beside the output, which
an interrupted call leaves to the next call. A file that cannot be read or run is recorded with its reason and does not end the command.
When every file has a row, the output is written and appears complete, and the journal is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from threading import Semaphore
from time import monotonic, perf_counter
from typing import IO, TYPE_CHECKING, Any

from hetero_core.cli import inputs as feeds
from hetero_core.cli import options as shared
from hetero_core.cli.answer import BAD_FILES, INTERRUPTED, OK, Answer, UsageError, count_up, follow, to_json, word_options
from hetero_core.cli.outputs import list_arrays, read_archive, write_archive
from hetero_core.core import Core
from hetero_core.devices.names import parse_device_name
from hetero_core.devices.threads import HINT_KEY
from hetero_core.dtypes import FLOAT_DTYPES, dtype_of_numpy
from hetero_core.errors import ClosedError, DeviceCrashedError, DeviceUnavailableError, HeteroError, enumerate_choices
from hetero_core.reports.text import count

if TYPE_CHECKING:
    import numpy as np

    from hetero_core.network.graph import Network
    from hetero_core.network.types import Dimension, ValueSpec
    from hetero_core.runtime.executable import ExecutableNetwork

    Arrays = dict[str, np.ndarray[Any, Any]]

_BATCH = 8
_READERS = 4
_SHOWN = 20
_Result = tuple[Mapping[str, Any], str | None]
"""The outputs of a file, and the reason for their absence."""
_DEVICE_ERRORS = (ClosedError, DeviceCrashedError, DeviceUnavailableError)
"""Errors that no other file would escape."""


def add_options(parser: shared.Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    shared.add_device_options(parser)
    text = """the folder, with its subfolders: each file is a sample, as for 'hetero run'; NAME=VALUE and NAME=FILE for another input are
    the same in every run"""
    shared.add_repeated(parser, "-i", "--input", metavar="[NAME=]FOLDER", help=text)
    text = f"where to write the results: {', '.join(sorted(WRITERS))}"
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=text)
    group = feeds.add_preparation_options(parser)
    shared.add_repeated(group, "--value", metavar="NAME", help="only this output, or this inner value; may be repeated")
    text = f"files that run at once, through BATCH; {_BATCH} if the model's batch is open and BATCH takes the model, else 1"
    group.add_argument("--batch", type=shared.whole_number(1), metavar="N", help=text)
    text = "the number of requests (what the device recommends)"
    group.add_argument("--requests", type=shared.whole_number(1), metavar="N", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the counts and the bad files; exit code 4 if there are any, 130 after an interrupt, which the same call continues.

    Raises: UsageError, errors of reading, devices and configuration; errors of a device that is lost.
    """
    target = shared.find_target(options.output)
    if target.suffix.lower() not in WRITERS:
        raise UsageError(f"-o {target}: the results are written as {enumerate_choices(WRITERS)}")
    name, folder, constants = _split_inputs(options.input)
    path_of_file, others = _list_files(folder, target)
    with Core() as core:
        prediction, device, batch = _load(core, options, name, path_of_file, constants)
        network = prediction.executable
        require_writable(target, [spec.name for spec in network.outputs])
        identity = {"model": network.fingerprint, "inputs": repr([name, *constants]), "folder": str(folder.resolve())}
        began = perf_counter()
        with Journal(target.with_name(f"{target.name}.journal"), identity) as journal:
            stamps = {file: _find_stamp(path) for file, path in path_of_file.items()}
            done = journal.list_done(stamps)
            title = f"running '{network.name}' on {device}"
            pending = [file for file in stamps if file not in done]
            with (
                count_up(options, title, total=len(stamps), done=len(done)) as advance,
                closing(prediction.run(pending, options.requests)) as results,
            ):
                try:
                    for file, (outputs, error) in results:
                        journal.add(file, stamps[file], outputs, error)
                        advance()
                except KeyboardInterrupt:
                    text = f"interrupted; the same command goes on from '{journal.path}'"
                    return Answer(text, {"interrupted": True, "journal": str(journal.path)}, INTERRUPTED)
                except HeteroError as error:
                    error.add_note(f"the same command goes on from '{journal.path}'")
                    raise
            seconds = perf_counter() - began
            with follow(options)(f"writing '{target}'"), shared.open_target(target) as stream:
                WRITERS[target.suffix.lower()](stream, journal)
            errors = journal.list_errors()
    journal.path.unlink()
    fields: dict[str, Any] = {"network": network.name, "device": device, "output": str(target), "files": len(stamps)}
    fields |= {"done_before": len(done), "batch": batch, "seconds": seconds, "per_second": (len(stamps) - len(done)) / seconds}
    fields["bad"] = [{"file": file, "reason": reason} for file, reason in errors.items()]
    fields["not_read"] = dict(sorted(others.items()))
    remarks = [f"{len(done)} files were done before an interruption"] if done else []
    if others:
        kinds = (f"{number} {suffix or 'without ending'}" for suffix, number in sorted(others.items()))
        remarks.append(f"files of other kinds were not read: {', '.join(kinds)}")
    return Answer(_describe(fields, errors), fields, BAD_FILES if errors else OK, tuple(remarks))


def _describe(fields: Mapping[str, Any], errors: Mapping[str, str]) -> str:
    batches = f", in batches of {fields['batch']}" if fields["batch"] > 1 else ""
    text = (
        f"wrote '{fields['output']}': {fields['files'] - len(errors)} of {count(range(fields['files']), 'file')} by network "
        f"'{fields['network']}' on {fields['device']}{batches}, {fields['per_second']:.4g} files per second"
    )
    lines = [f"  {file}: {' '.join(reason.split())}" for file, reason in errors.items()]
    rest = [f"  ... and {len(lines) - _SHOWN} more, all in the output"] if len(lines) > _SHOWN else []
    return "\n".join([text, *(["", "without a result:"] if lines else []), *lines[:_SHOWN], *rest])


def _split_inputs(texts: Sequence[str]) -> tuple[str, Path, list[str]]:
    """Returns the input of the folder, "" if the option does not name it, the folder, and the -i options of constants."""
    folders, constants = [], []
    for text in texts:
        name, equals, place = ("", "=", text) if Path(text).is_dir() else text.partition("=")
        if equals and Path(place).is_dir():
            folders.append((name, Path(place)))
        else:
            constants.append(text)
    if len(folders) != 1:
        raise UsageError(f"expected one folder, as in -i images/ or -i NAME=images/; got {', '.join(texts) or 'none'}")
    return (*folders[0], constants)


def _list_files(folder: Path, target: Path) -> tuple[dict[str, Path], Counter[str]]:
    """Returns the path of each file by its name within the folder, sorted, and how many files have another ending, by ending.

    Names that begin with a point, and the target of an earlier call, are left out. Raises: UsageError if there is no file.
    """
    others: Counter[str] = Counter()
    path_of_file = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if name == target.name and target.exists() and path.samefile(target):
                continue
            if path.suffix.lower() in feeds.READERS:
                # A name that is no UTF-8 has no place in JSON or Parquet as it is.
                path_of_file[os.fsencode(path.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")] = path
            elif not name.startswith("."):
                others[path.suffix.lower()] += 1
    if not path_of_file:
        raise UsageError(f"folder '{folder}' has no file that can be read; these are {enumerate_choices(feeds.READERS)}")
    return {file: path_of_file[file] for file in sorted(path_of_file)}, others


def _find_stamp(path: Path) -> str:
    """Returns the size and the time of a file, "" if it cannot be read."""
    with suppress(OSError):
        return "{0.st_size} {0.st_mtime_ns}".format(path.stat())
    return ""


def _load(
    core: Core, options: argparse.Namespace, name: str, path_of_file: Mapping[str, Path], constants: Sequence[str]
) -> tuple[_Prediction, str, int]:
    """Returns the loaded network with its files, the device, and the number of files in a batch."""
    config, step = shared.read_config(options), follow(options)
    core.resolve_config(options.device, config)  # a wrong name is reported before the model is read
    with step(f"reading '{options.model}'"):
        network = shared.reshape(feeds.choose_values(shared.read_model(core, options.model), options.value), options.shape)
    values = feeds.read_inputs(constants, network.inputs, network=network.name)
    if name:
        feeds.require_known([name], network.inputs, network.name, f"-i {name}=")
    elif unnamed := [path for path in path_of_file.values() if path.suffix.lower() != ".npz"]:
        name = feeds.find_only_input(unnamed[0], [spec for spec in network.inputs if spec.name not in values], network.name)
    images = [path for path in path_of_file.values() if path.suffix.lower() in feeds.IMAGES]
    if images:
        feeds.import_pillow(images[0])  # otherwise every image would be a bad file
    measured = images if any("area" in text for text in options.resize) else []  # the other ways take images of any size
    network = feeds.describe_inputs(network, options, {name: measured} if images and name else {})
    pinned = shared.pin_network(core, network, options.device, shared.read_pins(options))
    if HINT_KEY in core.config_keys(options.device) and HINT_KEY not in {key.strip().upper() for key in config}:
        config[HINT_KEY] = "THROUGHPUT"
    with step(f"loading network '{network.name}' on {options.device}"):
        device, batch = _choose_batches(core, pinned, options, config)
        executable = core.load_network(pinned, device, config)
    return _Prediction(executable, path_of_file, name, values), device, batch


def _choose_batches(core: Core, network: Network, options: argparse.Namespace, config: Mapping[str, str]) -> tuple[str, int]:
    """Returns the device, in BATCH for several files at once, and the batch. Raises: UsageError if --batch cannot be followed."""
    is_open = all(spec.shape and not isinstance(spec.shape[0], int) for spec in network.inputs)
    size = options.batch or (_BATCH if is_open and "BATCH" in core.device_names else 1)
    if size == 1 or parse_device_name(options.device).name == "BATCH":
        return options.device, 1
    device = f"BATCH:({options.device})({size})"
    refused = core.query_network(network, device, config).refused
    if refused and options.batch is not None:
        node, reason = next(iter(refused.items()))
        raise UsageError(f"--batch {size}: BATCH refuses {count(refused, 'node')} of '{network.name}', as '{node}': {reason}")
    return (options.device, 1) if refused else (device, size)


class _Prediction:
    """The runs of a network on the files of a folder, on threads that read, run and wait for each other."""

    def __init__(self, executable: ExecutableNetwork, paths: Mapping[str, Path], name: str, constants: Mapping[str, Any]) -> None:
        """`name` is the input of the files, "" if each is an archive with names; `constants` are the same in every run."""
        self.executable, self._specs = executable, executable.inputs
        self._path_of_file, self._name, self._constants = paths, name, constants

    def run(self, files: Sequence[str], requests: int | None) -> Generator[tuple[str, _Result]]:
        """Runs the files on so many requests, by default as recommended; yields the results in order. Raises: the loss of a device."""
        count = requests or max(int(self.executable.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")), 1)
        slots, waiting = Semaphore(count), deque[tuple[str, Future[_Result]]]()
        pool = ThreadPoolExecutor(count + _READERS)
        try:
            for file in files:
                waiting.append((file, pool.submit(self.compute, file, slots)))
                if len(waiting) > 2 * (count + _READERS):
                    first, future = waiting.popleft()
                    yield first, future.result()
            for file, future in waiting:
                yield file, future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def compute(self, file: str, slots: AbstractContextManager[Any]) -> _Result:
        """Returns the outputs of a file, without the batch axis if it was added to the inputs, or the reason for their absence."""
        try:
            inputs, batches = self._read(self._path_of_file[file])
            with slots:
                outputs = self.executable.infer(inputs)
        except _DEVICE_ERRORS:
            raise
        except HeteroError as error:
            return {}, word_options(str(error))
        except Exception as error:  # noqa: BLE001  # decoders of images raise errors of many kinds, and the file is recorded with it
            return {}, f"{type(error).__name__}: {error}"
        names = {spec.name for spec in self.executable.outputs if spec.shape and spec.shape[0] in batches}
        return {name: value[0] if name in names and len(value) == 1 else value for name, value in outputs.items()}, None

    def _read(self, path: Path) -> tuple[dict[str, Any], set[Dimension]]:
        """Returns the checked inputs of a file, and the declared sizes of the axes that were added."""
        from hetero_core.runtime.inputs import order_inputs

        network, cure = self.executable.name, "Give each with -i NAME=VALUE, or a .npz file an array for each"
        arrays = feeds.read_file(path, self._name, self._specs, network=network, where="the archive")
        if path.suffix.lower() in feeds.IMAGES and arrays[self._name].ndim == 4:
            arrays = {self._name: arrays[self._name][0]}
        lacking = [spec for spec in self._specs if spec.name in arrays and _lacks_batch(arrays[spec.name], spec)]
        added = {spec.name: arrays[spec.name][None] for spec in lacking}
        inputs = feeds.fill_inputs({**self._constants, **arrays, **added}, self._specs, {}, seed=None)
        feeds.require_complete(inputs, self._specs, network=network, cure=cure)
        order_inputs(inputs, self._specs, network=network)
        return inputs, {spec.shape[0] for spec in lacking if spec.shape and spec.shape[0] is not None}


def _lacks_batch(array: Any, spec: ValueSpec) -> bool:
    """Says whether an array has all axes of the input but the first, which is open or has the size 1."""
    shape = spec.shape
    return shape is not None and len(shape) == array.ndim + 1 and (shape[0] == 1 or not isinstance(shape[0], int))


# The results


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

    @contextmanager
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
            rows = self._base.execute("SELECT file, stamp, error FROM files").fetchall()
            done = {file for file, stamp, error in rows if error is None and stamps.get(file) == stamp}
            self._base.executemany("DELETE FROM files WHERE file = ?", [(file,) for file, *_ in rows if file not in done])
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
    errors, good = journal.list_errors(), []
    for file, error, arrays in journal.read():
        good += [file] if error is None else []
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
"""Numbers after which a group of rows of Parquet is written; a group is held in memory."""


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
