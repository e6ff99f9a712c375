"""Builds ONNX models node by node with seeded random weights, for the builders of test models."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx

OPSET = 17


class NetworkWriter:
    """A graph under construction. `add_` methods return the name of the added value; the same calls give a bit-identical model."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def add_input(self, name: str, shape: Sequence[int | str], dtype: int = 1) -> str:
        """Adds an input of the network; `dtype` is the number of an ONNX element type, 1 for float32."""
        import onnx  # only builders need it

        self._inputs.append(onnx.helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def add_output(self, value: str, shape: Sequence[int | str]) -> None:
        """Declares a float32 value as an output."""
        import onnx  # only builders need it

        self._outputs.append(onnx.helper.make_tensor_value_info(value, 1, list(shape)))

    def add_node(self, op_type: str, *inputs: str, count: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or a tuple of `count` names."""
        import onnx  # only builders need it

        outputs = [f"{op_type.lower()}_{len(self._nodes)}" + (f"_{index}" if index else "") for index in range(count)]
        self._nodes.append(onnx.helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0] if count == 1 else tuple(outputs)

    def add_constant(self, array: np.ndarray[Any, Any]) -> str:
        import onnx  # only builders need it

        name = f"constant_{len(self._initializers)}"
        self._initializers.append(onnx.numpy_helper.from_array(array, name))
        return name

    def add_numbers(self, *numbers: int) -> str:
        """Adds a constant of int64, for shapes and axes."""
        import numpy as np  # only builders need it

        return self.add_constant(np.array(numbers, np.int64))

    def add_index(self, number: int) -> str:
        """Adds an int64 constant without dimensions."""
        import numpy as np  # only builders need it

        return self.add_constant(np.array(number, np.int64))

    def add_scalar(self, number: float) -> str:
        """Adds a float32 constant without dimensions."""
        import numpy as np  # only builders need it

        return self.add_constant(np.array(number, np.float32))

    def draw_weight(self, *shape: int, deviation: float | None = None, mean: float = 0.0) -> str:
        """Adds random weights with He's deviation by default: sqrt(2 / fan-in). The first axis of a matrix is its inputs."""
        import numpy as np  # only builders need it

        inputs = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        spread = math.sqrt(2 / max(inputs, 1)) if deviation is None else deviation
        generator = np.random.default_rng(zlib.crc32(f"{self._name}/{len(self._initializers)}".encode()))
        return self.add_constant(generator.standard_normal(shape, np.float32) * np.float32(spread) + np.float32(mean))

    def build_model(self) -> onnx.ModelProto:
        import onnx  # only builders need it

        graph = onnx.helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._initializers)
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)

    def add_linear(self, x: str, inputs: int, outputs: int) -> str:
        """Adds x @ W + b in the form of exporters: MatMul, Add."""
        product = self.add_node("MatMul", x, self.draw_weight(inputs, outputs, deviation=inputs**-0.5))
        return str(self.add_node("Add", self.draw_weight(outputs, deviation=0.1), product))

    def add_layer_norm(self, x: str, size: int) -> str:
        """Adds LayerNormalization, written out in operators from before opset 17."""
        centered = self.add_node("Sub", x, self.add_node("ReduceMean", x, axes=[-1]))
        squares = self.add_node("Pow", centered, self.add_scalar(2.0))
        variance = self.add_node("Add", self.add_node("ReduceMean", squares, axes=[-1]), self.add_scalar(1e-5))
        normalized = self.add_node("Div", centered, self.add_node("Sqrt", variance))
        scaled = self.add_node("Mul", normalized, self.draw_weight(size, deviation=0.1, mean=1.0))
        return str(self.add_node("Add", scaled, self.draw_weight(size, deviation=0.1)))

    def add_gelu(self, x: str) -> str:
        """Adds GELU written out with Erf."""
        erf = self.add_node("Erf", self.add_node("Div", x, self.add_scalar(math.sqrt(2.0))))
        product = self.add_node("Mul", x, self.add_node("Add", erf, self.add_scalar(1.0)))
        return str(self.add_node("Mul", product, self.add_scalar(0.5)))

    def add_softmax(self, x: str) -> str:
        """Adds Softmax over the last axis."""
        return str(self.add_node("Softmax", x, axis=-1))

    def add_reshape(self, x: str, sizes: Sequence[int]) -> str:
        """Adds a Reshape to constant sizes."""
        return str(self.add_node("Reshape", x, self.add_numbers(*sizes)))

    def add_shapes(self, values: Mapping[str, Sequence[int | str]]) -> None:
        """Declares several values as outputs."""
        for value, shape in values.items():
            self.add_output(value, shape)
