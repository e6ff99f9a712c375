"""Who computes a group: the providers of recipes, asked in order."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache

from hetero_cpu.recipe import STEP_FUNCTIONS, Choice, Site

logger = logging.getLogger(__name__)

Provider = Callable[[Site], Choice | None]

_NUMPY_STEPS = (
    "steps_attention",
    "steps_convolution",
    "steps_elementwise",
    "steps_layout",
    "steps_linear",
    "steps_normalization",
    "steps_pooling",
    "steps_transposed",
)


@cache
def _load_numpy_steps() -> None:
    for module in _NUMPY_STEPS:
        importlib.import_module(f"hetero_cpu.{module}")


def provide_numpy(site: Site) -> Choice | None:
    """Returns what the first step function makes that takes the group; None when none does."""
    _load_numpy_steps()
    if site.node.domain:
        return None
    for function in STEP_FUNCTIONS.get(site.node.op_type, ()):
        choice = function(site)
        if choice is not None:
            return choice
    return None


PROVIDERS: tuple[Provider, ...] = (provide_numpy,)


def choose_step(site: Site) -> Choice | None:
    """Returns what the first provider makes that takes the group; None leaves it to the toolkit."""
    for provide in PROVIDERS:
        try:
            choice = provide(site)
        except (ValueError, IndexError, TypeError, ArithmeticError) as error:
            # Attributes that contradict each other or the types: the toolkit's kernel says so when the node runs.
            logger.debug("node %s has no step: %s", site.node.label, error)
            return None
        if choice is not None:
            return choice
    return None
