"""`hetero demo`: pictures of digits through a split network, checked by accuracy and against the device that runs it alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from hetero_core.cli.main import main
from hetero_core.devices import registry
from hetero_core.testing import compare


def run_demo(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["demo", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_demo_splits_and_is_right() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_core", "demo", "--json"], capture_output=True, text=True, check=False, timeout=900
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    answer = json.loads(ended.stdout)
    assert (answer["correct"], answer["images"]) == (360, 360)
    assert answer["accuracy"] == 1
    assert sorted(answer["devices"]) == ["CPU", "TEMPLATE"]
    assert answer["subgraphs"][0] == {"device": "TEMPLATE", "nodes": ["contrast"]}
    assert [(each["device"], len(each["nodes"])) for each in answer["subgraphs"][1:]] == [("CPU", 11)]
    assert list(answer["refusals"]) == ["contrast"]
    assert sorted(answer["seconds"]) == ["HETERO:CPU,TEMPLATE", "TEMPLATE"]
    assert 0 <= answer["agreement"]["TEMPLATE"] <= 1e-5


def test_demo_shows_the_refusal_the_times_and_the_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("360 dim, noisy pictures of digits, by a network that begins with an operator of its own\n")
    assert re.search(r"^CPU +- +refuses contrast: operator demo:Contrast has no kernel$", text, re.MULTILINE)
    assert re.search(r"^HETERO:CPU,TEMPLATE +[\d.]+ m?s +360 of 360 right$", text, re.MULTILINE)
    assert re.search(r"^0 +TEMPLATE +contrast$", text, re.MULTILINE)
    assert text.splitlines()[-1].startswith("ok (")


@pytest.mark.parametrize("difference", [2e-5, float("nan")])
def test_disagreement_ends_with_1(difference: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compare, "max_absolute_difference", lambda *_: difference)
    assert main(["demo"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("WRONG (")


@pytest.mark.parametrize(
    ("missing", "message"),
    [(["CPU"], "pip install hetero-cpu"), (["HETERO", "TEMPLATE"], "pip install hetero-template")],
)
def test_missing_plugin_ends_with_3_and_the_cure(
    missing: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = registry.read_announcements

    def leave_out(entry_points: Iterable[Any], timeout: float | None) -> dict[str, Any]:
        return {name: claims for name, claims in read(entry_points, timeout).items() if name not in missing}

    monkeypatch.setattr(registry, "read_announcements", leave_out)
    assert main(["demo"]) == 3
    assert message in capsys.readouterr().err
    code, answer = run_demo(capsys)
    assert (code, answer["error"]["exit_code"]) == (3, 3)
