"""Ray Data: a network over a folder of files or over the rows of a dataset, on actors that Ray Data places and counts.

driver ──packed network──> store ══> actor of Ray Data: Core, device
files or rows ══> actor ══> rows of outputs                            Ray Data moves them, and shows the progress
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.errors import InferenceError

if TYPE_CHECKING:
    from hetero_core import ExecutableNetwork
    from hetero_core.core import Model

PATH = "path"
"""The column of a result that names the file."""


def predict(
    dataset: Any,
    model: Model,
    device: str = "CPU",
    *,
    config: Mapping[str, Any] | None = None,
    batch_size: int = 32,
    actors: int | None = None,
    **resources: Any,
) -> Any:
    """Returns a `ray.data.Dataset` with the outputs; Ray Data computes them when they are read.

    dataset: a folder of `.npz` files, each with the inputs of a run by their names, or of `.npy` files with the only input; or a
        `ray.data.Dataset`; its columns with the names of inputs are stacked, `batch_size` rows in a run. Other columns are kept.
    actors: how many copies of the network run; None for as many as Ray Data has processors for.
    resources: Ray's reservations for each copy, such as `num_gpus=1`.

    Raises: errors of reading the model. ImportError without Ray Data. Errors of a run are raised when the outputs are read.
    """
    import ray
    import ray.data

    from hetero_core import Core
    from hetero_core.network.graph import Network
    from hetero_core.network.writer import pack_network

    with Core() as core:
        packed = pack_network(model if isinstance(model, Network) else core.read_network(model))
    # Stored once for any number of actors.
    shared = {name: ray.put(np.frombuffer(packed[name], np.uint8)) for name in ("model", "weights")}
    options = {
        "fn_constructor_args": (shared, device, dict(config or {})),
        "compute": ray.data.ActorPoolStrategy(size=actors) if actors else ray.data.ActorPoolStrategy(min_size=1),
        **resources,
    }
    if isinstance(dataset, (str, os.PathLike)):
        files = ray.data.read_binary_files(os.fspath(dataset), include_paths=True, file_extensions=["npy", "npz"])
        return files.map(FilePredictor, **options)
    return dataset.map_batches(RowPredictor, batch_size=batch_size, batch_format="numpy", **options)


class Predictor:
    """A network in an actor of Ray Data."""

    def __init__(self, shared: Mapping[str, Any], device: str, config: Mapping[str, Any]) -> None:
        import ray

        from hetero_core import Core
        from hetero_core.network.writer import unpack_network

        packed = {name: memoryview(ray.get(reference)) for name, reference in shared.items()}
        self._core = Core()
        self.network = self._core.load_network(unpack_network(packed), device, config)
        self.names = [spec.name for spec in self.network.inputs]


class FilePredictor(Predictor):
    """Runs the network on each file."""

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs and the path of the file. Raises: as `infer`; InferenceError that names a file which cannot be read."""
        try:
            content = np.load(io.BytesIO(row["bytes"]), allow_pickle=False)
            inputs = content if isinstance(content, np.ndarray) else dict(content)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InferenceError(
                f"file {row[PATH]} is no array of NumPy: {error}; write it with numpy.save or numpy.savez"
            ) from error
        return {PATH: row[PATH], **self.network.infer(inputs)}


class RowPredictor(Predictor):
    """Runs the network on the rows of a batch."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs and the columns that are no inputs. Raises: as `infer_rows`."""
        inputs = {name: value for name, value in batch.items() if name in self.names}
        count = len(next(iter(batch.values())))
        others = {name: value for name, value in batch.items() if name not in self.names}
        return {**others, **infer_rows(self.network, inputs, count)}


def infer_rows(network: ExecutableNetwork, inputs: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns the outputs of inputs that hold `count` rows. Raises: as `infer`; InferenceError for an output without a row for each."""
    outputs = network.infer(dict(inputs))
    for name, value in outputs.items():
        if value.shape[:1] != (count,):
            raise InferenceError(
                f"output '{name}' has shape {value.shape} for a batch of {count} rows, expected {count} as its first dimension; "
                "give the network in files, or a model whose outputs have the batch first"
            )
    return outputs
