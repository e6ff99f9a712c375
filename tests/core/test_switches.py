"""HETERO_DEVICE, HETERO_PLUGINS and HETERO_CACHE_DIR: their effect, their order among the layers, and errors that name them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero_core import Core, Network
from hetero_core.cli.main import main
from hetero_core.devices.switches import read_switches
from hetero_core.errors import ConfigValueError, DeviceNameError, DeviceNotFoundError, PluginError
from hetero_core.network.writer import network_to_bytes

TEXT = "g (float[2] x) => (float[2] y) { y = Neg (x) }"
Read = Callable[..., Network]


def test_default_device_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setenv("HETERO_DEVICE", " template ")
    with Core() as core:
        assert str(core.load_network(read(TEXT)).device) == "TEMPLATE"
        assert set(core.query_network(read(TEXT)).supported.values()) == {"TEMPLATE"}
        assert str(core.load_network(read(TEXT), "CPU").device) == "CPU"


def test_switches_are_read_when_a_core_is_made(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    with Core() as core:
        monkeypatch.setenv("HETERO_DEVICE", "TEMPLATE")
        assert core.switches.device == ""
    monkeypatch.setenv("HETERO_DEVICE", "")
    assert read_switches() == read_switches({})


@pytest.mark.parametrize("device", ["NOPE", "HETERO:CPU,NOPE"])
def test_unknown_default_device_names_the_variable(device: str, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setenv("HETERO_DEVICE", device)
    with Core() as core, pytest.raises(DeviceNotFoundError, match=f"^HETERO_DEVICE={device}: no plugin announces device 'NOPE'"):
        core.load_network(read(TEXT))


def test_malformed_default_device_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DEVICE", "HETERO:")
    with pytest.raises(DeviceNameError, match="^HETERO_DEVICE=HETERO:: device 'HETERO:' is incomplete"):
        Core()


@pytest.fixture
def model(tmp_path: Path, read: Read) -> str:
    (tmp_path / "model.onnx").write_bytes(network_to_bytes(read(TEXT)))
    return str(tmp_path / "model.onnx")


def test_command_line_uses_the_default_device(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", model]) == main(["run", model]) == main(["bench", model]) == 2
    monkeypatch.setenv("HETERO_DEVICE", "CPU")
    for words in (["run", model, "--random"], ["query", model]):
        assert main(words) == 0, capsys.readouterr().err
    assert " on CPU" in capsys.readouterr().out
    monkeypatch.setenv("HETERO_DEVICE", "NOPE")
    capsys.readouterr()
    assert main(["query", model]) == 3
    assert capsys.readouterr().err.startswith("hetero: error: HETERO_DEVICE=NOPE: no plugin announces device 'NOPE'")


def test_blob_runs_on_its_own_device(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blob = str(tmp_path / "blob")
    assert main(["compile", model, "-d", "CPU", "-o", blob]) == 0
    monkeypatch.setenv("HETERO_DEVICE", "TEMPLATE")
    assert main(["run", blob, "--random"]) == 0
    assert main(["compile", "--inspect", blob]) == 0


@pytest.mark.parametrize(
    ("plugins", "present", "absent"),
    [
        ("cpu, Hetero", {"CPU", "HETERO"}, {"TEMPLATE", "AUTO"}),
        ("-TEMPLATE", {"CPU", "HETERO", "AUTO"}, {"TEMPLATE"}),
        ("CPU,TEMPLATE,-TEMPLATE", {"CPU"}, {"TEMPLATE", "HETERO"}),
        ("-RAY", {"CPU", "TEMPLATE"}, {"RAY"}),
        ("", {"CPU", "TEMPLATE"}, set()),
    ],
)
def test_only_listed_plugins_are_loaded(plugins: str, present: set[str], absent: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_PLUGINS", plugins)
    with Core() as core:
        names = set(core.device_names)
    assert present <= names
    assert absent.isdisjoint(names)


def test_device_that_was_left_out_says_so(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setenv("HETERO_PLUGINS", "-TEMPLATE")
    with (
        Core() as core,
        pytest.raises(DeviceNotFoundError, match="'TEMPLATE'; HETERO_PLUGINS=-TEMPLATE leaves it out; installed are"),
    ):
        core.load_network(read(TEXT), "TEMPLATE")


@pytest.mark.parametrize(("plugins", "complaint"), [("-CPUU", "'CPUU', did you mean 'CPU'"), ("CPU,,HETERO", "''; expected names")])
def test_unknown_plugin_names_the_variable(plugins: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_PLUGINS", plugins)
    with pytest.raises(ConfigValueError, match=f"^HETERO_PLUGINS={plugins}: no plugin is called {complaint}"):
        Core()


@pytest.mark.parametrize("group", ["devices", "wrappers"])
def test_broken_plugin_can_be_left_out(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "acme_bad-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-bad\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(textwrap.dedent(f"[hetero_core.{group}]\nbad = acme_bad_{group}\n"))
    (tmp_path / f"acme_bad_{group}.py").write_text("1 / 0")
    if group == "wrappers":
        monkeypatch.setenv("HETERO_PLUGINS", "CPU")
        with pytest.raises(PluginError, match="ZeroDivisionError.*or leave it out by HETERO_PLUGINS=-bad"):
            Core()
    monkeypatch.setenv("HETERO_PLUGINS", "-bad")
    with Core() as core:
        assert all(status.reason == "" for status in core.list_devices() if status.name in ("BAD", "CPU"))
        assert "BAD" not in core.device_names


def test_cache_folder_lies_below_set_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Read) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HETERO_CACHE_DIR", str(folder))
    with Core() as core:
        assert core.get_config("CPU", "CACHE_DIR") == str(folder)
        core.load_network(read(TEXT), "CPU")
        assert len(list(folder.glob("*.blob"))) == 1
        core.set_config({"CACHE_DIR": "elsewhere", "PERF_COUNT": True})
        assert core.get_config("CPU", "CACHE_DIR") == "elsewhere"
        core.set_config({"CACHE_DIR": None})
        assert core.get_config("CPU", "CACHE_DIR") == str(folder)
        assert core.get_config("CPU", "PERF_COUNT") is True


def test_cache_that_is_a_file_names_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ConfigValueError, match=r"^HETERO_CACHE_DIR=.*file: expected the path of a folder"):
        read_switches({"HETERO_CACHE_DIR": str(path)})
