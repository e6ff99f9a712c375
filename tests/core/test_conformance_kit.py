"""The conformance kit itself: its catalogue, its selection of checks, its report, and properties of its random values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Executable, Network, RunContext
from hetero_core.conformance import catalogue, check, operators, report
from hetero_core.conformance.models import run_evaluator
from hetero_core.conformance.operators import CaseOutcome, accept_half_steps, judge_case
from hetero_core.conformance.runner import Outcome, make_target, run_checks
from hetero_core.conformance.samples import FORMS, iterate_samples
from hetero_core.network.writer import network_to_proto
from hetero_core.testing.backend_cases import iterate_backend_cases
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


def test_each_check_has_a_name_and_a_claim() -> None:
    names = [check.name for check in catalogue.STATIC_CHECKS]
    assert len(set(names)) == len(names) >= 90
    assert [name.partition(".")[0] for name in names] == sorted(
        (name.partition(".")[0] for name in names), key=catalogue.SUBJECTS.index
    )
    assert all(check.summary.endswith(".") for check in catalogue.STATIC_CHECKS)


def test_levels_and_backend_cases_have_checks() -> None:
    checks = catalogue.list_checks()
    levels = list(dict.fromkeys(each.level for each in checks))
    assert levels == list(check.LEVELS)
    names = {each.name for each in checks}
    assert len(names) == len(checks)
    assert {f"operators.{case.name}" for case in iterate_backend_cases()} <= names


def test_choice_by_level_and_pattern() -> None:
    assert [each.name for each in catalogue.choose_checks(["contract"], ["cancel.cancel_of_one*"])] == [
        "cancel.cancel_of_one_request_leaves_the_others"
    ]
    with pytest.raises(catalogue.UnknownCheckError, match="no check 'cancle.\\*'.*looked in the levels contract"):
        catalogue.choose_checks(["contract"], ["cancle.*"])
    with pytest.raises(catalogue.UnknownCheckError, match="no level 'modles', did you mean 'models'"):
        catalogue.choose_checks(["modles"])


def test_wrong_or_missing_error_fails_a_check() -> None:
    with pytest.raises(check.CheckFailed, match="this: expected KeyError, got ValueError: no"):
        check.require_error(KeyError, _raise, "this", ValueError("no"))
    with pytest.raises(check.CheckFailed, match="this: expected KeyError, got no error but 5"):
        check.require_error(KeyError, int, "this", 5)
    with pytest.raises(check.CheckFailed, match="this: ValueError has no text"):
        check.require_error(ValueError, _raise, "this", ValueError(" "))


def _raise(error: Exception) -> None:
    raise error


def make_report(*outcomes: Outcome) -> dict[str, Any]:
    return report.report_to_json(make_target("CPU"), outcomes, {"CPU": "hetero-cpu 0.2.0"})


def make_outcome(name: str, status: str, case_status: str, *operators: tuple[str, str, bool], **more: bool) -> Outcome:
    finding = CaseOutcome(name, case_status, "" if case_status == "passed" else "because | of it", operators, **more)
    case = check.Check(f"operators.{name}", "operators", lambda context: None)
    return Outcome(case, status, finding.reason, finding=finding)


def test_matrix_counts_runs_and_refusals() -> None:
    fields = make_report(
        make_outcome("a", "passed", "passed", ("Abs-13", "float32", True), ("Abs-13", "float32", True), is_native=True),
        make_outcome("b", "passed", "passed", ("Abs-13", "float32", True), is_free=True),
        make_outcome("c", "skipped", "refused", ("Abs-13", "float32", True), ("Det-11", "float32", False)),
        make_outcome("d", "failed", "wrong", ("Abs-13", "int8", True)),
        Outcome(check.Check("operators.e", "operators", lambda context: None), "failed", "did not end within 1 seconds"),
    )
    assert fields["matrix"] == [
        {"operator": "Abs-13", "dtype": "float32", "passed": 2, "native": 1, "refused": 0, "wrong": 0},
        {"operator": "Abs-13", "dtype": "int8", "passed": 0, "native": 0, "refused": 0, "wrong": 1},
        {"operator": "Det-11", "dtype": "float32", "passed": 0, "native": 0, "refused": 1, "wrong": 0},
    ]
    operators = fields["operators"]
    assert [operators[key] for key in ("cases", "passed", "native", "judged_by_facts", "refused", "wrong")] == [5, 2, 1, 1, 1, 2]
    assert operators["through_the_reference"] == ["b"]
    assert operators["refusals"] == [{"case": "c", "reason": "because | of it"}]
    assert [error["case"] for error in operators["errors"]] == ["d", "e"]
    assert fields["checks"] == {"passed": 2, "failed": 2, "skipped": 1}
    assert json.loads(json.dumps(fields)) == fields


def test_pages_of_a_report_hold_counts_failures_and_matrix() -> None:
    fields = make_report(
        make_outcome("a", "passed", "passed", ("Abs-13", "float32", True), is_native=True),
        make_outcome("<d>", "failed", "wrong", ("Abs-13", "int8", True)),
    )
    markdown, html = report.report_to_markdown(fields), report.report_to_html(fields)
    assert "| operators | 1 | 1 | 0 |" in markdown
    assert "| `operators.<d>` | because \\| of it |" in markdown
    assert "| `Abs-13` | int8 | 0 | 0 | 0 | 1 |" in markdown
    assert "<code>operators.&lt;d&gt;</code>" in html
    assert '<td class="count wrong">1</td>' in html
    assert "<script" not in html
    assert "Of 2 cases of ONNX's backend suite 1 passed, 1 of them on the device's own kernels" in markdown


def test_report_without_cases_has_no_matrix() -> None:
    target = make_target("CPU")
    fields = report.report_to_json(target, tuple(run_checks(catalogue.choose_checks(["contract"], ["cancel.*"]), target)), {})
    assert (fields["operators"], fields["matrix"]) == (None, [])
    assert "Support matrix" not in report.report_to_markdown(fields)


class EvaluatingExecutable(PlainExecutable):
    """Computes with onnx's reference evaluator, and declares it."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        feeds = {spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}
        return tuple(run_evaluator(network_to_proto(self.network), feeds))

    def metrics(self) -> Mapping[str, Any]:
        return {"REFERENCE_NODES": tuple(node.name for node in self.network.nodes)}


class EvaluatingDevice(PlainDevice):
    def make_executable(self, network: Network) -> Executable:
        return EvaluatingExecutable(network)


def test_case_that_runs_through_the_reference_is_not_native(core: Core) -> None:
    [case] = iterate_backend_cases("^test_abs$", kinds=("node",))
    assert judge_case(case, core, "CPU").is_native
    core.register_plugin("EVALUATING", EvaluatingDevice())
    outcome = judge_case(case, core, "EVALUATING")
    assert (outcome.status, outcome.is_native) == ("passed", False)
    split = judge_case(case, core, "HETERO:EVALUATING,CPU")
    assert (split.status, split.is_native) == ("passed", False)


@pytest.mark.parametrize(
    ("count", "chances", "is_right"),
    [(50, [0.5] * 100, True), (90, [0.5] * 100, False), (0, [0.0] * 10, True), (1, [0.0] * 10, False), (10, [1.0] * 10, True)],
)
def test_share_of_drawn_elements_is_judged_by_its_deviation(count: int, chances: list[float], is_right: bool) -> None:
    assert (operators._judge_share(count, np.array(chances)) is None) == is_right


def test_only_cases_that_draw_are_judged_by_facts(core: Core) -> None:
    free = set()
    for case in iterate_backend_cases("bernoulli|dropout", kinds=("node",)):
        if judge_case(case, core, "CPU").is_free:
            free.add(case.name)
    assert free == {
        *(f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")),
        *(f"test_training_dropout{kind}" for kind in ("", "_default", "_default_mask", "_mask")),
    }


def make_node(operator: str) -> Any:
    """Returns a network of one node, as far as the kit looks at it."""
    return SimpleNamespace(name="", nodes=[SimpleNamespace(op_type=operator)])


def _requantize(x: Any, scale: float, device: int) -> int:
    """Returns the integer that the kit accepts of a QuantizeLinear of x, for which a device gave `device`."""

    def run(inputs: Any) -> list[Any]:
        return [np.rint(inputs[0].astype(np.float64) / inputs[1]).astype(np.int8)]

    inputs = [np.array([x], np.float32), np.array(scale, np.float32)]
    (accepted,) = accept_half_steps(make_node("QuantizeLinear"), inputs, [np.array([device], np.int8)], run(inputs), run)
    return int(accepted[0])


@pytest.mark.parametrize(
    ("x", "scale", "device", "accepted"),
    [
        (0.35, 0.1, 4, 4),  # 3.5 but for the rounding of both numbers
        (0.35, 0.1, 3, 3),
        (-0.35, 0.1, -4, -4),
        (0.35, 0.1, 5, 3),
        (0.351, 0.1, 3, 4),  # 3.51 is no half
        (5.0, 2.0, 3, 2),  # 2.5 is exact, and rounded to even
        (0.625, 0.25, 3, 2),
    ],
)
def test_step_of_a_quantized_integer_is_accepted_at_a_half_alone(x: float, scale: float, device: int, accepted: int) -> None:
    assert _requantize(x, scale, device) == accepted


@pytest.mark.parametrize(("place", "accepted"), [(3, 25), (4, 221)])
def test_step_of_a_dynamic_scale_is_accepted_at_a_half_alone(place: int, accepted: int) -> None:
    """The scale is 5 / 255 in float32: -2.5 is a half but for its rounding, 1.34 is none."""
    (case,) = iterate_backend_cases("^test_dynamicquantizelinear$", kinds=("node",))
    (((x,), expected),) = case.runs
    device = expected[0].copy()
    device[place] -= 1

    def run(inputs: Sequence[Any]) -> list[Any]:
        return run_evaluator(case.model, {"x": inputs[0]})

    outputs = [device, *expected[1:]]
    assert accept_half_steps(make_node("DynamicQuantizeLinear"), [x], outputs, expected, run)[0][place] == accepted


def test_only_quantizing_nodes_may_be_a_step_off() -> None:
    inputs = [np.array([7], np.int32), np.array(0.1, np.float32)]
    expected = [np.array([3], np.int8)]
    assert accept_half_steps(make_node("Mul"), inputs, [np.array([4], np.int8)], expected, lambda _: expected) == expected


@pytest.mark.parametrize("form", FORMS)
def test_small_networks_of_the_kit_stay_below_the_largest_float16(core: Core, form: str) -> None:
    """A device may compute float32 in float16 if it is told to."""
    context = SimpleNamespace(core=core, device="CPU", rtol=None, query=lambda network: core.query_network(network, "CPU"))
    samples = list(iterate_samples(context, form))  # type: ignore[arg-type]  # the part of a context that samples read
    assert {sample.network.nodes[0].op_type for sample in samples} == set(FORMS[form].operators)
    for sample in samples:
        for seed in range(50):
            outputs = sample.expect(sample.draw(seed))
            assert max(float(np.abs(value).max()) for value in outputs.values()) < np.finfo(np.float16).max
