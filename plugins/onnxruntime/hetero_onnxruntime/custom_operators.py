"""Libraries of custom operators, which a session of ONNX Runtime loads: those of the user, and the package onnxruntime-extensions.

Only sessions of networks with an operator unknown to onnx and to the engine get a library. The engine itself tells the types that such an
operator makes, by a session of a single node.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from hetero_core.errors import DeviceUnavailableError
from hetero_core.network.contrib_types import knows_contrib
from hetero_core.network.graph import Network, Node, iterate_nodes
from hetero_core.network.types import TensorType, ValueSpec, ValueType

LIBRARY_VARIABLE = "ORT_CUSTOM_OPS_LIBRARY"
"""Environment variable with paths of libraries, separated as those of PATH are."""
_PACKAGE = "onnxruntime_extensions"
_DOMAINS_OF_PACKAGE = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})
_DTYPES = {"float": "float32", "double": "float64"}
"""The engine's names of element types that differ from ours."""


def find_libraries(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Returns the paths of the libraries that a session of these nodes needs; empty if onnx or the engine knows each operator.

    Raises: DeviceUnavailableError for a path that is no file.
    """
    outer = tuple(nodes)
    inner = (each for node in outer for body in node.bodies.values() for each in iterate_nodes(body))
    domains = {node.domain for node in (*outer, *inner) if not node.since_version and not knows_contrib(node)}
    if not domains:
        return ()
    files = [path for path in os.environ.get(LIBRARY_VARIABLE, "").split(os.pathsep) if path]
    for path in files:
        if not os.path.isfile(path):
            raise DeviceUnavailableError(
                f"{LIBRARY_VARIABLE} names '{path}', which is no file; give the path of a library of operators"
            )
    if domains & _DOMAINS_OF_PACKAGE and find_spec(_PACKAGE) is not None:
        files.append(str(import_module(_PACKAGE).get_library_path()))
    paths = tuple(dict.fromkeys(map(os.path.abspath, files)))
    for path in paths:
        _keep_loaded(path)
    return paths


@cache
def _keep_loaded(path: str) -> None:
    """Loads a library until the process ends: one that its last session unloaded may crash the process when it is loaded again."""
    with suppress(OSError):  # the engine says why it takes none
        ctypes.CDLL(path)


def infer_types(node: Node, input_types: tuple[ValueType | None, ...]) -> tuple[ValueType, ...] | None:
    """Returns a custom operator's output element types, ranks unknown; None if no library has it for these inputs.

    Raises: DeviceUnavailableError for a path that is no file, or no library of operators.
    """
    libraries = find_libraries([node])
    present = [(value, kind) for value, kind in zip(node.inputs, input_types, strict=True) if value]
    if not libraries or node.bodies or not all(isinstance(kind, TensorType) and kind.dtype for _, kind in present):
        return None
    from hetero_core.network.writer import network_to_bytes  # only operators of a library need it

    specs = {value: ValueSpec(value, kind) for value, kind in present if kind is not None}
    alone = Network(
        "types",
        tuple(specs.values()),
        tuple(ValueSpec(value, TensorType(None)) for value in node.outputs if value),
        (replace(node, name="types"),),
        {},
        opsets={"": 17, node.domain: node.opset},
    )
    types = _ask(network_to_bytes(alone), libraries)
    answers = iter(types or ())
    return None if types is None else tuple(next(answers) if value else TensorType(None) for value in node.outputs)


@cache
def _ask(model: bytes, libraries: tuple[str, ...]) -> tuple[TensorType, ...] | None:
    from hetero_onnxruntime.engine import import_own_names  # only operators of a library need it

    onnxruntime = import_own_names()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for path in libraries:
        try:
            options.register_custom_ops_library(path)
        except Exception as error:
            raise DeviceUnavailableError(
                f"ONNX Runtime {onnxruntime.__version__} takes no operators from '{path}', which {LIBRARY_VARIABLE} or an installed "
                f"package names: {' '.join(str(error).split())}"
            ) from error
    try:
        outputs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).get_outputs()
    except Exception:  # noqa: BLE001  # the query of the device words the engine's refusal
        return None
    names = (output.type.removeprefix("tensor(").removesuffix(")") for output in outputs)
    return tuple(TensorType(_DTYPES.get(name, name)) for name in names)
