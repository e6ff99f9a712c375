"""The border for errors: what leaves the Core's methods is an error of hetero, whatever was raised within.

An error that nobody foresaw is a fault of ours or of a plugin. It becomes an InternalError that names the node that was at work, as far as
the stack knows one, and chains the cause. A warning that the program turns into an error is raised as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from hetero_core.errors import HeteroError, InternalError
from hetero_core.network.graph import Node

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def own_errors(what: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Returns a decorator under which a function raises errors of hetero alone; `what` begins the message: "loading a network"."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            try:
                return function(*arguments, **named)
            except (HeteroError, Warning):  # a Warning is raised where the program turns warnings into errors
                raise
            except Exception as error:  # whatever a defect raises is reported as one
                raise InternalError(_describe(what, error)) from error

        return call

    return decorate


def _describe(what: str, error: Exception) -> str:
    node = find_node(error)
    place = "" if node is None else f" at node {node.label}"
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return (
        f"{what} failed{place} in a way that nobody foresaw: {type(error).__name__}: {error}{notes}. The model may be damaged; "
        "please report it with the model and the error below"
    )


def find_node(error: BaseException) -> Node | None:
    """Returns the node that the innermost frame which has one was at work on: a local variable, or a member of one."""
    innermost = None
    trace = error.__traceback__
    while trace is not None:
        for local in trace.tb_frame.f_locals.values():
            has_node = "node" in getattr(type(local), "__dataclass_fields__", ())
            node = getattr(local, "node", None) if has_node else local
            if isinstance(node, Node):
                innermost = node
        trace = trace.tb_next
    return innermost
