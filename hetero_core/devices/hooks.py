"""Checks of a plugin's hooks when it is registered: what would be called by nobody, or could not be called, is an error that names it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hetero_core import hookspecs
from hetero_core.errors import PluginError, enumerate_choices, suggest

logger = logging.getLogger(__name__)
NEARNESS = 0.9
"""The similarity from which a method's name counts as a misspelled hook; two swapped letters of ten are as near."""
_MARK = f"{hookspecs.PROJECT}_impl"


def list_hooks() -> dict[str, tuple[str, ...]]:
    """Returns the arguments of every hook, by name."""
    specs = {name: hook for name, hook in vars(hookspecs).items() if hasattr(hook, f"{hookspecs.PROJECT}_spec")}
    return {name: tuple(inspect.signature(hook).parameters) for name, hook in specs.items()}


def check_hooks(plugin: Any, blame: object) -> None:
    """Raises PluginError for a hook that does not exist, one with an argument that it does not get, and one that is not marked."""
    hooks = list_hooks()
    functions = list(_list_functions(plugin))
    marked = {name for name, function in functions if hasattr(function, _MARK)}
    _refuse_properties(plugin, hooks, blame)
    for name, function in functions:
        mark = getattr(function, _MARK, None)
        if mark is None:
            # The package of a plugin may have functions of any name; there is one hook for it.
            if name in hooks and (name == "create_device" or not isinstance(plugin, ModuleType)):
                raise PluginError(
                    f"{blame} has {name}, which is not marked with @hookimpl, so that nobody calls it; mark it or rename it"
                )
            if not name.startswith("_") and not isinstance(plugin, ModuleType):
                _warn_of_near_name(name, marked, hooks, blame)
            continue
        hook = mark.get("specname") or name
        if hook not in hooks:
            if mark.get("optionalhook"):
                continue
            near = suggest(hook, hooks) or ";"
            raise PluginError(
                f"{blame} does not fit the contract: unknown hook '{hook}'{near} hooks are {enumerate_choices(hooks)}"
            )
        for argument in _list_arguments(function):
            if argument == "self" and inspect.isclass(plugin):
                raise PluginError(f"{blame} is the class {plugin.__name__}; a device is an object, as {plugin.__name__}()")
            if argument not in hooks[hook]:
                raise PluginError(
                    f"{blame} does not fit the contract: its {hook} asks for '{argument}'{suggest(argument, hooks[hook]) or ';'} "
                    f"the arguments of {hook} are {', '.join(hooks[hook])}"
                )


def _warn_of_near_name(name: str, marked: Collection[str], hooks: Collection[str], blame: object) -> None:
    import difflib  # heavy, and for a misspelled hook alone

    near = difflib.get_close_matches(name, [hook for hook in hooks if hook not in marked], n=1, cutoff=NEARNESS)
    if near:
        logger.warning("%s has %s, which is no hook and not marked; the hook %s is named nearly so", blame, name, near[0])


def _refuse_properties(plugin: Any, hooks: Collection[str], blame: object) -> None:
    for name in hooks:
        if isinstance(inspect.getattr_static(plugin, name, None), property):
            raise PluginError(f"{blame} has {name} as a property, which nobody calls; a hook is a method marked with @hookimpl")


def _list_functions(plugin: Any) -> Iterator[tuple[str, Any]]:
    """Yields the functions and methods of a plugin; what an instance computes on access is left alone."""
    for name in sorted(dir(plugin)):
        try:
            static = inspect.getattr_static(plugin, name)
        except AttributeError:
            continue
        if isinstance(static, FunctionType | MethodType | staticmethod | classmethod):
            yield name, getattr(plugin, name)


def _list_arguments(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in kinds and parameter.default is inspect.Parameter.empty]
