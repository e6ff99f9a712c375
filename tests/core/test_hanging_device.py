"""Plugins that hang: the error names them after the Core's timeout, they are not asked again, and they do not block other devices."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hetero_cpu.device import CpuDevice

from hetero_core import ConfigKey, Core, DeviceName, Network, hookimpl
from hetero_core.devices import watch
from hetero_core.devices.watch import OutOfTimeError, call_within, find_end_of_wait
from hetero_core.errors import ConfigValueError, DeviceTimeoutError, DeviceUnavailableError, PluginError

ADD = "g (float[1] x) => (float[1] y) { y = Add(x, x) }"
X = np.array([3], np.float32)
LIMIT = 60
"""Seconds after which something that never happens fails a test."""
SOON = 0.5
"""Seconds that a plugin has which hangs; the others need a hundredth of it."""


class Hanging(CpuDevice):
    """Device and factory in a single object. Blocks in a hook until the test releases it, and counts the calls."""

    def __init__(self, question: str = "") -> None:
        super().__init__("HANGING")
        self.question = question
        self.go_on = threading.Event()
        self.asked: dict[str, int] = {}
        self.threads: list[str] = []
        self.is_closed = False

    def _stay(self, question: str) -> None:
        self.asked[question] = self.asked.get(question, 0) + 1
        self.threads.append(threading.current_thread().name)
        if question == self.question:
            assert self.go_on.wait(LIMIT)

    @hookimpl
    def create_device(self) -> object:
        self._stay("create_device")
        return self

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        self._stay("config_keys")
        return super().config_keys()

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        self._stay("metrics")

        def read_name() -> str:
            self._stay("the metric FULL_DEVICE_NAME")
            return "a device that may hang"

        return {"FULL_DEVICE_NAME": read_name}

    @hookimpl
    def close_device(self) -> bool:
        self._stay("close_device")
        self.is_closed = True
        return True


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    device = Hanging()
    yield device
    device.go_on.set()


@pytest.fixture(scope="module")
def imported() -> None:
    """Lets the other devices do their imports, for which a slow machine may need longer than the short timeout."""
    with Core() as patient:
        patient.list_devices()


@pytest.fixture
def impatient(imported: None, hanging: Hanging) -> Iterator[Core]:
    """A Core with a short timeout; HANGING is registered as a device and as its own factory."""
    core = Core(device_timeout=SOON)
    core.register_plugin("HANGING", hanging)
    yield core
    hanging.go_on.set()
    core.close()


def wait_until(is_true: Callable[[], bool]) -> None:
    moment = threading.Event()
    for _ in range(LIMIT * 100):
        if is_true():
            return
        moment.wait(0.01)
    raise AssertionError("it never became true")


@pytest.mark.parametrize("question", ["create_device", "config_keys", "metrics", "the metric FULL_DEVICE_NAME"])
def test_hanging_plugin_is_named_and_hides_no_other_device(impatient: Core, hanging: Hanging, question: str) -> None:
    hanging.question = question
    rows = {row.name: row for row in impatient.list_devices()}
    reason = rows["HANGING"].reason
    assert reason.startswith("device HANGING hangs: plugin HANGING (")
    # AUTO is listed before HANGING and may have asked it first.
    asked = f"has not returned from {question} within {SOON:g} s; it "
    assert f"{asked}was set aside, its thread goes on" in reason or f"{asked}has not answered before" in reason
    assert "update or uninstall the plugin, or give it more time with Core(device_timeout=...)" in reason
    assert rows["CPU"].reason == ""
    assert rows["TEMPLATE"].reason == ""
    assert [thread.daemon for thread in threading.enumerate() if thread.name == f"hetero-HANGING {question}"] == [True]


def test_error_is_an_unavailable_device_and_a_timeout(impatient: Core, hanging: Hanging) -> None:
    hanging.question = "create_device"
    with pytest.raises(DeviceTimeoutError) as caught:
        impatient.get_metric("HANGING", "FULL_DEVICE_NAME")
    assert isinstance(caught.value, DeviceUnavailableError)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("question", ["create_device", "config_keys"])
def test_plugin_that_hangs_is_asked_once(impatient: Core, hanging: Hanging, read: Callable[..., Network], question: str) -> None:
    hanging.question = question
    network = read(ADD)
    with pytest.raises(DeviceTimeoutError):
        impatient.load_network(network, "HANGING")
    for call in (
        lambda: impatient.load_network(network, "HANGING"),
        lambda: impatient.query_network(network, "HANGING"),
        lambda: impatient.get_metric("HANGING", "FULL_DEVICE_NAME"),
        lambda: impatient.load_network(network, "HETERO:HANGING,CPU"),
    ):
        with pytest.raises(DeviceTimeoutError, match="it has not answered before and is not asked again"):
            call()
    assert hanging.asked[question] == 1


def test_further_devices_are_created_while_a_device_hangs(hanging: Hanging, read: Callable[..., Network]) -> None:
    hanging.question = "create_device"
    with Core() as core:
        core.register_plugin("HANGING", hanging)
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                core.get_metric("HANGING", "FULL_DEVICE_NAME")
            except BaseException as error:  # noqa: BLE001  # shown below
                errors.append(error)

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        wait_until(lambda: hanging.asked.get("create_device") == 1)
        assert core.load_network(read(ADD), "CPU").infer({"x": X})["y"].tolist() == [6]
        core.register_plugin("OTHER", CpuDevice("OTHER"))
        core.unregister_plugin("OTHER")
        hanging.go_on.set()
        for thread in asking:
            thread.join(LIMIT)
    assert errors == []
    assert hanging.asked["create_device"] == 1, "the others waited for the first one"


def test_innermost_plugin_is_blamed(impatient: Core, hanging: Hanging, read: Callable[..., Network]) -> None:
    hanging.question = "create_device"
    with pytest.raises(DeviceTimeoutError, match="device HANGING hangs"):
        impatient.query_network(read(ADD), "HETERO:HANGING,CPU")
    assert impatient.get_metric("HETERO:CPU", "DEVICE_ARCHITECTURE")


def test_clock_of_a_plugin_stands_still_while_it_waits_for_another() -> None:
    def wait_and_work() -> str:
        with pytest.raises(OutOfTimeError):
            call_within(SOON, threading.Event().wait, thread="inner")
        time.sleep(0.8 * SOON)  # begins close to the end of the outer limit, and ends after it
        return "done"

    assert call_within(1.1 * SOON, wait_and_work, thread="outer") == "done"


def test_budget_goes_on_while_it_waits_for_another_call() -> None:
    def wait() -> None:
        call_within(LIMIT, threading.Event().wait, thread="inner")

    with pytest.raises(OutOfTimeError):
        call_within(SOON / 5, wait, thread="outer", is_budget=True)


def test_device_sees_no_limit_of_a_caller_that_still_takes_late_results() -> None:
    """PROCESS ends its process at a limit that it sees; other networks share it."""
    seen = call_within(LIMIT, find_end_of_wait, thread="budget", is_budget=True)
    assert seen is not None
    assert call_within(LIMIT, find_end_of_wait, thread="patient", is_budget=True, is_over=lambda: False) is None


def test_call_that_nothing_needs_any_more_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_CLOSING_SECONDS", SOON / 5)
    go_on, late = threading.Event(), threading.Event()
    with pytest.raises(OutOfTimeError):
        call_within(LIMIT, lambda: go_on.wait(LIMIT), thread="late", is_over=lambda: True, on_late_result=lambda _: late.set())
    go_on.set()
    assert late.wait(LIMIT)


def test_waiting_plugin_is_not_blamed_for_a_hanging_plugin(impatient: Core, hanging: Hanging) -> None:
    class Asking(CpuDevice):
        @hookimpl
        def create_device(self, core: Core) -> object:
            core.get_metric("HANGING", "FULL_DEVICE_NAME")
            return self

    hanging.question = "create_device"
    impatient.register_plugin("ASKING", Asking("ASKING"))
    with pytest.raises(DeviceTimeoutError, match="^device HANGING hangs: ") as caught:
        impatient.get_metric("ASKING", "FULL_DEVICE_NAME")
    assert any("while it created device ASKING" in note for note in caught.value.__notes__)


def test_core_closes_while_a_plugin_hangs(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    hanging.question = "create_device"
    core = Core(device_timeout=SOON)
    core.register_plugin("HANGING", hanging)
    with pytest.raises(DeviceTimeoutError):
        core.get_metric("HANGING", "FULL_DEVICE_NAME")
    core.close()
    assert "device HANGING is not closed: plugin HANGING" in caplog.text


def test_plugin_that_hangs_while_closing_is_abandoned(hanging: Hanging) -> None:
    hanging.question = "close_device"
    core = Core(device_timeout=SOON)
    core.register_plugin("HANGING", hanging)
    wait_until(lambda: "HANGING" in core.device_names)
    core.register_plugin("PLAIN", CpuDevice("PLAIN"))
    assert core.get_metric("PLAIN", "FULL_DEVICE_NAME")
    hanging_row = {row.name: row for row in core.list_devices()}["HANGING"]
    assert hanging_row.reason == ""
    with pytest.raises(DeviceTimeoutError, match=f"has not returned from close_device within {SOON:g} s"):
        core.close()


def test_device_that_left_a_metric_unanswered_is_reported_once(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    hanging.question = "the metric FULL_DEVICE_NAME"
    core = Core(device_timeout=SOON)
    core.register_plugin("HANGING", hanging)
    with pytest.raises(DeviceTimeoutError):
        core.get_metric("HANGING", "FULL_DEVICE_NAME")
    core.close()
    assert [record.message for record in caplog.records] == [
        f"device HANGING is not closed: plugin HANGING (module {__name__}) hangs"
    ]


def test_name_of_a_hanging_plugin_can_be_registered_again(impatient: Core, hanging: Hanging) -> None:
    hanging.question = "create_device"
    with pytest.raises(DeviceTimeoutError):
        impatient.get_metric("HANGING", "FULL_DEVICE_NAME")
    impatient.unregister_plugin("HANGING")
    impatient.register_plugin("HANGING", CpuDevice("HANGING"))
    assert "NumPy" in impatient.get_metric("HANGING", "FULL_DEVICE_NAME")
    hanging.go_on.set()
    assert "NumPy" in impatient.get_metric("HANGING", "FULL_DEVICE_NAME")


def test_hooks_run_on_the_callers_thread_after_their_first_call(hanging: Hanging) -> None:
    with Core() as core:
        core.register_plugin("HANGING", hanging)
        for _ in range(3):
            core.get_metric("HANGING", "FULL_DEVICE_NAME")
    own = threading.current_thread().name
    assert hanging.threads[0] == "hetero-HANGING create_device"
    assert hanging.threads.count("hetero-HANGING metrics") == 1
    assert hanging.threads.count("hetero-HANGING the metric FULL_DEVICE_NAME") == 1
    assert hanging.threads.count(own) >= 4


def test_without_a_timeout_all_hooks_run_on_the_callers_thread(hanging: Hanging) -> None:
    with Core(device_timeout=None) as core:
        core.register_plugin("HANGING", hanging)
        core.get_metric("HANGING", "FULL_DEVICE_NAME")
    assert set(hanging.threads) == {threading.current_thread().name}


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_invalid_device_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigValueError, match="device_timeout: expected seconds above 0, or None for no limit, got"):
        Core(device_timeout=seconds)


def test_factory_that_asks_for_its_own_device_is_an_error(core: Core) -> None:
    class Circular:
        @hookimpl
        def create_device(self, core: Core, name: str) -> object:
            return core.get_metric(name, "FULL_DEVICE_NAME")

    core.register_plugin("CIRCULAR", Circular())
    with pytest.raises(PluginError, match="device CIRCULAR is asked for while it is being created, by CIRCULAR"):
        core.get_metric("CIRCULAR", "FULL_DEVICE_NAME")


PLUGIN = """
    import threading
    from hetero_core import hookimpl

    @hookimpl
    def create_device(core, name):
        threading.Event().wait()
"""

# The other devices do their imports before STUCK is on the path, as in the fixture `impatient`.
COMMAND = """
import sys
from hetero_core import Core
from hetero_core.cli.main import main

with Core() as patient:
    patient.list_devices()
sys.path.insert(0, {folder!r})
sys.exit(main())
"""


def test_hetero_devices_ends_and_lists_all_but_a_hanging_device(tmp_path: Path) -> None:
    (tmp_path / "acme_stuck.py").write_text(textwrap.dedent(PLUGIN))
    folder = tmp_path / "acme_stuck-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-stuck\nVersion: 1.5\n")
    (folder / "entry_points.txt").write_text("[hetero_core.devices]\nSTUCK = acme_stuck\n")
    script = COMMAND.format(folder=str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, "devices", "--timeout", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr
    rows = {line.split()[0]: line for line in ended.stdout.splitlines() if line}  # an empty line is before what is not installed
    assert "CANNOT BE USED: device STUCK hangs: plugin STUCK (acme-stuck 1.5) has not returned from create_device" in rows["STUCK"]
    assert "within 2 s" in rows["STUCK"]
    assert "CANNOT BE USED" not in rows["CPU"]
    assert "CANNOT BE USED" not in rows["TEMPLATE"]
    assert ended.stderr.splitlines() == ["device STUCK is not closed: plugin STUCK (acme-stuck 1.5) hangs"]
