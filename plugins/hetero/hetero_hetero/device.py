"""The HETERO device: its hooks, and its payload. Loading reads top to bottom: affinity, subgraphs, stages, load each, executable.

The payload is an index in JSON, the blob of each part, and the constants among the outputs. Sections: `index`; for stage i either `stage/i`
(a container written by its device) or, if the device cannot export, `stage/i/model` and `stage/i/weights` (the part itself, loaded again
at import), and with HETERO_FALLBACK=NEXT beside a container `stage/i/part/...` (the part, for another device); `constants/<n>/...`
likewise for outputs that are constants.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero_core.composing.blobs import (
    Loaded,
    add_prefix,
    check_parts,
    export_part,
    import_part,
    pack_index,
    read_index,
    take_prefix,
)
from hetero_core.composing.composer import Composer
from hetero_core.composing.properties import PROPERTIES_KEY, configure_children, find_unavailable
from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import BlobDamagedError, DeviceUnavailableError
from hetero_core.files import replace_file
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec, read_record, write_record
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.plan import Plan
from hetero_hetero.affinity import ROLES_KEY, SplitTask, begin_assignment, complete_assignment, resolve_roles, trace_assignment
from hetero_hetero.branches import BranchExecutable, cut_branches
from hetero_hetero.executable import HeteroExecutable, require_limits
from hetero_hetero.fallback import Substitutes, find_guard, guard_stages
from hetero_hetero.loading import build_plan, cut_stages, load_stages, require_complete
from hetero_hetero.moves import Assignment
from hetero_hetero.placement.choice import MEMORY_KEY, PLACEMENT_KEY, PLACEMENTS, PLACING_KEYS, place_nodes
from hetero_hetero.schedule import configure_stages
from hetero_hetero.subgraphs import POLICIES

logger = logging.getLogger(__name__)

PRIORITIES_KEY = "TARGET_FALLBACK"
POLICY_KEY = "HETERO_SUBGRAPH_POLICY"
FALLBACK_KEY = "HETERO_FALLBACK"
SMALLEST_KEY = "HETERO_MIN_SUBGRAPH_SIZE"
TRACE_KEY = "HETERO_TRACE_SELECTION"
UNITS_KEY = "HETERO_KEEP_UNITS"
DOT_KEY = "HETERO_DUMP_GRAPH_DOT"
FALLBACKS = ("STRICT", "NEXT")

OWN_KEYS: Mapping[str, ConfigKey] = freeze_mapping(
    {
        PRIORITIES_KEY: ConfigKey(
            str,
            None,
            "The devices in order of priority, as behind the colon of HETERO:GPU,CPU.",
            is_arguments=True,
            aliases=("MULTI_DEVICE_PRIORITIES",),
        ),
        POLICY_KEY: ConfigKey(
            str, next(iter(POLICIES)), "How nodes of one device are joined to subgraphs.", choices=tuple(POLICIES)
        ),
        FALLBACK_KEY: ConfigKey(
            str,
            FALLBACKS[0],
            "What follows when a device cannot be used, or fails to load or to run a part that it has taken: an error, or the next device.",
            choices=FALLBACKS,
        ),
        TRACE_KEY: ConfigKey(
            bool, False, "Whether a query writes the steps of the selection of subgraphs into its plan.", runtime=True
        ),
        SMALLEST_KEY: ConfigKey(int, 1, "Subgraphs of fewer nodes are folded into a neighbour whose device takes them.", least=1),
        UNITS_KEY: ConfigKey(
            bool,
            True,
            "Whether quantized units stay whole, and shape arithmetic goes to its reader; NO: by priority alone.",
            added_later=True,
        ),
        DOT_KEY: ConfigKey(
            bool,
            False,
            "Whether a load or an import writes its plan to hetero_subgraphs_<network>.dot in the working folder.",
            runtime=True,
        ),
        **PLACING_KEYS,
        ROLES_KEY: ConfigKey(
            dict,
            None,
            'The devices that may have a role, {"accelerator": "GPU,ORT.CUDA"}: pins to the role go to the first in the list of HETERO.',
            added_later=True,
        ),
        PROPERTIES_KEY: ConfigKey(dict, None, "Keys for one device of the list alone: {device: {key: value}}."),
    }
)


class HeteroDevice(Composer):
    """Splits a network over the devices of its list, which stand in order of priority."""

    title = "HETERO: one network over several devices"
    own_keys = OWN_KEYS
    example = "HETERO:GPU,CPU"
    purpose = "split over"

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The device of each node, and the whole plan; there is no plan if all devices refuse a node."""
        task, assignment = self._assign(device, network, config)
        plan = None if assignment.refused else build_plan(network, task, assignment, cut_stages(task, assignment))
        if plan is not None and config[TRACE_KEY]:
            plan = replace(plan, selection=trace_assignment(task, assignment))
        refusals = assignment.refusals
        return QueryResult(
            supported=freeze_mapping(assignment.device_of_node),
            refused=freeze_mapping(
                (name, "; ".join(f"{child}: {reason}" for child, reason in refusals[name].items())) for name in assignment.refused
            ),
            plan=plan,
        )

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Splits the network and loads each part on its device."""
        task, assignment = self._assign(device, network, config)
        require_complete(task, assignment)
        if len(network.nodes) == 1 and str(device) in assignment.device_of_node.values():
            return self._load_branches(task, build_plan(network, task, assignment, cut_stages(task, assignment)))
        stages, loaded = load_stages(task, assignment, may_move=config[FALLBACK_KEY] == "NEXT")
        require_limits(network.name, task.memory, loaded)
        plan = build_plan(network, task, assignment, stages)
        _warn_of_idle_devices(plan, str(device))
        parts: list[Loaded] = [(executable, stage.part) for executable, stage in zip(loaded, stages, strict=True)]
        constants = {
            spec.name: network.initializers[spec.name].array for spec in network.outputs if spec.name in network.initializers
        }
        substitutes = Substitutes(self._core, task.itself, task.own_config, task.configs)
        return self._join_stages((network.inputs, network.outputs), plan, parts, constants, substitutes, config)

    @hookimpl
    def export_network(self, executable: HeteroExecutable | BranchExecutable) -> Payload:
        """The plan, and of each part the blob of its own device; of an If with split branches the network."""
        if isinstance(executable, BranchExecutable):
            return Payload(pack_network(executable.network))
        sections: dict[str, Any] = {}
        is_guarded, stages = any(find_guard(stage) is not None for stage in executable.stages), []
        for index, (stage, part) in enumerate(executable.loaded_parts()):
            stages.append(export_part(stage, part, f"stage/{index}", sections))
            if is_guarded and part is not None and stages[-1]["kind"] == "blob":
                # Another device needs the network of a part that only its device's own blob holds.
                sections |= add_prefix(f"stage/{index}/{_PART}", pack_network(part))
        if executable.constants:
            sections |= add_prefix(_CONSTANTS, pack_network(_hold_constants(executable.constants)))
        inputs, outputs = (
            tuple(ValueSpec(spec.name, spec.type) for spec in side) for side in (executable.inputs, executable.outputs)
        )
        return pack_index(inputs, outputs, {"stages": stages, "plan": _plan_to_json(executable.plan)}, sections)

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> BlobCheck:
        """The answer of each part's device, and whether what a limit of AUTO allows still has room for the parts."""
        if config[MEMORY_KEY] is not None and "index" in payload.sections:
            self._require_free(read_index(payload, _read_stages, owner="HETERO")[2][1], config)
        return check_parts(self._core, device, payload)

    def _require_free(self, plan: Plan, config: Mapping[str, Any]) -> None:
        """Raises DeviceMemoryError if a device no longer has the memory free for its part."""
        if config[MEMORY_KEY] is not None:
            from hetero_hetero.placement.memory import require_free

            require_free(self._core, plan, config[MEMORY_KEY])

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Imports each part on the device that the plan names, with its part of the threads; loads an If with split branches anew.

        The imported parts are closed after an error.

        Raises: BlobDamagedError, BlobMismatchError; errors of a device about its part, with a note that names the stage.
        """
        if "index" not in payload.sections:
            payload.require_version(1)
            return self.load_network(device, unpack_network(payload.sections), config)
        configs = configure_children(self._core, device, self.list_children(device), config)
        sections = payload.sections
        inputs, outputs, (rows, plan) = read_index(payload, _read_stages, owner="HETERO")
        self._require_free(plan, config)
        if len(rows) != len(plan.stages):
            raise BlobDamagedError(f"the blob of HETERO has {len(rows)} parts and a plan of {len(plan.stages)} stages")
        shares = configure_stages(self._core, plan.stages, config[THREADS_KEY], configs)
        with ExitStack() as opened:
            loaded = []
            for index, row in enumerate(rows):
                prefix, own = f"stage/{index}", configs.get(plan.stages[index].device, {})
                stage, part = import_part(self._core, row, prefix, sections, config, own, shares[index], owner="HETERO")
                opened.callback(stage.close)
                packed = take_prefix(f"{prefix}/{_PART}", sections) if part is None else {}
                loaded.append((stage, unpack_network(packed) if packed else part))
            constant_sections = take_prefix(_CONSTANTS, sections)
            initializers = unpack_network(constant_sections).initializers if constant_sections else {}
            constants = {name: initializer.array for name, initializer in initializers.items()}
            substitutes = Substitutes(self._core, str(device), self._select_own(device, config), configs)
            split = self._join_stages((inputs, outputs), plan, loaded, constants, substitutes, config)
            opened.pop_all()
        return split

    def _join_stages(
        self,
        borders: tuple[tuple[ValueSpec, ...], tuple[ValueSpec, ...]],
        plan: Plan,
        loaded: Sequence[Loaded],
        constants: Mapping[str, Any],
        substitutes: Substitutes,
        config: Mapping[str, Any],
    ) -> HeteroExecutable:
        """Returns the executable of loaded stages, each with its substitutes if the configuration asks for the next device."""
        if config[DOT_KEY]:
            _write_drawing(plan)
        stages = guard_stages(plan, loaded, substitutes) if config[FALLBACK_KEY] == "NEXT" else loaded
        budget = {"threads": config[THREADS_KEY], "streams": config[STREAMS_KEY]}
        return HeteroExecutable(*borders, plan, stages, constants, core=self._core, **budget)

    def _assign(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> tuple[SplitTask, Assignment]:
        """Returns the task, with the pins of its placement, and the assignment of its nodes."""
        children = self.require_children(device)
        unavailable = find_unavailable(self._core, children) if config[FALLBACK_KEY] == "NEXT" else {}
        for child, reason in unavailable.items():
            logger.warning("%s goes on without %s: %s", device, child, reason)
        try:
            configs = configure_children(self._core, device, children, config, unavailable=unavailable)
        except DeviceUnavailableError as error:
            error.add_note(f"{FALLBACK_KEY}=NEXT would let {device} go on without it")
            raise
        own = self._select_own(device, config)
        network = resolve_roles(self._core, network, tuple(configs), config[ROLES_KEY])
        rules = config[POLICY_KEY], config[SMALLEST_KEY], config[UNITS_KEY]
        task = place_nodes(SplitTask(self._core, network, str(device), own, configs, *rules, unavailable), config)
        assignment = begin_assignment(task)
        complete_assignment(task, assignment)
        return task, assignment

    def _select_own(self, device: DeviceName, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration for HETERO itself, if it runs a part of the whole."""
        keys = self.config_keys(device)
        own = {name: value for name, value in config.items() if value is not None and name in keys and name not in PLACING_KEYS}
        # A branch runs within a run of the whole. A measurement loads the whole with pins and must not measure again within that
        # load, even if the placement was set for the device.
        return own | {THREADS_KEY: config[THREADS_KEY], STREAMS_KEY: 1, PLACEMENT_KEY: PLACEMENTS[0]}

    def _load_branches(self, task: SplitTask, plan: Plan) -> BranchExecutable:
        """Loads the branches of a network that consists of an If, each as a network of its own."""
        (node,) = task.network.nodes
        with ExitStack() as opened:
            then_branch, else_branch = (
                opened.enter_context(closing(self._core.load_network(branch, task.itself, task.own_config)))
                for branch in cut_branches(task.network, node)
            )
            opened.pop_all()
        return BranchExecutable(task.network, plan, then_branch, else_branch)


def _warn_of_idle_devices(plan: Plan, device: str) -> None:
    """Warns of each device of the list that refuses all that it is asked for; a device that is not needed is no fault."""
    busy = {stage.device for stage in plan.stages}
    for child in plan.priorities:
        reasons = {} if child in busy else {name: reasons[child] for name, reasons in plan.refusals.items() if child in reasons}
        if reasons:
            name, reason = next(iter(reasons.items()))
            logger.warning(
                "%s gets no node of network '%s': it refuses '%s' (%s)%s: %s; take it out of %s, or see `hetero query MODEL -d %s`",
                child, plan.network, name, plan.operator_of_node[name],
                f" and {len(reasons) - 1} more nodes" if len(reasons) > 1 else "", reason, device, device,
            )  # fmt: skip


def _write_drawing(plan: Plan) -> None:
    """Writes the plan in the DOT language to hetero_subgraphs_<network>.dot. Raises: OSError if the folder cannot be written."""
    from hetero_core.reports.dot import plan_to_dot  # the views of plans, which a load does without

    name = re.sub(r"[^\w.-]", "_", plan.network)
    path = Path(f"hetero_subgraphs_{name}.dot").absolute()
    with replace_file(path) as stream:
        stream.write(plan_to_dot(plan).encode())
    logger.info("the plan of network '%s' is drawn in %s", plan.network, path)


_CONSTANTS = "constants"
_PART = "part"


def _hold_constants(constants: Mapping[str, np.ndarray[Any, Any]]) -> Network:
    """Returns a network without nodes that has these arrays as outputs, so that they are stored as weights are."""
    initializers = {name: Initializer.of_array(array) for name, array in constants.items()}
    outputs = tuple(ValueSpec(name, constant.type) for name, constant in initializers.items())
    types = freeze_mapping((name, constant.type) for name, constant in initializers.items())
    return Network("constants", (), outputs, (), freeze_mapping(initializers), types, freeze_mapping({"": 17}))


_PLAN_FIELDS = ("network", "priorities", "device_of_node", "operator_of_node", "refusals", "pins", "stages", "boundaries", "conflicts",
                "unexplained", "procedures", "memory")  # fmt: skip


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    fields = {name: write_record(getattr(plan, name)) for name in _PLAN_FIELDS}
    return {**fields, "stages": [row for _, *row in fields["stages"]]}


def _read_stages(fields: Mapping[str, Any]) -> tuple[list[Any], Plan]:
    """Returns the rows of the parts, and the plan that `_plan_to_json` wrote. Raises: TypeError, ValueError, KeyError for anything else."""
    written = fields["plan"]
    stages = [[index, *row] for index, row in enumerate(written["stages"])]
    plan: Plan = read_record(Plan, {**written, "stages": stages})
    known = {*range(len(plan.stages)), None}
    if any(index not in known for boundary in plan.boundaries for index in (boundary.producer, *boundary.consumers)):
        raise ValueError("a boundary value names a stage that the plan does not have")
    return list(fields["stages"]), plan
