"""Free values: checks of random outputs, for which the standard gives no values.

The suite has random outputs in Bernoulli, also written out as a function, and in Dropout for training. Properties of every right
answer are checked in place of values: shape, element type, the set of possible values, and shares within six standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.testing.backend_cases import RANDOM_OPERATORS

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

DEVIATIONS = 6.0


def draws_freely(network: Network, feeds: Mapping[str, Any]) -> bool:
    """Says whether some output of a run with these inputs is random."""
    return any(node.op_type in RANDOM_OPERATORS or _is_dropping(node, network, feeds) for node in network.nodes if not node.domain)


def _is_dropping(node: Any, network: Network, feeds: Mapping[str, Any]) -> bool:
    """Says whether a node is a Dropout in training mode with a ratio above 0."""
    if node.op_type != "Dropout" or node.since_version < 12 or len(node.inputs) < 3:
        return False
    ratio = 0.5 if not node.inputs[1] else float(_find_value(node.inputs[1], network, feeds))
    return bool(_find_value(node.inputs[2], network, feeds)) and ratio > 0


def _find_value(name: str, network: Network, feeds: Mapping[str, Any]) -> Any:
    return feeds[name] if name in feeds else network.initializers[name].array


def describe_free_mismatch(
    network: Network, loaded: ExecutableNetwork, feeds: Mapping[str, Any], expected: Sequence[Any]
) -> str | None:
    """Returns the property that the random outputs violate, or None; runs the network with these inputs and with extreme ones."""
    outputs = loaded.infer(feeds)
    for (name, value), reference in zip(outputs.items(), expected, strict=True):
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return f"{name}: expected {reference.dtype}{list(reference.shape)}, got {value.dtype}{list(value.shape)}"
    if any(node.op_type == "Dropout" for node in network.nodes):
        return _judge_dropout(network, feeds, list(outputs.values()))
    if len(outputs) == 1 and len(feeds) == 1:
        return _judge_bernoulli(network, loaded, feeds, next(iter(outputs.values())))
    return None


def _judge_bernoulli(network: Network, loaded: ExecutableNetwork, feeds: Mapping[str, Any], drawn: Any) -> str | None:
    """Each value is 1 with the probability that the input gives, else 0.

    ONNX's function body inverts this: 1 if a uniform number is greater than the input.
    """
    (name, x), *_ = feeds.items()
    is_inverted = any(node.op_type == "Greater" for node in network.nodes)
    if not np.isin(drawn, (0, 1)).all():
        return f"Bernoulli gave {sorted(set(drawn.tolist()))[:4]}; expected 0 and 1 alone"
    for chance in (0, 1):
        certain = next(iter(loaded.infer({name: np.full_like(x, chance)}).values()))
        if not (certain == (1 - chance if is_inverted else chance)).all():
            return f"Bernoulli of an input of {chance} gave {certain.tolist()}"
    chances = x.astype(np.float64)
    return _judge_share(int(drawn.astype(np.float64).sum()), 1 - chances if is_inverted else chances)


def _judge_dropout(network: Network, feeds: Mapping[str, Any], outputs: list[Any]) -> str | None:
    """Each element is dropped, or kept and scaled by 1 / (1 - ratio); the mask, if it is an output, is True for kept elements."""
    (node,) = [candidate for candidate in network.nodes if candidate.op_type == "Dropout"]
    x = feeds[node.inputs[0]].astype(np.float64)
    ratio = float(_find_value(node.inputs[1], network, feeds)) if node.inputs[1] else 0.5
    y = outputs[0].astype(np.float64)
    is_kept = ~np.isclose(y, 0) if ratio >= 1 else np.isclose(y, x / (1 - ratio), rtol=1e-4) & (x != 0)
    if not (is_kept | (y == 0)).all():
        return f"Dropout gave elements that are neither 0 nor x / (1 - {ratio:g})"
    if len(outputs) > 1 and not (outputs[1] == is_kept)[x != 0].all():
        return "the mask of Dropout does not say what was kept"
    return _judge_share(int(is_kept.sum()), np.full(x.shape, 1 - ratio))


def _judge_share(count: int, chances: np.ndarray[Any, Any]) -> str | None:
    mean, deviation = float(chances.sum()), float(np.sqrt((chances * (1 - chances)).sum()))
    if abs(count - mean) <= DEVIATIONS * deviation + 1e-9:
        return None
    return f"{count} of {chances.size} elements were drawn; expected {mean:g}, give or take {DEVIATIONS * deviation:.3g}"
