"""The host: a Core that serves a single device to a remote caller. Operations by name, arguments as plain values, bulk as buffers.

    describe() -> keys, metrics, capabilities        load(config, answer) + network -> network    run: `open_session`
    metric(name)    query(config) + packed network   import(config, trust) + blob -> network      export(network) -> blob
    network_metric(network, name)                    executed(network) -> steps                 close(network)

A network is a number here. The transport of operations and arrays (a pipe or a cluster) is implemented in other modules.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hetero_core import hookspecs
from hetero_core.contract import CancelToken, QueryResult
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.provenance import find_core_version
from hetero_core.executed import ExecutedNode
from hetero_core.limits import RunLimits
from hetero_core.profile import Profile
from hetero_core.runtime.executable import ExecutableNetwork

if TYPE_CHECKING:
    from hetero_core.core import Core

Bulk = Sequence[Any]
"""Buffers that are too large for a message: weights and blobs."""


class Host:
    """Answers operations on a device of a Core. Safe for threads."""

    def __init__(self, core: Core, device: str) -> None:
        self._core = core
        self._device = device
        self._networks: dict[int, ExecutableNetwork] = {}
        self._numbers = itertools.count(1)
        self._operations: Mapping[str, Callable[..., Any]] = {
            "describe": self._describe,
            "metric": lambda bulk, name: core.get_metric(device, name),
            "query": self._query,
            "load": self._load,
            "import": lambda bulk, config, trust: self._keep(core.import_network(bytes(bulk[0]), device, config, trust=trust)),
            "check": self._check,
            "export": self._export,
            "network_metric": lambda bulk, number, name: self._networks[number].get_metric(name),
            "executed": lambda bulk, number: tuple(map(_read_step, self._networks[number].list_executed())),
            "close": self._close,
        }

    def answer(self, operation: str, arguments: Sequence[Any], bulk: Bulk) -> tuple[Any, Bulk]:
        """Returns the result of an operation and its buffers. Raises: errors of the Core."""
        result = self._operations[operation](bulk, *arguments)
        return result if operation == "export" else (result, ())

    def open_session(self, number: int) -> HostSession:
        """Returns the working memory of a request on a network."""
        return HostSession(self._networks[number])

    def _describe(self, bulk: Bulk) -> dict[str, Any]:
        keys = self._core.config_keys(self._device)
        return {
            "core": find_core_version(),
            "api": hookspecs.API,
            "keys": {
                name: (key.type.__name__, key.default, key.doc, key.choices, key.runtime, key.least, key.words, key.aliases)
                for name, key in keys.items()
                if name not in STANDARD_KEYS and not key.is_arguments
            },
            "metrics": self._core.get_metric(self._device, "SUPPORTED_METRICS"),
            "full_name": str(self._core.get_metric(self._device, "FULL_DEVICE_NAME")),
        }

    def _query(self, bulk: Bulk, config: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        answer = self._core.query_network(_unpack(bulk), self._device, config)
        return dict(answer.supported), dict(answer.refused)

    def _load(self, bulk: Bulk, config: dict[str, Any], answer: tuple[tuple[str, ...], dict[str, str]] | None) -> dict[str, Any]:
        query = None if answer is None else QueryResult(dict.fromkeys(answer[0], self._device), answer[1])
        return self._keep(self._core.load_network(_unpack(bulk), self._device, config, query=query))

    def _check(self, bulk: Bulk, trust: bool) -> tuple[str, str]:
        check = self._core.check_blob(bytes(bulk[0]), self._device, trust=trust)
        return check.answer, check.reason

    def _keep(self, network: ExecutableNetwork) -> dict[str, Any]:
        number = next(self._numbers)
        self._networks[number] = network
        standard = ("SUPPORTED_CONFIG_KEYS", "SUPPORTED_METRICS", "NETWORK_NAME", "LOADED_FROM_CACHE", "EXECUTION_DEVICES")
        return {
            "number": number,
            "inputs": network.all_inputs,
            "outputs": network.all_outputs,
            "depth": network.executable.pipeline_depth,
            "metrics": tuple(name for name in network.get_metric("SUPPORTED_METRICS") if name not in standard),
        }

    def _export(self, bulk: Bulk, number: int) -> tuple[None, Bulk]:
        stream = io.BytesIO()
        self._networks[number].export_network(stream)
        return None, (stream.getbuffer(),)

    def _close(self, bulk: Bulk, number: int) -> None:
        network = self._networks.pop(number, None)
        if network is not None:
            network.close()


def _unpack(bulk: Bulk) -> Any:
    from hetero_core.network.writer import unpack_network

    return unpack_network({"model": bulk[0], "weights": bulk[1]})


class NotedLimits(RunLimits):
    """Limits of a run that report each node as it begins, by label; "" after the last node."""

    __slots__ = ("_tell",)

    def __init__(self, where: str, memory_limit: int | None, note: Callable[[str], None]) -> None:
        super().__init__(where, memory_limit=memory_limit)
        self._tell = note

    def enter(self, node: str) -> None:
        """Records that a node begins, and tells it."""
        self.node = node
        self._tell(node)


class HostSession:
    """A request on a network: its working memory and its sequential runs."""

    def __init__(self, network: ExecutableNetwork) -> None:
        self.network = network
        self._state = network.create_state()

    def run(
        self,
        inputs: tuple[Any, ...],
        presets: Sequence[Any | None] | None,
        token: CancelToken,
        *,
        measures: bool,
        note: Callable[[str], None] | None = None,
    ) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...]]:
        """Returns the outputs, valid until the next run, and the times of nodes as plain values if they are measured.

        `presets` are arrays that are not used elsewhere until this returns, as `RunContext.owns_outputs` says. `note` is called
        with the name of each node that begins.
        """
        network = self.network
        context = network.open_context(self._state, token)
        context.profile = profile = Profile(str(network.device)) if measures else None
        context.outputs, context.owns_outputs = presets, presets is not None
        if note is not None:
            context.limits = NotedLimits(network.where, network.memory_limit, note)
        outputs = network.check_outputs(network.run_host(inputs, context), context)
        return outputs, () if profile is None else tuple(map(_read_time, profile.entries))


_read_time = attrgetter("node", "operator", "device", "seconds", "begin", "nbytes", "source", "targets")
# Without the path: a step of a part does not say of which, as with its times.
_read_step = attrgetter("name", "operator", "origins", "inputs", "outputs", "kernel", "layouts", "types", "device")


def restore_steps(steps: Sequence[tuple[Any, ...]]) -> tuple[ExecutedNode, ...]:
    """Returns the steps of a device of another process."""
    return tuple(ExecutedNode(*step) for step in steps)


def restore_times(profile: Profile, times: Sequence[tuple[Any, ...]], *, shift: float = 0.0) -> None:
    """Records times of another process. Processes of the same machine share a clock; for times of a second machine, `shift` is
    added to the beginnings.
    """
    for node, operator, _, seconds, begin, nbytes, source, targets in times:
        profile.record(node, operator, seconds, begin=begin + shift, nbytes=nbytes, source=source, targets=targets)
