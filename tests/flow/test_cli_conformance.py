"""`hetero conformance`: its text, its files, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hetero_template.device import TemplateExecutable

from hetero_core import RunContext
from hetero_core.cli.main import main
from hetero_core.conformance.oracles import run_evaluator
from hetero_core.network.writer import network_to_proto

SOME = ("--check", "cancel.*", "--check", "operators.test_softmax_axis_*", "--check", "operators.test_det*")


def test_report_has_counts_and_a_sentence_about_the_cases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    html, markdown = tmp_path / "report.html", tmp_path / "report.md"
    assert main(["conformance", "TEMPLATE", *SOME, "--seed", "3", "--html", str(html), "--markdown", str(markdown)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("TEMPLATE, seed 3\n")
    assert "contract   4       0       0" in shown
    assert "0 were refused, and 0 are wrong." in shown
    assert "| `Softmax-13` | float32" in markdown.read_text()
    assert html.read_text().startswith("<!doctype html>")


def test_failure_is_exit_code_1_with_the_name_and_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kit must find a device that computes with the evaluator but does not declare it.
    run = TemplateExecutable.run

    def run_with_the_evaluator(self: TemplateExecutable, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        feeds = {spec.name: value.read(self.memory) for spec, value in zip(self.inputs, inputs, strict=True)}
        run_evaluator(network_to_proto(self.network), feeds)
        return run(self, inputs, context)

    monkeypatch.setattr(TemplateExecutable, "run", run_with_the_evaluator)
    assert main(["conformance", "TEMPLATE", "--check", "operators.test_abs"]) == 1
    shown = capsys.readouterr().out
    assert "operators.test_abs  onnx's reference evaluator ran, and the device does not say so" in shown


def test_device_is_checked_with_the_given_keys(capsys: pytest.CaptureFixture[str]) -> None:
    # TEMPLATE refuses this operator by configuration, so the report counts it as refused.
    options = ["-c", "TEMPLATE_REFUSED_OPERATORS=Softmax"]
    assert main(["conformance", "TEMPLATE", *SOME, "--check", "properties.keys_have*", *options, "--json"]) == 0
    operators = json.loads(capsys.readouterr().out)["operators"]
    assert operators["refused"] >= 3
    assert operators["passed"] >= 2
    assert operators["wrong"] == 0


def test_matrix_has_operators_by_versions_and_types(tmp_path: Path) -> None:
    pages = {option: tmp_path / option for option in ("matrix", "badge", "markdown", "html")}
    options = [word for option, path in pages.items() for word in (f"--{option}", str(path))]
    assert main(["conformance", "TEMPLATE", *SOME, "-c", "TEMPLATE_REFUSED_OPERATORS=Softmax", *options]) == 0
    matrix = pages["matrix"].read_text().splitlines()
    head = next(line for line in matrix if line.startswith("| operator"))
    assert head == "| operator | version | float32 |"
    assert "| `Det` | 22 | 2 |" in matrix
    assert any(line.startswith("| `Softmax` | 13 | ") and line.endswith(" refused |") for line in matrix)
    assert matrix.index("## Refused cases") > matrix.index("| `Det` | 22 | 2 |")
    assert "refused by TEMPLATE_REFUSED_OPERATORS" in matrix[-1]
    for option, heading in (("markdown", "## "), ("html", "<h2>")):
        page = pages[option].read_text()
        assert 0 < page.index(f"{heading}Support matrix") < page.index(f"{heading}Refused cases")
    badge = json.loads(pages["badge"].read_text())
    assert badge["schemaVersion"] == 1
    assert badge["label"] == "TEMPLATE conformance"
    assert badge["message"].endswith(" passed")
    assert badge["color"] == "brightgreen"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["CPU", "--level", "contrct"], 2, "no level 'contrct', did you mean 'contract'"),
        (["CPU", "--check", "cancel.cancl*"], 2, "no check 'cancel.cancl*'"),
        (["CPU", "--check", "cancel.*", "--matrix", "m.md"], 2, "--matrix needs checks of the level operators"),
        (["--check", "cancel.*"], 2, "give the device that is to be checked"),
        (["CPUX", "--check", "cancel.*"], 3, "did you mean 'CPU'?"),
        (["CPU", "--check", "cancel.*", "-c", "CPU_KERNEL=NUMPY"], 2, "did you mean 'CPU_KERNELS'"),
        (
            ["HETERO:TEMPLATE,CPU", "-c", "CPU_KERNELS=NUMPY"],
            2,
            "-c configures one device, and 'HETERO:TEMPLATE,CPU' is composed of several",
        ),
        (["CPU", "--check", "cancel.cancel_of_an*", "--html", "no/such/folder/x.html"], 2, "cannot write 'no/such/folder/x.html'"),
    ],
)
def test_wrong_usage_is_an_error(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, complaint: str) -> None:
    assert main(["conformance", *arguments]) == code
    assert complaint in capsys.readouterr().err
