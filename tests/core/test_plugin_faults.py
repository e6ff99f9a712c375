"""A plugin that breaks the contract raises an error with device, distribution and version; other plugins stay usable."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import ConfigKey, Core, Executable, Network, QueryResult, RunContext, hookimpl, hookspecs
from hetero_core.contract import DeviceName
from hetero_core.errors import (
    DeviceUnavailableError,
    InferenceError,
    InternalError,
    PluginError,
)
from hetero_core.runtime.request import InferRequest
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

ADD = "g (float[2] x) => (float[2] y) { y = Add(x, x) }"
OLD = DeprecationWarning("goes with hetero-core 0.5; implement its successor")


def break_query(answer: Callable[[Network], Any]) -> PlainDevice:
    class Broken(PlainDevice):
        @hookimpl
        def query_network(self, network: Network) -> Any:
            return answer(network)

    return Broken()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda network: None, "returned None from query_network"),
        (lambda network: {}, "returned dict from query_network; expected a QueryResult"),
        (lambda network: QueryResult({}), "says nothing about 'Add_0'"),
        (lambda network: QueryResult({"Add_0": "X", "Ad": "X"}), "names nodes that the network does not have: 'Ad'"),
        (lambda network: QueryResult({"Add_0": "X"}, {"Add_0": "no"}), "both takes and refuses 'Add_0'"),
        (lambda network: QueryResult({}, {"Add_0": ""}), "gives no reason for 'Add_0'"),
    ],
)
def test_broken_answer_of_a_query_blames_the_plugin(
    core: Core, read: Callable[..., Network], answer: Callable[[Network], Any], complaint: str
) -> None:
    core.register_plugin("BAD", break_query(answer))
    with pytest.raises(PluginError) as caught:
        core.query_network(read(ADD), "BAD")
    assert complaint in str(caught.value)
    assert "plugin BAD (" in str(caught.value)


def test_executable_of_another_network_blames_the_plugin(core: Core, read: Callable[..., Network]) -> None:
    unrelated = read("g (float[2] a) => (float[2] b) { b = Add(a, a) }")

    class Confused(PlainDevice):
        @hookimpl
        def load_network(self) -> Executable:
            return PlainExecutable(unrelated)

    core.register_plugin("CONFUSED", Confused())
    with pytest.raises(PluginError, match=r"executable with inputs \('a',\) and outputs \('b',\); expected inputs \('x',\)"):
        core.load_network(read(ADD), "CONFUSED")


def test_wrong_number_of_outputs_blames_the_plugin(core: Core, read: Callable[..., Network]) -> None:
    class Short(PlainExecutable):
        def run(self, inputs: tuple[Any, ...], context: Any) -> tuple[Any, ...]:
            return ()

    class Forgetful(PlainDevice):
        @hookimpl
        def load_network(self, network: Network) -> Executable:
            return Short(network)

    core.register_plugin("FORGETFUL", Forgetful())
    with pytest.raises(PluginError, match=r"plugin FORGETFUL \(.*\) returned 0 values from run; expected a tuple of 1 outputs"):
        core.load_network(read(ADD), "FORGETFUL").infer({"x": np.zeros(2, np.float32)})


def test_foreign_error_of_a_plugin_becomes_an_internal_error(core: Core, read: Callable[..., Network]) -> None:
    class Failing(PlainDevice):
        @hookimpl
        def load_network(self) -> Executable:
            raise ZeroDivisionError("driver fell over")

    core.register_plugin("FAILING", Failing())
    with pytest.raises(
        InternalError,
        match=r"ZeroDivisionError: driver fell over; raised by plugin FAILING .* in load_network.* The plugin is at fault",
    ) as caught:
        core.load_network(read(ADD), "FAILING")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "The model may be damaged" not in str(caught.value)


def test_run_with_another_signature_is_refused_at_load(core: Core, read: Callable[..., Network]) -> None:
    class Short(PlainExecutable):
        def run(self, inputs: Any) -> Any:  # type: ignore[override]  # the fault
            return inputs

    class ShortDevice(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            return Short(network)

    core.register_plugin("SHORT", ShortDevice())
    message = r"plugin SHORT .* has Short.run\(inputs: .*\) -> .*, and the core calls run\(inputs, context\): too many positional"
    with pytest.raises(PluginError, match=message):
        core.load_network(read(ADD), "SHORT")


@pytest.mark.parametrize(
    ("plugin", "kind", "complaint"),
    [
        (types.SimpleNamespace(create_device=lambda core, name: object()), PluginError, "not marked with @hookimpl"),
        (object(), PluginError, "implements neither query_network nor load_network"),
        (types.SimpleNamespace(requires_api=(2, 0)), PluginError, "requires the plugin API 2.0; this hetero-core has 1.2"),
        (types.SimpleNamespace(requires_api="1.0"), PluginError, "states requires_api = '1.0'; expected"),
    ],
)
def test_plugin_that_is_no_device_is_refused(core: Core, plugin: object, kind: type[Exception], complaint: str) -> None:
    core.register_plugin("ODD", plugin)
    with pytest.raises(kind) as caught:
        core.get_metric("ODD", "FULL_DEVICE_NAME")
    assert complaint in str(caught.value)


def test_hook_with_a_wrong_name_or_argument_is_refused(core: Core) -> None:
    class Misspelt(PlainDevice):
        @hookimpl
        def qery_network(self, network: Network) -> None: ...

    class Greedy(PlainDevice):
        @hookimpl
        def export_network(self, everything: object) -> None: ...

    class Lazy(PlainDevice):
        @hookimpl
        def load_network(self, network: Network, query: object = None) -> None: ...

    core.register_plugin("MISSPELT", Misspelt())
    core.register_plugin("GREEDY", Greedy())
    core.register_plugin("LAZY", Lazy())
    misspelt = r"plugin MISSPELT \(.*\) does not fit the contract: unknown hook 'qery_network', did you mean 'query_network'"
    with pytest.raises(PluginError, match=misspelt):
        core.get_metric("MISSPELT", "FULL_DEVICE_NAME")
    greedy = r"plugin GREEDY \(.*\) does not fit the contract: its export_network asks for 'everything'"
    with pytest.raises(PluginError, match=greedy):
        core.get_metric("GREEDY", "FULL_DEVICE_NAME")
    lazy = r"plugin LAZY \(.*\) .* its load_network has the argument 'query' with a default, and would never get it; declare it without"
    with pytest.raises(PluginError, match=lazy):
        core.get_metric("LAZY", "FULL_DEVICE_NAME")


@pytest.mark.parametrize("run", [InferRequest.infer, lambda request, inputs: [request.start_async(inputs), request.wait()]])
def test_exit_of_a_run_is_an_inference_error(core: Core, read: Callable[[str], Network], run: Callable[..., Any]) -> None:
    class Leaving(PlainExecutable):
        def run(self, inputs: Any, context: RunContext) -> Any:
            sys.exit(3)

    class LeavingDevice(PlainDevice):
        @hookimpl
        def load_network(self, device: DeviceName, network: Network) -> Executable:
            return Leaving(network)

    core.register_plugin("LEAVING", LeavingDevice())
    request = core.load_network(read(ADD), "LEAVING").create_infer_request()
    with pytest.raises(InferenceError, match=r"failed on LEAVING \(plugin LEAVING .*\): SystemExit: 3"):
        run(request, {"x": np.ones(2, np.float32)})


def test_key_that_is_declared_in_lower_case_is_refused(core: Core) -> None:
    class Lower(PlainDevice):
        @hookimpl
        def config_keys(self) -> Mapping[str, Any]:
            return {"lower_Limit": ConfigKey(int, 1, "A limit.")}

    core.register_plugin("LOWER", Lower())
    with pytest.raises(
        PluginError,
        match=r"plugin LOWER \(.*\) declares the configuration key 'lower_Limit'; .* 'LOWER_LIMIT'",
    ):
        core.get_config("LOWER", "PERF_COUNT")


def test_failed_factory_makes_the_device_unavailable_with_reason(core: Core) -> None:
    class Factory:
        @hookimpl
        def create_device(self) -> object:
            raise OSError("libdriver.so.3 is missing")

    core.register_plugin("GONE", Factory())
    with pytest.raises(
        DeviceUnavailableError, match="GONE is not available: .* failed in create_device with OSError: libdriver.so.3 is missing"
    ):
        core.get_metric("GONE", "FULL_DEVICE_NAME")
    rows = {row.name: row for row in core.list_devices()}
    assert "libdriver.so.3 is missing" in rows["GONE"].reason
    assert rows["CPU"].reason == ""
    assert "GONE" not in core.available_devices
    assert {"CPU", "TEMPLATE.0", "TEMPLATE.1"} <= set(core.available_devices)


@pytest.mark.parametrize("mark", [{"warn_on_impl": OLD}, {"warn_on_impl_args": {"query": OLD}}], ids=["hook", "argument"])
def test_deprecated_hook_or_argument_warns_once(core: Core, monkeypatch: pytest.MonkeyPatch, mark: dict[str, Any]) -> None:
    class Aging(PlainDevice):
        @hookimpl
        def load_network(self, device: DeviceName, network: Network, query: QueryResult | None) -> Executable:
            return super().load_network(device, network)

    def load_network(device: object, network: object, config: object, query: object) -> None: ...

    monkeypatch.setattr(hookspecs, "load_network", hookspecs.hookspec(firstresult=True, **mark)(load_network))
    core.register_plugin("AGING", Aging())
    with pytest.warns(DeprecationWarning, match="goes with hetero-core 0.5") as caught:
        core.get_metric("AGING", "FULL_DEVICE_NAME")
    core.get_metric("AGING", "FULL_DEVICE_NAME")
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]
