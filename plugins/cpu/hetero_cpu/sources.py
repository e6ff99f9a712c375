"""Where an executable has its network from, and the plan that it begins with.

```text
load   ──> NetworkSource: passes at once, no plan ───────────────────────────────────────────────────────────┐
import ──> BlobNetwork (stored/blob_network.py): the plan beside the blob, the network when it is needed ─┴─> CpuExecutable
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.types import ValueSpec

if TYPE_CHECKING:
    from hetero_core.contract import Payload
    from hetero_core.network.graph import Network
    from hetero_cpu.planning.plans_in_use import OpenPlanInUse

Array = np.ndarray[Any, Any]


class NetworkSource:
    """A network that was loaded. Safe for threads."""

    plan: OpenPlanInUse | None = None
    """The plan of one set of input shapes, made by another executable."""
    payload: Payload | None = None
    """The result of an export, where it is known already."""
    packed: tuple[Array, ...] = ()
    """Memory of packed weights that the plan reads."""
    constants: tuple[Array, ...] = ()
    """Memory of weights as they are in the model, which the plan and the network read."""

    def __init__(self, network: Network) -> None:
        """Transforms the network."""
        from hetero_cpu.passes import transform_network  # an import of a blob does without

        self._transformed = transform_network(network)
        self.name = network.name
        self.inputs: tuple[ValueSpec, ...] = network.inputs
        self.outputs: tuple[ValueSpec, ...] = network.outputs

    def open(self) -> Network:
        """Returns the network after the passes that do not ask for sizes."""
        return self._transformed
