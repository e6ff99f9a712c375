"""`hetero conformance`: its text, its files, and its exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero_core.cli.main import main

SOME = ("--check", "cancel.*", "--check", "operators.test_softmax_axis_*", "--check", "operators.test_det*")


def test_report_has_counts_refusals_and_a_page_for_each_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """TEMPLATE refuses Softmax by configuration, so the report counts its cases as refused."""
    pages = {option: tmp_path / option for option in ("matrix", "badge", "markdown", "html")}
    options = [word for option, path in pages.items() for word in (f"--{option}", str(path))]
    options += ["--seed", "3", "-c", "TEMPLATE_REFUSED_OPERATORS=Softmax"]
    assert main(["conformance", "TEMPLATE", *SOME, "--check", "properties.keys_have*", *options]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("TEMPLATE, seed 3\n")
    assert "contract   3       0       0" in shown
    assert "3 were refused, and 0 are wrong." in shown
    assert "3 cases refused: 1 operator, Softmax. --matrix FILE lists cases and reasons." in shown
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
    assert "| `Det-22` | float32" in pages["markdown"].read_text()
    assert pages["html"].read_text().startswith("<!doctype html>")
    badge = json.loads(pages["badge"].read_text())
    assert badge["schemaVersion"] == 1
    assert badge["label"] == "TEMPLATE conformance"
    assert re.fullmatch(r"\d+ passed, 3 refused", badge["message"])
    assert badge["color"] == "brightgreen"


SECRETIVE = """
from hetero_template.device import TemplateDevice, TemplateExecutable
from hetero_core import hookimpl
from hetero_core.conformance.models import run_evaluator
from hetero_core.network.writer import network_to_proto

# A device that computes with the evaluator and does not declare it.
run = TemplateExecutable.run

def run_with_the_evaluator(self, inputs, context):
    feeds = {spec.name: value.read(self.memory) for spec, value in zip(self.inputs, inputs, strict=True)}
    run_evaluator(network_to_proto(self.network), feeds)
    return run(self, inputs, context)

TemplateExecutable.run = run_with_the_evaluator

@hookimpl
def create_device(name):
    return TemplateDevice(name)
"""


def test_failure_is_exit_code_1_with_the_name_and_the_reason(
    capsys: pytest.CaptureFixture[str], plant: Callable[[str, str], None]
) -> None:
    plant("SECRETIVE", SECRETIVE)
    assert main(["conformance", "SECRETIVE", "--check", "operators.test_abs"]) == 1
    shown = capsys.readouterr()
    message = "onnx's reference evaluator ran, and the device does not say so"
    assert f"operators.test_abs  {message}" in shown.out
    assert f"FAILED operators.test_abs: {message}" in shown.err


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
        (["CPU", "--check", "cancel.cancel_of_one*", "--html", "no/such/folder/x.html"], 2, "cannot write 'no/such/folder/x.html'"),
    ],
)
def test_wrong_usage_is_an_error(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, complaint: str) -> None:
    assert main(["conformance", *arguments]) == code
    assert complaint in capsys.readouterr().err
