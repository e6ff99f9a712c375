"""A graph on a device in several ways: loaded, imported, split; each time three runs of a request, with or without preset outputs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.graphs.judgement import Expectation
from hetero_core.conformance.graphs.reference import Reference
from hetero_core.errors import UnsupportedNodesError

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a graph. `pins` of a split name a device for each node; with `is_imported` the network is exported and imported.

    With `is_exported` it is exported before it runs, for a later import with the same device, configuration and pins.
    """

    name: str
    device: str
    config: Mapping[str, Any] = field(default_factory=dict)
    is_preset: bool = False
    is_imported: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)
    is_exported: bool = False


Blobs = dict[tuple[Any, ...], bytes]
"""Exported blobs, by device, configuration and pins."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure, and the way to run the graph that showed it."""

    way: Way
    text: str


class Trial:
    """A network with the inputs of its runs, and the expected outputs of each."""

    def __init__(self, network: Network, feeds: Sequence[Mapping[str, Any]]) -> None:
        self.network = network
        self.feeds = [{spec.name: feed[spec.name] for spec in network.inputs} for feed in feeds]
        reference = Reference(network)
        self.expectations = [Expectation(network, feed, reference=reference) for feed in self.feeds]

    def find_failure(self, core: Core, ways: Sequence[Way]) -> Failure | None:
        """Returns the first failure among these ways, or None."""
        blobs: Blobs = {}
        for way in ways:
            text = self._try_way(core, way, blobs)
            if text is not None:
                return Failure(way, text)
        return None

    def find_dispute(self) -> str | None:
        """Returns the first disagreement of ONNX Runtime and the reference about a run, or None."""
        disputes = (expectation.describe_dispute() for expectation in self.expectations)
        return next((text for text in disputes if text is not None), None)

    def _try_way(self, core: Core, way: Way, blobs: Blobs) -> str | None:
        try:
            loaded = self._load(core, way, blobs)
            with loaded:
                return self._run(loaded, way)
        except UnsupportedNodesError as error:
            # The query covers the whole network; a device may take a node as part of a fusion and refuse it alone in a split.
            return None if way.pins else f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  # a device may raise anything; the error is the failure
            return f"{type(error).__name__}: {error}"

    def _load(self, core: Core, way: Way, blobs: Blobs) -> ExecutableNetwork:
        """Returns the network loaded for this way. An import takes the blob that an earlier way exported, if there is one."""
        key = (way.device, tuple(way.config.items()), tuple(way.pins.items()))
        if way.is_imported and key in blobs:
            return core.import_network(blobs[key], way.device)
        network = self.network
        if way.pins:
            network = network.with_affinity({name: device for name, device in way.pins.items() if name in network.index_of_node})
        loaded = core.load_network(network, way.device, dict(way.config))
        if not (way.is_exported or way.is_imported):
            return loaded
        stream = io.BytesIO()
        loaded.export_network(stream)
        blobs[key] = stream.getvalue()
        if not way.is_imported:
            return loaded
        loaded.close()
        return core.import_network(blobs[key], way.device)

    def _run(self, loaded: ExecutableNetwork, way: Way) -> str | None:
        request = loaded.create_infer_request()
        for run, (feed, expectation) in enumerate(zip(self.feeds, self.expectations, strict=True)):
            inputs = {name: array.copy() for name, array in feed.items()}
            presets = expectation.make_presets() if way.is_preset else {}
            for name, array in presets.items():
                request.set_tensor(name, array)
            outputs = request.infer(inputs)
            text = expectation.describe_fault(list(outputs.values()))
            if text is None:
                text = _find_touched(inputs, feed) or _find_unfilled(presets, outputs)
            if text is not None:
                return f"run {run + 1}: {text}"
        return None


def _find_touched(inputs: Mapping[str, Any], feed: Mapping[str, Any]) -> str | None:
    touched = (name for name, array in inputs.items() if array.tobytes() != feed[name].tobytes())
    return next((f"input '{name}' was written to" for name in touched), None)


def _find_unfilled(presets: Mapping[str, Any], outputs: Mapping[str, Any]) -> str | None:
    unfilled = (name for name, array in presets.items() if not np.shares_memory(array, outputs[name]) and array.size)
    return next((f"output '{name}' is not the array that was set for it" for name in unfilled), None)
