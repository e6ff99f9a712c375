"""Outputs of one inference: a table, fields for JSON, files, and the comparison with another device."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from hetero_core.cli.answer import UsageError, format_number, format_table
from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.files import replace_file

if TYPE_CHECKING:
    import numpy as np

    from hetero_core.blobs.samples import Sample
    from hetero_core.runtime.executable import ExecutableNetwork


SHOWN_VALUES = 10
_SHOWN_IN_TEXT = 4


def iterate_tensors(outputs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields each array with its name; the items of a sequence or a map as "name[0]", "name[key]"; None for an absent optional."""
    for name, value in outputs.items():
        if isinstance(value, list | tuple):
            yield from iterate_tensors({f"{name}[{index}]": item for index, item in enumerate(value)})
        elif isinstance(value, Mapping):
            yield from iterate_tensors({f"{name}[{key}]": item for key, item in value.items()})
        else:
            yield name, value


def describe_output(name: str, value: Any) -> dict[str, Any]:
    """Returns the facts about an array; smallest, largest and mean are None for texts, complex numbers and empty arrays."""
    import numpy as np

    if value is None:
        return {"name": name, "dtype": None, "shape": None, "min": None, "max": None, "mean": None, "values": []}
    array = np.asarray(value)
    fields: dict[str, Any] = {"name": name, "dtype": dtype_of_numpy(array.dtype), "shape": list(array.shape)}
    has_numbers = array.size > 0 and array.dtype.kind not in "OUSTc"
    # The small floats of ml_dtypes have no exact sums of their own.
    wide = array.astype(np.float64) if has_numbers else None
    for field, measure in (("min", np.min), ("max", np.max), ("mean", np.mean)):
        fields[field] = None if wide is None else float(measure(wide))
    fields["values"] = [_to_plain(item) for item in array.reshape(-1)[:SHOWN_VALUES]]
    return fields


def _to_plain(item: Any) -> Any:
    """Returns a Python value for an array's element."""
    plain = item.item() if hasattr(item, "item") else item
    return plain if isinstance(plain, bool | int | float) else str(plain)


def format_outputs(described: list[dict[str, Any]]) -> str:
    """Returns described outputs as a table."""
    return format_table(("OUTPUT", "TYPE", "MIN", "MAX", "MEAN", "FIRST VALUES"), map(_format_row, described))


def _format_row(fields: Mapping[str, Any]) -> tuple[str, ...]:
    if fields["shape"] is None:
        return fields["name"], "absent", "-", "-", "-", "-"
    kind = f"{fields['dtype']}[{','.join(map(str, fields['shape']))}]"
    numbers = ["-" if fields[field] is None else f"{fields[field]:.6g}" for field in ("min", "max", "mean")]
    values = " ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in fields["values"][:_SHOWN_IN_TEXT])
    return fields["name"], kind, *numbers, values + (" ..." if prod(fields["shape"]) > _SHOWN_IN_TEXT else "")


def save_outputs(outputs: Mapping[str, Any], target: str) -> list[str]:
    """Returns the paths of the files written: one .npz, or a .npy for each output in a folder, which is created.

    In a folder, characters of a name that are no letter, digit, "_", "." or "-" are percent-encoded. An absent optional has
    no file.

    Raises: UsageError if a file cannot be written.
    """
    arrays, path = list_arrays(outputs), Path(target)
    try:
        if path.suffix.lower() == ".npz":
            with replace_file(path) as stream:
                write_archive(arrays, stream)
            return [str(path)]
        path.mkdir(parents=True, exist_ok=True)
        path_of_output = {name: path / f"{quote(name, safe='')}.npy" for name in arrays}
        for name, array in arrays.items():
            with replace_file(path_of_output[name]) as stream:
                _write_array(array, stream)
        return list(map(str, path_of_output.values()))
    except OSError as error:
        raise UsageError(f"cannot save outputs to '{path}': {error.strerror or error}") from error


def write_archive(arrays: Mapping[str, np.ndarray[Any, Any]], stream: IO[bytes]) -> None:
    """Not by numpy.savez, which cannot hold an array named "file"."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(array, member)


def read_archive(source: Any, dtypes: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of a path or stream; plain bytes are viewed as `dtypes` says, since NumPy forgets the types of ml_dtypes."""
    import numpy as np

    with np.load(source, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return {name: array.view(numpy_dtype(dtypes[name])) if array.dtype.kind == "V" else array for name, array in arrays.items()}


def list_arrays(outputs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of outputs as files hold them: texts as NumPy's fixed-width texts, since no file of ours needs pickle."""
    import numpy as np

    arrays = {name: np.asarray(value) for name, value in iterate_tensors(outputs) if value is not None}
    return {name: array.astype(str) if array.dtype == object else array for name, array in arrays.items()}


def _write_array(array: np.ndarray[Any, Any], stream: IO[bytes]) -> None:
    """Not to the file itself: NumPy would write to it by a way of its own, which on a full disk tells no reason."""
    import numpy as np

    np.lib.format.write_array(SimpleNamespace(write=stream.write), array, allow_pickle=False)


def compare_outputs(
    actual: Mapping[str, Any], expected: Mapping[str, Any], *, rtol: float | None, atol: float
) -> list[dict[str, Any]]:
    """Returns for each output its largest difference, absolute and as a share of the largest expected value, and the mismatch as text.

    An array agrees when its largest difference is at most `atol`, or at most `rtol` times the largest expected value; `rtol` None
    takes the tolerance of the element type. Integers, bools and texts are not measured by `rtol`.
    """
    own, other = dict(iterate_tensors(actual)), dict(iterate_tensors(expected))
    rows = [_compare_tensor(name, own[name], other[name], rtol, atol) for name in own if name in other]
    for name in [name for name in (*own, *other) if name not in own or name not in other]:
        where = "first" if name in own else "second"
        unknown = {"max_absolute_difference": None, "max_relative_difference": None}
        rows.append({"name": name, **unknown, "mismatch": f"{name}: only the {where} device returns it"})
    return rows


def compare_samples(loaded: ExecutableNetwork, samples: Sequence[Sample], *, rtol: float | None) -> list[dict[str, Any]]:
    """Runs the samples in order on a new request, and returns how their outputs differ from the expected outputs."""
    request = loaded.create_infer_request()
    rows = []
    for number, (inputs, expected) in enumerate(samples, 1):
        outputs = request.infer(inputs)
        compared = compare_outputs({name: outputs[name] for name in outputs if name in expected}, expected, rtol=rtol, atol=0.0)
        rows += [{**row, "sample": number} for row in compared]
    return rows


def _compare_tensor(name: str, actual: Any, expected: Any, rtol: float | None, atol: float) -> dict[str, Any]:
    import numpy as np

    from hetero_core.debugging.divergence import measure_difference

    actual, expected = (value if value is None else np.asarray(value) for value in (actual, expected))
    row = {"name": name, **measure_difference(name, actual, expected, rtol)}
    absolute = row["max_absolute_difference"]
    if absolute is not None and absolute <= atol and actual.dtype == expected.dtype:
        row["mismatch"] = None
    return row


def format_comparison(rows: list[dict[str, Any]], device: str) -> str:
    """Returns the rows as a table, and below it the outputs that differ by too much."""
    table = []
    for row in rows:
        name = f"{row['name']}, sample {row['sample']}" if row.get("sample", 1) > 1 else row["name"]
        numbers = map(format_number, (row["max_absolute_difference"], row["max_relative_difference"]))
        table.append((name, *numbers, "same" if row["mismatch"] is None else "DIFFERS"))
    title = f"compared with {device}:"
    mismatches = [f"  {row['mismatch']}" for row in rows if row["mismatch"] is not None]
    return "\n".join([title, format_table(("OUTPUT", "LARGEST DIFFERENCE", "RELATIVE", "RESULT"), table, indent="  "), *mismatches])
