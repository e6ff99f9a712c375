"""Reactions of the Core to a failing device: an error that names the plugin, never a wrong result."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import AsyncInferQueue, Core, Network
from hetero_core.errors import HeteroError
from hetero_core.testing.faulty_device import FAULTS, Fault, FaultyPlugin, InjectedError

TEXT = "g (float[2] x) => (float[2] y) { a = Neg (x) y = Add (a, a) }"
X = np.array([1, -2], np.float32)
# Computed by hand: -x + -x.
EXPECTED = [-2, 4]
FAILING = [name for name in FAULTS if name != "none" and not name.endswith(".hang") and not name.startswith("close")]
WITHIN = [name for name in FAILING if name.startswith("infer")]


def tell(error: BaseException) -> str:
    """Returns the text of an error with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def use(core: Core, network: Network, device: str) -> Any:
    """Queries, loads, runs, exports, imports and again runs a network."""
    core.query_network(network, device)
    loaded = core.load_network(network, device)
    assert loaded.infer({"x": X})["y"].tolist() == EXPECTED
    stream = io.BytesIO()
    loaded.export_network(stream)
    return core.import_network(stream.getvalue(), device).infer({"x": X})["y"].tolist()


@pytest.mark.parametrize("device", ["FAULTY", "HETERO:FAULTY"])
def test_device_without_a_fault_passes_all_calls(core: Core, read: Callable[..., Network], device: str) -> None:
    core.register_plugin("FAULTY", FaultyPlugin(Fault()))
    assert use(core, read(TEXT), device) == EXPECTED


@pytest.mark.parametrize("fault", FAILING)
@pytest.mark.parametrize("device", ["FAULTY", "HETERO:FAULTY"])
def test_fault_is_an_error_that_names_the_plugin(core: Core, read: Callable[..., Network], device: str, fault: str) -> None:
    core.register_plugin("FAULTY", FaultyPlugin(Fault(fault)))
    with pytest.raises((HeteroError, InjectedError)) as caught:
        use(core, read(TEXT), device)
    named = "plugin FAULTY (" if device == "FAULTY" else "FAULTY"
    assert named in tell(caught.value)
    if fault.endswith(".raise"):
        assert "the driver fell over" in tell(caught.value) or "the driver fell over" in str(caught.value.__cause__)


@pytest.mark.parametrize("fault", WITHIN)
@pytest.mark.parametrize("device", ["FAULTY", "HETERO:FAULTY,CPU"])
def test_fault_of_a_later_run_is_raised_by_this_run_only(core: Core, read: Callable[..., Network], device: str, fault: str) -> None:
    for kind in ("network", "request", "asynchronous", "queue"):
        core.register_plugin("FAULTY", FaultyPlugin(Fault(fault, nth=3)))
        network = read(TEXT).with_affinity({"Neg_0": "FAULTY", "Add_1": "CPU"} if "CPU" in device else {})
        loaded = core.load_network(network, device)
        request = loaded.create_infer_request()

        def run(kind: str = kind, loaded: Any = loaded, request: Any = request) -> Any:
            if kind == "network":
                return loaded.infer({"x": X})["y"].tolist()
            if kind == "request":
                return request.infer({"x": X})["y"].tolist()
            if kind == "asynchronous":
                request.start_async({"x": X})
                assert request.wait(60)
                return request.get_tensor("y").tolist()
            queue = AsyncInferQueue(loaded, 1)
            queue.start_async({"x": X})
            queue.wait_all()
            return queue[0].get_tensor("y").tolist()

        assert run() == run() == EXPECTED
        with pytest.raises(HeteroError) as caught:
            run()
        assert "FAULTY" in tell(caught.value), kind
        assert not request.is_running, "the request is idle after the error"
        core.unregister_plugin("FAULTY")


def test_wrong_output_shape_is_refused_with_both_shapes(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("FAULTY", FaultyPlugin(Fault("infer.shape")))
    with pytest.raises(HeteroError, match=r"plugin FAULTY \(.*\) returned shape \[4\] for output 'y'; expected float32\[2\]"):
        core.load_network(read(TEXT), "FAULTY").infer({"x": X})
    split = core.load_network(read(TEXT).with_affinity({"Neg_0": "FAULTY", "Add_1": "CPU"}), "HETERO:FAULTY,CPU")
    with pytest.raises(HeteroError, match=r"plugin FAULTY \(.*\) returned shape \[4\] for output 'a'; expected float32\[2\]"):
        split.infer({"x": X})


def test_free_dimension_takes_any_size_and_the_rank_stays(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[N,2] x) => (float[N,2] y) { y = Neg (x) }"
    core.register_plugin("FAULTY", FaultyPlugin(Fault("infer.rank", nth=2)))
    loaded = core.load_network(read(text), "FAULTY")
    assert loaded.infer({"x": np.ones((3, 2), np.float32)})["y"].shape == (3, 2)
    with pytest.raises(HeteroError, match=r"returned shape \[1, 3, 2\] for output 'y'; expected float32\[N,2\]"):
        loaded.infer({"x": np.ones((3, 2), np.float32)})


def test_fault_while_closing_is_raised_with_the_plugins_name(read: Callable[..., Network]) -> None:
    core = Core()
    core.register_plugin("FAULTY", FaultyPlugin(Fault("close.raise")))
    core.query_network(read(TEXT), "FAULTY")
    core.query_network(read(TEXT), "CPU")
    with pytest.raises(InjectedError, match="the driver fell over in close") as caught:
        core.close()
    assert "plugin FAULTY (" in tell(caught.value)


def test_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault 'infer.shpae', did you mean 'infer.shape'"):
        Fault("infer.shpae")
