"""The inputs with which a network runs while placement measures: arrays of a file, or random arrays without a file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES, bits_of_dtype, numpy_dtype
from hetero_core.errors import ConfigValueError
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_hetero.placement.choice import INPUTS_KEY


def find_inputs(network: Network, path: str) -> dict[str, np.ndarray[Any, Any]]:
    """Returns an array for each input: that of the .npz file at `path`, else drawn; floats are normal, other numbers 0 or 1,
    texts single letters.

    Raises: ConfigValueError for a file that cannot be read, and for an input that is not in it and cannot be drawn.
    """
    arrays = _read(path) if path else {}
    return {
        spec.name: _fit(arrays[spec.name], spec) if spec.name in arrays else _draw(spec, index)
        for index, spec in enumerate(network.inputs)
    }


def _read(path: str) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigValueError(f"configuration key {INPUTS_KEY}: cannot read arrays from '{path}': {error}") from error


def _fit(array: np.ndarray[Any, Any], spec: ValueSpec) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "U":
        return array.astype(object)
    # Element types that NumPy does not know come back as plain bytes.
    return array.view(numpy_dtype(spec.dtype)) if array.dtype.kind == "V" and spec.dtype is not None else array


def _draw(spec: ValueSpec, index: int) -> np.ndarray[Any, Any]:
    shape = tuple(size for size in spec.shape or () if isinstance(size, int))
    is_drawable = spec.dtype == "string" or (spec.dtype is not None and bits_of_dtype(spec.dtype) is not None)
    if not is_drawable or spec.shape is None or len(shape) != len(spec.shape):
        raise ConfigValueError(
            f"HETERO_PLACEMENT=MEASURED runs the network, and input {spec} cannot be drawn: give arrays in an .npz file with "
            f"{INPUTS_KEY}, or fixed sizes"
        )
    generator = np.random.default_rng((0, index))
    assert spec.dtype is not None
    if spec.dtype == "string":
        return np.array(generator.choice(["a", "b", "c"], shape), object)
    if spec.dtype in FLOAT_DTYPES:
        return generator.standard_normal(shape, np.float32).astype(numpy_dtype(spec.dtype))
    return generator.integers(0, 256 if spec.dtype == "uint8" else 2, shape).astype(numpy_dtype(spec.dtype))
