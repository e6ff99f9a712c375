"""RAY:CPU against the conformance kit; operators are those of the device behind the colon, and are not tried again."""

from __future__ import annotations

from typing import Any

import pytest

from hetero_core.cli.main import main


def test_device_does_what_every_device_owes(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    levels = ("contract", "concurrency", "export", "models")
    status = main(["conformance", "RAY:CPU", *(argument for level in levels for argument in ("--level", level))])
    assert status == 0, capsys.readouterr().out
