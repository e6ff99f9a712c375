"""Extensions: a custom operator is refused until its extension is added, then runs; for devices that take extensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.conformance.check import CheckContext, check, require, require_equal, require_error, require_same
from hetero_core.conformance.samples import read_text
from hetero_core.contract import Extension
from hetero_core.errors import ExtensionError, UnsupportedNodesError

TEXT = "(float[N,2] x) => (float[N,2] y) { [custom] y = com.acme.Scale <factor = 3.0> (x) }"


def _make_extension(function: Callable[..., Any]) -> Extension:
    return Extension("com.acme", "Scale", 1, function, lambda types, attributes: (types[0],))  # type: ignore[arg-type, return-value]  # x has a type


@check("contract", needs=["extensions"])
def extension_is_refused_before_and_runs_after(context: CheckContext) -> None:
    """The operator is refused until `add_extension`; then it is claimed, and its function gets inputs and attributes."""
    core, device = context.core, context.device
    require("custom" in core.query_network(read_text(context, TEXT), device).refused, "an operator is taken before it was given")
    core.add_extension(_make_extension(lambda x, factor: x * np.float32(factor)), device)
    network = read_text(context, TEXT)
    require_equal(dict(core.query_network(network, device).refused), {}, "what is refused after the extension was given")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    require_same(core.load_network(network, device).infer({"x": x})["y"], x * np.float32(3), "the output of the extension")


@check("contract", needs=["extensions"])
def extension_is_for_its_core_alone(context: CheckContext) -> None:
    """An extension added to one Core is unknown in another."""
    context.core.add_extension(_make_extension(lambda x, factor: x * np.float32(factor)), context.device)
    with context.make_core() as other:
        network = read_text(replace(context, core=other), TEXT)
        require_error(UnsupportedNodesError, lambda: other.load_network(network, context.device), "an extension of another Core")


@check("contract", needs=["extensions"])
def error_of_an_extension_names_it(context: CheckContext) -> None:
    """An error in the function reaches the caller with its text; the network can be run again."""
    fails = [True]

    def scale(x: Any, factor: float) -> Any:
        if fails[0]:
            raise LookupError("raised by the extension")
        return x * np.float32(factor)

    context.core.add_extension(_make_extension(scale), context.device)
    loaded = context.load(read_text(context, TEXT))
    x = np.ones((1, 2), np.float32)
    error = require_error(Exception, lambda: loaded.infer({"x": x}), "an extension that raises")
    require("raised by the extension" in str(error), f"the text of the extension's error is lost: {error}")
    fails[0] = False
    require_same(loaded.infer({"x": x})["y"], x * np.float32(3), "the run after an extension has failed")


@check("contract", needs=["extensions"])
def incomplete_extension_is_refused(context: CheckContext) -> None:
    """An extension without a function, or an object of another class, raises ExtensionError."""
    broken = Extension("com.acme", "Scale", 1, None, lambda types, attributes: ())  # type: ignore[arg-type]  # wrong on purpose
    require_error(ExtensionError, lambda: context.core.add_extension(broken, context.device), "an extension without a function")
    nothing: Any = object()
    require_error(ExtensionError, lambda: context.core.add_extension(nothing, context.device), "what is no extension")
