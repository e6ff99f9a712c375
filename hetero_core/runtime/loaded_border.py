"""The border of a loaded network: which values are the caller's, which stay in the device's memory, and its section of a blob."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Executable, Payload
from hetero_core.devices.provenance import read_mapping
from hetero_core.errors import BlobDamagedError, InvalidNetworkError, NetworkReadError, PluginError
from hetero_core.network.border import EMPTY_BORDER, FIRST_WITH_OPTIONAL_INPUTS, Border, pack_border, unpack_border
from hetero_core.network.declarations import NO_DECLARATIONS, Declarations, pack_hints, unpack_hints
from hetero_core.network.graph import Network
from hetero_core.network.hints import without_hints
from hetero_core.network.soundness import find_contradiction
from hetero_core.network.types import HOST, ValueSpec

if TYPE_CHECKING:
    from hetero_core.runtime.replaced import Replacements

_SECTION = "hetero/border"
"""The section of a blob that holds the border; the plugin that imports the blob does not see it."""
_NETWORK = "hetero/network"
"""The sections of a blob that hold the network itself, where a run may be given constants of it."""
_HINTS = "hetero/declarations"
"""The section of a blob that holds the declared shapes of outputs which a run may contradict; the plugin does not see it either."""


def bare_network(network: Network) -> Network:
    """Returns the network as a device is given it: states and defaults are the core's affair, so that every device has them.

    Shapes that are only declared are left out: what crosses a border has the computed type.
    """
    network, border = without_hints(network), network.border
    return replace(network, border=Border(bounds=border.bounds, layouts=border.layouts)) if border is not EMPTY_BORDER else network


def drop_specs(specs: tuple[ValueSpec, ...], names: Collection[str]) -> tuple[ValueSpec, ...]:
    """Returns the specs without those of these names."""
    return tuple(spec for spec in specs if spec.name not in names) if names else specs


def find_resident(border: Border, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...]) -> frozenset[str]:
    """Returns the inputs and outputs of states that are made and read in one memory of the device, so that they never leave it."""
    memory_in = {spec.name: spec.memory for spec in inputs}
    memory_out = {spec.name: spec.memory for spec in outputs}
    ties = [state for state in border.states if HOST != memory_in[state.input] == memory_out[state.output]]
    return frozenset(name for state in ties for name in (state.input, state.output))


def keep_states(executable: Executable, border: Border) -> Mapping[str, Any]:
    """Returns by input what moves a state that stays with a part of a device made of devices; it then has another memory in the specs."""
    return executable.keep_states({state.input: state.output for state in border.states}) if border.states else {}


def check_payload(payload: Any, blame: str) -> Payload:
    """Returns what a plugin exports, when it is a payload of bytes by name. Raises: PluginError."""
    if not isinstance(payload, Payload):
        raise PluginError(f"{blame} returned {type(payload).__name__} from export_network; expected a Payload")
    if not isinstance(payload.version, int) or isinstance(payload.version, bool):
        raise PluginError(f"{blame} returned a Payload of version {payload.version!r} from export_network; expected an int")
    for name, section in read_mapping(payload.sections, blame=blame, where="export_network").items():
        try:
            memoryview(section).cast("B")
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"{blame} returned from export_network the section '{name}' of {type(section).__name__}; expected contiguous bytes"
            ) from error
    return payload


def add_border(
    payload: Payload,
    border: Border,
    declarations: Declarations,
    outputs: tuple[ValueSpec, ...],
    replacements: Replacements | None,
) -> Payload:
    """Returns the payload with the border, where that says anything about runs or layouts, hints about outputs, and replaceable constants.

    These need the network itself. A model of IR version 3, which has to list every weight as an input, is exported without it.
    """
    hints = pack_hints(declarations, [spec.name for spec in outputs])
    sections = {_SECTION: pack_border(border)} if border.shapes_runs or border.layouts else {}
    sections.update({_HINTS: hints} if hints else {})
    if replacements is not None and replacements.network.ir_version >= FIRST_WITH_OPTIONAL_INPUTS:
        from hetero_core.network.writer import pack_network  # only an export needs it

        sections.update({f"{_NETWORK}/{key}": bytes(part) for key, part in pack_network(replacements.network).items()})
    return replace(payload, sections={**payload.sections, **sections}) if sections else payload


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a blob holds besides what the plugin wrote; `network` is there where some of its constants may be replaced."""

    border: Border = EMPTY_BORDER
    declarations: Declarations = NO_DECLARATIONS
    network: Network | None = None


def take_border(payload: Payload) -> tuple[Payload, Surroundings]:
    """Returns the payload as the plugin wrote it, and what surrounds it. Raises: BlobDamagedError for what cannot be read."""
    sections = dict(payload.sections)
    border, declarations, network = EMPTY_BORDER, NO_DECLARATIONS, None
    try:
        if _SECTION in sections:
            border = unpack_border(bytes(sections.pop(_SECTION)))
        if _HINTS in sections:
            declarations = unpack_hints(bytes(sections.pop(_HINTS)))
        if f"{_NETWORK}/model" in sections:
            from hetero_core.network.writer import unpack_network  # only an import needs it

            packed = {key: sections.pop(f"{_NETWORK}/{key}") for key in ("model", "weights")}
            network = unpack_network(packed)
    except (InvalidNetworkError, NetworkReadError, KeyError) as error:
        raise BlobDamagedError(str(error)) from error
    return replace(payload, sections=sections), Surroundings(border, declarations, network)


def check_border(border: Border, executable: Executable) -> None:
    """Raises BlobDamagedError for a border that contradicts the inputs and outputs of what was imported with it."""
    contradiction = find_contradiction(border, executable.inputs, executable.outputs)
    if contradiction is not None:
        raise BlobDamagedError(f"the border of the blob contradicts its network: {contradiction}; export the network again")
