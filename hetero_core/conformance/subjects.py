"""The subjects of the contract in the order of their checks; the checks of a subject are in `contract_<subject>.py`."""

from __future__ import annotations

from importlib import import_module

from hetero_core.conformance.check import Check

# Traces come first, so that their check of process settings covers the first load of the device.
_SUBJECTS = """
    traces registry properties capabilities device_facts query load meaning tensors memory values dynamic_shapes requests callbacks
    cancel perf_counts executed extensions lifetime start threading exporting
"""
_REPEATED = "query load meaning tensors values dynamic_shapes requests callbacks cancel perf_counts lifetime start"
SUBJECTS, REPEATED = tuple(_SUBJECTS.split()), tuple(_REPEATED.split())
"""All subjects, and those that a choice of a configuration key may change; the others are the same under every choice."""


def read_subject(subject: str) -> tuple[Check, ...]:
    """Returns the checks of a subject in the order in which its file defines them."""
    module = import_module(f"hetero_core.conformance.contract_{subject}")
    return tuple(value for value in vars(module).values() if isinstance(value, Check))
