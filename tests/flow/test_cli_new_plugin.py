"""`hetero new-plugin`: the generated plugin meets the contract of a device without further edits."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from hetero_tests.devices_page import make_rows

from hetero_core.cli.main import main
from hetero_core.cli.new_plugin import KINDS
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks

ROOT = Path(__file__).parents[2]
CHECKS = (
    "registry.plugin_states_the_api_that_it_uses",
    "load.*",
    "requests.*",
    "start.*",
    "exporting.*",
    "operators.test_abs",
    "operators.test_softmax_axis_0",
    "operators.test_constant",
)


@pytest.mark.parametrize("kind", KINDS)
def test_plugin_of_each_kind_passes_the_kit_as_written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["new-plugin", f"new-{kind}", "--kind", kind, "--folder", str(tmp_path / "new")]) == 0
    monkeypatch.syspath_prepend(str(tmp_path / "new"))
    device, package = f"NEW_{kind.upper()}", f"hetero_new_{kind}"
    project = tomllib.loads((tmp_path / "new" / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"hetero-new-{kind}"
    assert project["entry-points"]["hetero_core.devices"] == {device: package}
    module = importlib.import_module(package)
    assert module.requires_api == ((1, 2) if kind == "asynchronous" else (1, 0))  # only its device takes `query`
    target = make_target(device, plugin=module)
    outcomes = list(run_checks(choose_checks([], CHECKS), target))
    assert [outcome for outcome in outcomes if outcome.status == "failed"] == []
    assert len([outcome for outcome in outcomes if outcome.status == "passed"]) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_the_template(kind: str, tmp_path: Path) -> None:
    assert main(["new-plugin", "mine", "--kind", kind, "--folder", str(tmp_path)]) == 0
    texts = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(texts) == 14
    sources = {path: text for path, text in texts.items() if path.suffix in (".py", ".md")}
    assert [path for path, text in sources.items() if "template" in text.lower() or "to copy" in text] == []
    for path, text in texts.items():
        if path.suffix == ".py":
            compile(text, path, "exec")


def test_project_has_licence_urls_and_all_that_the_kit_needs(tmp_path: Path) -> None:
    assert main(["new-plugin", "my-chip", "--kind", "engine", "--folder", str(tmp_path)]) == 0
    pyproject = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    project = pyproject["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (tmp_path / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Framework :: hetero" in project["keywords"]
    assert not any("hetero" in classifier for classifier in project["classifiers"])
    assert {"Repository", "Documentation", "Changelog", "Issues"} == set(project["urls"])
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = {text.partition(">")[0] for text in project["optional-dependencies"]["test"]}
    assert requirements == {"hetero-core[test]", "hetero-hetero", "hetero-template", "mypy"}
    assert [row["name"] for row in make_rows(tmp_path / "pyproject.toml")] == ["MY_CHIP"]
    workflows = tmp_path / ".github" / "workflows"
    assert f'hetero: ["v{core["version"]}", "main"]' in (workflows / "test.yml").read_text()
    assert "git+https://github.com/hetero-onnx/hetero@${{ matrix.hetero }}" in (workflows / "test.yml").read_text()
    page = (ROOT / "docs" / "how-to" / "publish-a-device.md").read_text()
    assert f"git+https://github.com/hetero-onnx/hetero@v{core['version']}" in page
    assert "id-token: write" in (workflows / "release.yml").read_text()
    answers = (tmp_path / ".copier-answers.yml").read_text().splitlines()
    assert {f"_commit: v{core['version']}", "device: MY_CHIP", "kind: engine"} <= set(answers)


def test_copier_asks_for_a_name_and_for_one_of_the_kinds() -> None:
    text = (ROOT / "copier.yml").read_text()
    assert f"choices: [{', '.join(KINDS)}]" in text
    subdirectory = re.search(r"^_subdirectory: (.*)$", text, re.MULTILINE)
    assert subdirectory
    assert [path.name for path in (ROOT / subdirectory[1]).iterdir()] == ["{{ _copier_conf.answers_file }}.jinja"]


def test_plugin_of_kind_kernels_has_no_memory_and_queue(tmp_path: Path) -> None:
    for kind in KINDS:
        assert main(["new-plugin", "mine", "--kind", kind, "--folder", str(tmp_path / kind)]) == 0
    texts = {kind: (tmp_path / kind / "hetero_mine" / "device.py").read_text() for kind in KINDS}
    assert {kind: "def start(" in text for kind, text in texts.items()} == {"kernels": False, "asynchronous": True, "engine": False}
    assert {kind: "MineArray" in text for kind, text in texts.items()} == {"kernels": False, "asynchronous": True, "engine": False}


@pytest.mark.parametrize("name", ["", "1st", "a.b", "a:b", "a,b", "../a", "a__b", "a b"])
def test_name_that_no_device_can_have_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", name, "--folder", str(tmp_path / "new")]) == 2
    assert f"a device cannot be named '{name}'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_folder_that_holds_something_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    assert main(["new-plugin", "mine", "--folder", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("name", "owner"),
    [("cpu", "hetero-cpu"), ("Template", "hetero-template"), ("RAY", "hetero-ray")],
)
def test_name_that_is_taken_is_refused(
    name: str, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", name]) == 2
    assert f"the name {name.upper()} is taken: it is the device of {owner}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["core", "OnnxRuntime"])
def test_name_of_a_package_of_hetero_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No device has these names, but pip would put the plugin in the place of the package."""
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", name]) == 2
    assert f"the name {name.upper()} is taken: hetero-{name.lower()} is a package of hetero" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_printed_install_command_survives_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "mine", "--folder", "o'neil & co"]) == 0
    (command,) = (line for line in capsys.readouterr().out.splitlines() if "pip install" in line)
    assert shlex.split(command) == ["pip", "install", "-e", "./o'neil & co[test]"]
