"""RAY: devices on the nodes of a Ray cluster; and a network over a data set, on Ray Data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetero_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from hetero_core import Core
    from hetero_ray.data import predict
    from hetero_ray.nodes import FollowedCluster

kind = "composer"
_HOMES = {"FollowedCluster": "hetero_ray.nodes", "predict": "hetero_ray.data"}
__all__ = ["FollowedCluster", "create_device", "predict"]


def __getattr__(name: str) -> Any:
    """Returns `predict` or `FollowedCluster`; imports its module on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name!r}")


@hookimpl
def create_device(core: Core, name: str) -> object:
    """Returns the device, connected to a running cluster; never starts a cluster.

    Raises: DeviceUnavailableError if Ray is not installed or no cluster is there.
    """
    from hetero_ray.nodes import connect_cluster  # imports Ray

    connect_cluster(name)
    from hetero_ray.device import RayDevice

    return RayDevice()
