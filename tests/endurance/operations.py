"""The operations of the soak's threads: devices, networks with their expected results, and a function for each way of use."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.helper
import onnx.parser
from faulty_device import InjectedError

from hetero_core import AsyncInferQueue, HeteroError
from hetero_core.errors import RequestCancelledError

if TYPE_CHECKING:
    from soak import Soak

HANG = 60.0
"""Seconds after which an operation counts as a hang."""
NETWORKS = 40
SIZE = 256
TEXT = f"""<ir_version: 8, opset_import: ["": 17]> NAME (float[{SIZE}] x) => (float[{SIZE}] y) {{
    a = Mul(x, w) b = Neg(a) c = Add(b, x) y = Relu(c) }}"""
KINDS = {"FIRST": "cpu", "SECOND": "template", "THIRD": "starting", "STAYING": "cpu"}
STAYING = "STAYING"
"""The device that is never unregistered, to detect resources that accumulate in a device."""
TAKEN = tuple(name for name in KINDS if name != STAYING)
DEVICES = (*KINDS, "HETERO:FIRST,SECOND,THIRD,STAYING")


def is_injected(error: BaseException | None) -> bool:
    """Says whether an injected fault caused an error, directly or through its chain of causes."""
    while error is not None:
        if isinstance(error, InjectedError) or "injected in" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def make_model(number: int) -> bytes:
    """Returns y = max(x - x * w, 0) with w = number - 20, number - 19, ..."""
    model = onnx.parser.parse_model(TEXT.replace("NAME", f"network{number}"))
    weights = (np.arange(SIZE) % 5 + number - 20).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model.SerializeToString()


def make_input(random: Random) -> np.ndarray[Any, Any]:
    """Returns integers, which are exact in float32."""
    return (np.arange(SIZE) % random.randrange(2, 30) - 7).astype(np.float32)


def check(number: int, x: np.ndarray[Any, Any], outputs: Any) -> None:
    """Raises AssertionError if the outputs differ from the formula."""
    wide = x.astype(np.int64)
    expected = np.maximum(wide - wide * (np.arange(SIZE) % 5 + number - 20), 0)
    assert list(outputs) == ["y"], f"network{number} gave {list(outputs)}"
    assert np.array_equal(outputs["y"], expected), f"network{number} computed wrong numbers"


def load(soak: Soak, random: Random) -> None:
    """Loads a network and runs it."""
    number, network = soak.load(random)
    x = make_input(random)
    check(number, x, network.infer({"x": x}))


def infer(soak: Soak, random: Random) -> None:
    """Runs a network that several threads share."""
    number, network = soak.pick(random)
    request = network.create_infer_request() if random.random() < 0.5 else network
    for _ in range(3):
        x = make_input(random)
        check(number, x, request.infer({"x": x}))


def run_async(soak: Soak, random: Random) -> None:
    """Starts asynchronous runs and waits for each; a request stays usable after an injected failure."""
    number, network = soak.pick(random)
    request = network.create_infer_request()
    for _ in range(3):
        x = make_input(random)
        request.start_async({"x": x})
        try:
            assert request.wait(HANG), "a run did not end"
        except (HeteroError, InjectedError) as error:
            if not is_injected(error):
                raise
            continue
        check(number, x, {"y": request.get_tensor("y")})


def run_queue(soak: Soak, random: Random) -> None:
    """Runs a queue of requests; the callback of each success gets the input of its run."""
    number, network = soak.pick(random)
    with AsyncInferQueue(network, 3) as queue:
        queue.set_callback(lambda request, x: check(number, x, {"y": request.get_tensor("y")}))
        for _ in range(6):
            x = make_input(random)
            queue.start_async({"x": x}, x)


def run_loop(soak: Soak, random: Random) -> None:
    """Awaits several runs in a new event loop."""
    number, network = soak.pick(random)

    async def run() -> None:
        requests = [network.create_infer_request() for _ in range(3)]
        inputs = [make_input(random) for _ in requests]
        ended = await asyncio.gather(
            *(request.infer_async({"x": x}) for request, x in zip(requests, inputs, strict=True)), return_exceptions=True
        )
        for x, outputs in zip(inputs, ended, strict=True):
            if isinstance(outputs, BaseException):
                raise outputs
            check(number, x, outputs)

    asyncio.run(run())


def cancel(soak: Soak, random: Random) -> None:
    """Cancels a run at a random moment; the next run of the same request is correct."""
    number, network = soak.pick(random)
    request, x = network.create_infer_request(), make_input(random)
    request.start_async({"x": x})
    request.wait(random.choice((0, 0, 0.0005, 0.002)))
    request.cancel()
    cancelled = False
    try:
        assert request.wait(HANG), "a cancelled run did not end"
    except RequestCancelledError:
        cancelled = True
    if not cancelled:
        check(number, x, {"y": request.get_tensor("y")})
    check(number, x, request.infer({"x": x}))


def export(soak: Soak, random: Random) -> None:
    """Exports a network to a file or a stream, imports it and runs it."""
    number, network = soak.pick(random)
    if random.random() < 0.5:
        target: Any = io.BytesIO()
        network.export_network(target)
        source: Any = target.getvalue()
    else:
        source = target = soak.folder.parent / f"{threading.get_ident()}.blob"
        network.export_network(target)
    imported = soak.core.import_network(source, network.device.name)
    x = make_input(random)
    check(number, x, imported.infer({"x": x}))


def register_again(soak: Soak, random: Random) -> None:
    """Unregisters a device that other threads use, and registers it again."""
    name = random.choice(TAKEN)
    soak.core.unregister_plugin(name)
    soak.core.register_plugin(name, soak.factories[name])


def ask(soak: Soak, random: Random) -> None:
    """Queries a network and a metric."""
    soak.core.query_network(soak.models[random.randrange(NETWORKS)], random.choice(DEVICES))
    soak.core.get_metric(random.choice(list(KINDS)), "SUPPORTED_METRICS")


OPERATIONS: dict[str, tuple[Callable[[Soak, Random], None], int]] = {
    "load": (load, 15),
    "infer": (infer, 30),
    "async": (run_async, 20),
    "queue": (run_queue, 8),
    "loop": (run_loop, 5),
    "cancel": (cancel, 20),
    "import": (export, 10),
    "register": (register_again, 3),
    "ask": (ask, 4),
}
