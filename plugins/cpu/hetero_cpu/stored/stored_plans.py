"""Captured plans in the user's private folder: files of JSON behind their digest, by all that their numbers depend on.

What is in them steers machine code, so they are kept where kernels are, and trusted as these are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hetero_core.blobs.private_cache import find_private_folder
from hetero_core.errors import HeteroError
from hetero_core.hashing import sha256
from hetero_core.network.graph import Node
from hetero_cpu.machine.compiler import describe_environment
from hetero_cpu.machine.digested_files import read_digested_file, write_digested_file
from hetero_cpu.planning.plan import Outside
from hetero_cpu.stored.captured_plan import CapturedCall, CapturedPlan, View
from hetero_cpu.stored.plan_form import check_form

logger = logging.getLogger(__name__)

FOLDER = "cpu-plans"


def make_key(digests: Mapping[str, bytes], workers: int) -> str:
    """Returns the name of a plan: a digest over the sections of its blob, the threads, LLVM, the processor and the code that emits."""
    digest = sha256(f"{describe_environment()} {workers}".encode())
    for name, content_digest in sorted(digests.items()):
        digest.update(sha256(name.encode()).digest() + content_digest)
    return digest.hexdigest()[:40]


def move_places(captured: CapturedPlan, moved: Mapping[str, tuple[str, int]]) -> CapturedPlan:
    """Returns the plan with addresses in other places, each beginning at an offset of the new one."""

    def move(call: CapturedCall) -> CapturedCall:
        numbers, addresses = list(call.numbers), []
        for position, place in call.addresses:
            new, offset = moved.get(place, (place, 0))
            numbers[position] += offset
            addresses.append((position, new))
        return replace(call, numbers=tuple(numbers), addresses=tuple(addresses))

    return replace(captured, steps=tuple((node, tuple(move(call) for call in calls)) for node, calls in captured.steps))


def write_plan(key: str, captured: CapturedPlan) -> None:
    """Keeps a plan; where that fails, a warning says so and the next import plans for itself."""
    content = json.dumps(_to_json(captured), separators=(",", ":")).encode()
    try:
        write_digested_file(f"{find_private_folder(FOLDER)}/{key}.json", content)
    except (OSError, HeteroError) as error:
        logger.warning("cannot keep a plan: %s", error)


def read_plan(key: str, places: Collection[str] = ()) -> CapturedPlan | None:
    """Returns the plan of this name; None where there is none, or only a damaged one. `places` are those beside the arena.

    One that was stored without a name to be noted by has a digest of what is stored.
    """
    try:
        path = f"{find_private_folder(FOLDER)}/{key}.json"
    except (FileNotFoundError, HeteroError):
        return None
    content = read_digested_file(path, "the network is planned again")
    if content is None:
        return None
    try:
        captured = _of_json(json.loads(content))
        check_form(captured, places)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("'%s' holds no plan (%s: %s); the network is planned again", path, type(error).__name__, error)
        return None
    return captured if captured.name else replace(captured, name=sha256(content).hexdigest()[:40])


def _to_json(captured: CapturedPlan) -> dict[str, Any]:
    steps = [
        [
            [node.name, node.op_type, node.domain, node.opset, node.since_version, node.origins],
            [[call.kernel, call.numbers, call.chunks, call.addresses] for call in calls],
        ]
        for node, calls in captured.steps
    ]
    values = {name: [view.offset, view.dtype, view.shape, view.strides] for name, view in captured.values.items()}
    return {
        "steps": steps,
        "values": values,
        "inputs": captured.inputs,
        "outputs": captured.outputs,
        "arena_bytes": captured.arena_bytes,
        "name": captured.name,
        "outside": [captured.outside.inputs, captured.outside.outputs],
    }


def _of_json(fields: Any) -> CapturedPlan:
    steps = []
    for (name, op_type, domain, opset, since_version, origins), calls in fields["steps"]:
        node = Node(name, op_type, (), (), domain=domain, opset=opset, since_version=since_version, origins=tuple(origins))
        captured = (
            CapturedCall(kernel, tuple(numbers), chunks, tuple((position, place) for position, place in addresses))
            for kernel, numbers, chunks, addresses in calls
        )
        steps.append((node, tuple(captured)))
    values = {
        name: View(offset, dtype, tuple(shape), tuple(strides))
        for name, (offset, dtype, shape, strides) in fields["values"].items()
    }
    inputs, outputs = tuple(fields["inputs"]), tuple(fields["outputs"])
    read, written = fields["outside"]
    outside = Outside(tuple(read), dict(written))
    return CapturedPlan(tuple(steps), values, inputs, outputs, fields["arena_bytes"], fields["name"], outside)
