"""Opset stamps, for devices that wrap an engine: a network is relabelled with older opsets in which its operators mean the same.

An operator keeps its version until a newer version replaces it: Relu-14 is the same in opset 14 and in opset 28. Two versions that
differ only in the allowed element types mean the same, too: their text, attributes, inputs and outputs are identical. A model has a
single opset per domain, so the stamp must suit all nodes; nodes that the chosen stamp does not suit are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from hetero_core.network.contrib_types import knows_contrib, last_opset
from hetero_core.network.graph import Network, Node, iterate_nodes

_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Stamps:
    """The opset of each domain for a whole network, and the nodes that do not fit it, each with the reason."""

    opset_of_domain: Mapping[str, int]
    refusals: Mapping[str, str]


def choose_stamps(network: Network, newest_of_domain: Mapping[str, int]) -> Stamps:
    """Returns the stamps that suit most nodes; ties go to the stamp nearest to the network's own opset.

    The engine may lack kernels for a newer opset in which an operator means the same: ONNX Runtime 1.32 has RoiAlign-16, not RoiAlign-22.
    """
    votes: dict[str, Counter[int]] = {}
    for node in iterate_nodes(network):
        low, high = _range_of_node(node, newest_of_domain)
        # For a domain unknown to onnx, the engine's opsets are found by probing.
        opsets = range(low, min(high, newest_of_domain.get(node.domain, 0) or high) + 1)
        votes.setdefault(node.domain, Counter()).update(opsets)
    # The counter is empty if no node of the domain fits any opset of the engine; all its nodes are refused below.
    chosen = {}
    for domain, votes_of_opset in votes.items():
        ranks = ((count, -abs(opset - network.opsets.get(domain, 1)), opset) for opset, count in votes_of_opset.items())
        chosen[domain] = max(ranks, default=(0, 0, newest_of_domain.get(domain, 1)))[-1]
    refusals = {}
    for node in network.nodes:
        inner = (each for body in node.bodies.values() for each in iterate_nodes(body))
        reason = next(filter(None, (_describe_misfit(each, chosen, newest_of_domain) for each in (node, *inner))), None)
        if reason is not None:
            refusals[node.name] = reason
    return Stamps(MappingProxyType(chosen), MappingProxyType(refusals))


def apply_stamps(network: Network, stamps: Stamps, newest_ir_version: int) -> Network:
    """Returns the network with the stamps on all nodes, bodies included, and a file format that the engine accepts.

    Unread constants are left out: ONNX Runtime 1.32 fails to find them if they are passed by reference.
    """
    read = {*network.names_of_outputs, *(value for node in network.nodes for value in node.reads)}
    return replace(
        network,
        nodes=tuple(_stamp_node(node, stamps.opset_of_domain) for node in network.nodes),
        initializers=MappingProxyType({name: constant for name, constant in network.initializers.items() if name in read}),
        opsets=MappingProxyType({**network.opsets, **stamps.opset_of_domain}),
        ir_version=min(network.ir_version, newest_ir_version),
    )


def _stamp_node(node: Node, opset_of_domain: Mapping[str, int]) -> Node:
    bodies = {
        key: replace(body, nodes=tuple(_stamp_node(inner, opset_of_domain) for inner in body.nodes))
        for key, body in node.bodies.items()
    }
    return replace(node.with_bodies(bodies), opset=opset_of_domain.get(node.domain, node.opset))


def _range_of_node(node: Node, newest_of_domain: Mapping[str, int]) -> tuple[int, int]:
    """Returns the lowest and the highest opset that the engine accepts and in which the node means the same."""
    newest = newest_of_domain.get(node.domain, node.opset)
    if node.since_version:
        lowest, highest = _span_of_meaning(node.domain, node.op_type, node.since_version)
        return lowest, min(highest, newest)
    # Without a schema the meaning in other opsets is known of ONNX Runtime's contrib operators in ONNX's own domain alone.
    last = (last_opset(node) or _NO_LIMIT) if not node.domain and knows_contrib(node) else 0
    return (1, min(newest, last)) if node.opset <= last else (node.opset, node.opset)


def _describe_misfit(node: Node, chosen: Mapping[str, int], newest_of_domain: Mapping[str, int]) -> str | None:
    low, high = _range_of_node(node, newest_of_domain)
    if low > high:
        newest = newest_of_domain.get(node.domain, 0)
        return f"{node.operator} is newer than the opsets of {node.domain or 'ai.onnx'} that the engine accepts, up to {newest}"
    if low <= chosen[node.domain] <= high:
        return None
    return (
        f"{node.operator} needs an opset of {node.domain or 'ai.onnx'} from {low} to {high}; "
        f"most nodes of the network need {chosen[node.domain]}, and the engine takes one for all"
    )


@cache
def _span_of_meaning(domain: str, op_type: str, since_version: int) -> tuple[int, int]:
    newer = _NO_LIMIT + 1
    for _, group in groupby(_iterate_meanings(domain, op_type), key=itemgetter(1)):
        versions = [version for version, _ in group]
        if since_version in versions:
            return versions[-1], newer - 1
        newer = versions[-1]
    return since_version, since_version


def _iterate_meanings(domain: str, op_type: str) -> Iterator[tuple[int, object]]:
    """Yields each version of an operator, newest first, with its schema without element types; one that deprecates it differs, too."""
    from onnx import defs  # heavy, but already imported if a network exists

    version = _NO_LIMIT
    while version > 0:
        try:
            schema = defs.get_schema(op_type, version, domain)
        except defs.SchemaError:
            return
        yield schema.since_version, _read_meaning(schema)
        version = schema.since_version - 1


def _read_meaning(schema: Any) -> object:
    return (
        schema.deprecated,
        _squeeze(schema.doc),
        tuple(
            (name, attribute.type, attribute.required, str(attribute.default_value), _squeeze(attribute.description))
            for name, attribute in sorted(schema.attributes.items())
        ),
        *(
            tuple(
                (each.name, each.option, each.min_arity, each.is_homogeneous, each.type_str, _squeeze(each.description))
                for each in side
            )
            for side in (schema.inputs, schema.outputs)
        ),
        (schema.min_input, schema.max_input, schema.min_output, schema.max_output),
    )


def _squeeze(text: str | None) -> str:
    return "" if text is None else " ".join(text.split())
