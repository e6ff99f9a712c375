"""The subjects of the contract, in the order in which they are checked; each is a file `contract_<subject>.py` of checks."""

from __future__ import annotations

from importlib import import_module

from hetero_core.conformance.check import Check

# Traces come first: their check of settings sees what a device changes when it is loaded for the first time.
_WORDS = """
    traces registry properties capabilities device_facts query load meaning tensors memory values dynamic_shapes requests callbacks
    cancel perf_counts executed extensions lifetime start threading exporting
"""
_UNCHANGED = frozenset(
    "traces registry properties capabilities device_facts memory executed extensions threading exporting".split()
)
SUBJECTS = tuple(_WORDS.split())
REPEATED = tuple(subject for subject in SUBJECTS if subject not in _UNCHANGED)
"""The subjects that a choice of a configuration key may change; names, properties and extensions are the same under all of them."""


def read_subject(subject: str) -> tuple[Check, ...]:
    """Returns the checks of a subject in the order in which its file defines them."""
    module = import_module(f"hetero_core.conformance.contract_{subject}")
    return tuple(value for value in vars(module).values() if isinstance(value, Check))
