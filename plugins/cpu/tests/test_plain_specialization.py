"""Networks specialized without onnx are those that onnx's inference gives."""

from __future__ import annotations

from typing import Any

import pytest
from hetero_cpu.plan import passes as specialization
from hetero_cpu.plan.passes import specialize_network, specialize_plainly, transform_network
from hetero_tests.open_models import make_decoder, make_detector, make_encoder

from hetero_core import Core
from hetero_core.network.graph import Network


def by_rules(network: Network, signature: Any) -> Network | None:
    """Returns the network by the rules; None if a node has no rule, or if no size is open."""
    answers: list[Network | None] = []

    def note(*arguments: Any, **named: Any) -> Network | None:
        answers.append(specialize_plainly(*arguments, **named))
        return answers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specialization, "specialize_plainly", note)
        specialize_network(network, signature)
    return answers[0] if answers else None


def by_onnx(network: Network, signature: Any) -> Network:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specialization, "specialize_plainly", lambda *_, **__: None)
        return specialize_network(network, signature)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (make_decoder, {"tokens": (1, 17)}),
        (make_encoder, {"tokens": (3, 29), "mask": (3, 29)}),
        (make_detector, {"image": (1, 3, 97, 130)}),
    ],
    ids=["decoder", "encoder", "detector"],
)
def test_whole_network_is_what_onnx_makes_of_it(make: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    with Core() as core:
        network = transform_network(core.read_network(make()))
    pasts = {spec.name: (1, spec.shape[1], 5, spec.shape[3]) for spec in network.inputs if spec.name not in shapes and spec.shape}
    signature = tuple({**shapes, **pasts}[spec.name] for spec in network.inputs)
    ours, theirs = by_rules(network, signature), by_onnx(network, signature)
    assert ours is not None
    assert [node.name for node in ours.nodes] == [node.name for node in theirs.nodes]
    assert {name: ours.type_of(name) for node in theirs.nodes for name in (*node.reads, *node.writes)} == {
        name: theirs.type_of(name) for node in theirs.nodes for name in (*node.reads, *node.writes)
    }
    assert ours.outputs == theirs.outputs
    assert ours.initializers.keys() == theirs.initializers.keys()
    for name, constant in ours.initializers.items():
        assert constant.shape == theirs.initializers[name].shape
        assert constant.dtype == theirs.initializers[name].dtype
