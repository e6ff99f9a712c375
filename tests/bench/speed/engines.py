"""The engines, each behind one face: import it, load a model, run it. Used in processes of their own, one engine in each.

`CPU` is this project's device with its own choice of kernels, `CPU:NUMPY` and `CPU:JIT` the same with CPU_KERNELS set. `openvino` computes
in float32; `openvino:default` in what it prefers, bfloat16 on recent processors. `reference` is onnx's own evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

OURS = ("CPU", "CPU:NUMPY", "CPU:JIT")
FLOAT32_PEERS = ("onnxruntime", "openvino")
ENGINES = (*OURS, *FLOAT32_PEERS, "openvino:default", "reference")
KERNELS_KEY = "CPU_KERNELS"
READY_METRIC = "CPU_KERNELS_READY"
LONGEST_WAIT = 300.0
"""Seconds that kernels may take to be compiled."""

Inputs = Mapping[str, Any]


def _ask_nothing() -> None:
    return None


@dataclass(frozen=True)
class Session:
    """A loaded model. `run` returns the outputs by position, valid until its next call.

    `ask_ready` says whether what compiles in the background has ended, None where the engine does not tell. `export` writes a
    compiled blob; None where the engine has none. `facts` are what the engine says about itself.
    """

    run: Callable[[Inputs], list[Any]]
    ask_ready: Callable[[], bool | None] = _ask_nothing
    export: Callable[[Path], None] | None = None
    facts: Mapping[str, str] | None = None


class Device:
    """This project's CPU device."""

    def __init__(self, name: str, threads: int) -> None:
        from hetero_core import Core

        self._core = Core()
        self._config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if ":" in name:
            self._config[KERNELS_KEY] = name.partition(":")[2]
        # Imports the plugin; what only a load needs is part of the load.
        self._core.get_metric("CPU", "FULL_DEVICE_NAME")

    def load(self, path: Path) -> Session:
        return self._wrap(self._core.load_network(path, "CPU", self._config))

    def load_blob(self, path: Path) -> Session:
        return self._wrap(self._core.import_network(path, "CPU", self._config))

    def _wrap(self, executable: Any) -> Session:
        from hetero_core.errors import MetricNotFoundError

        request = executable.create_infer_request()

        def ask_ready() -> bool | None:
            try:
                return bool(executable.get_metric(READY_METRIC))
            except MetricNotFoundError:
                return None

        return Session(lambda inputs: list(request.infer(inputs).values()), ask_ready, executable.export_network)

    def find_reason(self, path: Path) -> str | None:
        """Returns why the kernels that were asked for cannot be had, None if they can."""
        from hetero_core.errors import HeteroError

        if KERNELS_KEY in self._config and KERNELS_KEY not in self._core.config_keys("CPU"):
            return f"CPU has no configuration key {KERNELS_KEY}"
        try:
            self.load(path)
        except HeteroError as error:
            return str(error)
        return None


class OnnxRuntime:
    """ONNX Runtime with all its optimizations, one model at a time."""

    def __init__(self, threads: int) -> None:
        import onnxruntime

        self._onnxruntime = onnxruntime
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads, self._options.inter_op_num_threads = threads, 1
        self._options.log_severity_level = 4

    def load(self, path: Path) -> Session:
        session = self._onnxruntime.InferenceSession(str(path), self._options, providers=["CPUExecutionProvider"])
        return Session(lambda inputs: list(session.run(None, inputs)), facts={"version": self._onnxruntime.__version__})


class OpenVino:
    """OpenVINO for latency; inputs and outputs are shared, not copied."""

    def __init__(self, precision: str | None, threads: int) -> None:
        import openvino  # not among the requirements of the tests

        self._core = openvino.Core()
        self._version = openvino.__version__
        self._config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        if precision is not None:
            self._config["INFERENCE_PRECISION_HINT"] = precision
        self._core.get_property("CPU", "FULL_DEVICE_NAME")

    def load(self, path: Path) -> Session:
        return self._wrap(self._core.compile_model(str(path), "CPU", self._config))

    def load_blob(self, path: Path) -> Session:
        return self._wrap(self._core.import_model(path.read_bytes(), "CPU", self._config))

    def _wrap(self, compiled: Any) -> Session:
        request, outputs = compiled.create_infer_request(), compiled.outputs

        def run(inputs: Inputs) -> list[Any]:
            results = request.infer(inputs, share_inputs=True, share_outputs=True)
            return [results[output] for output in outputs]

        def export(path: Path) -> None:
            path.write_bytes(compiled.export_model().getvalue())

        precision = str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
        return Session(run, export=export, facts={"version": self._version, "precision": precision})


class Reference:
    """onnx's own evaluator, which is written to be read."""

    def __init__(self) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator

    def load(self, path: Path) -> Session:
        evaluator = self._evaluator(str(path))
        return Session(lambda inputs: list(evaluator.run(None, inputs)))


def import_engine(name: str, threads: int) -> Any:
    """Returns an engine of `ENGINES`, imported; its `load` takes the path of a model, `load_blob`, where there is one, that of a blob."""
    if name in OURS:
        return Device(name, threads)
    if name == "onnxruntime":
        return OnnxRuntime(threads)
    if name == "reference":
        return Reference()
    return OpenVino("f32" if name == "openvino" else None, threads)


def find_reason(name: str, path: Path) -> str | None:
    """Returns why an engine cannot take part, None if it can; `path` is a small model that our own device loads to find out."""
    if name in OURS:
        return Device(name, 1).find_reason(path)
    package = name.partition(":")[0]
    return None if name == "reference" or find_spec(package) is not None else f"{package} is not installed"


def wait_until_ready(session: Session, inputs: Inputs, *, warm: float) -> float | None:
    """Returns the seconds until what compiles in the background had ended; None where the engine does not tell: it ran for `warm` seconds.

    Raises: TimeoutError after `LONGEST_WAIT`.
    """
    began = perf_counter()
    state = session.ask_ready()
    if state is None:
        while perf_counter() - began < warm:
            session.run(inputs)
        return None
    while not session.ask_ready():
        if perf_counter() - began > LONGEST_WAIT:
            raise TimeoutError(f"kernels were not ready after {LONGEST_WAIT:.0f} s")
        # A run now and then, for kernels that are compiled only for what is in use.
        session.run(inputs)
        sleep(0.02)
    return perf_counter() - began
