"""Checks of untrusted models, blobs and cache entries: hetero must raise its own error or run the network.

Each check returns the outcome of a case and the kind of its mutation: random bytes, or a field with the digest computed again. A valid
model may ask for a giant computation, so only small models are loaded and run. A hostile model of at most 1 MB asks for all memory or time.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hostile_models import list_models
from mutate_blobs import mutate_blob
from mutate_nodes import mutate_nodes
from mutate_protos import mutate_bytes, mutate_model
from seeds import list_seeds, parse_text

from hetero_core import Core, ExecutableNetwork, HeteroError, Network
from hetero_core.dtypes import numpy_dtype
from hetero_core.network.graph import iterate_graphs
from hetero_core.network.types import TensorType
from hetero_core.network.writer import network_to_bytes, pack_network, unpack_network

Mutate = Callable[[Random, bytes], bytes]

LARGEST = 1 << 22
"""The largest total bytes of all values of a network that is loaded and run."""
UNBOUNDED = frozenset(("Loop", "Scan", "If", "SequenceMap"))
"""Operators that may compute forever, or on values of undeclared sizes."""

BLOB_TEXT = "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { a = Mul(x, w) b = Neg(a) y = Relu(b) }"
X = np.array([3, -4], np.float32)
HOLE = 10 << 30
"""Bytes of the sparse file that some hostile models name as their weights."""
LARGEST_READ, LONGEST_READ, LARGEST_LOAD = 10**9, 20.0, 2 * 10**9
"""The limits of a hostile model of 1 MB: bytes and processor seconds of its reading, and bytes of its load."""


@dataclass(frozen=True)
class Case:
    """A fuzzing case; `folder` is empty."""

    core: Core
    index: int
    random: Random
    folder: Path
    devices: Sequence[str]


def check_model(case: Case) -> str:
    """Reads a mutated model, writes and packs it, queries every device, and loads and runs it if it is small."""
    content = case.random.choice(sorted(list_seeds().items()))[1]
    change, mutate = pick_mutation(case.random, case.random.choice((mutate_model, mutate_nodes)))
    return f"{read_and_run(case.core, mutate(case.random, content), case.devices)}, {change} changed"


def check_hostile(case: Case) -> str:
    """Reads a hostile model with at most LARGEST_READ more bytes, and loads it on every device with at most LARGEST_LOAD more bytes."""
    name, make = list(list_models().items())[case.index]
    content = make()
    assert len(content) <= 10**6, f"{name} has {len(content)} bytes"
    with (case.folder / "hole.bin").open("wb") as file:
        file.truncate(HOLE)
    before, began = start_peak(), time.process_time()
    try:
        network = case.core.read_network(content, base=case.folder)
    except HeteroError:
        network = None
    grown, seconds = read_status("VmHWM") - before, time.process_time() - began
    assert grown <= LARGEST_READ, f"reading {name} took {grown} bytes"
    assert seconds <= LONGEST_READ, f"reading {name} took {seconds:.1f} s"
    # An engine holds gigabytes of weights for any model.
    if network is None or name.startswith("weights_"):
        return "refused" if network is None else "read"
    for device in case.devices:
        before = start_peak()
        ignore_own_errors(lambda device=device: case.core.load_network(network, device).close())
        grown = read_status("VmHWM") - before
        assert grown <= LARGEST_LOAD, f"loading {name} on {device} took {grown} bytes"
    return "loaded"


def start_peak() -> int:
    """Sets the peak of the resident memory to its present size and returns it, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return read_status("VmRSS")


def read_status(key: str) -> int:
    """Returns an entry of /proc/self/status in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def pick_mutation(random: Random, mutate_field: Mutate) -> tuple[str, Mutate]:
    """Returns a mutation with its name: a field in 70 % of the cases, bytes otherwise."""
    return ("bytes", mutate_bytes) if random.random() < 0.3 else ("field", mutate_field)


def read_and_run(core: Core, content: bytes, devices: Sequence[str]) -> str:
    """Returns the last step that the model passed."""
    try:
        network = core.read_network(content)
    except HeteroError:
        return "refused"
    for write in (network_to_bytes, write_and_pack):
        ignore_own_errors(lambda write=write: write(network))
    for device in devices:
        ignore_own_errors(lambda device=device: core.query_network(network, device))
    if not is_small(network):
        return "large"
    return "run" if [run_everywhere(core, network, device) for device in devices].count(True) else "read"


def write_and_pack(network: Network) -> None:
    """Asserts that a network keeps its fingerprint through packing and unpacking."""
    sections = pack_network(network)
    assert unpack_network(sections).fingerprint == network.fingerprint, "packing changed the network"


def ignore_own_errors(action: Callable[[], Any]) -> Any:
    """Returns the result of the action, None for an error of hetero. Raises: any other error."""
    try:
        return action()
    except HeteroError:
        return None


def is_small(network: Network) -> bool:
    """Says whether all sizes are declared and their sum is small."""
    total = 0
    for graph in iterate_graphs(network):
        for value_type in (
            *graph.types.values(),
            *(spec.type for spec in graph.inputs),
            *(tensor.type for tensor in graph.initializers.values()),
        ):
            size = value_type.nbytes if isinstance(value_type, TensorType) else 0
            if isinstance(value_type, TensorType) and value_type.dtype == "string":
                size = TensorType("int64", value_type.shape).nbytes
            if size is None:
                return False
            total += size
    return total <= LARGEST


def run_everywhere(core: Core, network: Network, device: str) -> bool:
    """Loads and runs a network; says whether it returned outputs."""
    loaded: ExecutableNetwork | None = ignore_own_errors(lambda: core.load_network(network, device))
    if loaded is None:
        return False
    is_bounded = all(node.op_type not in UNBOUNDED for node in network.nodes)
    # If every value has a declared size, no size depends on the elements of an array.
    is_declared = all(value in network.types for node in network.nodes for value in node.writes)
    inputs = make_inputs(network)
    if not (is_bounded and is_declared and inputs is not None):
        return False
    return ignore_own_errors(lambda: loaded.infer(inputs)) is not None


def make_inputs(network: Network) -> dict[str, Any] | None:
    """Returns an array filled with 1 for each input, None if an input is no tensor."""
    if not all(isinstance(spec.type, TensorType) and spec.dtype is not None for spec in network.inputs):
        return None
    arrays = {}
    for spec in network.inputs:
        shape = tuple(size for size in spec.shape or () if isinstance(size, int))
        dtype = numpy_dtype(spec.dtype or "")
        arrays[spec.name] = np.full(shape, "1", object) if spec.dtype == "string" else np.ones(shape).astype(dtype)
    return arrays


@cache
def list_blobs() -> tuple[tuple[str, bytes], ...]:
    """Returns (device, blob) of a network that is loaded whole, split, and split with a subnetwork stored as a blob of its own."""
    blobs = []
    with Core() as core:
        for device in ("CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU", "HETERO:(HETERO:TEMPLATE,CPU),CPU"):
            network = core.read_network(parse_text(BLOB_TEXT)).with_affinity(
                {} if ":" not in device else {"op:Neg": device.rpartition(",")[2]}
            )
            stream = io.BytesIO()
            core.load_network(network, device).export_network(stream)
            blobs.append((device.partition(":")[0], stream.getvalue()))
    return tuple(blobs)


def check_blob(case: Case) -> str:
    """Imports a blob with changed bytes, or with a changed field and a valid digest, and runs the imported network."""
    core, random = case.core, case.random
    device, blob = random.choice(list_blobs())
    change, mutate = pick_mutation(random, mutate_blob)
    mutated = mutate(random, blob)
    try:
        loaded = core.import_network(mutated, device)
    except HeteroError:
        return f"refused, {change} changed"
    # A blob with changed bytes has a wrong digest, so its import must fail.
    assert change == "field" or mutated == blob, "a blob with changed bytes was imported"
    result = ignore_own_errors(lambda: loaded.infer({"x": X}))
    ignore_own_errors(lambda: loaded.export_network(io.BytesIO()))
    for name in loaded.get_metric("SUPPORTED_METRICS"):
        loaded.get_metric(name)
    return f"{'loaded' if result is None else 'run'}, {change} changed"


def check_cache(case: Case) -> str:
    """Loads through a folder with a changed cache entry: the outputs are correct despite the entry."""
    core, random, folder = case.core, case.random, case.folder
    device = random.choice(case.devices)
    config = {"CACHE_DIR": str(folder / "cache")}
    network = core.read_network(parse_text(BLOB_TEXT))
    core.load_network(network, device, config)
    (entry,) = (folder / "cache").iterdir()
    content = entry.read_bytes()
    change, mutate = pick_mutation(random, mutate_blob)
    mutated = mutate(random, content)
    entry.write_bytes(mutated)
    try:
        loaded = core.load_network(network, device, config)
        if loaded.get_metric("LOADED_FROM_CACHE") and mutated != content:
            assert change == "field", "an entry with changed bytes was believed"
            # Digest and identity are valid. A user with write access to the cache is trusted.
            ignore_own_errors(lambda: loaded.infer({"x": X}))
            return "believed, field changed"
        outputs = loaded.infer({"x": X})
        assert {name: value.tolist() for name, value in outputs.items()} == {"y": [0, 8], "w": [1, 2]}, outputs
        return f"replaced, {change} changed"
    finally:
        entry.unlink()


CHECKS: dict[str, Callable[[Case], str]] = {
    "model": check_model,
    "blob": check_blob,
    "cache": check_cache,
    "hostile": check_hostile,
}
