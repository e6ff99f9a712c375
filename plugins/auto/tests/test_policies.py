"""The choice of a member for a request: by policy, by the processors that members share, and by trials of idle members."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hetero_auto.pool import Member, RoundRobin, choose_soonest

from hetero_core import Core, Network
from hetero_core.devices.processors import count_processors, read_host_memory

LIMIT = 60
Feed = Callable[[float], dict[str, Any]]


def test_devices_on_the_same_processors_take_turns(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    memory = read_host_memory()
    if memory is None:
        pytest.skip("the platform does not tell its memory")
    processors = min(count_processors(), 4)
    first, second = add_device("A"), add_device("B")
    first.memory = second.memory = memory[0]
    blob = io.BytesIO()
    config = {"INFERENCE_NUM_THREADS": processors}
    loaded = core.load_network(network, "MULTI:A,B", config)
    loaded.export_network(blob)
    for network_of_both in (loaded, core.import_network(blob.getvalue(), "MULTI", config)):
        assert network_of_both.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == processors
        first.gate.clear()
        requests = [network_of_both.create_infer_request() for _ in range(processors + 2)]
        for number, request in enumerate(requests):
            request.start_async(feed(number))
        for _ in range(processors):
            assert first.entered.acquire(timeout=LIMIT)
        assert second.runs == []
        first.gate.set()
        assert all(request.wait(LIMIT) for request in requests)
        while first.entered.acquire(blocking=False):
            continue
    counted = core.load_network(network, "MULTI:A(1),B(1)", config)
    first.gate.clear()
    requests = [counted.create_infer_request() for _ in range(2)]
    for number, request in enumerate(requests):
        request.start_async(feed(number))
    assert second.entered.acquire(timeout=LIMIT)
    first.gate.set()
    assert all(request.wait(LIMIT) for request in requests)


class _Loaded:
    def __init__(self, device: str) -> None:
        self.device = device


def make_member(name: str, index: int, *, seconds: float, slots: int = 1) -> Member:
    member = Member(_Loaded(name), slots, index)  # type: ignore[arg-type]  # a policy asks for no more of it
    member.seconds = seconds
    return member


@pytest.mark.parametrize(
    ("fast_is_free", "seconds", "place", "expected"),
    [
        (True, (1, 3), 0, "fast"),
        (False, (1, 1.5), 0, "slow"),
        (False, (1, 3), 0, None),
        (False, (1, 3), 2, "slow"),
        (False, (0, 0), 0, "slow"),
        (True, (1, 0), 0, "slow"),
    ],
)
def test_measured_policy_takes_the_soonest_member(
    fast_is_free: bool, seconds: tuple[float, float], place: int, expected: str | None
) -> None:
    fast, slow = make_member("fast", 0, seconds=seconds[0]), make_member("slow", 1, seconds=seconds[1])
    member = choose_soonest([fast, slow] if fast_is_free else [slow], [fast, slow], place)
    assert (None if member is None else member.name) == expected


def test_slow_device_is_tried_again_in_proportion_to_its_speed() -> None:
    fast, slow = make_member("fast", 0, seconds=1, slots=4), make_member("slow", 1, seconds=3)
    tries = []
    for number in range(1000):
        member = choose_soonest([fast, slow], [fast, slow], 0)
        assert member is not None
        for candidate in (fast, slow):
            candidate.passed += 1
        member.grant()
        if member is slow:
            tries.append(number)
            # Measurements from its slow period no longer count.
            member.note(1.5 if len(tries) == 3 else 3, succeeded=True)
        member.busy = 0
    assert [later - before for before, later in pairwise(tries)][:4] == [193, 193, 97, 193]
    assert slow.seconds == 3


def test_round_robin_goes_on_behind_the_last() -> None:
    members = [make_member(name, index, seconds=1) for index, name in enumerate("abc")]
    choose = RoundRobin()
    names = [choose(free, members, 0) for free in (members, members, members[:1], members, members[2:], members)]
    assert [member.name for member in names if member is not None] == ["a", "b", "a", "b", "c", "a"]
