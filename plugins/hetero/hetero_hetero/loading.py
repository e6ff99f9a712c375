"""Loading a split network: each part on its device, and what happens when a device fails at a part that it has taken.

STRICT: the failure is an error that names part, device and cause. NEXT: the device counts as refusing the nodes of the part, they go
to the devices behind it, and loading goes on; parts that stay as they are stay loaded. Every failure adds refusals, so this ends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hetero_core.devices.query import GENERAL_CURE, describe_refusals
from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import HeteroError, InternalError, LoadError, UnsupportedNodesError
from hetero_core.network.graph import Network
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_hetero.affinity import SplitTask, complete_assignment
from hetero_hetero.assignment import Assignment
from hetero_hetero.shares import configure_stages
from hetero_hetero.stages import Stage, cut_stages

logger = logging.getLogger(__name__)

_Key = tuple[str, tuple[str, ...], int]
"""A part that is loaded: its device, its nodes, its number of threads."""


@dataclass(frozen=True)
class FailedStage:
    """A stage that its device could not load, and why."""

    index: int
    count: int
    stage: Stage
    error: Exception

    @property
    def cause(self) -> str:
        """The error as text; one that is not ours with its type, which often says more."""
        return str(self.error) if isinstance(self.error, HeteroError) else f"{type(self.error).__name__}: {self.error}"


def load_stages(
    task: SplitTask, assignment: Assignment, *, may_move: bool
) -> tuple[tuple[Stage, ...], tuple[ExecutableNetwork, ...]]:
    """Returns the stages of a complete assignment and each of them loaded; with `may_move` the assignment may have changed by then.

    Where this raises, everything that was loaded is closed.

    Raises: an error of the device's own type if that is a HeteroError, else LoadError, with the device's error as the cause;
    UnsupportedNodesError if no other device takes the failed parts; InvalidNetworkError if a value at a border has no type.
    """
    loaded: dict[_Key, ExecutableNetwork] = {}
    try:
        while True:
            stages = cut_stages(task, assignment)
            configs = _configure_stages(task, stages)
            keys = [_key_of(stage, config) for stage, config in zip(stages, configs, strict=True)]
            _close_all_but(loaded, keys)
            failed = _load_missing(task, stages, configs, loaded)
            if failed is None:
                return stages, tuple(loaded[key] for key in keys)
            movable = [node.name for node in failed.stage.part.nodes if node.name not in assignment.pins] if may_move else []
            if not movable:
                raise _describe_failure(task.network, failed, may_move=may_move) from failed.error
            _move_on(task, assignment, failed, movable)
    except BaseException:
        _close_all_but(loaded, ())
        raise


def require_complete(task: SplitTask, assignment: Assignment) -> None:
    """Raises UnsupportedNodesError with every reason of every device where nodes are refused by all."""
    if assignment.refused:
        known = assignment.refusals
        refusals = {name: known[name] for name in assignment.refused}
        headline = f"cannot load network '{task.network.name}' on {task.itself}"
        raise UnsupportedNodesError(describe_refusals(task.network, refusals, headline), refusals, GENERAL_CURE)


def _configure_stages(task: SplitTask, stages: Sequence[Stage]) -> tuple[dict[str, int], ...]:
    borders = [
        (stage.device, [spec.name for spec in stage.part.inputs], [spec.name for spec in stage.part.outputs]) for stage in stages
    ]
    return configure_stages(task.core, borders, task.own_config[THREADS_KEY], task.configs)


def _key_of(stage: Stage, config: Mapping[str, int]) -> _Key:
    return stage.device, tuple(node.name for node in stage.part.nodes), config[THREADS_KEY]


def _close_all_but(loaded: dict[_Key, ExecutableNetwork], needed: Collection[_Key]) -> None:
    for key in [key for key in loaded if key not in needed]:
        loaded.pop(key).close()


def _load_missing(
    task: SplitTask, stages: Sequence[Stage], configs: Sequence[Mapping[str, int]], loaded: dict[_Key, ExecutableNetwork]
) -> FailedStage | None:
    """Loads the stages that are not loaded yet, in order; returns the first that fails."""
    for index, stage in enumerate(stages):
        key = _key_of(stage, configs[index])
        if key in loaded:
            continue
        try:
            config = {**task.config_of(stage.device), **configs[index]}
            loaded[key] = task.core.load_network(stage.part, stage.device, config, query=stage.query)
        except Exception as error:  # noqa: BLE001  # whatever a device raises is reported, or recorded where NEXT was asked for
            return FailedStage(index, len(stages), stage, _find_own_error(error))
    return None


def _move_on(task: SplitTask, assignment: Assignment, failed: FailedStage, movable: Sequence[str]) -> None:
    """Gives the nodes of a part that failed to other devices."""
    device = failed.stage.device
    logger.warning("%s; its nodes go to the next device", _locate(task.network, failed))
    for name in movable:
        assignment.refuse(name, device, f"failed to load: {failed.cause}")
    complete_assignment(task, assignment)
    try:
        require_complete(task, assignment)
    except UnsupportedNodesError as error:
        raise error from failed.error


def _find_own_error(error: Exception) -> Exception:
    """Returns the device's own error if the core has wrapped it in an error of hetero."""
    cause = error.__cause__
    return cause if isinstance(error, InternalError) and isinstance(cause, Exception) else error


def _describe_failure(network: Network, failed: FailedStage, *, may_move: bool) -> HeteroError:
    """Returns the error to raise: of the type of the device's own where callers of hetero know it, with its fields and notes."""
    advice = (
        f"all of its nodes are pinned to {failed.stage.device}"
        if may_move
        else "HETERO_FALLBACK=NEXT would move on to the next device"
    )
    text = f"{_locate(network, failed)}; {advice}"
    cause = failed.error
    error = type(cause).__new__(type(cause), text) if isinstance(cause, HeteroError) else LoadError(text)
    if isinstance(cause, HeteroError):
        error.__dict__.update(cause.__dict__)
    error.__notes__ = list(getattr(cause, "__notes__", ()))
    return error


def _locate(network: Network, failed: FailedStage) -> str:
    nodes = failed.stage.part.nodes
    shown = ", ".join(node.label for node in nodes[:3]) + (f", ... ({len(nodes)} in all)" if len(nodes) > 3 else "")
    return (
        f"cannot load stage {failed.index} of {failed.count} of network '{network.name}' on {failed.stage.device}, "
        f"nodes {shown}: {failed.cause}"
    )
