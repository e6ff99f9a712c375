"""The installed engine: which distribution of ONNX Runtime it is, whether it works, and the execution providers that it really offers.

"Really" means that a session on the provider alone ran a node: the list of compiled providers tells nothing about drivers.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from hetero_core.engines.installation import find_version, import_engine, require_version
from hetero_core.errors import DeviceUnavailableError, enumerate_choices
from hetero_onnxruntime.libraries import find_devices, register_libraries

OLDEST = (1, 23)
"""The oldest version with weights by reference, devices as objects, and providers without a second try."""

DISTRIBUTIONS = (
    *("onnxruntime", "onnxruntime-directml", "onnxruntime-gpu", "onnxruntime-migraphx", "onnxruntime-openvino"),
    *("onnxruntime-qnn", "onnxruntime-training"),
)
"""Distributions that install the folder `onnxruntime`; two of them overwrite each other."""

CPU_PROVIDER = "CPUExecutionProvider"
WEBGPU_PROVIDER = "WebGpuExecutionProvider"
_WEBGPU_TURN = threading.RLock()
"""Sessions of the provider 0.4 share one context of the process: sessions that run at once fail, and now and then
the process ends if sessions are made, run or freed at the same time."""
_NO_TURN = nullcontext()
_OPTIONS = {WEBGPU_PROVIDER: {"preferredLayout": "NCHW"}}
"""Options of providers that come in libraries.

With channels last, its default, the provider 0.4 computes convolutions wrongly: of 33 channels into 32, of 24 into 136 in 4 groups. And it
fails to load a Conv before a Greater, since it does not transpose the result of Greater.
"""
_WRONG_REWRITES = ("DivMulFusion", "DoubleQDQPairsRemover", "WeightBiasQuantization")
"""Rewrites of ONNX Runtime 1.32 that change a result, or that fail.

The product of 1 / i and j becomes j / i, of integers too; behind an Identity, a Dropout or a Cast that was removed the load fails
(onnxruntime#26997, #32413, #32414, #32416). Two pairs of quantization with different scales become a single pair, which rounds once. Float
weights between a dequantization and a quantization are quantized to int8.
"""
_SUFFIX = "ExecutionProvider"
NO_DEVICES = frozenset({"AzureExecutionProvider"})
"""A cloud service, not a device: it runs nothing by itself."""


@dataclass(frozen=True, eq=False)
class OrtEngine:
    """ONNX Runtime, imported. `distributions` are the installed distributions that own its folder, with their versions."""

    module: ModuleType
    distributions: Mapping[str, str]

    @property
    def version(self) -> str:
        """The version of the imported engine."""
        return str(self.module.__version__)

    @property
    def provider_of_id(self) -> Mapping[str, str]:
        """Device id -> execution provider, for each that ran the probe: "CPU" first, then by name."""
        faults = self._fault_of_provider
        working = sorted(name for name, fault in faults.items() if fault is None)
        return {make_id(name): name for name in (CPU_PROVIDER, *working)}

    @property
    def fault_of_id(self) -> Mapping[str, str]:
        """Device id -> why its execution provider cannot be used, for each that is compiled in or came in a library."""
        return {make_id(name): fault for name, fault in sorted(self._fault_of_provider.items()) if fault is not None}

    @cached_property
    def _fault_of_provider(self) -> Mapping[str, str | None]:
        faults = register_libraries(self.module)
        offered = [name for name in self.module.get_available_providers() if name not in NO_DEVICES]
        # Providers of libraries that were registered with the engine may be known as devices only.
        registered = [device.ep_name for device in self.module.get_ep_devices() if device.ep_name not in NO_DEVICES]
        untried = sorted({*offered, *registered} - {CPU_PROVIDER, *faults})
        return {**faults, **{name: find_fault(self.module, name) for name in untried}}

    @cache  # noqa: B019  # one engine per provider and Core
    def find_fault_of_halves(self, provider: str) -> str | None:
        """Returns why a provider that came in a library fails to run float16; None if the provider runs it or was compiled in."""
        return find_fault(self.module, provider, "float16") if find_devices(self.module, provider) else None

    @cache  # noqa: B019  # one engine per Core, and a few domains
    def newest_opset(self, domain: str) -> int:
        """The newest opset of a domain that the engine accepts; newer ones are under development. 0 if onnx lacks the domain."""
        import onnx  # heavy, and loaded already with the network

        newest = max((schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == domain), default=0)
        highest = onnx.defs.onnx_opset_version() if domain == "" else newest
        return next((opset for opset in range(highest, 0, -1) if _accepts(self.module, {"": 13, domain: opset}, 8)), highest)

    @cached_property
    def newest_ir_version(self) -> int:
        """The newest version of the file format that the engine accepts."""
        import onnx  # heavy, and loaded already with the network

        newest = int(onnx.IR_VERSION)
        return next((version for version in range(newest, 0, -1) if _accepts(self.module, {"": 13}, version)), 1)


def find_turn(provider: str) -> AbstractContextManager[Any]:
    """Returns the lock of a provider if its sessions must take turns; a null context for any other provider."""
    return _WEBGPU_TURN if provider == WEBGPU_PROVIDER else _NO_TURN


def make_id(provider: str) -> str:
    """Returns the id of the device that is an execution provider: "CPU" of "CPUExecutionProvider"."""
    return provider.removesuffix(_SUFFIX).upper()


def open_engine() -> OrtEngine:
    """Returns the engine after it ran one node.

    Raises: DeviceUnavailableError, with the cure, if the engine is missing, broken or too old.
    """
    distributions = find_distributions()
    if not distributions:
        raise DeviceUnavailableError(
            "ONNX Runtime is not installed; pip install 'hetero-onnxruntime[cpu]', or one of the extras directml, gpu, openvino"
        )
    installed = enumerate_choices(f"{name} {version}" for name, version in distributions.items())
    cure = f"reinstall {' and '.join(distributions)}{describe_rivalry(distributions)}"
    module = import_engine("onnxruntime", "InferenceSession", f"ONNX Runtime ({installed})", cure=cure)
    require_version("ONNX Runtime", module.__version__, OLDEST, distribution=next(iter(distributions)))
    module = import_own_names()
    fault = find_fault(module, CPU_PROVIDER)
    if fault is not None:
        raise DeviceUnavailableError(f"ONNX Runtime {module.__version__} cannot run one node: {fault}; {cure}")
    return OrtEngine(module, distributions)


@cache
def import_own_names() -> ModuleType:
    """Returns a module with ONNX Runtime's names from where it defines them: a program may have replaced those of `onnxruntime`."""
    own = ModuleType("onnxruntime")
    for home in ("onnxruntime", "onnxruntime.capi._pybind_state", "onnxruntime.capi.onnxruntime_inference_collection"):
        vars(own).update(vars(import_module(home)))
    return own


def find_distributions() -> Mapping[str, str]:
    """Returns the version of each installed distribution of ONNX Runtime, by name; reads no engine."""
    return {name: version for name in DISTRIBUTIONS if (version := find_version(name)) is not None}


def describe_rivalry(distributions: Mapping[str, str]) -> str:
    """Returns a sentence that names distributions which fight for one folder; an empty text if there is only one."""
    if len(distributions) < 2:
        return ""
    listed = enumerate_choices(f"{name} {version}" for name, version in distributions.items())
    return f". Several distributions install the folder onnxruntime and overwrite each other: {listed}; uninstall all, then install one"


def find_fault(module: Any, provider: str, dtype: str = "float32") -> str | None:
    """Returns why a session on this provider alone cannot add two numbers; None when it can."""
    try:
        with find_turn(provider):
            session = module.InferenceSession(
                _probe_model({"": 13}, 8, dtype), make_options(module, provider), providers=_providers(provider), enable_fallback=0
            )
            (result,) = session.run(None, {"x": np.ones(2, dtype)})
            del session
    except Exception as error:  # noqa: BLE001  # engine and drivers may raise anything; the text is the answer
        return f"{type(error).__name__}: {error}"
    return None if result.tolist() == [2.0, 2.0] else f"it computes 1 + 1 = {result.tolist()}"


@cache
def saturates_products() -> bool:
    """Says whether the engine's products of uint8 and int8 saturate on this processor: without VNNI it adds pairs of them in 16 bits.

    A product in the engine is compared with the exact integer, once in a process (onnxruntime#6004).
    """
    import onnx.parser  # heavy, and loaded already if there is a network

    module = import_own_names()
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> probe (uint8[2,64] a, int8[64,2] b) => (int32[2,2] y) { y = MatMulInteger (a, b) }'
    )
    session = open_session(module, model.SerializeToString(), make_options(module, CPU_PROVIDER), CPU_PROVIDER)
    (result,) = session.run(None, {"a": np.full((2, 64), 255, np.uint8), "b": np.full((64, 2), 127, np.int8)})
    return bool((result != 64 * 255 * 127).any())


def make_options(module: Any, provider: str, *, spins: bool = False, libraries: Sequence[str] = ()) -> Any:
    """Returns quiet session options for a provider without a fallback; `spins` lets threads wait busily inside an operator.

    `libraries` are paths of libraries of custom operators.
    """
    options = module.SessionOptions()
    for path in libraries:
        options.register_custom_ops_library(path)
    options.log_severity_level = 4
    # Spinning threads take the processor away from all engines of the process. An entry that is set twice prints a warning.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins else "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # A MatMul of dequantized weights becomes a MatMulNBits, which rounds the first operand to int8 unless told to compute in float32:
    # an error of 1 % of the result (ONNX Runtime 1.32).
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if provider != CPU_PROVIDER:
        # Without these two options the engine silently runs the nodes that a provider refuses on its CPU provider.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        devices = find_devices(module, provider)
        if devices:
            options.add_provider_for_devices(devices[:1], _OPTIONS.get(provider, {}))
        else:
            options.add_provider(provider, {})
    return options


def _providers(provider: str) -> list[str] | None:
    """The providers beside the options: the engine only warns of an unknown name in this list, and fails at it in the options."""
    return [CPU_PROVIDER] if provider == CPU_PROVIDER else None


def open_session(module: Any, model: bytes, options: Any, provider: str, *, disabled: Sequence[str] = ()) -> Any:
    """Returns a session without the wrong rewrites and those in `disabled`. Raises: any error of the engine."""
    with find_turn(provider), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module.InferenceSession(
            model, options, providers=_providers(provider), disabled_optimizers=[*_WRONG_REWRITES, *disabled], enable_fallback=0
        )


def _accepts(module: Any, opsets: Mapping[str, int], ir_version: int) -> bool:
    try:
        open_session(module, _probe_model(opsets, ir_version), make_options(module, CPU_PROVIDER), CPU_PROVIDER)
    except Exception:  # noqa: BLE001  # any refusal is the answer
        return False
    return True


def _probe_model(opsets: Mapping[str, int], ir_version: int, dtype: str = "float32") -> bytes:
    import onnx.parser  # heavy, and loaded already with the network

    imported = ", ".join(f'"{domain}": {opset}' for domain, opset in opsets.items())
    kind = dtype.removesuffix("32")
    content: bytes = onnx.parser.parse_model(
        f"<ir_version: {ir_version}, opset_import: [{imported}]> probe ({kind}[2] x) => ({kind}[2] y) {{ y = Add (x, x) }}"
    ).SerializeToString()
    return content
