"""A case of an operator: drawn inputs and attributes, the model of its single node, and the outputs of ONNX Runtime's own kernel.

Imports onnx and ONNX Runtime only inside functions; the engine runs the node without any rewriting, on a single thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hetero_core.testing.reference_session import SIGNED_WEIGHTS, open_reference_session

if TYPE_CHECKING:
    import onnx

MICROSOFT = "com.microsoft"
OPSET = 17
"""The opset of ONNX's own domain in the models."""


@dataclass(frozen=True, slots=True, eq=False)
class ContribCase:
    """A node. An absent input is None; `outputs` are the requested outputs; `constants` are inputs that the model holds as initializers.

    `tolerance` is relative, for floats of 32 bits; integers, bools and texts are compared bit for bit. `aliases` maps outputs to
    inputs; the engine requires that they share memory.
    """

    op_type: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = (True,)
    constants: frozenset[int] = frozenset()
    domain: str = MICROSOFT
    tolerance: float = 1e-4
    opset: int = OPSET
    aliases: tuple[tuple[int, int], ...] = ()

    @property
    def feeds(self) -> dict[str, Any]:
        """Input name -> array, for the inputs that are not constants."""
        return {f"x{index}": x for index, x in enumerate(self.inputs) if x is not None and index not in self.constants}


def make_model(case: ContribCase) -> onnx.ModelProto:
    """Returns the model of the case's node; its inputs have types and shapes, its outputs do not."""
    import onnx

    from hetero_core.dtypes import dtype_of_numpy, onnx_of_dtype
    from hetero_core.network.tensors import write_tensor

    helper = onnx.helper
    names = [f"x{index}" if x is not None else "" for index, x in enumerate(case.inputs)]
    results = [f"y{index}" if is_asked else "" for index, is_asked in enumerate(case.outputs)]
    node = helper.make_node(case.op_type, names, results, "node", domain=case.domain, **case.attributes)
    graph = onnx.GraphProto(name=case.op_type, node=[node])
    for index, x in enumerate(case.inputs):
        if index in case.constants and x is not None:
            write_tensor(x, graph.initializer.add(), name=names[index])
        elif x is not None:
            graph.input.append(helper.make_tensor_value_info(names[index], onnx_of_dtype(dtype_of_numpy(x.dtype) or ""), x.shape))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in results if name)
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_engine(case: ContribCase) -> dict[str, Any]:
    """Returns the outputs of ONNX Runtime's own kernel, by their names; products of bytes are exact on every processor.

    Raises: any error of the engine.
    """
    case = _with_unsigned_weights(case)
    session = open_reference_session(make_model(case).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    if case.aliases:
        return _run_bound(session, case, names)
    return dict(zip(names, session.run(None, case.feeds), strict=True))


def _with_unsigned_weights(case: ContribCase) -> ContribCase:
    """Returns the case with int8 weights and their zero points 128 larger, as uint8: the same products, without saturation."""
    import numpy as np

    values, weights = SIGNED_WEIGHTS.get(case.op_type, (None, ()))
    inputs = list(case.inputs)
    for place, zero in weights:
        if inputs[place].dtype != np.int8 or (values is not None and inputs[values].dtype != np.uint8):
            continue
        inputs += [None] * (zero + 1 - len(inputs))
        zeros = np.zeros((), np.int8) if inputs[zero] is None else inputs[zero]
        inputs[place], inputs[zero] = (np.asarray(x.astype(np.int16) + 128, np.uint8) for x in (inputs[place], zeros))
    return replace(case, inputs=tuple(inputs))


def _run_bound(session: Any, case: ContribCase, names: list[str]) -> dict[str, Any]:
    """Returns the outputs of a run in which some outputs share the memory of inputs."""
    import onnxruntime

    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for name, x in case.feeds.items()}
    sources = {f"y{output}": f"x{index}" for output, index in case.aliases}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        if name in sources:
            binding.bind_ortvalue_output(name, values[sources[name]])
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    return dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
