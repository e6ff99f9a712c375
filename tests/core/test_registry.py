"""Plugin discovery from entry points in distribution metadata on the path, with valid and broken plugins side by side."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import DeviceNotFoundError, DeviceUnavailableError, PluginError

ADD = "g (float[2] x) => (float[2] y) { y = Add(x, x) }"
DEVICE = """
    import hetero_cpu
    from hetero_core import hookimpl

    @hookimpl
    def create_device(core, name):
        from hetero_cpu.device import CpuDevice
        return CpuDevice(name)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution of a module and entry points on the path, in the layout of pip."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(distribution: str, module: str, code: str, entry_points: str, version: str = "1.0") -> None:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(code))
        folder = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(textwrap.dedent(entry_points))

    return put


def test_plugin_appears_when_installed_and_vanishes_afterwards(
    install: Install, tmp_path: Path, read: Callable[..., Network]
) -> None:
    install("acme-npu", "acme_npu_one", DEVICE, "[hetero_core.devices]\nnpu = acme_npu_one\n")
    with Core() as core:
        assert "NPU" in core.device_names
        assert core.get_versions("NPU") == {"NPU": "acme-npu 1.0"}
        result = core.load_network(read(ADD), "npu").infer({"x": np.ones(2, np.float32)})
        assert result["y"].tolist() == [2, 2]
    shutil.rmtree(tmp_path / "acme_npu-1.0.dist-info")
    with Core() as core, pytest.raises(DeviceNotFoundError, match="no plugin announces device 'NPU'"):
        core.load_network(read(ADD), "NPU")


def test_plugin_that_fails_to_import_has_a_reason_and_hides_none(install: Install) -> None:
    install("acme-broken", "acme_broken", "import libthatisnotthere", "[hetero_core.devices]\nBROKEN = acme_broken\n")
    with Core() as core:
        rows = {row.name: row for row in core.list_devices()}
        assert "No module named 'libthatisnotthere'" in rows["BROKEN"].reason
        assert (rows["BROKEN"].distribution, rows["BROKEN"].version) == ("acme-broken", "1.0")
        assert rows["CPU"].reason == ""
        with pytest.raises(
            DeviceUnavailableError, match=r"plugin BROKEN \(acme-broken 1.0\) cannot be imported from 'acme_broken'"
        ):
            core.get_metric("BROKEN", "FULL_DEVICE_NAME")


def test_use_of_a_name_claimed_by_two_distributions_names_both(install: Install) -> None:
    install("acme-one", "acme_one", DEVICE, "[hetero_core.devices]\nTWICE = acme_one\n")
    install("acme-two", "acme_two", DEVICE, "[hetero_core.devices]\ntwice = acme_two\n", version="2.0")
    with Core() as core:
        assert core.device_names.count("TWICE") == 1
        with pytest.raises(
            PluginError, match="device 'TWICE' is claimed by acme-(one 1.0 and acme-two 2.0|two 2.0 and acme-one 1.0); uninstall"
        ):
            core.get_metric("TWICE", "FULL_DEVICE_NAME")
        assert core.get_metric("CPU", "FULL_DEVICE_NAME")


WRAPPER = """
    from hetero_core import hookimpl

    calls = []

    @hookimpl(wrapper=True)
    def query_network(device, network):
        calls.append(("query", str(device), len(network.nodes)))
        return (yield)

    @hookimpl(wrapper=True)
    def load_network(device):
        calls.append(("load", str(device)))
        return (yield)

    @hookimpl(wrapper=True)
    def infer(device, inputs):
        result = yield
        calls.append(("infer", str(device), len(result)))
        return result
"""


def test_wrapper_wraps_every_device_also_inside_hetero(install: Install, read: Callable[..., Network]) -> None:
    install("acme-watch", "acme_watch", WRAPPER, "[hetero_core.wrappers]\nwatch = acme_watch\n")
    import acme_watch  # type: ignore[import-not-found]  # made above

    network = read("g (float[2] x) => (float[2] y) { a = Abs(x) y = Neg(a) }").with_affinity({"op:Neg": "TEMPLATE"})
    with Core() as core:
        loaded = core.load_network(network, "HETERO:CPU,TEMPLATE")
        assert [call[:2] for call in acme_watch.calls if call[0] == "load"] == [
            ("load", "HETERO:CPU,TEMPLATE"),
            ("load", "CPU"),
            ("load", "TEMPLATE"),
        ]
        acme_watch.calls.clear()
        assert loaded.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]
        assert acme_watch.calls == [("infer", "CPU", 1), ("infer", "TEMPLATE", 1), ("infer", "HETERO:CPU,TEMPLATE", 1)]


def test_without_a_wrapper_the_run_is_the_device_s_own_method(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read(ADD), "CPU")
    assert loaded.run_device == loaded.executable.run


def test_broken_wrapper_is_an_error_at_once(install: Install) -> None:
    install("acme-bad", "acme_bad", "1 / 0", "[hetero_core.wrappers]\nbad = acme_bad\n")
    with pytest.raises(PluginError, match=r"wrapper 'bad' \(acme-bad 1.0\) cannot be imported from 'acme_bad': ZeroDivisionError"):
        Core()


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("@hookimpl(wrapper=True)\ndef lode_network(device):\n    return (yield)\n", "unknown hook 'lode_network'"),
        ("@hookimpl(wrapper=True)\ndef load_network(devise):\n    return (yield)\n", "devise"),
        (
            "@hookimpl\ndef metrics(device):\n    return {}\n",
            r"answers metrics for every device; mark it with @hookimpl\(wrapper=True\)",
        ),
    ],
)
def test_wrapper_with_a_wrong_hook_or_without_yield_is_an_error(install: Install, code: str, complaint: str) -> None:
    module = f"acme_wrong_{crc32(code.encode())}"
    install("acme-wrong", module, "from hetero_core import hookimpl\n" + code, f"[hetero_core.wrappers]\nwrong = {module}\n")
    with pytest.raises(PluginError, match=rf"(?s)wrapper 'wrong' \(acme-wrong 1.0\) .*{complaint}"):
        Core()
