"""Quantized models on HETERO:OPENVINO,CPU with OPENVINO_QUANTIZED=YES beside ONNX Runtime: `python tests/engines/quantized.py`.

Random weights, quantized by onnxruntime.quantization. The difference is the largest one of any output, over the largest element, from ONNX
Runtime without optimizations; beside it stand that of ONNX Runtime with its own optimizations, and that of the model before quantization.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from hetero_tests.larger_models import bert_model, mobilenet_v2_model
from onnxruntime import quantization

from hetero_core import Core
from hetero_core.testing.compare import max_relative_difference
from hetero_core.testing.models import light_inputs, light_model

MODELS = {
    "squeezenet": lambda: light_model("squeezenet"),
    "mobilenet_v2": mobilenet_v2_model,
    "bert, 2 layers": lambda: bert_model(layers=2),
}


class Batches(quantization.CalibrationDataReader):  # type: ignore[misc]  # the tool has no types
    """Four random batches for calibration."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._batches: Iterator[dict[str, Any]] = iter([light_inputs(model, seed=seed) for seed in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


def quantize(model: onnx.ModelProto, form: str, folder: Path) -> onnx.ModelProto:
    """Returns the quantized model: "QDQ" of static scales, by tensor or by channel, or "dynamic"."""
    onnx.save(model, folder / "model.onnx")
    if form == "dynamic":
        quantization.quantize_dynamic(folder / "model.onnx", folder / "quantized.onnx")
    else:
        quantization.quantize_static(
            folder / "model.onnx", folder / "quantized.onnx", Batches(model), per_channel=form == "QDQ by channel"
        )
    return onnx.load(folder / "quantized.onnx")


def run_engine(model: onnx.ModelProto, inputs: dict[str, Any], level: str) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    outputs: list[Any] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)
    return outputs


def compare(outputs: list[Any], expected: list[Any]) -> float:
    return max(map(max_relative_difference, outputs, expected))


def main() -> None:
    sys.stdout.write("| model | form | OPENVINO | ONNX Runtime, optimized | before quantization |\n|---|---|---|---|---|\n")
    with Core() as core, tempfile.TemporaryDirectory() as folder:
        for name, build in MODELS.items():
            model = build()
            inputs = light_inputs(model, seed=9)
            for form in ("QDQ", "QDQ by channel", "dynamic"):
                quantized = quantize(model, form, Path(folder))
                expected = run_engine(quantized, inputs, "ORT_DISABLE_ALL")
                with core.load_network(quantized, "HETERO:OPENVINO,CPU", {"OPENVINO_QUANTIZED": True}) as loaded:
                    own = compare(list(loaded.infer(inputs).values()), expected)
                optimized = compare(run_engine(quantized, inputs, "ORT_ENABLE_ALL"), expected)
                before = compare(run_engine(model, inputs, "ORT_ENABLE_ALL"), expected)
                sys.stdout.write(f"| {name} | {form} | {own:.1e} | {optimized:.1e} | {before:.1e} |\n")


if __name__ == "__main__":
    main()
