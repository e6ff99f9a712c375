"""The steps of a plugin author in environments with wheels only: new plugins of each kind with their test suites, and the docs' commands.

`nox -s authors` runs it; `-s` shows the figures. uv creates the environments from wheels that the test builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT, *(ROOT / "plugins" / name for name in ("template", "cpu", "hetero")))
KINDS = ("kernels", "asynchronous", "engine")
PAGES = (
    "tutorial/first-device.md",
    "tutorial/template-device.md",
    "how-to/kernels-of-your-own.md",
    "how-to/own-memory.md",
    "how-to/asynchronous-devices.md",
    "how-to/wrap-an-engine.md",
    "how-to/test-your-device.md",
    "how-to/publish-a-device.md",
    "how-to/write-a-wrapper.md",
    "reference/hooks.md",
    "reference/public.md",
)
WRONG_HOOK = """
from collections.abc import Mapping

from hetero_core import ConfigKey, QueryResult, hookimpl
from hetero_core.contract import DeviceHooks, DeviceName
from hetero_core.network.graph import Network


class Right(DeviceHooks):
    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        return QueryResult({})

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {}


class Wrong(DeviceHooks):
    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> dict[str, str]:
        return {}

    @hookimpl
    def config_keys(self) -> list[ConfigKey]:
        return []
"""


class Environment:
    """A virtual environment outside the repository, with the wheels that it installs from."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self._wheels = wheels
        self.run("uv", "venv", "--quiet", "--seed", "venv")

    def install(self, *packages: str) -> None:
        """Installs packages, with the wheels for packages of this repository."""
        self.run("uv", "pip", "install", "--quiet", "--find-links", str(self._wheels), *packages)

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Returns the output of a command, with the environment's programs first on the PATH."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "UV_"))}
        environment = {
            **environment,
            "VIRTUAL_ENV": str(self.folder / "venv"),
            "PATH": f"{self.folder / 'venv' / 'bin'}:{os.environ['PATH']}",
            "PIP_FIND_LINKS": str(self._wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "ONNX_HOME": str(self.folder / "onnx"),
        }
        ended = subprocess.run(
            command,
            cwd=folder or self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=3000,
        )
        assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout[-8000:]}"
        return ended.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS:
        # Compiling the kernels takes minutes.
        environment = {**os.environ, "HETERO_CPU_KERNELS": "NO"}
        command = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(target), str(project)]
        subprocess.run(command, check=True, cwd=target, env=environment)
    return target


@pytest.fixture
def environment(wheels: Path, tmp_path: Path) -> Iterator[Environment]:
    yield Environment(tmp_path, wheels)
    shutil.rmtree(tmp_path / "venv")  # half a gigabyte each


def read_blocks(page: Path, kind: str) -> list[str]:
    """Returns the fenced blocks of this kind on a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("kind", KINDS)
def test_new_plugin_is_green_in_its_own_environment(environment: Environment, kind: str) -> None:
    environment.install("hetero-core")
    environment.run("hetero", "new-plugin", f"new-{kind}", "--kind", kind)
    project = environment.folder / f"hetero-new-{kind}"
    environment.install(f"-e./{project.name}[test]")
    assert f"NEW_{kind.upper()}" in environment.run("hetero", "devices", "--names").split()
    start = time.monotonic()
    environment.run("hetero", "conformance", f"NEW_{kind.upper()}", "--level", "contract")
    contract = time.monotonic() - start
    environment.run("mypy", "--strict", f"hetero_new_{kind}", folder=project)
    printed = environment.run("pytest", "-q", "-rs", "-n", "2", "-p", "no:cacheprovider", folder=project)
    assert "failed" not in printed
    assert "no reference device" not in printed  # the extra `test` brings a device for splits
    lines = {
        path.name: len(path.read_text().splitlines()) for path in sorted(project.rglob("*")) if path.suffix in (".py", ".toml")
    }
    print(f"\n{kind}: {printed.strip().splitlines()[-1]}; contract level {contract:.0f} s; lines {lines}")


@pytest.mark.parametrize("kind", KINDS)
def test_workflows_and_wheel_of_a_new_plugin_pass_their_checks(environment: Environment, kind: str) -> None:
    environment.install("hetero-core")
    environment.run("hetero", "new-plugin", "my-chip", "--kind", kind)
    project = environment.folder / "hetero-my-chip"
    environment.run("git", "init", "--quiet", folder=project)  # actionlint looks for the repository's root
    environment.run("actionlint", folder=project)
    environment.run("zizmor", "--offline", "--no-progress", ".", folder=project)
    environment.run("ruff", "check", ".", folder=project)
    environment.run("ruff", "format", "--check", ".", folder=project)
    environment.run("uv", "build", "--quiet", folder=project)
    (wheel,) = (project / "dist").glob("*.whl")
    environment.run("check-wheel-contents", str(wheel), folder=project)
    with ZipFile(wheel) as archive:
        metadata = archive.read("hetero_my_chip-0.1.0.dist-info/METADATA").decode()
        assert b"Apache License" in archive.read("hetero_my_chip-0.1.0.dist-info/licenses/LICENSE")
    assert "Keywords: Framework :: hetero," in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_copier_updates_a_new_plugin_and_keeps_its_changes(environment: Environment) -> None:
    """A later version of the templates, in a clone of this repository, is merged into a plugin with changes of its author."""
    git = ("git", "-c", "user.name=author", "-c", "user.email=author@example.org")
    clone, project = environment.folder / "clone", environment.folder / "hetero-my-chip"
    environment.run("git", "clone", "--quiet", str(ROOT), str(clone))
    environment.install("hetero-core")
    environment.run("hetero", "new-plugin", "my-chip")
    answers = project / ".copier-answers.yml"
    version = re.search(r"^_commit: (v\S+)$", answers.read_text(), re.MULTILINE)
    assert version
    environment.run("git", "tag", "--force", version[1], folder=clone)
    change(answers, "https://github.com/hetero-onnx/hetero", str(clone))
    change(project / "pyproject.toml", "github.com/OWNER/", "github.com/acme/")
    change(project / "hetero_my_chip" / "device.py", "PAYLOAD_VERSION = 1", "PAYLOAD_VERSION = 7")
    environment.run("git", "init", "--quiet", folder=project)
    environment.run("git", "add", "--all", folder=project)
    environment.run(*git, "commit", "--quiet", "-m", "my chip", folder=project)
    templates = clone / "hetero_core" / "cli"
    change(templates / "new_plugin_files" / "pyproject.toml.txt", "line-length = 132", "line-length = 120")
    change(templates / "new_plugin_device.py.txt", '"kernels toolkit"', '"kernels"')
    environment.run(*git, "commit", "--quiet", "--all", "-m", "next", folder=clone)
    environment.run("git", "tag", "v99.0.0", folder=clone)
    environment.run("copier", "update", "--trust", "--defaults", folder=project)
    assert "_commit: v99.0.0" in answers.read_text()
    texts = (project / "pyproject.toml").read_text(), (project / "hetero_my_chip" / "device.py").read_text()
    assert ["github.com/acme/" in texts[0], "PAYLOAD_VERSION = 7" in texts[1]] == [True, True]
    assert ["line-length = 120" in texts[0], '"DEVICE_ARCHITECTURE": "kernels",' in texts[1]] == [True, True]
    changed = environment.run("git", "diff", "--name-only", folder=project).split()
    assert changed == [".copier-answers.yml", "hetero_my_chip/device.py", "pyproject.toml"]


def change(path: Path, old: str, new: str) -> None:
    """Replaces a text of a file, which must have it."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_jax_of_the_docs_is_right(environment: Environment) -> None:
    """Its arrays cannot change; the chosen cases are of operators whose kernels assign elements. All 2,033 cases take ten minutes."""
    shutil.copytree(ROOT / "docs" / "examples" / "hetero_jax", environment.folder / "jax")
    assert len((environment.folder / "jax" / "hetero_jax" / "device.py").read_text().splitlines()) <= 60
    environment.install("hetero-core[test]", "hetero-hetero", "hetero-template", "./jax")
    environment.run("hetero", "conformance", "JAX", "--level", "contract", "--level", "export")
    assigning = (
        "averagepool_2d_pads",
        "convtranspose",
        "cumsum_1d",
        "maxpool_2d_pads",
        "onehot_with_axis",
        "reflect_pad",
        "scatternd_max",
    )
    checks = [argument for name in assigning for argument in ("--check", f"operators.test_{name}")]
    printed = environment.run("hetero", "conformance", "JAX", "--level", "operators", *checks)
    assert re.search(rf"^operators +{len(assigning)} +0 +0", printed, re.MULTILINE), printed


def test_every_command_of_the_page_on_publishing_works(environment: Environment) -> None:
    environment.install("hetero-core")
    (commands,) = read_blocks(ROOT / "docs" / "how-to" / "publish-a-device.md", "console")
    lines = [line.removeprefix("$ ") for line in commands.splitlines()]
    # The whole suite runs above; here only the quick levels.
    lines = [f"{line} --hetero-level contract --hetero-level export" if line == "pytest" else line for line in lines]
    environment.run("bash", "-ec", "\n".join(lines))
    project = environment.folder / "hetero-my-chip"
    assert len(list((project / "dist").glob("hetero_my_chip-*.whl"))) == 1
    assert "| `Relu` | 14 |" in (project / "docs" / "operators.md").read_text()
    assert '"schemaVersion"' in (project / "docs" / "badge.json").read_text()


def test_pages_for_authors_run_on_installed_wheels(environment: Environment) -> None:
    environment.install("hetero-core[test]", "hetero-cpu", "hetero-hetero", "hetero-template")
    for page in PAGES:
        folder = environment.folder / page.replace("/", "-")
        folder.mkdir()
        (folder / "page.py").write_text("".join(read_blocks(ROOT / "docs" / page, "python")))
        environment.run("python", "-W", "error", "page.py", folder=folder)
    print(f"\n{len(PAGES)} pages for authors run")


def test_type_checker_compares_hooks_with_the_contract(environment: Environment) -> None:
    environment.install("hetero-core", "mypy>=2.4,<2.5")
    (environment.folder / "hooks.py").write_text(WRONG_HOOK)
    printed = environment.run("bash", "-c", "mypy --strict hooks.py || true")
    wrong = WRONG_HOOK[: WRONG_HOOK.index("class Wrong")].count("\n")
    lines = [int(number) for number in re.findall(r"^hooks\.py:(\d+): error: ", printed, re.MULTILINE)]
    assert len(lines) == 2, printed
    assert min(lines) > wrong, printed
