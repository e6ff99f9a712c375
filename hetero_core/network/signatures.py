"""Element types of outputs by an operator's signature, where onnx has no rule of inference for it.

Most operators of ai.onnx.ml have none; their outputs are of one fixed type or of the type of an input. Shapes stay unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType

# Spellings of onnx.defs that differ from the names of element types.
_SPELLINGS = {"float": "float32", "double": "float64"}


def infer_by_signature(node: Node, input_types: Sequence[ValueType | None]) -> dict[str, ValueType]:
    """Returns output -> tensor type, with the element type alone, for the outputs whose signature decides it."""
    output_types: dict[str, ValueType] = {}
    sources = _read_signature(node.op_type, node.since_version, node.domain)
    if (node.op_type, node.domain, node.since_version) == ("Cast", "", 1):
        sources = (dtype_of_onnx(str(node.attributes.get("to"))),)
    elif node.op_type == "Split" and not node.domain:
        sources *= len(node.outputs)
    for value, source in zip(node.outputs, sources, strict=False):
        if not value or source is None:
            continue
        if isinstance(source, str):
            output_types[value] = TensorType(source)
            continue
        for position in source:
            read = input_types[position] if position < len(input_types) else None
            if isinstance(read, TensorType) and read.dtype is not None:
                output_types[value] = TensorType(read.dtype)
                break
    return output_types


@cache
def _read_signature(op_type: str, since_version: int, domain: str) -> tuple[str | tuple[int, ...] | None, ...]:
    """Returns for each output its element type, or the inputs that have the same one, or None; nothing for a mixed variadic one."""
    import onnx.defs  # heavy

    schema = onnx.defs.get_schema(op_type, since_version, domain)
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    inputs = [parameter.type_str for parameter in schema.inputs if parameter.option != variadic or parameter.is_homogeneous]
    sources: list[str | tuple[int, ...] | None] = []
    for output in schema.outputs:
        if output.option == variadic and not output.is_homogeneous:
            break
        types = allowed.get(output.type_str, [output.type_str])
        if len(types) == 1:
            sources.append(_dtype_of(types[0]))
        else:
            sources.append(tuple(index for index, name in enumerate(inputs) if name == output.type_str) or None)
    return tuple(sources)


def _dtype_of(text: str) -> str | None:
    """Returns the element type of "tensor(float)", None for what is no tensor."""
    if not text.startswith("tensor("):
        return None
    name = text.removeprefix("tensor(").removesuffix(")")
    return _SPELLINGS.get(name, name)
