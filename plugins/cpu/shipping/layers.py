"""A network of layers side by side."""

from __future__ import annotations

from typing import Any

import onnx
from hetero_tests.open_models import Builder
from onnx import TensorProto

Feeds = dict[str, Any]


class Layers:
    """A network of layers side by side, each an output."""

    def __init__(self, inputs: dict[str, list[object]]) -> None:
        self.builder = Builder()
        self._inputs = {name: (int(TensorProto.FLOAT), shape) for name, shape in inputs.items()}
        self._outputs: dict[str, list[object]] = {}

    def end(self, value: str, rank: int) -> None:
        """Makes a value an output, of sizes that are left open."""
        self._outputs[value] = [None] * rank

    def finish(self) -> onnx.ModelProto:
        """Returns the network."""
        return self.builder.finish(self._inputs, self._outputs)
