"""The network of an executable. Imports nothing of plans or of machine code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hetero_core.contract import Payload
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec

if TYPE_CHECKING:
    from hetero_cpu.operators.recipe import Array
    from hetero_cpu.run.plans import PlanInUse


@dataclass(slots=True, eq=False)
class NetworkSource:
    """The network of an executable, loaded or imported, and the plan that it begins with. Safe for threads.

    `read` returns the network after the passes that do not ask for sizes; it is called if the plan does not suffice.
    """

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    read: Callable[[], Network]
    name: str = ""
    """Empty if the network is that of a blob which is not read yet: its index has no name."""
    plan: PlanInUse | None = None
    """The plan of one set of input shapes, made by another executable."""
    payload: Payload | None = None
    """The result of an export, if it is known already."""
    packed: tuple[Array, ...] = ()
    """Memory of packed weights that the plan reads."""
    constants: tuple[Array, ...] = ()
    """Memory of weights as they are in the model, which the plan and the network read."""
    _network: Network | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def open(self) -> Network:
        """Returns the network, read the first time."""
        with self._lock:
            if self._network is None:
                self._network = self.read()
                self.name = self._network.name
            return self._network


def load_source(network: Network, *, narrows: bool = False) -> NetworkSource:
    """Returns a network that was loaded, transformed; `narrows`: with products in bfloat16, if the processor has them."""
    from hetero_cpu.plan.passes import transform_network  # a blob with a plan does without

    transformed = transform_network(network)
    if narrows:
        from hetero_cpu.plan.narrowing import narrow_products  # few ask for it

        transformed = narrow_products(transformed)
    return NetworkSource(network.inputs, network.outputs, lambda: transformed, network.name)
