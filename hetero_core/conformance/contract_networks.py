"""Contract of networks: query, load, meaning of operators, dynamic shapes, executed graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.conformance.check import (
    CheckContext,
    CheckFailed,
    Skip,
    check,
    load_claimed,
    load_each,
    require,
    require_equal,
    require_error,
    require_refusal,
    require_same,
)
from hetero_core.conformance.samples import (
    BINARY,
    FORMS,
    UNARY,
    UNKNOWN_OPERATOR,
    iterate_samples,
    load_sample,
    make_mixed,
    make_sample,
    make_samples,
    read_text,
)
from hetero_core.errors import ClosedError, InferenceError
from hetero_core.executed import DOMAIN
from hetero_core.network.graph import Network
from hetero_core.testing.compare import describe_mismatch

# Query: exactly one answer for each node, deterministic, with the reasons that a load then gives, too.

NODE_COUNTS, MOST_RATIO = (200, 2000), 30.0
"""The sizes of two networks, and the largest ratio of their queries' times; 10 is linear, 100 is quadratic."""
QUERIES = 5
"""Queries of the small network for each of the large one."""


@check("query")
def same_question_has_the_same_answer(context: CheckContext) -> None:
    """A repeated query, also in another Core, has the same answer in the same order."""
    network, first = make_mixed(context)
    with context.make_core() as other:
        for core in (context.core, other, context.core):
            again = core.query_network(network, context.device)
            require_equal(list(again.supported.items()), list(first.supported.items()), "what is supported, asked again")
            require_equal(list(again.refused.items()), list(first.refused.items()), "what is refused, asked again")


@check("query")
def time_follows_the_number_of_nodes(context: CheckContext) -> None:
    """A query of 2,000 nodes takes some ten times as long as a query of 200 nodes, not a hundred times."""
    operator = make_sample(context, "chain").network.nodes[0].op_type
    small, large = (_make_long_chain(context, operator, count) for count in NODE_COUNTS)
    _measure_query(context, small)  # imports and pools of the device
    few = many = inf
    for _ in range(3):
        # The least times: other processes may interrupt either query.
        few = min(few, *(_measure_query(context, small) for _ in range(QUERIES)))
        many = min(many, _measure_query(context, large))
        if many < MOST_RATIO * few + 0.1:
            return
    raise CheckFailed(
        f"a query of {NODE_COUNTS[0]} nodes takes {few:.3g} seconds, and one of {NODE_COUNTS[1]} nodes takes {many:.3g}: "
        "the time is quadratic in the number of nodes"
    )


def _make_long_chain(context: CheckContext, operator: str, count: int) -> Network:
    names = ["x", *(f"v{index}" for index in range(1, count)), "y"]
    nodes = " ".join(f"{target} = {operator} ({source})" for source, target in itertools.pairwise(names))
    return read_text(context, f"(float[4] x) => (float[4] y) {{ {nodes} }}", name=f"chain_of_{count}")


def _measure_query(context: CheckContext, network: Network) -> float:
    began = perf_counter()
    context.query(network)
    return perf_counter() - began


@check("query")
def refused_network_is_refused_by_load_for_the_same_reasons(context: CheckContext) -> None:
    """An unknown operator is refused, the reason is a sentence, and `load_network` raises UnsupportedNodesError with the nodes that the
    query refused, and its reasons."""
    network, result = make_mixed(context)
    require("unknown" in result.refused, f"the device takes {UNKNOWN_OPERATOR}, an operator that does not exist")
    require(len(result.refused["unknown"].split()) >= 3, f"the reason is no sentence: {result.refused['unknown']!r}")
    require_refusal(context.core, network, context.device, result)


@check("query")
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


@check("query", needs=["hetero", "single"])
def answer_can_be_written_back_as_pins(context: CheckContext) -> None:
    """HETERO over this device alone takes the same nodes as the device; its answer, written into the network as pins, can be loaded."""
    sample = make_sample(context, "chain")
    device = f"HETERO:{context.device}"
    result = context.core.query_network(sample.network, device)
    require_equal(dict(result.refused), {}, f"what {device} refuses of a network that {context.device} takes")
    pinned = sample.network.with_affinity(dict(result.supported))
    sample.require_run(context.core.load_network(pinned, device), context.seed, what=f"pinned, on {device}")


# Load: a network can be loaded any number of times, with the inputs and outputs of the model.


@check("load")
def input_may_be_an_output(context: CheckContext) -> None:
    """An output that is an input or a constant has its value, and belongs to the caller: writing to it changes no later run."""
    for sample in make_samples(context, "through", "constant").values():
        loaded = context.load(sample.network)
        inputs = sample.draw(context.seed)
        originals = {name: value.copy() for name, value in inputs.items()}
        for turn in ("first", "second"):
            outputs = loaded.infer(inputs)
            sample.require_right(outputs, originals, f"{turn} run")
            for name, value in outputs.items():
                is_shared = any(np.may_share_memory(value, array) for array in inputs.values())
                require(not is_shared, f"output '{name}' is an input's memory")
                value += np.ones((), value.dtype)


@check("load")
def two_networks_do_not_mix(context: CheckContext) -> None:
    """Networks of different operators and shapes, loaded at the same time and run alternately, give their own results."""
    samples = make_samples(context, "chain", "dynamic", "fork", "pair")
    loaded = {form: context.load(sample.network) for form, sample in samples.items()}
    for turn in range(3):
        for form, sample in samples.items():
            sample.require_run(loaded[form], context.seed + turn, what=f"network '{form}', turn {turn}")


@check("load")
def networks_of_one_name_do_not_mix(context: CheckContext) -> None:
    """Networks with equal names and inputs but different operators are different networks: no cache key may be the name alone."""
    samples = list(itertools.islice(iterate_samples(context, "chain"), 4))
    if len(samples) < 2:
        raise Skip("the device takes one filling of 'chain' only")
    loaded = [context.load(sample.network) for sample in samples]
    for sample, network in zip(samples, loaded, strict=True):
        inputs = sample.draw(context.seed)
        operator = sample.network.nodes[0].op_type
        sample.require_right(network.infer(inputs), inputs, f"{operator} of {len(samples)} networks that are all named 'chain'")


# Meaning: cache keys contain domain, name, version and attributes of each operator, and the constants of a network.

Compute = Callable[[Any], Any]
Row = tuple[int, tuple[int, ...], str, Compute]


def _soften(x: Any, axis: int | tuple[int, ...]) -> Any:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


def _mark_highest(x: Any) -> Any:
    flat = x.reshape(len(x), -1)
    return (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(x.dtype).reshape(x.shape)


OLDER: Mapping[str, Row] = {
    "Softmax": (11, (2, 3, 4), "y = Softmax (x)", lambda x: _soften(x, (1, 2))),
    "LogSoftmax": (11, (2, 3, 4), "y = LogSoftmax (x)", lambda x: np.log(_soften(x, (1, 2)))),
    "Hardmax": (11, (2, 3, 4), "y = Hardmax (x)", _mark_highest),
    "ReduceSum": (11, (2, 4), "y = ReduceSum <axes = [1], keepdims = 0> (x)", lambda x: x.sum(1)),
    "Clip": (6, (2, 3, 4), "y = Clip <min = -0.5, max = 0.25> (x)", lambda x: x.clip(-0.5, 0.25)),
    "Pad": (2, (2, 4), "y = Pad <pads = [0, 1, 0, 2], value = 5.0> (x)", lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=5)),
    "Slice": (9, (2, 3, 4), "y = Slice <axes = [2], starts = [1], ends = [3]> (x)", lambda x: x[:, :, 1:3]),
    "Squeeze": (11, (2, 1, 4), "y = Squeeze <axes = [1]> (x)", lambda x: x[:, 0]),
    "Unsqueeze": (11, (2, 3, 4), "y = Unsqueeze <axes = [1]> (x)", lambda x: x[:, None]),
    "Resize": (
        10,
        (1, 1, 1, 4),
        'sizes = Constant <value = float[4] {1, 1, 1, 2}> () y = Resize <mode = "linear"> (x, sizes)',
        lambda x: np.interp(np.arange(8) / 2, np.arange(4), x[0, 0, 0]).reshape(1, 1, 1, 8),
    ),
}
"""Operator -> an opset in which it had another meaning, the shape of its input, the network, and the formula of that meaning."""

NEWER: Mapping[str, Compute] = {
    "Softmax": lambda x: _soften(x, -1),
    "LogSoftmax": lambda x: np.log(_soften(x, -1)),
    "Hardmax": lambda x: (np.arange(x.shape[-1]) == x.argmax(-1)[..., None]).astype(x.dtype),
}
"""Operator of OLDER -> the formula of its newest version."""

_TWICE: Mapping[str, tuple[str, Compute]] = {
    "LeakyRelu": ("a = LeakyRelu <alpha = 0.5> (x) y = LeakyRelu <alpha = 0.25> (a)", lambda x: np.where(x < 0, x / 8, x)),
    "Transpose": ("a = Transpose <perm = [1, 0, 2]> (x) y = Transpose <perm = [0, 2, 1]> (a)", lambda x: x.transpose(1, 2, 0)),
    "Concat": ("a = Concat <axis = 0> (x, x) y = Concat <axis = 2> (a, a)", lambda x: np.tile(x, (2, 1, 2))),
    "Softmax": ("a = Softmax <axis = 1> (x) y = Softmax <axis = 2> (a)", lambda x: _soften(_soften(x, 1), 2)),
    "ReduceMax": ("a = ReduceMax <axes = [0]> (x) y = ReduceMax <axes = [2]> (a)", lambda x: x.max((0, 2), keepdims=True)),
    "Elu": ("a = Elu <alpha = 2.0> (x) b = Neg (a) y = Elu <alpha = 0.5> (b)", lambda x: _elu(-_elu(x, 2.0), 0.5)),
}
"""Operator -> a network with two nodes of it with different attributes, and its formula."""

ARITHMETIC: Mapping[str, Callable[..., Any]] = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}


def _elu(x: Any, alpha: float) -> Any:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _require_each(context: CheckContext, rows: Mapping[str, Row], what: str) -> None:
    """Runs each network that the device claims with drawn inputs. `what` has the words operator, version and opset in braces.

    Raises: CheckFailed; Skip if the device claims no network.
    """
    networks = {
        operator: read_text(context, f"(float{list(shape)} x) => (y) {{ {nodes} }}", name=operator, opset=opset)
        for operator, (opset, shape, nodes, _) in rows.items()
    }
    for operator, loaded in load_each(context, networks):
        opset, shape, _, compute = rows[operator]
        node = networks[operator].nodes[-1]
        told = what.format(operator=operator, version=node.since_version, opset=opset)
        x = np.random.default_rng(context.seed).uniform(-1, 1, shape).astype(np.float32)
        (value,) = loaded.infer({"x": x.copy()}).values()
        if node.since_version < 13 and operator in NEWER:
            mismatch = describe_mismatch(value, NEWER[operator](x.astype(np.float64)).astype(np.float32))
            require(mismatch, f"{told}: the version of the operator is not looked at; this is the result of its newest version")
        require_same(value, compute(x.astype(np.float64)).astype(np.float32), told, rtol=context.rtol)


@check("meaning")
def older_version_of_an_operator_means_what_it_meant(context: CheckContext) -> None:
    """A node of an older operator version is computed by that version: Softmax-11 over all axes from 1 on, attributes for inputs."""
    _require_each(context, OLDER, "{operator}-{version}, in a model of opset {opset}")


@check("meaning")
def operator_of_another_domain_is_another_operator(context: CheckContext) -> None:
    """An operator with a known name in an unknown domain is refused."""
    for operator, shapes in [*((name, "x") for name in UNARY), *((name, "x, x") for name in BINARY)]:
        network = read_text(context, f"(float[2,2] x) => (float[2,2] y) {{ [foreign] y = com.acme.{operator} ({shapes}) }}")
        refused = context.query(network).refused
        require("foreign" in refused, f"the device takes com.acme.{operator}: the domain of an operator is not looked at")


@check("meaning")
def nodes_of_one_operator_keep_their_attributes(context: CheckContext) -> None:
    """Two nodes of the same operator keep their own attributes: a kernel cache must not be keyed by the operator alone."""
    what = "two nodes {operator} with different attributes in one network: one may have been computed with the other's"
    rows = {operator: (17, (2, 3, 4), nodes, compute) for operator, (nodes, compute) in _TWICE.items()}
    _require_each(context, rows, what)


@check("meaning")
def constants_tell_networks_apart(context: CheckContext) -> None:
    """Networks that differ only in a constant are different networks: a cache keyed by nodes and shapes would mix up their weights."""
    for operator, compute in ARITHMETIC.items():
        texts = [f"(float[2] x) => (float[2] y) <float[2] w = {{{a}, 3}}> {{ y = {operator} (x, w) }}" for a in (5, 7)]
        networks = [read_text(context, text, name="weighted") for text in texts]
        if any(context.query(network).refused for network in networks):
            continue
        loaded = [load_claimed(context.core, network, context.device) for network in networks]
        x = np.array([1.25, -7.5], np.float32)
        for index, weight in ((0, 5), (1, 7), (0, 5)):
            expected = compute(x, np.array([weight, 3], np.float32)).tolist()
            what = f"{operator} with the constant ({weight}, 3), beside a network that differs in this constant alone"
            require_equal(loaded[index].infer({"x": x.copy()})["y"].tolist(), expected, what)
        return
    raise Skip(f"the device takes none of {', '.join(ARITHMETIC)} with a constant")


# Dynamic shapes: one loaded network serves every size of a symbolic dimension.


@check("dynamic_shapes")
def sizes_may_change_between_runs(context: CheckContext) -> None:
    """After larger, smaller, single-row and empty inputs, the outputs of each run have the shape of its own input."""
    sample, loaded = load_sample(context, "dynamic")
    request = loaded.create_infer_request()
    for turn, size in enumerate((3, 8, 1, 0, 5, 3)):
        inputs = sample.draw(context.seed + turn, x=(size, 2))
        sample.require_right(request.infer(inputs), inputs, f"size {size}, request")
        require_equal(request.get_tensor("y").shape, (size, 2), "the shape of the output after the run")
        sample.require_right(loaded.infer(inputs), inputs, f"size {size}, network")


@check("dynamic_shapes")
def array_of_another_size_for_an_output_is_refused(context: CheckContext) -> None:
    """A run fails if the array set for an output is too small or too large; the request works again once the array is removed."""
    sample, loaded = load_sample(context, "dynamic")
    inputs = sample.draw(context.seed)
    for size in (2, 4):
        request = loaded.create_infer_request()
        request.set_tensor("y", np.zeros((size, 2), sample.dtype))
        require_error(InferenceError, request.infer, f"an array of {size} rows for a result of 3", inputs)
        request.set_tensor("y", np.zeros((3, 2), sample.dtype))
        sample.require_right(request.infer(inputs), inputs, "with an array of the right size")


@check("dynamic_shapes")
def broadcasting_is_decided_in_each_run(context: CheckContext) -> None:
    """Two open sizes are equal in one run and 1 and 4 in the next: the broadcast of an input is decided anew in each run."""
    text = "(float[N,2] a, float[M,2] b) => (float[K,2] y) {{ y = {} (a, b) }}"
    networks = {operator: read_text(context, text.format(operator), name=operator) for operator in ARITHMETIC}
    for operator, loaded in load_each(context, networks):
        for rows, others in ((4, 4), (4, 1), (1, 4), (3, 3), (1, 1), (0, 1)):
            a, b = (np.arange(2 * count, dtype=np.float32).reshape(count, 2) + 1 for count in (rows, others))
            value = loaded.infer({"a": a.copy(), "b": b.copy()})["y"]
            what = f"{operator} of {rows} rows and {others}, in one network of open sizes"
            require_equal(value.tolist(), ARITHMETIC[operator](a, b).tolist(), what)


# The executed graph: the steps that the device reports to run in place of the network's nodes.


@check("executed")
def executed_graph_stands_for_the_network(context: CheckContext) -> None:
    """`get_runtime_model` is a network of steps: inputs and outputs are the network's, and each step names existing nodes."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair").items():
        loaded = context.load(sample.network)
        executed = loaded.get_runtime_model()
        what = f"the executed graph of '{form}'"
        require(executed.nodes, f"{what} has no steps")
        for side in ("inputs", "outputs"):
            names = [spec.name for spec in getattr(sample.network, side)]
            require_equal([spec.name for spec in getattr(executed, side)], names, f"{what}, its {side}")
        nodes = {node.name for node in sample.network.nodes}
        for step in executed.nodes:
            require_equal(step.domain, DOMAIN, f"{what}, the domain of step '{step.name}'")
            require(step.attributes.get("device"), f"{what}, step '{step.name}' names no device")
            strangers = sorted(set(step.attributes.get("original_names", ())) - nodes)
            require(not strangers, f"{what}, step '{step.name}' stands for {strangers}, which are no nodes of the network")
        told = {name for step in executed.nodes for name in step.attributes.get("original_names", ())}
        # A device that reports no steps has a single step, which names no node.
        require(not told or told == nodes, f"{what} has steps for {sorted(told)} and none for {sorted(nodes - told)}")


@check("executed")
def executed_graph_has_the_times_of_a_run(context: CheckContext) -> None:
    """With the profile of a run, measured steps carry the times of that profile."""
    for form, sample in make_samples(context, "chain").items():
        loaded = context.load(sample.network, {"PERF_COUNT": True})
        request = loaded.create_infer_request()
        request.infer(sample.draw(context.seed))
        profile = request.profile
        assert profile is not None, "the network measures its runs"
        steps = loaded.get_runtime_model(profile).nodes
        if any(step.attributes.get("original_names") for step in steps):
            names, measured = [step.name for step in steps], sorted({entry.node for entry in profile.entries})
            what = f"no step of the executed graph of '{form}' has a time: its steps are {names}, and a run measures {measured}"
            require(any(step.attributes.get("microseconds", 0) > 0 for step in steps), what)
        loaded.close()
        require_error(ClosedError, loaded.get_runtime_model, "the executed graph of a network that is closed")
