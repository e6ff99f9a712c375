"""Options of sessions and runs, and the enumerations in them.

Options that only tune ONNX Runtime are accepted and have no effect. An option that would change answers, or that asks for a service which
is missing here, is logged once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from hetero_core.frontends.onnxruntime.errors import make_error

if TYPE_CHECKING:
    from hetero_core.runtime.request import InferRequest

logger = logging.getLogger(__name__)

FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
"""The entry that names the folder of external weights, for models given as bytes."""
_LIBRARY_VARIABLE = "ORT_CUSTOM_OPS_LIBRARY"
_reported: set[str] = set()

# Entries of a session that would change answers, with the values that do.
_UNUSED_ENTRIES = {
    "session.set_denormal_as_zero": "denormal numbers are kept",
    "session.load_model_format": "the model must be in ONNX format",
    "ep.context_enable": "no context model is written; use network.export_network",
    "session.record_ep_graph_assignment_info": "use session.network.get_metric('HETERO_SUBGRAPHS')",
}


def report_once(text: str) -> None:
    """Logs a warning, once in a process."""
    if text not in _reported:
        _reported.add(text)
        logger.warning("hetero's onnxruntime: %s", text)


class GraphOptimizationLevel(IntEnum):
    """How far ONNX Runtime rewrites a graph; devices decide this here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs independent nodes at the same time; devices decide this here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order in which ONNX Runtime runs nodes; devices decide this here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """The options of a session. Threads, profiling, sizes, weights, custom operators and providers have an effect."""

    __slots__ = (
        "_entries",
        "_free_sizes",
        "_providers",
        "_weights",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self) -> None:
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = self.intra_op_num_threads = 0
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute, self.use_per_session_threads = False, True
        self._entries: dict[str, str] = {}
        self._free_sizes: dict[str, int] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []
        self._weights: dict[str, Any] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Stores an entry; `FOLDER_ENTRY` is the only entry that has an effect."""
        if key in _UNUSED_ENTRIES and value not in ("0", "ONNX"):
            report_once(f"the session entry {key}={value} has no effect: {_UNUSED_ENTRIES[key]}")
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Returns the value of an entry. Raises: RuntimeError for an entry that was not added."""
        return _get_entry(self._entries, key, "session")

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Sets the size of a named dimension of the inputs."""
        self._free_sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Has no effect: the size stays open, and any size runs."""
        report_once(f"dimensions of denotation {denotation!r} stay open")

    def add_initializer(self, name: str, value: Any) -> None:
        """Replaces the model's constant of this name by an OrtValue."""
        self._weights[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Replaces the model's constants of these names by OrtValues."""
        self._weights.update(zip(names, values, strict=True))

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Adds a provider, as the argument `providers` of a session does."""
        self._providers.append((name, {str(key): str(value) for key, value in options.items()}))

    def has_providers(self) -> bool:
        """Says whether a provider was added."""
        return bool(self._providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Makes a library of custom operators known to the device ORT, for all sessions of the process. Raises: Fail."""
        if not os.path.isfile(path):
            raise make_error("Fail", f"cannot load the library of custom operators '{path}': there is no such file")
        paths = [*filter(None, os.environ.get(_LIBRARY_VARIABLE, "").split(os.pathsep)), os.path.abspath(path)]
        os.environ[_LIBRARY_VARIABLE] = os.pathsep.join(dict.fromkeys(paths))


class RunOptions:
    """The options of a run. `terminate` ends the runs under way that got these options; later runs fail until it is False again."""

    __slots__ = (
        "_entries",
        "_requests",
        "_terminate",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
    )

    def __init__(self) -> None:
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = False
        self._entries: dict[str, str] = {}
        self._terminate = False
        self._requests: set[InferRequest] = set()

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end at once."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._terminate = bool(value)
        for request in list(self._requests) if value else ():
            request.cancel()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Stores an entry; it has no effect."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Returns the value of an entry. Raises: RuntimeError for an entry that was not added."""
        return _get_entry(self._entries, key, "run")

    def add_active_adapter(self, adapter: Any) -> None:
        """Raises: NotImplemented, because a run without the adapter would have other answers."""
        raise make_error("NotImplemented", "LoRA adapters are not supported; merge the adapter into the model's weights")


def _get_entry(entries: Mapping[str, str], key: str, kind: str) -> str:
    if key not in entries:
        raise RuntimeError(f"the {kind} options have no entry '{key}'")
    return entries[key]
