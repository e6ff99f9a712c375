"""Heavy modules are imported only when used: each test lists the loaded modules of a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = {path.parent.name: path.parent.parent for path in sorted(ROOT.glob("plugins/*/hetero_*/__init__.py"))}
HEAVY = ("onnx", "onnxruntime", "openvino", "cupy", "torch", "google.protobuf", "ml_dtypes", "scipy", "PIL")


def list_loaded(code: str, *, paths: Iterable[Path] = ()) -> set[str]:
    """Runs code in a fresh interpreter and returns the loaded modules; `paths` precede the installed packages."""
    report = "import json, sys; sys.stderr.write('LOADED' + json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=False, env=environment, timeout=900
    )
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stderr.rpartition("LOADED")[2]))


def find_heavy(loaded: set[str]) -> list[str]:
    return sorted(name for name in loaded if any(name == heavy or name.startswith(heavy + ".") for heavy in HEAVY))


def find_plugins(loaded: set[str]) -> list[str]:
    return sorted(name for name in loaded if name.startswith("hetero_") and name.partition(".")[0] != "hetero_core")


def test_naming_devices_loads_no_plugin_or_heavy_module() -> None:
    loaded = list_loaded("from hetero_core import Core\nwith Core() as core:\n    assert 'CPU' in core.device_names")
    assert find_plugins(loaded) == []
    assert find_heavy(loaded) == []


def test_hetero_devices_names_loads_no_plugin_or_heavy_module() -> None:
    loaded = list_loaded("import sys\nfrom hetero_core.cli.main import main\nassert not main(['devices', '--names'])")
    assert find_plugins(loaded) == []
    assert find_heavy(loaded) == []


def test_help_loads_no_numpy() -> None:
    loaded = list_loaded("from hetero_core.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass")
    assert "hetero_core.cli.main" in loaded
    assert "numpy" not in loaded
    assert find_heavy(loaded) == []


def test_first_query_of_a_device_loads_only_its_plugin() -> None:
    loaded = list_loaded("from hetero_core import Core\nwith Core() as core:\n    core.get_metric('HETERO', 'FULL_DEVICE_NAME')")
    assert {name.partition(".")[0] for name in find_plugins(loaded)} == {"hetero_hetero"}
    assert find_heavy(loaded) == []


def test_importing_a_plugin_loads_only_its_first_file() -> None:
    loaded = list_loaded(f"import {', '.join(PLUGINS)}", paths=PLUGINS.values())
    assert find_plugins(loaded) == sorted(PLUGINS)
    assert find_heavy(loaded) == []
    assert sorted(module for module in loaded if module.startswith("hetero_core.kernels")) == []


def test_first_run_on_cpu_loads_no_plan_and_few_operators() -> None:
    code = """
import numpy, onnx.parser
from hetero_core import Core
from hetero_cpu.machine import background
background.LONGEST_GAP = background.LONGEST_DELAY = 60.0
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 14]> g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }')
with Core() as core:
    core.load_network(model, 'CPU').infer([numpy.ones((2, 3), 'float32')])"""
    loaded = list_loaded(code)
    assert not {"hetero_cpu.plan.plan", "hetero_cpu.run.instance"} & loaded
    assert [module for module in loaded if module.startswith("hetero_core.kernels.operators.")] == [
        "hetero_core.kernels.operators.elementwise"
    ]
