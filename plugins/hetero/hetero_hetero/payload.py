"""The payload of a split network: an index in JSON, the blob of each part, and the constants among the outputs.

Sections: `index`; for stage i either `stage/i` (a container written by its device) or, if the device cannot export, `stage/i/model`
and `stage/i/weights` (the part itself, loaded again at import), and with HETERO_FALLBACK=NEXT beside a container `stage/i/part/...`
(the part, for another device); `constants/<n>/...` likewise for outputs that are constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from hetero_core import Core
from hetero_core.composing.blobs import add_prefix, export_part, import_part, pack_index, read_index, select_steering, take_prefix
from hetero_core.contract import Payload, freeze_mapping
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import BlobDamagedError
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec, type_of_json, type_to_json
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.plan import Boundary, Conflict, HeldMemory, Plan, PlanStage
from hetero_hetero.executable import HeteroExecutable
from hetero_hetero.fallback import Substitutes, find_guard, guard_stages
from hetero_hetero.schedule import configure_stages

_CONSTANTS = "constants"
_PART = "part"


def export_stages(executable: HeteroExecutable) -> Payload:
    """Returns the payload of a split network."""
    sections: dict[str, Any] = {}
    stages = [export_part(stage, part, f"stage/{index}", sections) for index, (stage, part) in enumerate(executable.loaded_parts())]
    if executable.constants:
        sections |= add_prefix(_CONSTANTS, pack_network(_hold_constants(executable.constants)))
    if any(find_guard(stage) is not None for stage in executable.stages):
        # Another device needs the network of a part that only its device's own blob holds.
        for index, (_, part) in enumerate(executable.loaded_parts()):
            if part is not None and stages[index]["kind"] == "blob":
                sections |= add_prefix(f"stage/{index}/{_PART}", pack_network(part))
    inputs, outputs = (tuple(ValueSpec(spec.name, spec.type) for spec in side) for side in (executable.inputs, executable.outputs))
    return pack_index(inputs, outputs, {"stages": stages, "plan": _plan_to_json(executable.plan)}, sections)


def _hold_constants(constants: Mapping[str, np.ndarray[Any, Any]]) -> Network:
    """Returns a network without nodes that has these arrays as outputs, so that they are stored as weights are."""
    initializers = {name: Initializer.of_array(array) for name, array in constants.items()}
    outputs = tuple(ValueSpec(name, constant.type) for name, constant in initializers.items())
    types = freeze_mapping((name, constant.type) for name, constant in initializers.items())
    return Network("constants", (), outputs, (), freeze_mapping(initializers), types, freeze_mapping({"": 17}))


def import_stages(
    core: Core,
    payload: Payload,
    config: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    substitutes: Substitutes | None,
) -> HeteroExecutable:
    """Returns the split network of a payload, each part imported on its own device with its part of the threads, and guarded
    by `substitutes` if there are any.

    The imported parts are closed after an error.

    Raises: BlobDamagedError, BlobMismatchError; errors of a device about its part, with a note that names the stage.
    """
    sections = payload.sections

    def read(fields: Mapping[str, Any]) -> tuple[list[Any], Plan]:
        return list(fields["stages"]), _plan_of_json(fields["plan"])

    inputs, outputs, (rows, plan) = read_index(payload, read, owner="HETERO")
    if len(rows) != len(plan.stages):
        raise BlobDamagedError(f"the blob of HETERO has {len(rows)} parts and a plan of {len(plan.stages)} stages")
    borders = [(stage.device, stage.inputs, stage.outputs) for stage in plan.stages]
    shares = configure_stages(core, borders, config[THREADS_KEY], configs)
    with ExitStack() as opened:
        loaded = []
        for index, row in enumerate(rows):
            device = plan.stages[index].device
            steered = select_steering(core, device, config, configs.get(device, {}))
            stage, part = import_part(core, row, f"stage/{index}", sections, {**steered, **shares[index]}, owner="HETERO")
            opened.callback(stage.close)
            packed = take_prefix(f"stage/{index}/{_PART}", sections) if part is None else {}
            loaded.append((stage, unpack_network(packed) if packed else part))
        constant_sections = take_prefix(_CONSTANTS, sections)
        initializers = unpack_network(constant_sections).initializers if constant_sections else {}
        constants = {name: initializer.array for name, initializer in initializers.items()}
        if substitutes is not None:
            loaded = guard_stages(plan, loaded, substitutes)
        split = HeteroExecutable(
            inputs, outputs, plan, loaded, constants, core=core, threads=config[THREADS_KEY], streams=config[STREAMS_KEY]
        )
        opened.pop_all()
    return split


def read_plan(payload: Payload) -> Plan:
    """Returns the plan of a payload. Raises: BlobDamagedError, BlobMismatchError."""
    return read_index(payload, lambda fields: _plan_of_json(fields["plan"]), owner="HETERO")[2]


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "network": plan.network,
        "priorities": plan.priorities,
        "device_of_node": dict(plan.device_of_node),
        "operator_of_node": dict(plan.operator_of_node),
        "refusals": {name: dict(reasons) for name, reasons in plan.refusals.items()},
        "pins": dict(plan.pins),
        "stages": [[stage.device, stage.nodes, stage.inputs, stage.outputs] for stage in plan.stages],
        "boundaries": [
            [v.value, type_to_json(v.type), v.nbytes, v.producer, v.consumers, v.maker, v.readers] for v in plan.boundaries
        ],
        "conflicts": [[conflict.node, conflict.subgraph, conflict.path] for conflict in plan.conflicts],
        "unexplained": plan.unexplained,
        "procedures": dict(plan.procedures),
        "memory": [[held.device, held.weights, held.border, held.arena, held.limit, held.workspace] for held in plan.memory],
    }


def _plan_of_json(fields: Mapping[str, Any]) -> Plan:
    """Returns the plan that `_plan_to_json` wrote. Raises: TypeError, ValueError, KeyError for anything else."""
    plan = Plan(
        network=str(fields["network"]),
        priorities=tuple(fields["priorities"]),
        device_of_node=freeze_mapping(fields["device_of_node"].items()),
        operator_of_node=freeze_mapping(fields["operator_of_node"].items()),
        refusals=freeze_mapping((node, freeze_mapping(reasons.items())) for node, reasons in fields["refusals"].items()),
        pins=freeze_mapping(fields["pins"].items()),
        stages=tuple(
            PlanStage(index, str(device), tuple(nodes), tuple(inputs), tuple(outputs))
            for index, (device, nodes, inputs, outputs) in enumerate(fields["stages"])
        ),
        boundaries=tuple(
            Boundary(value, type_of_json(value_type), nbytes, producer, tuple(consumers), maker, tuple(readers))
            for value, value_type, nbytes, producer, consumers, maker, readers in fields["boundaries"]
        ),
        conflicts=tuple(Conflict(node, subgraph, tuple(path)) for node, subgraph, path in fields["conflicts"]),
        unexplained=fields["unexplained"],
        # Blobs of 0.1.0 do not name the procedures.
        procedures=freeze_mapping(fields.get("procedures", {}).items()),
        memory=tuple(HeldMemory(*row) for row in fields.get("memory", ())),
    )
    mappings = (plan.device_of_node, plan.operator_of_node, plan.pins, *plan.refusals.values())
    texts = [entry for mapping in mappings for pair in mapping.items() for entry in pair]
    texts += [text for stage in plan.stages for text in (*stage.nodes, *stage.inputs, *stage.outputs)]
    texts += [text for boundary in plan.boundaries for text in (boundary.value, *boundary.readers, boundary.maker or "")]
    texts += [text for conflict in plan.conflicts for text in (conflict.node, *conflict.path)]
    texts += [held.device for held in plan.memory]
    numbers = [plan.unexplained, *plan.procedures.values(), *(conflict.subgraph for conflict in plan.conflicts)]
    numbers += [
        number for held in plan.memory for number in (held.weights, held.border, held.arena, held.limit or 0, held.workspace)
    ]
    numbers += [number for boundary in plan.boundaries for number in (boundary.nbytes or 0, *boundary.consumers)]
    if (
        not isinstance(fields["priorities"], list)
        or not all(type(text) is str for text in texts)
        or any(type(n) is not int or n < 0 for n in numbers)
    ):
        raise TypeError("the plan has a value of another type")
    stages = {*range(len(plan.stages)), None}
    if any(index not in stages for boundary in plan.boundaries for index in (boundary.producer, *boundary.consumers)):
        raise ValueError("a boundary value names a stage that the plan does not have")
    return plan
