"""Errors that cross to another process: their type by name, their message, notes and provenance; never a pickled object."""

from __future__ import annotations

import builtins
from typing import Any

from hetero_core import errors
from hetero_core.devices.query import GENERAL_CURE
from hetero_core.errors import HeteroError, InferenceError, UnsupportedNodesError

_RESTORED = (HeteroError, RuntimeError, ValueError, TypeError, LookupError, MemoryError, ArithmeticError, AssertionError)
"""Classes of errors that are restored with their own type."""


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Returns an error as plain values: the name of its type, its message, its notes, and the refusals of nodes."""
    # The caller's process finds the cure of refused nodes.
    message = error.args[0] if isinstance(error, (KeyError, UnsupportedNodesError)) and error.args else str(error)
    return {
        "type": type(error).__name__,
        "message": str(message),
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "refusals": getattr(error, "refusals", None),
        "cause": "" if error.__cause__ is None else f"{type(error.__cause__).__name__}: {error.__cause__}",
    }


def restore_failure(fields: dict[str, Any], where: str) -> Exception:
    """Returns the error that `describe_failure` described, with a note on the place of origin.

    A type that only the remote process knows becomes an InferenceError that names it.
    """
    name, message = str(fields["type"]), str(fields["message"])
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    error: Exception
    if name == "UnsupportedNodesError":
        error = UnsupportedNodesError(message, fields["refusals"] or {}, GENERAL_CURE)
    elif isinstance(kind, type) and issubclass(kind, _RESTORED):
        error = kind(message)
    else:
        error = InferenceError(f"{name}: {message}")
    for note in fields["notes"]:
        error.add_note(str(note))
    if fields["cause"]:
        error.add_note(f"caused by {fields['cause']}")
    error.add_note(f"raised {where}")
    return error
