"""Options of sessions and runs, and the enumerations in them.

Options that only tune ONNX Runtime are accepted and have no effect. An option that would change answers, or that asks for a service which
is missing here, is logged once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from hetero_core.frontends.onnxruntime.errors import make_error
from hetero_core.frontends.shared_core import report_once

if TYPE_CHECKING:
    from hetero_core.runtime.request import InferRequest

FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
"""The entry that names the folder of external weights."""
_LIBRARY_VARIABLE = "ORT_CUSTOM_OPS_LIBRARY"
_MISSED_ENTRIES = {
    "session.set_denormal_as_zero": "denormal numbers are kept",
    "session.load_model_format": "the model must be in ONNX format",
    "ep.context_enable": "no context model is written; use session.network.export_network",
    "session.record_ep_graph_assignment_info": "use session.network.get_metric('HETERO_SUBGRAPHS')",
}


class _Choice(IntEnum):
    """An enumeration of ONNX Runtime, which writes a member with its class."""

    __str__ = Enum.__str__


class GraphOptimizationLevel(_Choice):
    """How far ONNX Runtime rewrites a graph; devices decide this here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Choice):
    """Whether ONNX Runtime runs independent nodes at the same time; devices decide this here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Choice):
    """The order in which ONNX Runtime runs nodes; devices decide this here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True, eq=False)
class SessionOptions:
    """The options of a session. Threads, profiling, sizes, weights, custom operators and providers have an effect."""

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = ExecutionOrder.DEFAULT
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    entries: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes by name of the dimension."""
    sizes_of_denotations: dict[str, int] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    """OrtValues by name of the constant that they replace."""
    files: dict[str, Any] = field(default_factory=dict)
    """Contents of files of external weights by the name of the file."""
    providers: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def __setattr__(self, name: str, value: Any) -> None:
        # A number or switch of a wrong type is refused here, as by ONNX Runtime, not in the session that reads it.
        kind = _KIND_OF_OPTION.get(name)
        if kind is not None and not hasattr(value, "__index__" if kind is int else "__bool__"):
            raise TypeError(f"SessionOptions.{name} is {value!r}; expected {'a whole number' if kind is int else 'True or False'}")
        object.__setattr__(self, name, value if kind is None else kind(value))

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Stores an entry; of those that change answers or files, the entries for external weights have an effect."""
        if key in _MISSED_ENTRIES and value not in ("0", "ONNX"):
            report_once(f"the session entry {key}={value} has no effect: {_MISSED_ENTRIES[key]}")
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Returns the value of an entry. Raises: RuntimeError for an entry that was not added."""
        return _get_entry(self.entries, key, self)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Sets the size of a named dimension of the inputs. Raises: TypeError."""
        self.sizes[name] = _read_size(name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Sets the size of the dimensions of the inputs with this denotation. Raises: TypeError."""
        self.sizes_of_denotations[denotation] = _read_size(denotation, size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Replaces the model's constant of this name by an OrtValue. Raises: RuntimeError for anything else, as ONNX Runtime."""
        if not hasattr(value, "tensor"):
            expected = "expected an OrtValue, as of ortvalue_from_numpy"
            raise RuntimeError(f"constant '{name}' is given as {type(value).__name__}; {expected}")
        self.weights[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Replaces the model's constants of these names by OrtValues. Raises: RuntimeError."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], contents: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Gives the contents of files of external weights, by the names of the files in the model."""
        for name, content, length in zip(names, contents, lengths, strict=True):
            self.files[name] = memoryview(content).cast("B")[:length]

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Adds a provider, as the argument `providers` of a session does."""
        self.providers.append((name, dict(options)))

    def has_providers(self) -> bool:
        """Says whether a provider was added."""
        return bool(self.providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Makes a library of custom operators known to the device ORT, for all sessions of the process. Raises: Fail."""
        if not os.path.isfile(path):
            raise make_error("Fail", f"cannot load the library of custom operators '{path}': there is no such file")
        paths = [*filter(None, os.environ.get(_LIBRARY_VARIABLE, "").split(os.pathsep)), os.path.abspath(path)]
        os.environ[_LIBRARY_VARIABLE] = os.pathsep.join(dict.fromkeys(paths))


_KIND_OF_OPTION = {each.name: kind for each in fields(SessionOptions) if (kind := type(each.default)) in (int, bool)}


def _read_size(name: str, size: Any) -> int:
    if not hasattr(size, "__index__"):
        raise TypeError(f"the size of dimension '{name}' is {size!r}; expected a whole number")
    return int(size)


@dataclass(slots=True, eq=False)
class RunOptions:
    """The options of a run. `terminate` ends the runs under way that got these options; later runs fail until it is False again."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    entries: dict[str, str] = field(default_factory=dict)
    requests: set[InferRequest] = field(default_factory=set)
    _terminate: bool = False

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end at once."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._terminate = bool(value)
        for request in list(self.requests) if value else ():
            request.cancel()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Stores an entry; it has no effect."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Returns the value of an entry. Raises: RuntimeError for an entry that was not added."""
        return _get_entry(self.entries, key, self)

    def add_active_adapter(self, adapter: Any) -> None:
        """Raises: NotImplemented, because a run without the adapter would have other answers."""
        raise make_error("NotImplemented", "LoRA adapters are not supported; merge the adapter into the model's weights")


def _get_entry(entries: Mapping[str, str], key: str, owner: object) -> str:
    if key not in entries:
        raise RuntimeError(f"{type(owner).__name__} does not have configuration with key: {key}")
    return entries[key]
