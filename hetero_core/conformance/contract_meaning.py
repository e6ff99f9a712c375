"""Meaning: cache keys contain domain, name, version and attributes of each operator, and the constants of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_core.conformance.check import CheckContext, Skip, check, require, require_equal, require_same
from hetero_core.conformance.refusals import load_claimed, load_each
from hetero_core.conformance.samples import BINARY, UNARY, read_text
from hetero_core.network.graph import Network

Compute = Callable[[Any], Any]


def _soften(x: Any, axis: int | tuple[int, ...]) -> Any:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


def _mark_highest(x: Any) -> Any:
    flat = x.reshape(len(x), -1)
    return (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(x.dtype).reshape(x.shape)


OLDER: dict[str, tuple[int, str, str, Compute]] = {
    "Softmax": (11, "[2,3,4]", "y = Softmax (x)", lambda x: _soften(x, (1, 2))),
    "LogSoftmax": (11, "[2,3,4]", "y = LogSoftmax (x)", lambda x: np.log(_soften(x, (1, 2)))),
    "Hardmax": (11, "[2,3,4]", "y = Hardmax (x)", _mark_highest),
    "ReduceSum": (11, "[2,4]", "y = ReduceSum <axes = [1], keepdims = 0> (x)", lambda x: x.sum(1)),
    "Clip": (6, "[2,3,4]", "y = Clip <min = -0.5, max = 0.25> (x)", lambda x: x.clip(-0.5, 0.25)),
    "Pad": (2, "[2,4]", "y = Pad <pads = [0, 1, 0, 2], value = 5.0> (x)", lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=5)),
    "Slice": (9, "[2,3,4]", "y = Slice <axes = [2], starts = [1], ends = [3]> (x)", lambda x: x[:, :, 1:3]),
    "Squeeze": (11, "[2,1,4]", "y = Squeeze <axes = [1]> (x)", lambda x: x[:, 0]),
    "Unsqueeze": (11, "[2,3,4]", "y = Unsqueeze <axes = [1]> (x)", lambda x: x[:, None]),
    "Resize": (
        10,
        "[1,1,1,4]",
        'sizes = Constant <value = float[4] {1, 1, 1, 2}> () y = Resize <mode = "linear"> (x, sizes)',
        lambda x: np.interp(np.arange(8) / 2, np.arange(4), x[0, 0, 0]).reshape(1, 1, 1, 8),
    ),
}
"""Operator -> an opset in which it had another meaning, the shape of its input, the network, and the formula of that meaning."""

TWICE: dict[str, tuple[str, str, Compute]] = {
    "LeakyRelu": (
        "[2,3,4]",
        "a = LeakyRelu <alpha = 0.5> (x) y = LeakyRelu <alpha = 0.25> (a)",
        lambda x: np.where(x < 0, x / 8, x),
    ),
    "Transpose": (
        "[2,3,4]",
        "a = Transpose <perm = [1, 0, 2]> (x) y = Transpose <perm = [0, 2, 1]> (a)",
        lambda x: x.transpose(1, 2, 0),
    ),
    "Concat": (
        "[2,3,4]",
        "a = Concat <axis = 0> (x, x) y = Concat <axis = 2> (a, a)",
        lambda x: np.tile(x, (2, 1, 2)),
    ),
    "Softmax": (
        "[2,3,4]",
        "a = Softmax <axis = 1> (x) y = Softmax <axis = 2> (a)",
        lambda x: _soften(_soften(x, 1), 2),
    ),
    "ReduceMax": (
        "[2,3,4]",
        "a = ReduceMax <axes = [0]> (x) y = ReduceMax <axes = [2]> (a)",
        lambda x: x.max((0, 2), keepdims=True),
    ),
    "Elu": ("[2,3,4]", "a = Elu <alpha = 2.0> (x) b = Neg (a) y = Elu <alpha = 0.5> (b)", lambda x: _elu(-_elu(x, 2.0), 0.5)),
}
"""Operator -> shape of the input, a network with two nodes of it with different attributes, and its formula."""

CONSTANTS = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}


def _elu(x: Any, alpha: float) -> Any:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _read_opset(context: CheckContext, opset: int, text: str, *, name: str) -> Network:
    import onnx.parser  # heavy

    return context.core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {name} {text}'))


def _require_each(context: CheckContext, cases: dict[str, tuple[Network, str, Compute, str]]) -> None:
    """Runs each network that the device claims with drawn inputs. Raises: CheckFailed; Skip if the device claims no network."""
    for operator, loaded in load_each(context, {operator: case[0] for operator, case in cases.items()}):
        _, shape, compute, what = cases[operator]
        sizes = tuple(int(size) for size in shape.strip("[]").split(","))
        x = np.random.default_rng(context.seed).uniform(-1, 1, sizes).astype(np.float32)
        (value,) = loaded.infer({"x": x.copy()}).values()
        require_same(value, compute(x.astype(np.float64)).astype(np.float32), what, rtol=context.rtol)


@check("contract")
def older_version_of_an_operator_means_what_it_meant(context: CheckContext) -> None:
    """A node of an older operator version is computed by that version: Softmax-11 over all axes from 1 on, attributes for inputs."""
    cases = {}
    for operator, (opset, shape, nodes, compute) in OLDER.items():
        network = _read_opset(
            context, opset, f"(float{shape} x) => (float[] y) {{ {nodes} }}".replace("float[] y", "y"), name=operator
        )
        version = network.nodes[-1].since_version
        what = f"{operator}-{version}, in a model of opset {opset}: the version of the operator is not looked at, or its meaning is wrong"
        cases[operator] = (network, shape, compute, what)
    _require_each(context, cases)


@check("contract")
def operator_of_another_domain_is_another_operator(context: CheckContext) -> None:
    """An operator with a known name in an unknown domain is refused."""
    for operator, shapes in [*((name, "x") for name in UNARY), *((name, "x, x") for name in BINARY)]:
        network = read_text(context, f"(float[2,2] x) => (float[2,2] y) {{ [foreign] y = com.acme.{operator} ({shapes}) }}")
        refused = context.query(network).refused
        require("foreign" in refused, f"the device takes com.acme.{operator}: the domain of an operator is not looked at")


@check("contract")
def nodes_of_one_operator_keep_their_attributes(context: CheckContext) -> None:
    """Two nodes of one operator keep their own attributes: a kernel cache must not be keyed by the operator alone."""
    cases = {}
    for operator, (shape, nodes, compute) in TWICE.items():
        network = _read_opset(context, 17, f"(float{shape} x) => (y) {{ {nodes} }}", name=operator)
        what = f"two nodes {operator} with different attributes in one network: one may have been computed with the other's"
        cases[operator] = (network, shape, compute, what)
    _require_each(context, cases)


@check("contract")
def constants_tell_networks_apart(context: CheckContext) -> None:
    """Networks that differ only in a constant are different networks: a cache keyed by nodes and shapes would mix up their weights."""
    for operator, compute in CONSTANTS.items():
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
    raise Skip(f"the device takes none of {', '.join(CONSTANTS)} with a constant")
