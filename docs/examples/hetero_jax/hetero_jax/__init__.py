"""JAX, a device of one file: the kernels of the toolkit on the arrays of a library, which cannot change."""

from hetero_core import hookimpl


@hookimpl
def create_device(core, name):
    """Imports JAX when the device is first used."""
    from hetero_jax.device import JaxDevice

    return JaxDevice()
