"""Rows as one batch: what Ray Data and Ray Serve gather is stacked along a new first axis, and each output is divided along its first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.errors import InferenceError
from hetero_core.runtime.executable import ExecutableNetwork


def infer_rows(network: ExecutableNetwork, inputs: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns the outputs of inputs that hold so many rows. Raises: as `infer`; InferenceError for an output without a row for each."""
    outputs = network.infer(dict(inputs))
    for name, value in outputs.items():
        if value.shape[:1] != (count,):
            raise InferenceError(
                f"output '{name}' has shape {value.shape} for a batch of {count} rows, expected {count} as its first dimension; "
                "give the network in files, or a model whose outputs have the batch first"
            )
    return outputs
