"""Sessions: `nox` runs the default ones. A plugin's session is found by its folder; a new folder needs no edit here.

nox -s core                 the core's own tests
nox -s "plugin(cpu)"        the tests of one plugin, with TEMPLATE and HETERO beside it
nox -s "plugin(ray)"        RAY on a cluster of three nodes on this machine; downloads Ray, takes minutes, and is not a default session
nox -s process              PROCESS:CPU against the whole conformance kit; minutes
nox -s kit                  CPU, TEMPLATE, a split and a GPU of make-believe against the whole conformance kit, of which `flow` and
                            `plugin(cupy)` take a sample of onnx's cases; the known networks in more splits; 200 tokens of a decoder
                            on ten splits, of which `core` takes 60 on three; onnx's whole models on the kernels, of which `core`
                            takes two; many minutes
nox -s flow                 everything together: models, splits, command line, packaging
nox -s browser              the page of a plan in Chromium; skipped where chromium and chromedriver are not installed
nox -s engines              one network over OpenVINO, ONNX Runtime and CPU, with all of ONNX's cases; the steps in front of a network
                            beside theirs, tensors of torch; takes minutes
nox -s models               pipelines of scikit-learn, trees of lightgbm and xgboost, exports of torch, language models of the builder
                            of onnxruntime-genai, all with random weights; downloads them
nox -s real                 trained models of rapidocr-onnxruntime, silero-vad and magika beside ONNX Runtime, run by run; downloads them
nox -s bench                engines in alternating processes, an hour or two; -- --cold resnet50 --engines CPU openvino for some of it
nox -s busy                 the slowest run of three processes that run AUTO at the same time; minutes
nox -s fuzz                 20,000 mutated models, blobs and cache entries each; -- --seed 7 --cases 100000 --seconds 7200 for more
nox -s hostile              models of at most 1 MB that ask for all memory or time, read and loaded; minutes
nox -s graphs               20,000 drawn graphs on CPU, 5,000 on each other device; hours; -- CPU -c CPU_KERNELS=JIT --cases 500 for one
nox -s processors           tests of core, CPU, ORT, OPENVINO and flow as an Intel Haswell (AVX2, no AVX-512, no VNNI) and as a Nehalem (no
                            AVX2: NumPy alone), both emulated by qemu-x86_64
nox -s endurance            twelve minutes of processes that are killed and devices that fail; -- --minutes 60 --seed 7 for more
nox -s authors              new plugins of each kind and the pages for authors, in clean environments from built wheels; minutes
nox -s environments         two distributions of ONNX Runtime in one network, each in an environment of its own; downloads both
nox -s rounds               100 rounds of devices that abort, exit, hang and eat memory in a process of their own; minutes
nox -s lint types docs      style, types, and every code block of the docs
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
sys.path.append(str(ROOT / "tests" / "shared"))

from hetero_tests.processor import describe_processor  # noqa: E402  # found by the line above

# The first line of every run.
sys.stderr.write(f"{describe_processor()}\n")

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
# What a plugin is tested beside: the reference device, and the one that composes.
COMPANIONS = ("template", "cpu", "hetero")
# The build backend of every package here, and what it needs for an editable one.
BACKEND = ("hatchling>=1.27", "editables")


def read_project(name: str) -> dict[str, Any]:
    """Returns the pyproject.toml of a plugin."""
    return tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))


def find_heavy_extra(name: str) -> str | None:
    """Returns the extra without which a plugin cannot be tested, where its pyproject.toml says that the default sessions do without."""
    extra: str | None = read_project(name).get("tool", {}).get("hetero", {}).get("heavy_extra")
    return extra


LIGHT = [f"plugin({name})" for name in PLUGINS if find_heavy_extra(name) is None]
nox.options.sessions = ["lint", "types", "core", *LIGHT, "flow", "browser", "docs"]


def install_workspace(session: nox.Session, plugins: list[str], *more: str) -> None:
    """Installs the core with its test extra and these plugins, editable, in one pip command so that they find one another.

    The backend is installed once in place of once for each package, and Python compiles what it imports and no more: a third of the
    time. The session `flow` installs as a user does.
    """
    session.install("--no-compile", *BACKEND, silent=True)
    session.install("--no-compile", "--no-build-isolation", *name_workspace(plugins), *more, silent=True)


def name_workspace(plugins: list[str]) -> list[str]:
    """Returns the arguments for pip that name the core with its test extra and these plugins."""
    return ["-e", ".[test]", *(argument for name in plugins for argument in ("-e", f"plugins/{name}"))]


def with_extras(name: str, *wanted: str) -> str:
    """Returns a plugin with those of these extras that it declares; `test` is what its own tests need: an engine, mostly."""
    extras = ",".join(extra for extra in wanted if extra in read_project(name)["project"].get("optional-dependencies", {}))
    return f"{name}[{extras}]" if extras else name


def isolate(session: nox.Session) -> dict[str, str | None]:
    """Returns the environment of a test run: where the onnx package writes its light models and the tests keep its node cases.

    Hundreds of tests start an interpreter; each would compile all that it imports where the caller forbids that it is kept.
    """
    return {
        "ONNX_HOME": str(Path(session.create_tmp()) / "onnx"),
        "NODE_CASES": str(session.cache_dir),
        "PYTHONDONTWRITEBYTECODE": None,
    }


def run_tests(session: nox.Session, *folders: str) -> None:
    """Runs pytest in two processes, of which one that has ended its half takes tests from the other; `-- -n 0` for one process."""
    session.run("pytest", "-n", "2", "--dist", "worksteal", *folders, *session.posargs, env=isolate(session))


@nox.session
def core(session: nox.Session) -> None:
    install_workspace(session, PLUGINS)
    run_tests(session, "tests/core")


@nox.session
@nox.parametrize("name", PLUGINS, ids=PLUGINS)
def plugin(session: nox.Session, name: str) -> None:
    heavy = find_heavy_extra(name)
    if heavy is None:
        install_workspace(session, [with_extras(name, "test"), *(other for other in COMPANIONS if other != name)])
        run_tests(session, f"plugins/{name}/tests")
        return
    # What is heavy comes with the devices that are made of devices, and is there once: in one process.
    install_workspace(session, [with_extras(name, "test", heavy), *COMPANIONS, "auto"])
    session.run("pytest", f"plugins/{name}/tests", *session.posargs, env=isolate(session))


@nox.session
def flow(session: nox.Session) -> None:
    # As a user does, each package built alone with what it says that it needs.
    session.install(*name_workspace(PLUGINS), "hatchling>=1.27", silent=True)
    run_tests(session, "tests/flow", "tests/rules")


@nox.session(venv_backend="virtualenv")  # torch's CPU build is found by pip alone
def engines(session: nox.Session) -> None:
    """Runs everything that other engines are needed for: as devices in one network, and beside our own steps; some 1.5 GB of packages."""
    install_workspace(session, [with_extras(name, "test") for name in PLUGINS], "scikit-learn>=1.9,<2", "torch==2.13.0")
    session.run("pytest", "tests/engines", *session.posargs, env=isolate(session))


@nox.session
def browser(session: nox.Session) -> None:
    """Runs the page of a plan in a real browser; Debian has it as chromium and chromium-driver."""
    install_workspace(session, list(COMPANIONS), "selenium>=4.30,<5")
    session.run("pytest", "tests/browser", *session.posargs, env=isolate(session))


@nox.session
def webgpu(session: nox.Session) -> None:
    """Runs ONNX Runtime's provider of WebGPU on the software Vulkan that comes with Debian's chromium."""
    install_workspace(session, [with_extras("onnxruntime", "cpu"), *COMPANIONS], "onnxruntime-ep-webgpu>=0.4,<0.5")
    chromium = Path("/usr/lib/chromium")
    if not (chromium / "vk_swiftshader_icd.json").exists():
        session.skip("there is no software Vulkan here; apt-get install chromium")
    loader = Path(session.create_tmp()) / "libvulkan.so.1"
    loader.unlink(missing_ok=True)
    loader.symlink_to(chromium / loader.name)
    run = {
        **isolate(session),
        # The folder of chromium itself has libraries that others would take for the system's.
        "LD_LIBRARY_PATH": str(loader.parent),
        "VK_ICD_FILENAMES": str(chromium / "vk_swiftshader_icd.json"),
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    }
    session.run("pytest", "tests/webgpu", *session.posargs, env=run)


@nox.session(venv_backend="virtualenv")  # see engines
def models(session: nox.Session) -> None:
    """Runs what other tools export; in the other sessions these tests skip."""
    trees = ("onnxmltools>=1.16,<2", "lightgbm>=4.7,<5", "pandas")
    tools = (
        "skl2onnx>=1.20,<2",
        "scikit-learn>=1.9,<1.10",
        "torch==2.13.0",
        "onnxscript>=0.7,<0.8",
        "transformers>=5.23,<6",
        "onnxruntime-genai>=0.18,<0.19",
        *trees,
    )
    install_workspace(session, [*(with_extras(name, "jit") for name in COMPANIONS), with_extras("onnxruntime", "cpu")], *tools)
    # Of what it needs, only a library for several GPUs is not there yet.
    session.install("--no-deps", "xgboost>=3.2,<4")
    session.run("pytest", "tests/models", *session.posargs, env=isolate(session))


@nox.session(venv_backend="virtualenv")  # see engines
def real(session: nox.Session) -> None:
    """Runs trained models by the pipelines of the packages that ship them; prints how many models, packages and comparisons."""
    plugins = ["cpu", "hetero", with_extras("onnxruntime", "cpu"), with_extras("openvino", "test"), "template"]
    # What the packages need, less what brings a second ONNX Runtime or another torch.
    needed = (
        "opencv-python-headless",
        "pillow",
        "pyclipper",
        "shapely",
        "six",
        "pyyaml",
        "tqdm",
        "python-dotenv",
        "click",
        "torch==2.13.0",
    )
    install_workspace(session, plugins, *needed)
    session.install("--no-deps", "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "magika==1.0.3")
    session.run("pytest", "tests/real", *session.posargs, env=isolate(session))


@nox.session
def lint(session: nox.Session) -> None:
    session.install("ruff>=0.17,<0.18", silent=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    install_workspace(session, PLUGINS, "mypy>=2.4,<2.5")
    roots = ":".join([".", "tests/shared", *(f"plugins/{name}" for name in PLUGINS)])
    packages = ["hetero_core", *(f"plugins/{name}/hetero_{name}" for name in PLUGINS), "tests/shared/hetero_tests"]
    session.run("mypy", *packages, env={"MYPYPATH": roots})
    for kind in ("kernels", "asynchronous", "engine"):
        folder = Path(session.create_tmp()) / kind
        shutil.rmtree(folder, ignore_errors=True)
        session.run("hetero", "new-plugin", f"new_{kind}", "--kind", kind, "--folder", str(folder), silent=True)
        session.run("mypy", "--strict", str(folder / f"hetero_new_{kind}"), env={"MYPYPATH": roots})


@nox.session
def docs(session: nox.Session) -> None:
    """Runs every Python block of the docs and README, and checks their links."""
    install_workspace(session, PLUGINS)
    run_tests(session, "tests/docs")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Looks for inputs that are neither refused nor answered; not among the default sessions."""
    install_workspace(session, PLUGINS)
    session.run(
        "python", "tests/fuzz/run.py", *(session.posargs or ("--cases", "20000", "--seconds", "7200")), env=isolate(session)
    )


GRAPHS = (
    ("CPU", "-c", "CPU_KERNELS=JIT", "--cases", "20000"),
    ("CPU", "-c", "CPU_KERNELS=NUMPY", "--cases", "5000"),
    ("ORT", "--cases", "5000"),
    ("OPENVINO", "--cases", "5000"),
    ("HETERO:ORT,CPU", "--cases", "5000"),
    ("HETERO:TEMPLATE,CPU", "--cases", "5000"),
)


@nox.session
def graphs(session: nox.Session) -> None:
    """Tries drawn graphs on every device, for hours."""
    install_workspace(session, [with_extras(name, "test") for name in PLUGINS])
    for subject in [session.posargs] if session.posargs else GRAPHS:
        session.run("hetero", "conformance", *subject, "--level", "graphs", env=isolate(session), success_codes=[0, 1])


@nox.session
def kernels(session: nox.Session) -> None:
    """Compiles the kernels that CPU ships; with --check compares instead; not among the default sessions."""
    install_workspace(session, [with_extras("cpu", "test"), "template"])
    session.run("python", "plugins/cpu/shipping/ship.py", *session.posargs, env=isolate(session))


# What `processors` runs as each processor. Features that qemu does not emulate are taken away, as it warns of each on stderr.
EMULATED = {
    "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-rtm,-invpcid": (
        "tests/core/test_reference_session.py",
        "tests/core/test_contrib_operators.py",
        "tests/core/test_graphs.py",
        "tests/core/test_kernels_formulas.py",
        "plugins/cpu/tests/test_open_exports.py -k quantized",
        "plugins/cpu/tests/test_graphs.py",
        "plugins/onnxruntime/tests/test_ort.py",
        "plugins/openvino/tests/test_quantized.py",
        "tests/flow/test_conformance.py -k contrib",
    ),
    "Nehalem": (
        "tests/core/test_reference_session.py",
        "tests/core/test_kernels_formulas.py",
        "plugins/cpu/tests/test_cpu.py",
        "plugins/cpu/tests/test_kernel_set.py",
        "plugins/cpu/tests/test_graphs.py -k NUMPY",
        "plugins/onnxruntime/tests/test_ort.py",
        "plugins/openvino/tests/test_quantized.py",
        "tests/flow/test_conformance.py -k contrib",
    ),
}


@nox.session
def processors(session: nox.Session) -> None:
    """Runs tests as other processors; qemu-x86_64 emulates Python and every child that is started by sys.executable.

    Console scripts are not emulated. AVX-512 is not either: that needs a processor that has it.
    """
    if shutil.which("qemu-x86_64") is None:
        session.skip("there is no qemu-x86_64 here; apt-get install qemu-user")
    install_workspace(session, [with_extras(name, "test") for name in PLUGINS if find_heavy_extra(name) is None])
    environment = Path(session.virtualenv.location)
    python = (environment / "bin" / "python").resolve()
    for processor, tests in EMULATED.items():
        name = processor.partition(",")[0]
        # A second environment over the same packages, whose Python is a script.
        folder = Path(session.create_tmp()) / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        (folder / "lib").symlink_to(environment / "lib")
        shutil.copy(environment / "pyvenv.cfg", folder)
        script = folder / "bin" / "python"
        script.write_text(f'#!/bin/sh\nexec qemu-x86_64 -cpu {processor} -0 "$0" {python} "$@"\n')
        script.chmod(0o755)
        run = {**isolate(session), "EMULATED_PROCESSOR": f"{name} (emulated)", "XDG_CACHE_HOME": str(folder / "cache")}
        for each in tests:
            session.run(
                str(script), "-m", "pytest", "-p", "no:cacheprovider", *each.split(), *session.posargs, env=run, external=True
            )


@nox.session
def hostile(session: nox.Session) -> None:
    """Reads models that ask for all memory or time, and loads them on four devices; not among the default sessions."""
    install_workspace(session, [with_extras(name, "test") for name in PLUGINS])
    devices = ("CPU", "TEMPLATE", "ORT", "OPENVINO")
    limits = ("--kinds", "hostile", "--devices", *devices, "--memory", "16", "--busy", "60", "--seconds", "7200")
    session.run("python", "tests/fuzz/run.py", *limits, *session.posargs, env=isolate(session))


@nox.session
def endurance(session: nox.Session) -> None:
    """Kills 500 compilations, then lets four devices fail for ten minutes; not among the default sessions."""
    install_workspace(session, PLUGINS)
    session.run("python", "tests/endurance/kill.py", "--seed", "1", env=isolate(session))
    # One arena for all threads, so that memory that grows is memory that is held.
    environment = {**isolate(session), "MALLOC_ARENA_MAX": "1"}
    session.run("python", "tests/endurance/soak.py", *(session.posargs or ("--minutes", "10")), env=environment)


@nox.session
def environments(session: nox.Session) -> None:
    """Runs one network over devices of two further environments, which the test makes; not among the default sessions."""
    install_workspace(session, [*COMPANIONS, "process", "onnxruntime"])
    session.run("pytest", "tests/environments", *session.posargs, env=isolate(session))


@nox.session
def authors(session: nox.Session) -> None:
    """Does what an author does, in clean environments from built wheels; not among the default sessions. Needs uv."""
    session.install("pytest>=9", "hypothesis", "uv>=0.9")
    session.run("pytest", "-s", "--noconftest", "-p", "no:cacheprovider", "tests/authors", *session.posargs, env=isolate(session))


@nox.session
def process(session: nox.Session) -> None:
    """Runs all operators and graphs of the kit in a child process; the default session samples them."""
    install_workspace(session, [*COMPANIONS, "process"])
    run_tests(session, "plugins/process/tests/whole_kit.py")


@nox.session
def kit(session: nox.Session) -> None:
    """Runs the whole kit on CPU, TEMPLATE, a split and the GPU of make-believe, long generations, whole models and more splits of them.

    The default sessions sample them.
    """
    install_workspace(session, [*COMPANIONS, with_extras("cupy", "test")])
    run = {**isolate(session), "WHOLE_KIT": "1"}
    flow = ("tests/flow/test_conformance.py", "tests/flow/test_models.py", "tests/flow/test_halves.py")
    core = ("tests/core/test_generation.py", "tests/core/test_kernels_cases.py", "tests/core/test_writer.py")
    tests = (*flow, *core, "plugins/cupy/tests")
    session.run("pytest", "-n", "2", *tests, *session.posargs, env=run)


@nox.session
def rounds(session: nox.Session) -> None:
    """Counts what devices that break in a process of their own leave behind; not among the default sessions."""
    install_workspace(session, [*COMPANIONS, "process"])
    session.run("python", "plugins/process/tests/rounds.py", *session.posargs, env=isolate(session))


@nox.session
def bench(session: nox.Session) -> None:
    """Compares engines in alternating processes and prints figures; asserts nothing."""
    install_workspace(session, [with_extras(name, "test") for name in PLUGINS if find_heavy_extra(name) is None])
    session.run("python", "tests/bench/compare.py", *session.posargs)


@nox.session
def busy(session: nox.Session) -> None:
    """Runs one network in several processes at once and prints figures; asserts nothing."""
    install_workspace(session, [with_extras(name, "test") for name in PLUGINS if find_heavy_extra(name) is None])
    session.run("python", "tests/bench/busy.py", *session.posargs)
