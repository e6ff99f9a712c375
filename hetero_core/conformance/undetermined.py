"""Undetermined values: a Softmax of inputs so large that float32's own rounding of them is more than its output can bear.

The suite's SqueezeNet has made-up weights, and its classes end with equal values near 1e10. One unit in the last place is 1024 there,
and Softmax makes e^1024 of it: engines that sum in another order give any distribution at all. What the case does determine is judged
instead: the inputs of the Softmax within the tolerance of sums, and the Softmax of these very inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.testing.compare import describe_mismatch
from hetero_core.transforms.postprocessing import change_outputs

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network, Node
    from hetero_core.testing.backend_cases import BackendCase

_SMALLEST = float(np.log(np.finfo(np.float32).tiny))
"""Below this logarithm of a share float32 has no more than 0."""


def is_undetermined(case: BackendCase, network: Network, core: Core, device: str, *, tolerance: float) -> bool:
    """Says whether a device's outputs of a case, though not as expected, are right within what float32 determines of them.

    Only for networks whose one output is made by a Softmax; loads the network again, now with the input of the Softmax as an output.
    """
    node = _find_softmax(network)
    if node is None:
        return False
    inner = change_outputs(network, {}, add=[node.inputs[0]], only=None)
    with core.load_network(network, device) as loaded, core.load_network(inner, device) as opened:
        for inputs, (expected,) in case.runs:
            feeds = {spec.name: value for spec, value in zip(network.inputs, inputs, strict=False)}
            (alone,) = loaded.infer(feeds).values()
            outputs = opened.infer(feeds)
            rows = (_flatten(array, node) for array in (outputs[node.inputs[0]], outputs[node.outputs[0]], alone, expected))
            if not is_within_rounding(*rows, tolerance=tolerance):
                return False
    return True


def _find_softmax(network: Network) -> Node | None:
    if len(network.outputs) != 1 or network.outputs[0].dtype != "float32":
        return None
    node = network.find_producer(network.outputs[0].name)
    if node is None or node.domain or node.op_type != "Softmax" or node.inputs[0] not in network.index_of_producer:
        return None
    return node


def is_within_rounding(scores: Any, shares: Any, alone: Any, expected: Any, *, tolerance: float) -> bool:
    """Says whether `shares` are the Softmax of `scores` along the last axis, and all shares follow from scores but for their rounding.

    scores, shares: float (rows, classes), of one run. alone, expected: float (rows, classes), of another run and of the standard.
    """
    if not np.isfinite(scores).all():
        return False
    magnitude = float(np.abs(scores).max(initial=0.0))
    if magnitude * float(np.finfo(np.float32).eps) <= tolerance:
        return False
    exact = scores.astype(np.float64)
    exact = exact - exact.max(axis=-1, keepdims=True)
    powers = np.exp(exact)
    softmax = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    if describe_mismatch(shares, softmax, rtol=tolerance) is not None:
        return False
    slack = tolerance * magnitude
    return all(_follows(each, exact, slack) for each in (alone, expected))


def _follows(shares: Any, exact: Any, slack: float) -> bool:
    """Says whether shares are those of scores that differ from `exact`, whose largest is 0, by no more than a slack."""
    if not (np.isfinite(shares).all() and (shares >= 0).all() and np.allclose(shares.sum(axis=-1), 1, rtol=1e-3)):
        return False
    with np.errstate(divide="ignore"):
        logarithms = np.log(shares.astype(np.float64))
    logarithms = logarithms - logarithms.max(axis=-1, keepdims=True)
    # Of what is 0 no more is known than that it was too small.
    distance = np.where(shares > 0, np.abs(np.maximum(logarithms, _SMALLEST) - exact), np.maximum(exact - _SMALLEST, 0))
    return bool((distance <= slack).all())


def _flatten(array: Any, node: Node) -> Any:
    """Returns the array as rows of what one Softmax is taken over."""
    if node.since_version >= 13:
        moved = np.moveaxis(array, node.attributes.get("axis", -1), -1)
        return moved.reshape(-1, moved.shape[-1])
    axis = node.attributes.get("axis", 1)
    return array.reshape(int(np.prod(array.shape[:axis])), -1)
