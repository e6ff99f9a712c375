"""RAY:CPU against the conformance kit; operators are those of the device behind the colon, and are not tried again."""

from __future__ import annotations

from typing import Any

import pytest

from hetero_core.cli.main import main


@pytest.mark.parametrize("level", ["contract", "concurrency", "export", "models"])
def test_device_does_what_every_device_owes(cluster: Any, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["conformance", "RAY:CPU", "--level", level])
    assert status == 0, capsys.readouterr().out
