"""Query: exactly one answer for each node, deterministic, with the reasons that a load then gives, too."""

from __future__ import annotations

from hetero_core.conformance.check import CheckContext, check, require, require_equal
from hetero_core.conformance.refusals import find_broken_refusal, load_claimed
from hetero_core.conformance.samples import FORMS, UNKNOWN_OPERATOR, iterate_samples, make_mixed, make_sample, read_text


@check("contract")
def every_node_is_named_once_in_order(context: CheckContext) -> None:
    """Each node of a partly supported network is either supported or refused, in the order of the network."""
    network, result = make_mixed(context)
    names = [node.name for node in network.nodes]
    require_equal(sorted([*result.supported, *result.refused]), sorted(names), "the nodes in the answer")
    for part in (result.supported, result.refused):
        require_equal(list(part), [name for name in names if name in part], "the order of the answer")


@check("contract")
def unknown_operator_is_refused_with_a_reason(context: CheckContext) -> None:
    """An unknown operator is refused, and the reason is a sentence."""
    _, result = make_mixed(context)
    require("unknown" in result.refused, f"the device takes {UNKNOWN_OPERATOR}, an operator that does not exist")
    require(len(result.refused["unknown"].split()) >= 3, f"the reason is no sentence: {result.refused['unknown']!r}")


@check("contract", needs=["single"])
def claims_are_signed_by_the_device(context: CheckContext) -> None:
    """Each supported node is mapped to the queried device, with an id if the device has several."""
    result = context.query(make_sample(context, "chain").network)
    for node, device in result.supported.items():
        name, _, device_id = device.partition(".")
        require_equal(name, context.facts.name, f"the device that takes node '{node}'")
        require(not device_id or device_id in context.facts.ids, f"node '{node}' is taken by {device}, which has no such id")


@check("contract")
def same_question_has_the_same_answer(context: CheckContext) -> None:
    """A repeated query, also in another Core, has the same answer in the same order."""
    network, first = make_mixed(context)
    with context.make_core() as other:
        for core in (context.core, other, context.core):
            again = core.query_network(network, context.device)
            require_equal(list(again.supported.items()), list(first.supported.items()), "what is supported, asked again")
            require_equal(list(again.refused.items()), list(first.refused.items()), "what is refused, asked again")


@check("contract")
def query_and_load_leave_the_network_as_it_was(context: CheckContext) -> None:
    """Nodes, names and fingerprint of a network are the same after it was queried and loaded."""
    network = make_sample(context, "chain").network
    before = (network.fingerprint, network.nodes, dict(network.affinity))
    context.query(network)
    context.load(network)
    require_equal((network.fingerprint, network.nodes, dict(network.affinity)), before, "the network afterwards")


@check("contract")
def refused_network_is_refused_by_load_for_the_same_reasons(context: CheckContext) -> None:
    """`load_network` raises UnsupportedNodesError with the nodes that the query refused, and its reasons."""
    network, result = make_mixed(context)
    problem = find_broken_refusal(context.core, network, context.device, result)
    require(problem is None, f"{problem}")


@check("contract")
def claimed_network_loads(context: CheckContext) -> None:
    """Each small network of the kit that the device takes whole is loaded, and computes the right outputs."""
    count = 0
    for form in FORMS:
        for sample in iterate_samples(context, form):
            inputs = sample.draw(context.seed)
            outputs = load_claimed(context.core, sample.network, context.device).infer(inputs)
            what = f"network '{form}' of {sample.network.nodes[0].operator}, {sample.dtype.__name__}"
            sample.require_right(outputs, inputs, what)
            count += 1
    require(count > 0, "the device takes none of the small networks of the kit: it runs nothing that the other checks could use")


@check("contract")
def unnamed_and_repeated_names_are_answered_in_unique_ones(context: CheckContext) -> None:
    """Nodes without names and nodes with equal names have unique names in the answer."""
    operator = make_sample(context, "chain").network.nodes[0].op_type
    text = f"(float[4] x) => (float[4] y) {{ a = {operator} (x) [same] b = {operator} (a) [same] y = {operator} (b) }}"
    network = read_text(context, text)
    result = context.query(network)
    require_equal(len({*result.supported, *result.refused}), 3, "the number of nodes in the answer")


@check("contract", needs=["hetero", "single"])
def answer_can_be_written_back_as_pins(context: CheckContext) -> None:
    """HETERO over this device alone takes the same nodes as the device; its answer, written into the network as pins, can be loaded."""
    sample = make_sample(context, "chain")
    device = f"HETERO:{context.device}"
    result = context.core.query_network(sample.network, device)
    require_equal(dict(result.refused), {}, f"what {device} refuses of a network that {context.device} takes")
    pinned = sample.network.with_affinity(dict(result.supported))
    sample.require_run(context.core.load_network(pinned, device), context.seed, what=f"pinned, on {device}")
