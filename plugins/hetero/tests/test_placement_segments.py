"""Segments: the cuts of a network for placement, and the segments with equal signatures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hetero_hetero.placement.segments import Segment, cut_segments, sign_segment
from hetero_tests.larger_models import vit_tiny_model

from hetero_core import Core, Network

Read = Callable[[str], Network]


def cut(network: Network, units: tuple[tuple[int, ...], ...] = (), takers: tuple[str, ...] = ()) -> tuple[Segment, ...]:
    return cut_segments(network, units, takers or ("all",) * len(network.nodes))


def name_nodes(network: Network, segments: tuple[Segment, ...]) -> list[str]:
    return ["".join(network.nodes[index].name for index in segment.nodes) for segment in segments]


def test_residual_block_is_cut_at_a_single_value(read: Read) -> None:
    network = read("g (float[64] x) => (float[64] y) { [a] s = Exp (x) [b] t = Tanh (s) [c] u = Add (t, s) [d] y = Exp (u) }")
    segments = cut(network)
    assert name_nodes(network, segments) == ["a", "b", "c", "d"]
    assert (segments[2].reads, segments[2].writes) == (("t", "s"), ("u",))


def test_unit_and_value_that_is_no_tensor_of_numbers_are_not_cut(read: Read) -> None:
    network = read("g (float[64] x) => (float[64] y) { [a] s = Exp (x) [b] t = Tanh (s) [c] u = Abs (t) [d] y = Exp (u) }")
    assert name_nodes(network, cut(network, ((1, 2),))) == ["a", "bc", "d"]
    listed = read(
        "g (float[64] x) => (float[64] y) { [a] s = SequenceConstruct (x) [b] t = ConcatFromSequence <axis: int = 0> (s) [d] y = Exp (t) }"
    )
    assert name_nodes(listed, cut(listed)) == ["ab", "d"]


def test_nodes_that_other_devices_take_are_apart(read: Read) -> None:
    body = " ".join(f"[n{index}] v{index + 1} = Exp (v{index})" for index in range(200))
    network = read(f"g (float[4] v0) => (float[4] v200) {{ {body} }}")
    takers = tuple("one" if index == 77 else "both" for index in range(200))
    segments = cut(network, takers=takers)
    assert (77,) in [segment.nodes for segment in segments]
    assert [index for segment in segments for index in segment.nodes] == list(range(200))
    assert len(segments) <= 96


def test_branches_of_a_block_are_segments_of_their_own(read: Read) -> None:
    network = read(
        "g (float[64] x) => (float[64] y) { [a] s = Exp (x) [b] t = Tanh (s) [c] u = Abs (t)"
        "[d] v = Neg (s) [e] w = Exp (v) [f] y = Add (u, w) }"
    )
    assert name_nodes(network, cut(network)) == ["a", "bc", "de", "f"]


def test_equal_layers_of_a_transformer_share_their_signature(core: Core) -> None:
    network = core.read_network(vit_tiny_model(layers=6))
    segments = cut(network)
    signatures = [sign_segment(network, segment, {}) for segment in segments]
    assert len(segments) > 15
    assert len(set(signatures)) <= len(segments) / 2


@pytest.mark.parametrize(
    ("first", "second"),
    [("Exp", "Tanh"), ("Concat <axis = 0>", "Concat <axis = 1>")],
)
def test_another_operator_or_attribute_is_another_signature(read: Read, first: str, second: str) -> None:
    def sign(operator: str) -> str:
        network = read(f"g (float[8, 8] x) => (float[8, m] y) {{ y = {operator} (x) }}")
        (segment,) = cut(network)
        return sign_segment(network, segment, {})

    assert sign(first) != sign(second)


def test_every_node_is_in_one_segment_and_none_reads_a_later_one(core: Core) -> None:
    network = core.read_network(vit_tiny_model(layers=2))
    position = {index: number for number, segment in enumerate(cut(network)) for index in segment.nodes}
    assert sorted(position) == list(range(len(network.nodes)))
    for index, node in enumerate(network.nodes):
        makers = [network.index_of_producer[value] for value in node.reads if value in network.index_of_producer]
        assert all(position[maker] <= position[index] for maker in makers)
