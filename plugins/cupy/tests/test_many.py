"""Several requests and several cards at once: each request gets its own values, on its own card."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime
from hetero_tests.larger_models import bert_model

from hetero_core import Core
from hetero_core.errors import DeviceMemoryError
from hetero_core.testing.compare import max_relative_difference


def test_requests_on_two_cards_do_not_meet(core: Core, runtime: FakeRuntime) -> None:
    network = core.read_network(bert_model(1, layers=1, length=6))
    loaded = [core.load_network(network, f"GPU.{card}") for card in (0, 1)]
    inputs = [np.random.default_rng(seed).standard_normal((1, 6, 768)).astype(np.float32) for seed in range(4)]
    (name,) = (spec.name for spec in network.outputs)
    on_cpu = core.load_network(network, "CPU")
    expected = [on_cpu.infer({"states": x})[name] for x in inputs]
    wrong: list[str] = []

    def serve(number: int) -> None:
        request = loaded[number % 2].create_infer_request()
        for turn in range(3):
            which = (number + turn) % len(inputs)
            difference = max_relative_difference(request.infer({"states": inputs[which]})[name], expected[which])
            if not difference < 1e-5:
                wrong.append(f"request {number}, run {turn}: {difference}")

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    first, second = runtime.cards()
    assert len(first.copies) == len(second.copies) > 0


def test_full_card_keeps_all_other_requests_usable() -> None:
    runtime = FakeRuntime(cards=2, memory_bytes=60000)
    import onnx.parser

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { a = Exp (x) b = Neg (a) y = Add (b, a) }'
    with Core() as core:
        core.register_plugin("PAIR", GpuDevice("PAIR", runtime))
        model = onnx.parser.parse_model(text)
        loaded = [core.load_network(model, f"PAIR.{card}") for card in (0, 1)]
        requests = [network.create_infer_request() for network in (*loaded, loaded[0])]
        for _ in range(3):
            with pytest.raises(DeviceMemoryError, match=r"network 'g' on PAIR\.0: 20000 bytes more were needed while it ran"):
                requests[0].infer({"x": np.zeros(5000, np.float32)})
            for request in requests:
                np.testing.assert_array_equal(request.infer({"x": np.ones(100, np.float32)})["y"], np.zeros(100))
