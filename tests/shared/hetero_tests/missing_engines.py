"""An engine that is absent or broken: a process without it, and a folder of Python code in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_LIST = """
import site, sys
sys.path.insert(0, sys.argv[1])
site.addsitedir(sys.argv[1])
from hetero_core import Core
core = Core()
for status in core.list_devices(): print(status.name, '|', status.reason)
import numpy, onnx.parser
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Neg(x) }')
from hetero_core.cli.main import main
print('exit status', main(['devices']))
print(core.load_network(model, 'CPU').infer({'x': numpy.ones(1, numpy.float32)})['y'])
"""


def require_named_fault(engine: str, folder: Path, *, device: str, fault: str) -> None:
    """Lists the devices in a process without an engine. Its device must name the fault, and CPU must work.

    `folder` becomes a folder of links to all installed packages except those with names that start with `engine`.
    """
    for site in [Path(entry) for entry in sys.path if entry.endswith("site-packages")]:
        for package in site.iterdir():
            if not package.name.lower().startswith(engine) and not (folder / package.name).exists():
                (folder / package.name).symlink_to(package)
    command = [sys.executable, "-S", "-c", _LIST, str(folder)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout.splitlines()
    (listed,) = [line for line in lines if line.startswith(f"{device} | ")]
    assert fault in listed
    (row,) = [line for line in lines if line.startswith(f"{device} ") and " | " not in line]
    assert f"CANNOT BE USED: {fault.partition(';')[0]}" in row
    assert "CPU | " in lines
    assert "exit status 0" in lines
    assert lines[-1] == "[-1.]"


def replace_engine(monkeypatch: pytest.MonkeyPatch, engine: str, folder: Path, source: str) -> None:
    """Makes `import engine` find a package with this source, which is written into a folder, until the test ends."""
    (folder / engine).mkdir()
    (folder / engine / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    # The entry is set once, so that it is as before when the test ends.
    monkeypatch.setitem(sys.modules, engine, None)
    del sys.modules[engine]


def install_metadata(folder: Path, distribution: str, version: str) -> None:
    """Writes the metadata of an installed distribution into a folder."""
    described = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
