"""A plugin of mypy that compares each `@hookimpl` function with its hook: the name, the arguments and their types, the result.

`plugins = ["hetero_core.conformance.mypy_plugin"]` in the section `[tool.mypy]` of pyproject.toml switches it on. No base class can say
this, because an implementation takes any choice of the hook's arguments. mypy calls `_check` for each function below a plain
`@hookimpl`; the signatures of the hooks are those of `hookspecs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mypy.errorcodes import ErrorCode
from mypy.nodes import Decorator, RefExpr, SymbolTableNode
from mypy.plugin import MethodContext, Plugin
from mypy.subtypes import is_subtype
from mypy.types import CallableType, Instance, Type

from hetero_core import hookspecs
from hetero_core.errors import enumerate_choices, suggest

HOOK = ErrorCode("hook", "An implementation differs from its hook", "hetero")


class HookPlugin(Plugin):
    """Sends each call of a hook marker, which is the use of a decorator, to the check."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Returns the check for pluggy's marker."""
        return _check if fullname.startswith("pluggy.") and fullname.endswith(".HookimplMarker.__call__") else None


def _check(context: MethodContext) -> Type:
    """Returns the decorated type unchanged, and reports the differences between the function and its hook."""
    decorated = context.context
    marks = decorated.original_decorators if isinstance(decorated, Decorator) else []
    if any(isinstance(mark, RefExpr) and mark.fullname == f"{hookspecs.__name__}.hookimpl" for mark in marks):
        assert isinstance(decorated, Decorator)
        names = context.api.modules[hookspecs.__name__].names  # type: ignore[attr-defined]  # only the interface of mypy's checker lacks it
        for difference in _compare(decorated, names):
            context.api.fail(difference, decorated, code=HOOK)
    return context.default_return_type


def _compare(decorated: Decorator, names: Mapping[str, SymbolTableNode]) -> Iterator[str]:
    """Yields each difference between a function and the hook of its name."""
    nodes = {name: symbol.node for name, symbol in names.items()}
    hooks = {name: node.func.type for name, node in nodes.items() if isinstance(node, Decorator)}
    function = decorated.func
    hook, implementation = hooks.get(function.name), function.type
    if hook is None:
        yield f'unknown hook "{function.name}"{suggest(function.name, hooks) or ";"} hooks are {enumerate_choices(hooks)}'
    if not isinstance(hook, CallableType) or not isinstance(implementation, CallableType):
        return
    types = {name or "": value_type for name, value_type in zip(hook.arg_names, hook.arg_types, strict=True)}
    is_method = bool(function.info) and not function.is_static
    for name, value_type in list(zip(implementation.arg_names, implementation.arg_types, strict=True))[is_method:]:
        if name not in types:
            near = suggest(name or "", types) or ";"
            yield f'{function.name} has no argument "{name}"{near} its arguments are {", ".join(types)}'
        # A device gets its own executables back, so a subclass is right, too.
        elif not is_subtype(types[name], value_type) and not (
            isinstance(types[name], Instance) and is_subtype(value_type, types[name])
        ):
            yield f'{function.name} gets "{name}" of the type {types[name]}, not {value_type}'
    if not is_subtype(implementation.ret_type, hook.ret_type):
        yield f"{function.name} returns {hook.ret_type}, not {implementation.ret_type}"


def plugin(version: str) -> type[Plugin]:
    """Returns the plugin; mypy calls it with its own version."""
    return HookPlugin
