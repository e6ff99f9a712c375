"""JAX keeps the contract of every device."""

import hetero_jax

from hetero_core.conformance.suite import DeviceConformance


class TestJax(DeviceConformance):
    device, plugin = "JAX", hetero_jax
