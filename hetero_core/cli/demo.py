"""`hetero demo`: a network that its fastest device refuses alone, split over two devices, and each device for comparison.

The pictures are dim, and the network begins with demo.Contrast, an operator of its own, which only TEMPLATE is given. CPU refuses it,
TEMPLATE runs the whole network slowly, and HETERO runs that operator on TEMPLATE and all others on CPU.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from timeit import repeat
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, follow, format_seconds, format_table
from hetero_core.composing.runs import warm_up
from hetero_core.contract import Extension
from hetero_core.core import Core
from hetero_core.network.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from hetero_core.plan import Plan

SPLIT_DEVICE, SLOW_DEVICE, FAST_DEVICE = "HETERO:CPU,TEMPLATE", "TEMPLATE", "CPU"
LOWEST_ACCURACY = 0.95
LARGEST_DIFFERENCE = 1e-5
_COMPILING_SECONDS, _RUNS = 10.0, 5


def answer(options: argparse.Namespace) -> Answer:
    """Returns accuracy, times, subgraphs and agreement; exit code 1 if the accuracy is too low or the devices disagree.

    Raises: DeviceNotFoundError with the package that is missing; DeviceUnavailableError.
    """
    from hetero_core.testing.compare import max_absolute_difference  # imports NumPy
    from hetero_core.testing.digits import draw_digits, make_digits_model  # imports onnx

    with Core() as core, follow(options)(f"classifying digits on {SPLIT_DEVICE}"):
        contrast = Extension("demo", "Contrast", 1, _stretch, lambda types, _: (types[0] or TensorType("float32"),))
        core.add_extension(contrast, SLOW_DEVICE)
        network = core.read_network(_begin_with_contrast(make_digits_model()))
        images, digits = draw_digits(360)
        inputs = {"image": images * images.dtype.type(0.2) + images.dtype.type(0.4)}
        refused = core.query_network(network, FAST_DEVICE).refused
        split, single = core.load_network(network, SPLIT_DEVICE), core.load_network(network, SLOW_DEVICE)
        probabilities, expected = (loaded.infer(inputs)["probabilities"] for loaded in (split, single))
        warm_up(split, partial(split.infer, inputs), _COMPILING_SECONDS)
        plan: Plan = split.get_metric("HETERO_PLAN")
        runs = {SLOW_DEVICE: partial(single.infer, inputs), SPLIT_DEVICE: partial(split.infer, inputs)}
        seconds = {device: median(repeat(run, number=1, repeat=_RUNS)) for device, run in runs.items()}
    correct = int((probabilities.argmax(axis=1) == digits).sum())
    fields: dict[str, Any] = {"accuracy": correct / len(digits), "correct": correct, "images": len(digits)}
    fields["devices"] = list(dict.fromkeys(stage.device for stage in plan.stages))
    fields["subgraphs"] = [{"device": stage.device, "nodes": list(stage.nodes)} for stage in plan.stages]
    fields["refusals"] = {name: {FAST_DEVICE: reason} for name, reason in refused.items()}
    difference = max_absolute_difference(probabilities, expected)
    fields |= {"seconds": seconds, "agreement": {SLOW_DEVICE: difference}}
    # "Not above" would let NaN pass.
    passes = bool(fields["accuracy"] >= LOWEST_ACCURACY and difference <= LARGEST_DIFFERENCE)
    return Answer(_format(fields, "ok" if passes else "WRONG"), fields, OK if passes else WRONG_RESULT)


def _begin_with_contrast(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the classifier with demo.Contrast between its input and its first node."""
    from onnx import helper  # heavy

    first = model.graph.node[0]
    contrast = helper.make_node("Contrast", [first.input[0]], ["clear"], name="contrast", domain="demo")
    first.input[0] = "clear"
    model.graph.node.insert(0, contrast)
    model.opset_import.append(helper.make_opsetid("demo", 1))
    return model


def _stretch(pictures: Any) -> Any:
    """Returns each picture, float (count, 1, height, width), with its darkest element at 1 and its lightest at 0."""
    low, high = pictures.min((1, 2, 3), keepdims=True), pictures.max((1, 2, 3), keepdims=True)
    return (pictures - low) / (high - low)


def _format(fields: Mapping[str, Any], verdict: str) -> str:
    right = f"{fields['correct']} of {fields['images']} right"
    refusals = [(FAST_DEVICE, "-", f"refuses {name}: {reason[FAST_DEVICE]}") for name, reason in fields["refusals"].items()]
    rows = [*refusals, *((device, format_seconds(time), right) for device, time in fields["seconds"].items())]
    subgraphs = [(str(index), each["device"], ", ".join(each["nodes"])) for index, each in enumerate(fields["subgraphs"])]
    return f"""{fields["images"]} dim, noisy pictures of digits, by a network that begins with an operator of its own

{format_table(("DEVICE", "TIME", "ANSWERS"), rows)}

How {SPLIT_DEVICE} runs the network:
{format_table(("SUBGRAPH", "DEVICE", "NODES"), subgraphs)}

  accuracy {fields["accuracy"]:.4f}, largest difference from {SLOW_DEVICE} alone: {fields["agreement"][SLOW_DEVICE]:.3g}

{verdict} (expected: accuracy of at least {LOWEST_ACCURACY}, differences of at most {LARGEST_DIFFERENCE:g})"""
