"""Reactions of the Core to a failing device: an error that names the plugin, never a wrong result."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from hetero_core import AsyncInferQueue, Core, Network
from hetero_core.contract import DeviceName, Executable, Payload, QueryResult, RunContext
from hetero_core.errors import HeteroError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.types import ValueSpec
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

TEXT = "g (float[2] x) => (float[2] y) { a = Neg (x) y = Add (a, a) }"
X = np.array([1, -2], np.float32)
# Computed by hand: -x + -x.
EXPECTED = [-2, 4]
FAILING: Mapping[str, str] = {
    "create": "raise nothing",
    "query": "raise nothing forget invent both silent",
    "load": "raise nothing names other",
    "export": "raise nothing",
    "import": "raise nothing names",
    "infer": "raise count list nothing dtype shape rank",
}
"""Place -> its faults: an error, None in place of a result, or a result that is wrong in one way."""
FAULTS = [f"{place}.{kind}" for place, kinds in FAILING.items() for kind in kinds.split()]
WITHIN = [name for name in FAULTS if name.startswith("infer")]


class InjectedError(OSError):
    """Like a driver's error, it is not a HeteroError."""


class FaultyPlugin:
    """The plugin of a faulty device. The fault occurs at the nth call of its place, counted from 1, and at every later call."""

    def __init__(self, fault: str = "none", *, nth: int = 1) -> None:
        self._place, _, self._kind = fault.partition(".")
        self._nth = nth
        self._calls = 0

    @hookimpl
    def create_device(self, name: str) -> object:
        return None if self.meet("create") == "nothing" else FaultyDevice(self)

    def meet(self, place: str) -> str:
        """Returns the kind of fault that the caller must produce, "" if there is no fault; errors occur in here."""
        self._calls += place == self._place
        if place != self._place or self._calls < self._nth:
            return ""
        if self._kind == "raise":
            raise InjectedError(f"the driver fell over in {place}")
        return self._kind


class FaultyDevice(PlainDevice):
    """PLAIN with a single fault."""

    def __init__(self, plugin: FaultyPlugin) -> None:
        self._plugin = plugin

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> Any:
        return _spoil_answer(self._plugin.meet("query"), super().query_network(device, network))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Any:
        return _spoil_executable(self._plugin.meet("load"), self.make_executable(network))

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Any:
        return None if self._plugin.meet("export") == "nothing" else super().export_network(executable)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Any:
        return _spoil_executable(self._plugin.meet("import"), super().import_network(device, payload))

    @hookimpl
    def close_device(self) -> bool:
        self._plugin.meet("close")
        return True

    def make_executable(self, network: Network) -> Executable:
        return FaultyExecutable(network, self._plugin)


class FaultyExecutable(PlainExecutable):
    """A loaded network with runs that may fail."""

    def __init__(self, network: Network, plugin: FaultyPlugin) -> None:
        super().__init__(network)
        self._plugin = plugin

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> Any:
        what = self._plugin.meet("infer")
        outputs = super().run(inputs, context)
        first, rest = outputs[0], outputs[1:]
        spoiled = {
            "count": rest,
            "list": list(outputs),
            "nothing": (None, *rest),
            "dtype": (None if first is None else first.astype(np.float64), *rest),
            "shape": (None if first is None else np.concatenate([first, first]) if first.ndim else first[None], *rest),
            "rank": (None if first is None else first[None], *rest),
        }
        return spoiled.get(what, outputs)


def _spoil_answer(what: str, result: QueryResult) -> Any:
    names = list(result.supported)
    if what == "nothing" or not names:
        return None if what == "nothing" else result
    device = result.supported[names[0]]
    spoiled = {
        "forget": QueryResult(dict.fromkeys(names[1:], device), result.refused),
        "invent": QueryResult({**result.supported, "no_such_node": device}, result.refused),
        "both": QueryResult(result.supported, {**result.refused, names[0]: "taken and refused"}),
        "silent": QueryResult(dict.fromkeys(names[1:], device), {**result.refused, names[0]: ""}),
    }
    return spoiled.get(what, result)


def _spoil_executable(what: str, executable: Executable) -> Any:
    if what == "nothing":
        return None
    if what == "other":
        return object()
    if what == "names":
        executable.outputs = tuple(ValueSpec(f"{spec.name}_renamed", spec.type, spec.memory) for spec in executable.outputs)
    return executable


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
    core.register_plugin("FAULTY", FaultyPlugin())
    assert use(core, read(TEXT), device) == EXPECTED


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("device", ["FAULTY", "HETERO:FAULTY"])
def test_fault_is_an_error_that_names_the_plugin(core: Core, read: Callable[..., Network], device: str, fault: str) -> None:
    core.register_plugin("FAULTY", FaultyPlugin(fault))
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
        core.register_plugin("FAULTY", FaultyPlugin(fault, nth=3))
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
    core.register_plugin("FAULTY", FaultyPlugin("infer.shape"))
    with pytest.raises(HeteroError, match=r"plugin FAULTY \(.*\) returned shape \[4\] for output 'y'; expected float32\[2\]"):
        core.load_network(read(TEXT), "FAULTY").infer({"x": X})
    split = core.load_network(read(TEXT).with_affinity({"Neg_0": "FAULTY", "Add_1": "CPU"}), "HETERO:FAULTY,CPU")
    with pytest.raises(HeteroError, match=r"plugin FAULTY \(.*\) returned shape \[4\] for output 'a'; expected float32\[2\]"):
        split.infer({"x": X})


def test_free_dimension_takes_any_size_and_the_rank_stays(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[N,2] x) => (float[N,2] y) { y = Neg (x) }"
    core.register_plugin("FAULTY", FaultyPlugin("infer.rank", nth=2))
    loaded = core.load_network(read(text), "FAULTY")
    assert loaded.infer({"x": np.ones((3, 2), np.float32)})["y"].shape == (3, 2)
    with pytest.raises(HeteroError, match=r"returned shape \[1, 3, 2\] for output 'y'; expected float32\[N,2\]"):
        loaded.infer({"x": np.ones((3, 2), np.float32)})


def test_fault_while_closing_is_raised_with_the_plugins_name(read: Callable[..., Network]) -> None:
    core = Core()
    core.register_plugin("FAULTY", FaultyPlugin("close.raise"))
    core.query_network(read(TEXT), "FAULTY")
    core.query_network(read(TEXT), "CPU")
    with pytest.raises(InjectedError, match="the driver fell over in close") as caught:
        core.close()
    assert "plugin FAULTY (" in tell(caught.value)
