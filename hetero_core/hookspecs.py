"""The hooks of hetero: each with its arguments, its result and its errors.

There are two levels. A plugin's package has a single hook, `create_device`; the returned object has the remaining hooks. An
implementation is marked with `@hookimpl` and takes only the arguments that it uses. It must not return None, which is a
PluginError. For a hook that a device does not implement the core answers itself: with an error that says so, or with the standard
metrics.

A wrapper (entry-point group `hetero_core.wrappers`, `@hookimpl(wrapper=True)`) runs around the same hooks of every device, including the
calls that HETERO makes for its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from hetero_core.contract import Array, BlobCheck, ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult, RunContext
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec

if TYPE_CHECKING:
    from hetero_core.core import Core

API = (1, 2)
"""The version of this file. A plugin that states `requires_api = (major, minor)` needs this major and at least this minor."""
SINCE = {"from_host(target)": (1, 1), "load_network(query)": (1, 2), "check_payload": (1, 2)}
"""Hooks and arguments that are newer than 1.0 -> the version that brought them."""

PROJECT = "hetero_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def create_device(core: Core, name: str) -> object:
    """Returns the device object, ready to work.

    Called once per Core and device name, when the device is first needed. Import drivers here, and run a tiny kernel as a probe.
    `name` is the name that the device is registered under; physical ids live inside the object. `core` is the user's own Core, for
    plugins that load parts on other devices.

    Raises: DeviceUnavailableError, with the cure, when the device cannot work here.
    """


@hookspec(firstresult=True)
def close_device(device: DeviceName) -> bool:
    """Frees pools, threads and handles; returns True.

    Called once, when the Core closes, also for a name that was unregistered before.
    """


@hookspec(firstresult=True)
def config_keys(device: DeviceName) -> Mapping[str, ConfigKey]:
    """Returns the configuration keys that the device knows, apart from the core's own (PERF_COUNT, DEVICE_ID, ...)."""


@hookspec(firstresult=True)
def metrics(device: DeviceName) -> Mapping[str, Any]:
    """Returns metrics of the device with this id: a value, or a function without arguments for values that take time to find.

    They override the core's standard metrics: AVAILABLE_DEVICES (tuple of ids), FULL_DEVICE_NAME, OPTIMIZATION_CAPABILITIES,
    DEVICE_ARCHITECTURE, CODE_FOLDER (the name of the private folder with compiled code, "" if unused),
    RANGE_FOR_ASYNC_INFER_REQUESTS (lowest, highest, step), RANGE_FOR_STREAMS (lowest, highest; how many runs of a network may be
    under way at once on the Core's threads), HOLDS_INTERPRETER_LOCK (True: HETERO runs no two such devices at once),
    VALUE_DEVIATIONS (DENORMALS, FLOAT64, INDICES, INFINITY, NAN: values that its engine computes otherwise than ONNX says). The core
    derives SUPPORTED_METRICS, SUPPORTED_CONFIG_KEYS and IMPORT_EXPORT_SUPPORT.
    """


@hookspec(firstresult=True)
def query_network(device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
    """Returns which nodes the device takes and why it refuses the rest, by their names in `network`.

    Applies the same passes as `load_network`. Never raises for a node that the device does not know.
    """


@hookspec(firstresult=True)
def load_network(device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None) -> Executable:
    """Returns the network compiled for the device.

    `query` is the device's own answer about this network, if a device made of devices has asked before; the core has checked that it
    names every node. It is None for any other load, so that the device asks itself. Declare it without a default: pluggy passes no
    argument that has a default.

    `config` is complete, typed and read-only: defaults, overridden by `set_config`, overridden by the call. At most
    `config["NUM_STREAMS"]` runs are under way at once, and each may use `config["INFERENCE_NUM_THREADS"]` processors, an int. A device
    that starts its runs by itself must keep to both numbers.

    Raises: UnsupportedNodesError for nodes that the query refuses, with the same reasons.
    """


@hookspec(firstresult=True)
def export_network(device: DeviceName, executable: Executable) -> Payload:
    """Returns everything that `import_network` needs to build the executable again, as named byte sections.

    `Payload.code` names each section that the import executes in any way.
    """


@hookspec(firstresult=True)
def check_payload(device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> BlobCheck:
    """Returns whether an import uses everything that was compiled, or has to compile the network again, and why; loads nothing.

    The arguments are those of `import_network`, which begins with the same check. A device without this hook takes every payload.

    Raises: BlobMismatchError if the import would.
    """


@hookspec(firstresult=True)
def import_network(device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
    """Returns an executable built from an exported payload.

    The core has checked identity, versions and digest, and returns the sections exactly as they were exported. Read each section that you
    execute with `payload.read_code(name)` and in no other way: only about marked sections has the core asked the user for trust.
    """


@hookspec(firstresult=True)
def add_extension(device: DeviceName, extension: Extension) -> bool:
    """Makes a custom operator known to the device; returns True."""


@hookspec(firstresult=True)
def to_host(device: DeviceName, array: Array) -> Array:
    """Returns the value as a NumPy array. Only for devices with memory of their own."""


@hookspec(firstresult=True)
def from_host(device: DeviceName, array: Array, spec: ValueSpec, target: Array | None) -> Array:
    """Returns a NumPy array as an array in the device's memory. Only for devices with memory of their own.

    `target`, unless it is None, is an unused array that an earlier call returned for this spec and this shape: a device that can
    fill it does so and returns it.
    """


@hookspec(firstresult=True)
def infer(device: DeviceName, executable: Executable, inputs: tuple[Array, ...], context: RunContext) -> tuple[Array, ...]:
    """Wraps `executable.run`; for wrappers only. It costs nothing if no wrapper implements it."""
