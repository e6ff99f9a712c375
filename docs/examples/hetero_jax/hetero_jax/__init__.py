"""JAX, a device of one file: the kernels of the toolkit on the arrays of a library, which cannot change."""

import os

from hetero_core import hookimpl


@hookimpl
def create_device(core, name):
    """Imports JAX when the device is first used, and removes the environment variables that JAX sets for its own start."""
    before = set(os.environ)
    from hetero_jax.device import JaxDevice

    device = JaxDevice()
    for name in os.environ.keys() - before:
        del os.environ[name]
    return device
