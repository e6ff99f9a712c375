"""RAY: devices on the nodes of a Ray cluster; and a network over a data set, on Ray Data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetero_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_ray.data import predict

__all__ = ["create_device", "predict"]


def __getattr__(name: str) -> Any:
    """Returns `predict`, whose file is imported with its first use."""
    if name == "predict":
        from hetero_ray.data import predict

        return predict
    raise AttributeError(f"module {__name__} has no attribute {name!r}")


@hookimpl
def create_device(core: Core, name: str) -> object:
    """Returns the device, connected to a cluster; starts none.

    Raises: DeviceUnavailableError where Ray is not installed or no cluster is there.
    """
    from hetero_ray.nodes import connect_cluster  # imports Ray

    connect_cluster(name)
    from hetero_ray.device import RayDevice

    return RayDevice(name)
