"""Ray Serve: a deployment that gathers requests, each with a row of every input, and runs them as a batch.

request ──row──> gathering (Ray Serve) ──stacked──> network ──outputs, divided──> each request its row
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray import serve

from hetero_core import Core
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import HeteroError
from hetero_ray.data import infer_rows

if TYPE_CHECKING:
    from hetero_core.core import ModelFile

Row = Mapping[str, Any]


@serve.deployment
class HeteroDeployment:
    """A network behind Ray Serve: `serve.run(HeteroDeployment.bind("model.onnx", "CPU"))`.

    The model is a path that every node has, or the bytes of the file. `options(user_config={"max_batch_size": 16,
    "batch_wait_timeout_s": 0.01})` sets the number of requests that are gathered, and how long the first waits for more.
    """

    def __init__(self, model: ModelFile, device: str = "CPU", config: Mapping[str, Any] | None = None) -> None:
        self._core = Core()
        self._network = self._core.load_network(model, device, config)
        self._types = {spec.name: numpy_dtype(spec.dtype) for spec in self._network.inputs}

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Takes the sizes of a batch from Ray Serve, also while it serves."""
        self._infer_together.set_max_batch_size(user_config.get("max_batch_size", 16))
        self._infer_together.set_batch_wait_timeout_s(user_config.get("batch_wait_timeout_s", 0.01))

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answers HTTP: a row of each input as JSON, {"x": [1, 2]}; returns a row of each output as lists. Raises: as `infer`."""
        row = await request.json()
        outputs = await self.infer({name: np.asarray(value, self._types.get(name)) for name, value in row.items()})
        return {name: value.tolist() for name, value in outputs.items()}

    async def infer(self, row: Row) -> dict[str, Any]:
        """Returns a row of each output. Raises: as `infer` of a network, for this row alone."""
        outcome: dict[str, Any] | HeteroError = await self._infer_together({name: np.asarray(value) for name, value in row.items()})
        if isinstance(outcome, HeteroError):
            raise outcome
        return outcome

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.01)  # type: ignore[untyped-decorator]  # Ray has no types
    async def _infer_together(self, rows: list[Row]) -> list[Any]:
        return await asyncio.to_thread(self._infer_rows, rows)

    def _infer_rows(self, rows: Sequence[Row]) -> list[Any]:
        """Returns for each row its outputs, or the error. Rows of other names, shapes or types are a batch of their own."""
        batches: dict[Any, list[int]] = {}
        for index, row in enumerate(rows):
            batches.setdefault(tuple((name, row[name].shape, row[name].dtype.str) for name in sorted(row)), []).append(index)
        outcomes: dict[int, Any] = {}
        for indices in batches.values():
            outcomes.update(zip(indices, self._infer_batch([rows[index] for index in indices]), strict=True))
        return [outcomes[index] for index in range(len(rows))]

    def _infer_batch(self, rows: Sequence[Row]) -> list[Any]:
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        try:
            outputs = infer_rows(self._network, stacked, len(rows))
        except HeteroError as error:
            # A single row may be at fault: each is run alone, and has its own answer.
            return [error] if len(rows) == 1 else [outcome for row in rows for outcome in self._infer_batch([row])]
        return [{name: value[index] for name, value in outputs.items()} for index in range(len(rows))]
