"""Build hook of hetero-cpu: a wheel brings the kernels of common layers along, compiled for processors with AVX2 and with AVX-512.

They lie in `hetero_cpu/kernels`, each in a file named by the digest of its text and its level, where machine/compiler.py looks for them.
`common_layers.py` says which they are. An editable install has none: it compiles in the background. So does a wheel that was built where
llvmlite or hetero_core is missing, on another processor than x86-64, or with HETERO_CPU_KERNELS=NO.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEVELS = ("x86-64-v3", "x86-64-v4")
SWITCH = "HETERO_CPU_KERNELS"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]  # of a configuration that is not used
    """Compiles the kernels into a folder of its own, and has it put into the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the kernels to the files of a wheel. Raises: CalledProcessError if they cannot be compiled."""
        if version == "editable":
            return
        # The Core beside this plugin in the repository, or an installed one.
        path = os.pathsep.join([self.root, str(Path(self.root).parents[1]), *sys.path])
        obstacle = _find_obstacle(path)
        if obstacle:
            self.app.display_warning(f"the wheel of hetero-cpu brings no kernels along: {obstacle}")
            return
        self.app.display_info(f"compiling the kernels of hetero-cpu, which takes minutes; {SWITCH}=NO builds without them")
        self._folder = tempfile.mkdtemp(prefix="hetero-cpu-kernels-")
        environment = {**os.environ, "PYTHONPATH": path}
        commands = [[sys.executable, str(Path(self.root, "common_layers.py")), level, self._folder] for level in LEVELS]
        # One process for each level, since it plans as a processor of the level does.
        processes = [subprocess.Popen(command, env=environment) for command in commands]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise RuntimeError(f"the kernels of hetero-cpu were not compiled: exit codes {codes}; {SWITCH}=NO builds without them")
        build_data["force_include"][self._folder] = "hetero_cpu/kernels"
        build_data["artifacts"].append("hetero_cpu/kernels/*")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the folder."""
        shutil.rmtree(getattr(self, "_folder", ""), ignore_errors=True)


def _find_obstacle(path: str) -> str:
    if os.environ.get(SWITCH, "").upper() == "NO":
        return f"{SWITCH} is NO"
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"this machine is {platform.machine()}, expected x86-64"
    sys.path[:] = path.split(os.pathsep)
    missing = [name for name in ("hetero_core", "llvmlite", "numpy", "onnx") if find_spec(name) is None]
    return f"{', '.join(missing)} cannot be imported here" if missing else ""
