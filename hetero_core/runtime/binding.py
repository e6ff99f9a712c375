"""Binding: what the core gives a loaded network to live on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Array, ConfigKey, DeviceName, Payload, RunContext
from hetero_core.devices.provenance import Provenance
from hetero_core.network.border import EMPTY_BORDER, Border
from hetero_core.network.declarations import NO_DECLARATIONS, Declarations

if TYPE_CHECKING:
    from hetero_core.runtime.ranked_tasks import Submitting
    from hetero_core.runtime.replaced import Replacements

RunFunction = Callable[[tuple[Array, ...], RunContext], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Binding:
    """The hooks of a device, bound to one loaded network, and what surrounds that network: border, declarations, replaceable constants."""

    device: DeviceName
    provenance: Provenance
    config: Mapping[str, Any]
    keys: Mapping[str, ConfigKey]
    run: RunFunction
    to_host: Callable[[Array], Array]
    from_host: Callable[..., Array]
    export: Callable[[], Payload]
    executor: Submitting
    find_architecture: Callable[[], str]
    set_log_level: Callable[[str | None], None]
    is_from_cache: bool = False
    border: Border = EMPTY_BORDER
    declarations: Declarations = NO_DECLARATIONS
    replacements: Replacements | None = None
