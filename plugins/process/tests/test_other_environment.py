"""Differences between the environments of child and parent are named before anything is loaded in the child."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hetero_process.device import ProcessCarrier

from hetero_core import Core, Network
from hetero_core.errors import ConfigKeyError, DeviceCrashedError, DeviceUnavailableError


def test_python_without_our_packages_is_named_with_what_it_needs(core: Core, negation: Network, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    python.chmod(0o755)
    with pytest.raises(DeviceCrashedError, match=f"exited with status 1 .*; '{python}' has to have hetero-process"):
        core.load_network(negation, "PROCESS:BREAKING", {"PROCESS_PYTHON": str(python)})


def test_host_with_a_foreign_core_is_named_before_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"core": "0.2.0", "api": [9, 0], "keys": {"NEW": ["a", "form", "of", "its", "own"]}}
    monkeypatch.setattr(ProcessCarrier, "call", lambda self, operation: (fields, ()))
    with pytest.raises(
        DeviceUnavailableError,
        match=r"device X in another process has hetero-core 0\.2\.0 with API \(9, 0\); here it is .*; install the same",
    ):
        ProcessCarrier("X", "", 0).describe()


def test_keys_of_the_device_are_checked_here(core: Core, load: Callable[..., Any]) -> None:
    with pytest.raises(ConfigKeyError, match="BREAKING_HOW"):
        load(BREAKING_HOWW="EXIT")
