"""Sessions: `nox` runs the default ones. A plugin's session is found by its folder; a new folder needs no edit here.

nox -s core                 the core's own tests
nox -s "plugin(cpu)"        the tests of one plugin, with TEMPLATE and HETERO beside it
nox -s flow                 everything together: models, splits, command line, packaging
nox -s engines              one network over OpenVINO, ONNX Runtime and CPU, with all of ONNX's cases; takes minutes
nox -s browser              the page of a plan in Chromium; skipped where chromium and chromedriver are not installed
nox -s fuzz                 ten minutes of mutated models, blobs and cache entries; -- --seed 7 --seconds 3600 for more
nox -s lint types docs      style, types, and every code block of the docs
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "core", "plugin", "flow", "browser", "docs"]

ROOT = Path(__file__).parent
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
# What a plugin is tested beside: the reference device, and the one that composes.
COMPANIONS = ("template", "cpu", "hetero")


def install_workspace(session: nox.Session, plugins: list[str], *more: str) -> None:
    """Installs the core with its test extra and these plugins, editable, in one pip command so that they find one another."""
    editable = [argument for name in plugins for argument in ("-e", f"plugins/{name}")]
    session.install("-e", ".[test]", *editable, *more, silent=True)


def with_test_extra(name: str) -> str:
    """Returns a plugin with the extra that its own tests need, where it declares one: an engine, mostly."""
    project = tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{name}[test]" if "test" in project.get("optional-dependencies", {}) else name


def isolate(session: nox.Session) -> dict[str, str]:
    """Returns the environment of a test run: the onnx package writes its light models below ONNX_HOME."""
    return {"ONNX_HOME": str(Path(session.create_tmp()) / "onnx")}


@nox.session
def core(session: nox.Session) -> None:
    install_workspace(session, PLUGINS)
    session.run("pytest", "tests/core", *session.posargs, env=isolate(session))


@nox.session
@nox.parametrize("name", PLUGINS, ids=PLUGINS)
def plugin(session: nox.Session, name: str) -> None:
    install_workspace(session, [with_test_extra(name), *(other for other in COMPANIONS if other != name)])
    session.run("pytest", f"plugins/{name}/tests", *session.posargs, env=isolate(session))


@nox.session
def flow(session: nox.Session) -> None:
    install_workspace(session, PLUGINS, "hatchling", "build")
    session.run("pytest", "tests/flow", "tests/rules", *session.posargs, env=isolate(session))


@nox.session
def engines(session: nox.Session) -> None:
    """Runs ONNX's cases and the light models over OpenVINO, ONNX Runtime and our own CPU device in one network; takes minutes."""
    install_workspace(session, [with_test_extra(name) for name in PLUGINS])
    session.run("pytest", "tests/engines", *session.posargs, env=isolate(session))


@nox.session
def browser(session: nox.Session) -> None:
    """Runs the page of a plan in a real browser; Debian has it as chromium and chromium-driver."""
    install_workspace(session, list(COMPANIONS), "selenium>=4.30,<5")
    session.run("pytest", "tests/browser", *session.posargs, env=isolate(session))


@nox.session
def lint(session: nox.Session) -> None:
    session.install("ruff>=0.17,<0.18", silent=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    install_workspace(session, PLUGINS, "mypy>=2.4,<2.5")
    roots = ":".join([".", *(f"plugins/{name}" for name in PLUGINS)])
    session.run("mypy", "hetero_core", *(f"plugins/{name}/hetero_{name}" for name in PLUGINS), env={"MYPYPATH": roots})


@nox.session
def docs(session: nox.Session) -> None:
    """Runs every Python block of the docs and README, and checks their links."""
    install_workspace(session, PLUGINS)
    session.run("pytest", "tests/docs", *session.posargs, env=isolate(session))


@nox.session
def soundness(session: nox.Session) -> None:
    """Checks subgraph selection on 20,000 random graphs; takes some minutes."""
    install_workspace(session, PLUGINS)
    session.run("python", "tests/bench/check_partition.py", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Looks for inputs that are neither refused nor answered; not among the default sessions."""
    install_workspace(session, PLUGINS)
    session.run("python", "tests/fuzz/run.py", *(session.posargs or ("--seconds", "600")), env=isolate(session))


@nox.session
def bench(session: nox.Session) -> None:
    """Prints figures; asserts nothing."""
    install_workspace(session, PLUGINS)
    environment = {"OPENBLAS_CORETYPE": None, "OPENBLAS_L2_SIZE": None}
    for script in sorted(ROOT.glob("tests/bench/bench_*.py")):
        session.run("python", str(script), *session.posargs, env=environment)
