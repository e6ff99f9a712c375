"""Programs of torch as ONNX models: an ONNXProgram of torch.onnx, and an ExportedProgram of torch.export, exported on the fly.

Recognizes both by the names of their classes; imports torch only for an object of torch.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import TYPE_CHECKING, Any

from hetero_core.errors import NetworkReadError

if TYPE_CHECKING:
    import onnx


def model_of_program(source: Any) -> onnx.ModelProto | None:
    """Returns the model of an ONNXProgram or an ExportedProgram; None for any other object. Raises: NetworkReadError."""
    name = type(source).__name__ if type(source).__module__.startswith("torch.") else ""
    if name == "ONNXProgram":
        return source.model_proto
    return export_program(source) if name == "ExportedProgram" else None


def export_program(program: Any) -> onnx.ModelProto:
    """Returns the ONNX model of an ExportedProgram, without the exporter's warnings and messages about itself.

    Raises: NetworkReadError without onnxscript, for a program that changes its inputs or buffers, and for an error of the exporter.
    """
    if importlib.util.find_spec("onnxscript") is None:
        raise NetworkReadError(
            "cannot export an ExportedProgram: torch.onnx needs the package onnxscript. Run: pip install onnxscript"
        )
    import torch  # heavy

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed = _list_changed(program)
            if not changed:
                return torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    except Exception as error:
        raise NetworkReadError(f"cannot export an ExportedProgram: {describe_cause(error)}") from error
    finally:
        logger.setLevel(level)
    names = ", ".join(f"'{name}'" for name in changed)
    raise NetworkReadError(f"cannot export an ExportedProgram: it changes {names} in place, and a network changes no input")


def _list_changed(program: Any) -> list[str]:
    """Returns the inputs, parameters and buffers that a program changes; the exporter would leave the changes out."""
    calls = [node for node in program.graph.nodes if hasattr(node.target, "_schema")]
    # batch_norm(input, weight, bias, running_mean, running_var, training, ...) does not tell that it changes its statistics.
    trained = [node for node in calls if "batch_norm" in str(node.target) and node.args[3] is not None and node.args[5] is True]
    if any(node.target._schema.is_mutable for node in calls):
        program = program.run_decompositions({})  # the signature lists changes only of a program without calls in place
    changed = [str(spec.target or spec.arg.name) for spec in program.graph_signature.output_specs if "MUTATION" in spec.kind.name]
    return changed + [str(node.args[3]) for node in trained]


def describe_cause(error: BaseException) -> str:
    """Returns the class and the first line of the error at the root of an exporter's chain, which wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
