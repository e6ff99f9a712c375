"""Contract of versions: the plugin API that a plugin states is the API that it uses."""

from __future__ import annotations

from hetero_core import hookspecs
from hetero_core.conformance.check import CheckContext, Skip, check, require
from hetero_core.hookspecs import SINCE


@check("registry")
def plugin_states_the_api_that_it_uses(context: CheckContext) -> None:
    """No hook and no argument of the plugin is newer than its `requires_api`: an older core refuses the plugin by version."""
    if context.facts.plugin is None:
        raise Skip("the plugin object is not known")
    stated = getattr(context.facts.plugin, "requires_api", None) or (1, 0)
    hooks = context.core._registry.device(context.facts.name).manager.hook
    for hook in (name for name, spec in vars(hookspecs).items() if hasattr(spec, f"{hookspecs.PROJECT}_spec")):
        for implementation in getattr(hooks, hook).get_hookimpls():
            # Wrappers are plugins of others; a base class of the core has the API of its core.
            if implementation.wrapper or implementation.function.__module__.partition(".")[0] == hookspecs.PROJECT:
                continue
            for name in (hook, *(f"{hook}({argument})" for argument in implementation.argnames)):
                major, minor = since = SINCE.get(name, (1, 0))
                brought = f"{name} came with the plugin API {major}.{minor}"
                require(since <= stated, f"{brought}; the plugin states requires_api = {stated}")
