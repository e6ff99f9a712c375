"""The payload of a split network: an index in JSON, the blob of each part, and the constants among the outputs.

Sections: `index`; for stage i either `stage/i` (a container written by its device) or, where the device cannot export, `stage/i/model`
and `stage/i/weights` (the part itself, loaded again at import), and with HETERO_FALLBACK=NEXT beside a container `stage/i/part/...`
(the part, for another device); `constants/<n>/...` likewise for outputs that are constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hetero_core.composing.blobs import (
    Loaded,
    add_prefix,
    export_part,
    import_part,
    pack_index,
    read_index,
    select_steering,
    take_prefix,
)
from hetero_core.contract import Payload, freeze_mapping
from hetero_core.core import Core
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import BlobDamagedError
from hetero_core.network.types import ValueSpec, type_of_json, type_to_json
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.plan import Boundary, Conflict, Plan, PlanStage
from hetero_hetero.executable import HeteroExecutable, assemble_stages
from hetero_hetero.fallback import Substitutes, find_guard, guard_stages
from hetero_hetero.parts import hold_constants
from hetero_hetero.schedule import configure_stages

_CONSTANTS = "constants"
_PART = "part"


def export_stages(executable: HeteroExecutable) -> Payload:
    """Returns the payload of a split network."""
    sections: dict[str, Any] = {}
    stages = [export_part(stage, part, f"stage/{index}", sections) for index, (stage, part) in enumerate(executable.loaded_parts())]
    if executable.constants:
        sections |= add_prefix(_CONSTANTS, pack_network(hold_constants(executable.constants)))
    if any(find_guard(stage) is not None for stage in executable.stages):  # its network is needed to load it elsewhere
        sections |= _pack_parts(executable, stages)
    inputs, outputs = (tuple(ValueSpec(spec.name, spec.type) for spec in side) for side in (executable.inputs, executable.outputs))
    return pack_index(inputs, outputs, {"stages": stages, "plan": _plan_to_json(executable.plan)}, sections)


def import_stages(
    core: Core,
    payload: Payload,
    config: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    substitutes: Substitutes | None,
) -> HeteroExecutable:
    """Returns the split network of a payload, each part imported on its own device with its part of the threads, and guarded
    by `substitutes` if there are any.

    Where a part or what follows it fails, the parts that were imported are closed.

    Raises: BlobDamagedError, BlobMismatchError; what a device raises for its part, with a note that names the stage.
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
            part = import_part(core, row, f"stage/{index}", sections, {**steered, **shares[index]}, owner="HETERO")
            opened.callback(part[0].close)
            loaded.append(_with_part(part, f"stage/{index}/{_PART}", sections))
        constant_sections = take_prefix(_CONSTANTS, sections)
        initializers = unpack_network(constant_sections).initializers if constant_sections else {}
        constants = {name: initializer.array for name, initializer in initializers.items()}
        if substitutes is not None:
            loaded = guard_stages(plan, loaded, substitutes)
        split = assemble_stages(
            inputs, outputs, plan, loaded, constants, core=core, threads=config[THREADS_KEY], streams=config[STREAMS_KEY]
        )
        opened.pop_all()
    return split


def _pack_parts(executable: HeteroExecutable, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the sections of the parts that only their devices' own blobs hold, so that another device can load them."""
    sections: dict[str, Any] = {}
    for index, (_, part) in enumerate(executable.loaded_parts()):
        if part is not None and rows[index]["kind"] == "blob":
            sections |= add_prefix(f"stage/{index}/{_PART}", pack_network(part))
    return sections


def _with_part(loaded: Loaded, prefix: str, sections: Mapping[str, Any]) -> Loaded:
    """Returns a loaded part with its network, where the blob holds that beside the blob of its device."""
    executable, network = loaded
    packed = take_prefix(prefix, sections) if network is None else {}
    return (executable, unpack_network(packed)) if packed else loaded


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
    }


def _plan_of_json(fields: Mapping[str, Any]) -> Plan:
    """Returns the plan that `_plan_to_json` wrote. Raises: TypeError, ValueError, KeyError for anything else."""
    plan = Plan(
        network=_text(fields["network"]),
        priorities=_texts(fields["priorities"]),
        device_of_node=_text_mapping(fields["device_of_node"]),
        operator_of_node=_text_mapping(fields["operator_of_node"]),
        refusals=freeze_mapping((node, _text_mapping(reasons)) for node, reasons in dict(fields["refusals"]).items()),
        pins=_text_mapping(fields["pins"]),
        stages=tuple(
            PlanStage(index, _text(device), _texts(nodes), _texts(inputs), _texts(outputs))
            for index, (device, nodes, inputs, outputs) in enumerate(fields["stages"])
        ),
        boundaries=tuple(_boundary_of_json(row) for row in fields["boundaries"]),
        conflicts=tuple(Conflict(_text(node), _count(part), _texts(path)) for node, part, path in fields["conflicts"]),
        unexplained=_count(fields["unexplained"]),
        # Blobs of 0.1.0 do not name the procedures.
        procedures=freeze_mapping((_text(name), _count(nodes)) for name, nodes in dict(fields.get("procedures", {})).items()),
    )
    stages = {*range(len(plan.stages)), None}
    if any(index not in stages for boundary in plan.boundaries for index in (boundary.producer, *boundary.consumers)):
        raise ValueError("a boundary value names a stage that the plan does not have")
    return plan


def _boundary_of_json(row: Any) -> Boundary:
    value, value_type, nbytes, producer, consumers, maker, readers = row
    return Boundary(
        _text(value),
        type_of_json(value_type),
        None if nbytes is None else _count(nbytes),
        None if producer is None else _count(producer),
        tuple(_count(consumer) for consumer in consumers),
        None if maker is None else _text(maker),
        _texts(readers),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"expected a list of texts, got {values!r}")
    return tuple(_text(value) for value in values)


def _text_mapping(fields: Any) -> Mapping[str, str]:
    return freeze_mapping((_text(name), _text(value)) for name, value in dict(fields).items())


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a number of 0 or more, got {value!r}")
    return value
