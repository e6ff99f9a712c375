"""`hetero demo`: a classifier of digits, split over two devices, against each device alone.

TEMPLATE is told to refuse some operators, as a device without kernels for them would; HETERO gives those to CPU.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, follow, format_seconds, format_table
from hetero_core.cli.options import Parser
from hetero_core.core import Core
from hetero_core.errors import DeviceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from hetero_core.network.graph import Network
    from hetero_core.plan import Plan
    from hetero_core.runtime.request import InferRequest

SPLIT_DEVICE = "HETERO:TEMPLATE,CPU"
SINGLE_DEVICES = ("TEMPLATE", "CPU")
REFUSED_OPERATORS = "MaxPool,Softmax,MatMul"
LOWEST_ACCURACY = 0.95
LARGEST_DIFFERENCE = 1e-5


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""


def answer(options: argparse.Namespace) -> Answer:
    """Returns accuracy, subgraphs and agreement; exit code 1 if the accuracy is too low or two devices disagree.

    Raises: DeviceNotFoundError with the command that installs the missing packages; DeviceUnavailableError.
    """
    from hetero_core.testing.digits import draw_digits, make_digits_model  # imports onnx

    with Core() as core, follow(options)(f"classifying digits on {SPLIT_DEVICE}"):
        _require_devices(core)
        network = core.read_network(make_digits_model())
        images, digits = draw_digits(360)
        config = {"TEMPLATE_REFUSED_OPERATORS": REFUSED_OPERATORS, "PERF_COUNT": True}
        executable = core.load_network(network, SPLIT_DEVICE, config)
        plan: Plan = executable.get_metric("HETERO_PLAN")
        request = executable.create_infer_request()
        probabilities = request.infer({"image": images})["probabilities"]
        agreement = {device: _measure_difference(core, network, device, images, probabilities) for device in SINGLE_DEVICES}
    correct = int((probabilities.argmax(axis=1) == digits).sum())
    fields = {
        "accuracy": correct / len(digits),
        "correct": correct,
        "images": len(digits),
        "devices": list(dict.fromkeys(stage.device for stage in plan.stages)),
        "subgraphs": _list_subgraphs(plan, request),
        "refusals": plan.refusals,
        "agreement": agreement,
    }
    return Answer(_format(fields, plan), fields, OK if _passes(fields) else WRONG_RESULT)


def _require_devices(core: Core) -> None:
    missing = [device for device in ("CPU", "HETERO", "TEMPLATE") if device not in core.device_names]
    if missing:
        distributions = " ".join(f"hetero-{device.lower()}" for device in missing)
        raise DeviceNotFoundError(
            f"the demo needs {', '.join(missing)}, not installed here. Install with: pip install {distributions}"
        )


def _measure_difference(
    core: Core, network: Network, device: str, images: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]
) -> float:
    from hetero_core.testing.compare import max_absolute_difference

    expected = core.load_network(network, device).infer({"image": images})["probabilities"]
    return max_absolute_difference(probabilities, expected)


def _list_subgraphs(plan: Plan, request: InferRequest) -> list[dict[str, Any]]:
    seconds = [0.0] * len(plan.stages)
    for entry in request.perf_counts:
        seconds[entry.subgraph] += entry.seconds
    return [{"device": stage.device, "nodes": list(stage.nodes), "seconds": seconds[stage.index]} for stage in plan.stages]


def _passes(fields: Mapping[str, Any]) -> bool:
    # "Not above" would let NaN pass.
    return bool(
        fields["accuracy"] >= LOWEST_ACCURACY
        and all(difference <= LARGEST_DIFFERENCE for difference in fields["agreement"].values())
    )


def _format(fields: Mapping[str, Any], plan: Plan) -> str:
    subgraphs = [
        (str(index), subgraph["device"], format_seconds(subgraph["seconds"]), _shorten(subgraph["nodes"]))
        for index, subgraph in enumerate(fields["subgraphs"])
    ]
    reasons = [
        f"  {name} ({plan.operator_of_node[name]}) runs on {plan.device_of_node[name]}; {device} says: {reason}"
        for name, reason_of_device in plan.refusals.items()
        for device, reason in reason_of_device.items()
    ]
    agreement = [
        f"  largest difference from {device} alone: {difference:.3g}" for device, difference in fields["agreement"].items()
    ]
    verdict = "ok" if _passes(fields) else "WRONG"
    return "\n".join(
        [
            f"{fields['images']} noisy pictures of digits on {SPLIT_DEVICE}",
            "",
            format_table(("SUBGRAPH", "DEVICE", "TIME", "NODES"), subgraphs),
            "",
            f"Why {plan.priorities[0]} does not run them all:",
            *reasons,
            "",
            f"The answers: {fields['correct']} of {fields['images']} right, accuracy {fields['accuracy']:.4f}",
            *agreement,
            "",
            f"{verdict} (expected: accuracy of at least {LOWEST_ACCURACY}, differences of at most {LARGEST_DIFFERENCE:g})",
        ]
    )


def _shorten(nodes: list[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= 6 else f"{', '.join(nodes[:3])}, ... {nodes[-1]} ({len(nodes)} nodes)"
