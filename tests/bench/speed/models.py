"""The models that are timed, by name: well-known networks with seeded random weights, and chains that grow.

A chain is a kind and a length: `convolutions:16`, `elementwise:400`, `mixed:400`. Everything heavy is imported when a model is made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))

LIGHT = ("densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet", "vgg19")
LARGER = ("bert", "gpt2_step", "mobilenet_v2", "u_net", "vit_tiny")
MODELS = (*LIGHT, *LARGER)
TRIAL = "residual"
"""A network of a few nodes, to try the scripts with."""
CHAINS = ("convolutions", "elementwise", "mixed")
TINY = 4
"""Elements of each side of the tensors of `elementwise` and `mixed`."""


def check_name(name: str) -> str:
    """Returns the name of a model. Raises: ValueError for one that there is not."""
    kind, _, length = name.partition(":")
    if name in MODELS or name == TRIAL or (kind in CHAINS and length.isdecimal() and int(length) > 0):
        return name
    chains = ", ".join(f"{kind}:N" for kind in CHAINS)
    raise ValueError(f"no model '{name}'; there are {', '.join(sorted((*MODELS, TRIAL)))} and chains of N operators: {chains}")


def make_model(name: str, batch: int) -> Any:
    """Returns a model whose first axes are `batch`; same name and batch, same model, to the bit. Raises: ValueError for the name."""
    from hetero_tests.larger_models import larger_model

    from hetero_core.testing.models import light_model, residual_model

    kind, _, length = check_name(name).partition(":")
    if length:
        return make_chain(kind, int(length), batch)
    if name in LARGER:
        return larger_model(name, batch)
    return widen_batch(residual_model() if name == TRIAL else light_model(name), batch)


def widen_batch(model: Any, batch: int) -> Any:
    """Returns a model that was made for one image, for more: its inputs, outputs and Reshapes of activations are changed in place."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    if batch > 1:
        _widen_reshapes(model)
        del model.graph.value_info[:]
    return model


def _widen_reshapes(model: Any) -> None:
    """Makes the first size of each constant Reshape target of activations what the input has: 0."""
    import onnx

    weights = {initializer.name: initializer for initializer in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[0] not in weights and node.input[1] in weights:
            sizes = onnx.numpy_helper.to_array(weights[node.input[1]]).copy()
            if sizes[0] == 1:
                sizes[0] = 0
                weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(sizes, node.input[1]))


def make_chain(kind: str, length: int, batch: int) -> Any:
    """Returns a chain of `length` operators, or blocks of Conv and Relu, none of which can be computed before a run.

    `convolutions`: blocks of 3x3 Conv and Relu on 32 channels of 56x56, all of one shape, with weights of their own.
    `elementwise`: Add, Abs, Mul, Tanh in turns on TINY x TINY elements. `mixed`: MatMul, Tanh, Mul, Abs, so that no chain of
    elementwise operators is longer than three.
    """
    from hetero_tests.network_writer import NetworkWriter

    writer = NetworkWriter(kind)
    shape = (batch, 32, 56, 56) if kind == "convolutions" else (batch, TINY, TINY)
    x = writer.add_input("x", shape)
    for index in range(length):
        if kind == "convolutions":
            bias = writer.draw_weight(32, deviation=0.1)
            x = writer.add_node("Conv", x, writer.draw_weight(32, 32, 3, 3), bias, pads=[1] * 4)
            x = writer.add_node("Relu", x)
            continue
        op_type = (("Add", "Abs", "Mul", "Tanh") if kind == "elementwise" else ("MatMul", "Tanh", "Mul", "Abs"))[index % 4]
        weights = {"Add": (TINY,), "Mul": (TINY,), "MatMul": (TINY, TINY)}.get(op_type)
        operands = () if weights is None else (writer.draw_weight(*weights, deviation=0.5, mean=0.5),)
        x = writer.add_node(op_type, x, *operands)
    writer.add_output(x, shape)
    return writer.build_model()
