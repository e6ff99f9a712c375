"""RAY: devices on the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from hetero_core.core import Core


@hookimpl
def create_device(core: Core, name: str) -> object:
    """Returns the device, connected to a cluster; starts none.

    Raises: DeviceUnavailableError where Ray is not installed or no cluster is there.
    """
    from hetero_ray.nodes import connect_cluster  # imports Ray

    connect_cluster(name)
    from hetero_ray.device import RayDevice

    return RayDevice(name)
