"""Reference pages list exactly the existing names; the tutorial ends with the file of the example."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hetero_tests.conformance_page import format_conformance_page
from hetero_tests.samples import IS_WHOLE

import hetero_core
from hetero_core import Core, Network, contract, errors, hookspecs
from hetero_core.blobs import container
from hetero_core.cli.main import COMMANDS, build_parser
from hetero_core.conformance.check import LEVELS
from hetero_core.devices.config import ALIASES, STANDARD_KEYS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
HOOKS = [name for name, member in vars(hookspecs).items() if hasattr(member, f"{hookspecs.PROJECT}_spec")]
ERRORS = [name for name, member in vars(errors).items() if inspect.isclass(member) and issubclass(member, errors.HeteroError)]


def read_section(page: str, heading: str) -> str:
    """Returns the text between a heading of a reference page and the next heading."""
    section = re.search(rf"^##+ {re.escape(heading)}$(.*?)(?=^##? |\Z)", (REFERENCE / page).read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/reference/{page} has no section '{heading}'"
    return section[1]


def list_first_cells(text: str) -> list[str]:
    """Returns the names in backticks in the first column of every table."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_section_with_its_arguments(hook: str) -> None:
    section = read_section("hooks.md", f"`{hook}`")
    arguments = re.search(r"^Arguments: (.*)$", section, re.MULTILINE)
    assert arguments, f"{hook}: say its arguments in a line that begins with 'Arguments:'"
    assert re.findall(r"`(\w+)`", arguments[1]) == list(inspect.signature(getattr(hookspecs, hook)).parameters)


def test_hooks_page_has_no_removed_hook() -> None:
    assert re.findall(r"^### `(\w+)`$", (REFERENCE / "hooks.md").read_text(), re.MULTILINE) == HOOKS


def test_versions_page_lists_what_came_with_each_version() -> None:
    rows = re.findall(r"^\| (\d+)\.(\d+) \| .* \| (.*) \|$", (REFERENCE / "plugin-api.md").read_text(), re.MULTILINE)
    listed = {name: (int(major), int(minor)) for major, minor, cell in rows for name in re.findall(r"`(\w+\(\w+\))`", cell)}
    assert listed == hookspecs.SINCE
    assert max((int(major), int(minor)) for major, minor, _ in rows) == hookspecs.API


def test_page_of_the_kit_lists_every_level() -> None:
    page = (ROOT / "docs" / "how-to" / "test-your-device.md").read_text()
    levels = re.findall(r"^\| `(\w+)` \|", page.partition("## A device")[0], re.MULTILINE)
    assert sorted(levels) == sorted(LEVELS)


def test_errors_page_lists_each_class_once_with_ordered_bases() -> None:
    text = (REFERENCE / "errors.md").read_text()
    assert list_first_cells(text) == ERRORS
    for name in ERRORS:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert re.findall(r"`(\w+)`", row.split("|")[2]) == bases, name


def test_configuration_page_lists_standard_keys_and_aliases() -> None:
    assert list_first_cells(read_section("configuration.md", "Standard keys")) == list(STANDARD_KEYS)
    assert list_first_cells(read_section("configuration.md", "Aliases")) == list(ALIASES)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO", "MULTI", "AUTO", "BATCH", "PROCESS"])
def test_configuration_and_metrics_pages_match_the_device(device: str, core: Core) -> None:
    # A device over all installed devices inherits their keys; the description of an inherited key names its device.
    own = [name for name, key in core.config_keys(device).items() if name not in STANDARD_KEYS and "(of " not in key.doc]
    if own:
        assert sorted(list_first_cells(read_section("configuration.md", f"Keys of {device}"))) == sorted(own)
    text = (REFERENCE / "metrics.md").read_text()
    missing = [name for name in core.get_metric(device, "SUPPORTED_METRICS") if f"`{name}`" not in text]
    assert missing == []


def test_metrics_page_lists_the_metrics_of_a_split_network(core: Core, read: Callable[[str], Network]) -> None:
    network = core.load_network(read("net (float[4] x) => (float[4] y) { y = Neg (x) }"), "HETERO:TEMPLATE,CPU")
    text = (REFERENCE / "metrics.md").read_text()
    assert [name for name in network.get_metric("SUPPORTED_METRICS") if f"`{name}`" not in text] == []


def test_configuration_page_lists_the_fields_of_a_key() -> None:
    fields = list_first_cells(read_section("configuration.md", "Declaring a key"))
    assert fields == list(contract.ConfigKey.__dataclass_fields__)


def test_blob_page_lists_the_fields_of_a_header() -> None:
    text = (REFERENCE / "blob-format.md").read_text()
    assert set(list_first_cells(read_section("blob-format.md", "Header"))) == {
        *container.BlobHeader.__dataclass_fields__,
        "sections",
    }
    assert container.MAGIC.decode() in text
    assert f"format version {container.FORMAT_VERSION}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_command_line_page_has_each_command_with_its_options(command: str) -> None:
    (commands,) = [a.choices for a in build_parser([command])._actions if isinstance(a, argparse._SubParsersAction)]
    text = (REFERENCE / "command-line.md").read_text()
    options = [action.option_strings for action in commands[command]._actions if action.option_strings]
    assert f"hetero {command}" in text
    assert [names for names in options if "--help" not in names and not any(name in text for name in names)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "devices").iterdir()), ids=lambda path: path.name)
def test_page_of_a_device_has_the_common_parts(page: Path) -> None:
    parts = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    assert parts == ["Overview", "Set-up", "Operators", "Partition", "Precision", "Troubleshooting"]


def test_every_device_has_a_page() -> None:
    projects = [tomllib.loads(path.read_text()) for path in ROOT.glob("plugins/*/pyproject.toml")]
    devices = sorted(name for project in projects for name in project["project"]["entry-points"]["hetero_core.devices"])
    titles = [page.read_text().partition("\n")[0] for page in (ROOT / "docs" / "devices").iterdir()]
    assert sorted(name for title in titles for name in re.findall(r"\b[A-Z]+\b", title.partition(":")[0])) == devices


def test_conformance_page_matches_the_checks() -> None:
    page = "docs/reference/conformance.md"
    is_fresh = (ROOT / page).read_text() == format_conformance_page()
    assert is_fresh, f"{page} is out of date: PYTHONPATH=tests/shared python -m hetero_tests.conformance_page {page}"


def test_base_of_devices_has_every_hook_of_a_device() -> None:
    tree = ast.parse(inspect.getsource(contract.DeviceHooks))
    typed = [node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    assert sorted(typed) == sorted(set(HOOKS) - {"create_device", "infer"})


def list_public_names() -> dict[str, set[str]]:
    """Returns module -> names on the page of public names."""
    rows = re.findall(r"^\| `(hetero_core[\w.]*)` \| (.*?) \|", (REFERENCE / "public.md").read_text(), re.MULTILINE)
    names: dict[str, set[str]] = {"hetero_core.errors": set(ERRORS)}
    for module, cell in rows:
        names.setdefault(module, set()).update(re.findall(r"`(\w+)`", cell))
    return names


def test_public_names_exist_and_include_every_export() -> None:
    for module, names in list_public_names().items():
        assert [name for name in sorted(names) if not hasattr(importlib.import_module(module), name)] == [], module
    head = read_section("public.md", "For users and authors")
    listed = {name for row in re.findall(r"^\| (`.*?) \|", head, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert listed == set(hetero_core.__all__)


AUTHORS_FILES = [*(ROOT / "plugins" / "template").rglob("*.py"), *(ROOT / "docs" / "examples" / "hetero_echo").rglob("*.py")]


AUTHORS_PAGES = [
    ROOT / "docs" / page
    for page in (
        "tutorial/first-device.md",
        "how-to/kernels-of-your-own.md",
        "how-to/own-memory.md",
        "how-to/asynchronous-devices.md",
        "how-to/wrap-an-engine.md",
        "how-to/publish-a-device.md",
        "reference/hooks.md",
        "reference/plugin-api.md",
    )
]


@pytest.mark.parametrize("path", [*AUTHORS_FILES, *AUTHORS_PAGES], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_devices_to_copy_use_only_public_names(path: Path) -> None:
    public = {**list_public_names(), "hetero_core": set(hetero_core.__all__)}
    text = path.read_text()
    if path.suffix == ".md":
        text = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    private = [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if str(node.module).startswith("hetero_core") and alias.name not in public.get(str(node.module), set())
    ]
    assert private == []


def test_tutorial_ends_in_the_files_of_the_example() -> None:
    tutorial = (ROOT / "docs" / "tutorial" / "first-device.md").read_text()
    example = ROOT / "docs" / "examples" / "hetero_echo"
    assert f"```python\n{(example / 'hetero_echo' / '__init__.py').read_text()}```" in tutorial
    assert f"```toml\n{(example / 'pyproject.toml').read_text()}```" in tutorial
    assert f"```python excerpt\n{(example / 'tests' / 'test_conformance.py').read_text()}```" in tutorial


def test_template_walkthrough_holds_the_whole_file_in_order() -> None:
    page = (ROOT / "docs" / "tutorial" / "template-device.md").read_text()
    excerpts = re.findall(r"^```python excerpt\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    device = (ROOT / "plugins" / "template" / "hetero_template" / "device.py").read_text()
    assert [line for text in excerpts for line in text.splitlines() if line] == [line for line in device.splitlines() if line]


def test_example_passes_its_own_tests() -> None:
    """The default session leaves out the levels of cases and whole networks, of which ECHO refuses nearly every node."""
    example = ROOT / "docs" / "examples" / "hetero_echo"
    levels = [] if IS_WHOLE else ["--hetero-level", "contract", "--hetero-level", "export"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *levels, "tests"],
        cwd=example,
        env={**os.environ, "PYTHONPATH": str(example)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
