"""An engine that compiles whole graphs, as a device; `hetero new-plugin --kind engine` writes a plugin from this file.

The engine is onnx's reference evaluator, which comes with onnx. Replace it by your own library: the nodes that it accepts, its
known errors, compilation and runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError

from hetero_core.contract import DeviceName, Executable, RunContext
from hetero_core.dtypes import numpy_dtype
from hetero_core.engines.device import EngineDevice
from hetero_core.engines.inspection import dtype_of_input
from hetero_core.engines.known_errors import Check, find_error, refuse, refuse_unless
from hetero_core.engines.probing import NodeProber, list_element_types
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.types import TensorType
from hetero_core.network.writer import network_to_proto


def refuse_before(version: int, reason: str) -> Check:
    """A check that refuses the versions of an operator before `version`."""
    return lambda node, graph: reason if node.since_version < version else None


def refuse_halves(node: Node, graph: Graph) -> str | None:
    """Refuses all but float32 and float64, also if the type is not known."""
    dtype = dtype_of_input(node, graph)
    return None if dtype in ("float32", "float64") else f"the evaluator adds up {dtype or 'an unknown type'} without a wider type"


def refuse_padding(node: Node, graph: Graph) -> str | None:
    """Refuses windows that may begin or end outside the input."""
    is_padded = any(node.attributes.get("pads", ())) or node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return "the evaluator pads other sides than the standard" if is_padded else None


WRONG: Mapping[str, Check] = {
    "BatchNormalization": refuse_before(14, "the evaluator mixes in the mean of the batch"),
    "ConvTranspose": refuse_unless("group", 1, "the evaluator cannot divide its channels into groups"),
    "GatherElements": refuse("the evaluator does not run a negative axis, or indices of other sizes than the data"),
    "Hardmax": refuse_before(13, "the evaluator takes the last axis"),
    "LayerNormalization": refuse_halves,
    "LogSoftmax": refuse_before(13, "the evaluator takes the last axis"),
    "Loop": refuse("the evaluator gives scan outputs an axis too many"),
    "MaxPool": refuse_padding,
    "RandomNormal": refuse("the evaluator seeds all of NumPy"),
    "RandomUniform": refuse("the evaluator seeds all of NumPy"),
    "Resize": refuse_before(11, "the evaluator does not run it"),
    "Scan": refuse("the evaluator loses the type of a state"),
    "Softmax": refuse_before(13, "the evaluator takes the last axis"),
}
"""The known errors of the engine: a check for each operator, asked within bodies, too. The kit finds the entries."""


class TemplateDevice(EngineDevice):
    """The toolkit implements queries by trial, opsets, refusals and blobs; this class adds the part of the engine."""

    title, version, newest_ir_version = "onnx.reference", onnx.__version__, onnx.IR_VERSION

    def __init__(self, name: str) -> None:
        self._name = name
        self._prober = NodeProber(self._try_all, self._find_type_fault, keeps_weights=False)

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the device. The evaluator loses NaN in MaxPool."""
        return {
            "FULL_DEVICE_NAME": f"{self.title} {self.version}",
            "OPTIMIZATION_CAPABILITIES": ("FP32", "BF16", "FP16", "FP64"),
            "VALUE_DEVIATIONS": ("NAN",),
        }

    def newest_opsets(self, network: Network) -> Mapping[str, int]:
        """Returns the newest opset of each domain that the engine accepts."""
        return {"": onnx.defs.onnx_opset_version()}

    def find_known_errors(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the reason for each node that the engine is known to compute wrongly."""

        def check(node: Node, graph: Graph) -> str | None:
            return WRONG[node.op_type](node, graph) if node.op_type in WRONG else None

        errors = {node.name: find_error(node, network, check) for node in network.nodes}
        return {name: error for name, error in errors.items() if error}

    def find_refusals(self, device: DeviceName, nodes: Iterable[Node], stamped: Network) -> Mapping[str, str]:
        """Asks the engine about each distinct node once, as a network of its own."""
        return self._prober.find_refusals(nodes, stamped)

    def compile(self, device: DeviceName, network: Network, stamped: Network, config: Mapping[str, Any]) -> Executable:
        """Returns the network compiled, with the attribute `network`."""
        return TemplateExecutable(network, ReferenceEvaluator(network_to_proto(stamped)))

    def _find_type_fault(self, name: str, network: Network) -> str | None:
        value_type = network.type_of(name)
        if not isinstance(value_type, TensorType) or None in list_element_types(value_type):
            return f"'{name}' is {value_type}; this engine takes tensors of known types"
        return None

    def _try_all(self, networks: Sequence[Network]) -> list[str]:
        return [self._try(network) for network in networks]

    def _try(self, network: Network) -> str:
        try:
            ReferenceEvaluator(network_to_proto(network))
        except (NotImplementedError, RuntimeContextError, RuntimeError, TypeError) as error:
            return f"{self.title} {self.version}: {' '.join(str(error).split())[:200]}"
        return ""


class TemplateExecutable(Executable):
    """A loaded network; the engine runs it whole, and its time is a single entry of a profile."""

    def __init__(self, network: Network, evaluator: ReferenceEvaluator) -> None:
        self.network, self.inputs, self.outputs, self._evaluator = network, network.inputs, network.outputs, evaluator

    def metrics(self) -> Mapping[str, Any]:
        """Reports that onnx's evaluator computes the whole network. Leave this method out for an engine of your own."""
        return {"REFERENCE_NODES": tuple(node.name for node in self.network.nodes)}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position, as arrays of the caller's own: the evaluator may return an input as it is."""
        begin = perf_counter()
        results = self._evaluator.run(None, {spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)})
        if context.profile is not None:
            context.profile.add(Node(self.network.name, "Network", (), ()), perf_counter() - begin)
        return tuple(
            np.array(result, None if spec.dtype is None else numpy_dtype(spec.dtype), order="C")
            for result, spec in zip(results, self.outputs, strict=True)
        )
