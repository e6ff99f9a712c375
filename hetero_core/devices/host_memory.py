"""The place of `describe_host_memory` in version 0.1, for plugins that import it from here; it goes with 0.3."""

from warnings import warn

from hetero_core.devices.processors import describe_host_memory as describe_host_memory

warn(
    "import describe_host_memory from hetero_core.devices.processors, not from devices.host_memory",
    DeprecationWarning,
    stacklevel=2,
)
