"""The installed engine: whether it works, and the listed devices that have run a probe node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from hetero_core.engines.installation import find_version, import_engine, require_version
from hetero_core.errors import DeviceUnavailableError

OLDEST = (2025, 0)
EXACT_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}
"""The setting that keeps float32 as it is: by default recent processors compute it in bfloat16."""


@dataclass(frozen=True, eq=False)
class OpenvinoEngine:
    """OpenVINO, imported, with a core of its own."""

    module: ModuleType
    core: Any
    version: str

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The engine's devices that ran the probe: "CPU" first, then by name."""
        devices = sorted(set(self.core.available_devices) - {"CPU"})
        return ("CPU", *(name for name in devices if find_fault(self.module, self.core, name) is None))


def open_engine() -> OpenvinoEngine:
    """Returns the engine after it ran a probe node on the processor.

    Raises: DeviceUnavailableError, with the cure, if the engine is missing, broken or too old.
    """
    version = find_version("openvino")
    if version is None:
        raise DeviceUnavailableError("OpenVINO is not installed; pip install 'hetero-openvino[engine]'")
    require_version("OpenVINO", version, OLDEST, distribution="openvino")
    import_engine("openvino", "Core", f"OpenVINO {version}", cure="reinstall openvino")
    openvino = import_own_names()
    core = openvino.Core()
    fault = find_fault(openvino, core, "CPU")
    if fault is not None:
        raise DeviceUnavailableError(f"OpenVINO {version} cannot run one node: {fault}; reinstall openvino")
    return OpenvinoEngine(openvino, core, version)


def import_own_names() -> ModuleType:
    """Returns a module with OpenVINO's own names: those of its inner modules if a front end has replaced the names of `openvino`."""
    own, homes = ModuleType("openvino"), [import_module("openvino")]
    if homes[0].Core.__module__.startswith("hetero_core."):
        homes += [import_module("openvino._pyopenvino"), import_module("openvino._ov_api")]
    for home in homes:
        vars(own).update(vars(home))
    return own


def find_fault(module: Any, core: Any, device: str) -> str | None:
    """Returns why a device of the engine cannot add two numbers; None when it can."""
    try:
        x = module.opset13.parameter([2], np.float32)
        compiled = core.compile_model(module.Model([module.opset13.add(x, x)], [x], "probe"), device, EXACT_PRECISION)
        result = compiled([np.ones(2, np.float32)])[0]
    except Exception as error:  # noqa: BLE001  # engine and drivers may raise anything; the text is the answer
        return f"{type(error).__name__}: {error}"
    return None if result.tolist() == [2.0, 2.0] else f"it computes 1 + 1 = {result.tolist()}"
