"""Generation with states: a decoder yields the same tokens as without states, for random splits over devices, without copies."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hetero_core import Core, InferRequest, Network
from hetero_core.network.reader import read_network
from hetero_core.testing.transformers import HEADS, WIDTH, decoder_model, ties_of_decoder
from hetero_core.transforms.editing import edit

WHOLE = bool(os.environ.get("WHOLE_KIT"))
"""Set in the session `kit`; the default session takes fewer tokens and splits."""
TOKENS = 200 if WHOLE else 40
ZEROS = {name: np.zeros((1, HEADS, 0, WIDTH // HEADS), np.float32) for name in ties_of_decoder().values()}


@pytest.fixture(scope="module")
def decoder() -> Network:
    return edit(read_network(decoder_model()))


@pytest.fixture(scope="module")
def expected(decoder: Network) -> list[int]:
    """The tokens of a run without states: each token is computed from the whole sequence so far."""
    tokens = [1]
    with Core() as core:
        loaded = core.load_network(decoder, "CPU")
        for _ in range(TOKENS):
            tokens.append(int(loaded.infer({"tokens": np.array([tokens]), **ZEROS})["logits"][0, -1].argmax()))
    assert len(set(tokens)) > TOKENS // 5, "a decoder that repeats itself would prove little"
    return tokens


def generate(request: InferRequest, count: int) -> list[int]:
    tokens = [1]
    for _ in range(count):
        tokens.append(int(request.infer({"tokens": np.array([tokens[-1:]])})["logits"][0, -1].argmax()))
    return tokens


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_tokens_with_states_equal_tokens_without_states(core: Core, decoder: Network, expected: list[int], device: str) -> None:
    loaded = core.load_network(decoder.with_state(ties_of_decoder(), initial=ZEROS), device)
    assert generate(loaded.create_infer_request(), TOKENS) == expected


@pytest.mark.parametrize("seed", range(10 if WHOLE else 1))
def test_tokens_of_a_random_split_equal_tokens_without_states(core: Core, decoder: Network, expected: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    pins = {node.name: str(generator.choice(["CPU", "TEMPLATE"])) for node in decoder.nodes}
    network = decoder.with_state(ties_of_decoder(), initial=ZEROS).with_affinity(pins)
    loaded = core.load_network(network, "HETERO:CPU,TEMPLATE")
    assert loaded.get_metric("HETERO_NUMBER_OF_SUBMODELS") > 10
    assert generate(loaded.create_infer_request(), TOKENS) == expected


def test_interleaved_generations_do_not_mix(core: Core, decoder: Network, expected: list[int]) -> None:
    loaded = core.load_network(decoder.with_state(ties_of_decoder(), initial=ZEROS), "HETERO:TEMPLATE,CPU")
    requests = [loaded.create_infer_request() for _ in range(2)]
    sequences: list[list[int]] = [[1], [5]]
    for _ in range(30):
        for request, tokens in zip(requests, sequences, strict=True):
            tokens.append(int(request.infer({"tokens": np.array([tokens[-1:]])})["logits"][0, -1].argmax()))
    assert sequences[0] == expected[:31]
    requests[1].states.reset()
    assert generate(requests[1], 30) == expected[:31]
    assert sequences[1][1:] != expected[1:31]


def test_no_state_is_copied_however_long_the_past(core: Core, decoder: Network) -> None:
    loaded = core.load_network(decoder.with_state(ties_of_decoder(), initial=ZEROS), "CPU", {"PERF_COUNT": True})
    request = loaded.create_infer_request()
    for length in range(1, 40):
        request.infer({"tokens": np.array([[length]])})
        assert (request.host_copied_bytes, request.states["past_key_0"].value.shape[2]) == (0, length)


def test_state_of_a_split_stays_in_the_memory_of_its_stage(core: Core, decoder: Network, expected: list[int]) -> None:
    pins = {node.name: "CPU" if node.name == "predict" else "TEMPLATE" for node in decoder.nodes}
    network = decoder.with_state(ties_of_decoder(), initial=ZEROS).with_affinity(pins)
    loaded = core.load_network(network, "HETERO:TEMPLATE,CPU", {"PERF_COUNT": True})
    request = loaded.create_infer_request()
    assert generate(request, 5) == expected[:6]
    moved = {entry.node for entry in request.perf_counts if entry.operator == "transfer"}
    assert "tokens" in moved
    assert not {name for name in moved if name.startswith(("past_", "present_"))}
    saved = {name: state.value for name, state in request.states.items()}
    assert saved["past_key_0"].shape == (1, HEADS, 5, WIDTH // HEADS)
    request.states.reset()
    for name, value in saved.items():
        request.states[name].value = value
    assert int(request.infer({"tokens": np.array([[expected[5]]])})["logits"][0, -1].argmax()) == expected[6]
