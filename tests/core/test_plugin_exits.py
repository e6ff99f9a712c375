"""Plugins that raise what is no Exception, in each hook and each method; and hooks that answer with something else altogether."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Executable, Network, hookimpl
from hetero_core.contract import ConfigKey, Payload, QueryResult
from hetero_core.errors import HeteroError, PluginError
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

ADD = "g (float[2] x) => (float[2] y) { y = Add(x, x) }"
X = {"x": np.array([1, 2], np.float32)}


class OwnExit(BaseException):
    """What no library expects."""


EXITS = [SystemExit(3), GeneratorExit(), asyncio.CancelledError(), OwnExit("gone")]


def fail_with(error: BaseException) -> Any:
    raise error


def make_device(hook: str, action: Callable[..., Any]) -> PlainDevice:
    """Returns a device of which one hook does something else."""

    def replaced(self: Any, *arguments: Any) -> Any:
        return action()

    return type("Odd", (PlainDevice,), {hook: hookimpl(replaced)})()


def make_executable(method: str, action: Callable[..., Any]) -> PlainDevice:
    """Returns a device whose loaded networks do something else in one method."""

    class Odd(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            kind = type("OddExecutable", (PlainExecutable,), {method: lambda self, *arguments: action()})
            return kind(network)  # type: ignore[no-any-return]  # type() has no better type

    return Odd()


def use(core: Core, network: Network, folder: Path) -> None:
    """Asks everything of a device that there is to ask."""
    core.get_metric("ODD", "FULL_DEVICE_NAME")
    core.get_config("ODD", "PERF_COUNT")
    core.query_network(network, "ODD")
    loaded = core.load_network(network, "ODD")
    request = loaded.create_infer_request()
    request.infer(X)
    loaded.get_metric("SUPPORTED_METRICS")
    loaded.export_network(folder / "blob")
    core.import_network(folder / "blob", "ODD")
    loaded.close()
    core.close()


def find_error(action: Callable[[], None]) -> PluginError | None:
    """Returns the error that blames a plugin; any other one goes on."""
    try:
        action()
    except PluginError as error:
        return error
    return None


HOOKS = ["config_keys", "metrics", "query_network", "load_network", "export_network", "import_network", "close_device"]
METHODS = ["run", "create_state", "metrics", "close"]


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("make", "name"), [*((make_device, name) for name in HOOKS), *((make_executable, name) for name in METHODS)]
)
def test_exit_in_any_hook_or_method_is_an_error_that_blames_the_plugin(
    core: Core, read: Callable[..., Network], tmp_path: Path, make: Any, name: str, error: BaseException
) -> None:
    core.register_plugin("ODD", make(name, lambda: fail_with(error)))
    with pytest.raises(PluginError) as caught:
        use(core, read(ADD), tmp_path)
    assert f"plugin ODD (module {__name__}) raised {type(error).__name__}" in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_device_that_exits_while_it_is_created_hides_no_other(core: Core, error: BaseException) -> None:
    class Factory:
        @hookimpl
        def create_device(self) -> object:
            raise error

    core.register_plugin("ODD", Factory())
    rows = {row.name: row.reason for row in core.list_devices()}
    assert f"plugin ODD (module {__name__}) raised {type(error).__name__}" in rows["ODD"]
    assert rows["CPU"] == ""


def test_module_of_a_plugin_that_exits_when_it_is_imported_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text("import sys; sys.exit('no licence')")
    metadata = tmp_path / "leaving-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: leaving\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text("[hetero_core.devices]\nLEAVING = leaving\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with Core() as core:
        rows = {row.name: row.reason for row in core.list_devices()}
    assert "plugin LEAVING (leaving 1.5) cannot be imported from 'leaving': SystemExit: no licence" in rows["LEAVING"]
    assert rows["CPU"] == ""


def test_exit_of_a_metric_blames_the_plugin(core: Core) -> None:
    core.register_plugin("ODD", make_device("metrics", lambda: {"SPEED": sys.exit}))
    with pytest.raises(PluginError, match="plugin ODD .* raised SystemExit in the metric SPEED"):
        core.get_metric("ODD", "SPEED")


def test_interrupt_that_a_plugin_raises_on_its_own_thread_is_none_of_the_users(core: Core) -> None:
    core.register_plugin("ODD", make_device("metrics", lambda: fail_with(KeyboardInterrupt())))
    # The first question goes to a thread of its own; a real interrupt comes to the main thread alone.
    with pytest.raises(PluginError, match="raised KeyboardInterrupt in metrics"):
        core.get_metric("ODD", "SPEED")


def test_interrupt_by_the_user_passes(core: Core, read: Callable[..., Network]) -> None:
    assert threading.current_thread() is threading.main_thread()
    core.register_plugin("ODD", make_executable("run", lambda: fail_with(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        core.load_network(read(ADD), "ODD").infer(X)


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_exit_in_a_run_on_another_thread_reaches_wait_as_an_error(
    core: Core, read: Callable[..., Network], error: BaseException
) -> None:
    core.register_plugin("ODD", make_executable("run", lambda: fail_with(error)))
    request = core.load_network(read(ADD), "ODD").create_infer_request()
    request.start_async(X)
    with pytest.raises(PluginError, match=f"raised {type(error).__name__}"):
        request.wait(60)


class Failing(Mapping[str, Any]):
    """A mapping of which nothing can be read."""

    def __getitem__(self, name: str) -> Any:
        raise OwnExit

    def __iter__(self) -> Any:
        raise OwnExit

    def __len__(self) -> int:
        return 1


OBJECTS: list[Any] = [7, 0, "text", b"bytes", [], [("a", 1)], {1: 2}, {None: None}, object(), Failing(), int, {"A": Ellipsis}]


@pytest.mark.parametrize("answer", OBJECTS, ids=lambda answer: repr(answer)[:12])
@pytest.mark.parametrize("hook", ["config_keys", "metrics", "query_network", "load_network", "export_network", "import_network"])
def test_any_other_answer_of_a_hook_blames_the_plugin_or_does_no_harm(
    core: Core, read: Callable[..., Network], tmp_path: Path, hook: str, answer: Any
) -> None:
    core.register_plugin("ODD", make_device(hook, lambda: answer))
    error = find_error(lambda: use(core, read(ADD), tmp_path))
    if error is None:
        assert hook == "metrics"
    else:
        assert f"plugin ODD (module {__name__})" in str(error)


@pytest.mark.parametrize("answer", OBJECTS, ids=lambda answer: repr(answer)[:12])
def test_any_other_metrics_of_a_network_blame_the_plugin_or_do_no_harm(
    core: Core, read: Callable[..., Network], tmp_path: Path, answer: Any
) -> None:
    core.register_plugin("ODD", make_executable("metrics", lambda: answer))
    error = find_error(lambda: use(core, read(ADD), tmp_path))
    assert error is None or f"plugin ODD (module {__name__}) returned" in str(error)


@pytest.mark.parametrize(
    ("hook", "answer", "complaint"),
    [
        ("config_keys", {"A": ConfigKey(int, 1, "", choices=5)}, "'A' with choices=5"),  # type: ignore[arg-type]  # the fault
        ("config_keys", {"A": ConfigKey(int, 1, "", words=(1,))}, "'A' with words=(1,)"),  # type: ignore[arg-type]  # the fault
        ("config_keys", {"A": ConfigKey(int, 1, "", least="x")}, "'A' with least='x'"),  # type: ignore[arg-type]  # the fault
        ("config_keys", {"A": ConfigKey(int, object(), "")}, "key A of"),
        ("query_network", QueryResult(5), "returned int from query_network as supported"),  # type: ignore[arg-type]  # the fault
        ("query_network", QueryResult({"Add_0": 5}), "returned 5 for 'Add_0' as supported"),  # type: ignore[dict-item]  # the fault
        ("query_network", QueryResult({"Add_0": "ODD"}, plan=5), "returned int as the plan"),  # type: ignore[arg-type]  # the fault
        ("export_network", Payload({"a": 5}), "the section 'a' of int"),
        ("export_network", Payload({"a": np.zeros((4, 4))[:, 1:]}), "the section 'a' of ndarray; expected contiguous bytes"),
        ("export_network", Payload({}, version="1"), "a Payload of version '1'"),  # type: ignore[arg-type]  # the fault
    ],
)
def test_answer_with_a_wrong_part_blames_the_plugin(
    core: Core, read: Callable[..., Network], tmp_path: Path, hook: str, answer: Any, complaint: str
) -> None:
    core.register_plugin("ODD", make_device(hook, lambda: answer))
    with pytest.raises(HeteroError) as caught:
        use(core, read(ADD), tmp_path)
    assert complaint in str(caught.value)
    assert "plugin ODD" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("inputs", 5, "an executable whose inputs are 5; expected a tuple of ValueSpec"),
        ("outputs", (5,), r"an executable whose outputs are (5,); expected a tuple of ValueSpec"),
        ("pipeline_depth", "x", "an executable with pipeline_depth 'x'; expected 1 or more"),
        ("pipeline_depth", 0, "an executable with pipeline_depth 0; expected 1 or more"),
    ],
)
def test_executable_with_a_wrong_part_blames_the_plugin(
    core: Core, read: Callable[..., Network], field: str, value: Any, complaint: str
) -> None:
    class Odd(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            executable = PlainExecutable(network)
            setattr(executable, field, value)
            return executable

    core.register_plugin("ODD", Odd())
    with pytest.raises(PluginError) as caught:
        core.load_network(read(ADD), "ODD")
    assert complaint in str(caught.value)
