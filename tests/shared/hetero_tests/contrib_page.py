"""Generates the reference page of ONNX Runtime's own operators: each name of its CPU provider, with its support or the reason against it.

`PYTHONPATH=tests/shared python -m hetero_tests.contrib_page docs/reference/onnxruntime-operators.md` regenerates it;
a test fails if the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hetero_core.conformance.contrib import CASES
from hetero_core.kernels.registry import KernelRecord, read_table
from hetero_core.testing.contrib.case import MICROSOFT
from hetero_core.testing.contrib.draws import DRAWS
from hetero_tests.ops_page import describe_dtypes

_UNWRITTEN = (
    *(
        "AttnLSTM",
        "BifurcationDetector",
        "BranchwiseRMSNorm",
        "EngramGate",
        "GatedDeltaNet",
        "GatherPacked",
        "HyperConnectionPostMix",
    ),
    *("HyperConnectionPreMix", "MatMulFpQ4", "MaxpoolWithMask", "MoEGroupRouter", "NGramHashMapping", "VarlenCausalConvWithState"),
    *("VarlenNGramHashMapping", "WordConvEmbedding"),
)
LACKING: Mapping[str, str] = {
    **dict.fromkeys(_UNWRITTEN, "no exporter, quantizer or optimizer that we know writes it; the device ORT computes it"),
    "SampleOp": "a sample of how an operator is added, which returns its input",
    "SparseToDenseMatMul": "its first input is a sparse tensor, which a network here has only as a constant, made dense at read; "
    "ONNX Runtime refuses the operator with such a constant, so there is nothing to compare with",
}
"""Operator of com.microsoft with a kernel in ONNX Runtime's CPU provider but not here -> the reason."""
NOTES: Mapping[str, str] = {"MatMulNBits": "`accuracy_level=4` allows 8-bit activations, and the product is computed in float32"}
"""Operator -> a difference from ONNX Runtime that the operator's definition allows."""
LEFT_OUT = ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
"""Operators that generate a whole text, with the model as an attribute; not counted."""

_HEAD = """# Operators of ONNX Runtime's own

This page lists the operators that ONNX Runtime adds to ONNX, in the domain `com.microsoft` and a few in ONNX's own. Quantizers and
optimizers write them. CPU, TEMPLATE and GPU compute them by the kernels toolkit, ORT by ONNX Runtime itself;
HETERO cuts through them, since their types are inferred.
A model need not import `com.microsoft`.

```sh
hetero conformance CPU --level contrib
```

draws {cases} cases of each operator (attributes, shapes, element types, absent inputs, masks, caches) and compares with ONNX Runtime's own
kernel: integers, bools and texts bit for bit, floats to the last few bits that another order of additions leaves open. On x86-64 without
VNNI, ONNX Runtime's products of uint8 and int8 saturate; the check gives its kernels the same weights as uint8, whose products are exact
on every processor. This page is
generated from the kernels and the draws:
`PYTHONPATH=tests/shared python -m hetero_tests.contrib_page docs/reference/onnxruntime-operators.md`.

The reader gives a node of these domains version 0, since onnx has no schema; `network/contrib_types` infers element type and shape of
its outputs; the table of kernels answers the query with the same record that runs the node. The query refuses attributes, attribute
values and forms of inputs that a kernel does not implement, with the reason.

Of the {total} names that the CPU provider of ONNX Runtime 1.32 lists in `com.microsoft`, generation of text as one operator aside
({left_out}), {right} are right and {lacking} are not there. "Of one value" are
attributes of which just that value is implemented. `MatMulNBits`, `QMoE` and their like multiply in float32 whatever `accuracy_level`
allows. With `accuracy_level = 4`, which the model builder of onnxruntime-genai asks for by default, ONNX Runtime rounds the activations to
8 bits in blocks. So a language model in 4 bits answers otherwise on CPU than on ORT; CPU's answer is the nearer one. In products of depth
256 with random weights of 4 and of 8 bits, CPU was off by at most 1e-6 of the largest output of a float64 evaluation of the dequantized
weights, ONNX Runtime by 7e-3; ONNX Runtime was off by at most 1e-6 of the same evaluation with rounded activations, so nothing saturates
(2026-11-28, AMD EPYC with AVX2, without VNNI). Element types are written as for [ONNX's operators](ops.md).

| operator | answer | element types | attributes of one value |
|---|---|---|---|
"""

_STANDARD = """
ONNX Runtime keeps the following operators in ONNX's own domain, for which onnx has no schema. `LayerNormalization` is meant before
opset 17, as ONNX Runtime's transformer optimizer writes it, `MeanVarianceNormalization` before opset 9, `ThresholdedRelu` before opset 10.
The others but `SimplifiedLayerNormalization` were withdrawn by ONNX; ONNX Runtime runs those up to opset 9. `MemcpyFromHost` and
`MemcpyToHost`, which it writes into graphs that it has cut itself, return their input.

| operator | answer | element types | attributes of one value |
|---|---|---|---|
"""


def list_names() -> tuple[str, ...]:
    """Returns the operators of com.microsoft on the page, sorted: operators with random cases and missing operators."""
    return tuple(sorted({name for name in DRAWS if (MICROSOFT, name) in _find_kernels()} | LACKING.keys()))


def format_page() -> str:
    """Returns the page as Markdown."""
    names, kernels = list_names(), _find_kernels()
    head = _HEAD.format(
        cases=CASES, total=len(names), left_out=", ".join(LEFT_OUT), right=len(names) - len(LACKING), lacking=len(LACKING)
    )
    rows = [_format_row(name, kernels.get((MICROSOFT, name))) for name in names]
    standard = [
        _format_row(name, kernels["", name]) for name in DRAWS if ("", name) in kernels and (MICROSOFT, name) not in kernels
    ]
    return head + "\n".join(rows) + "\n" + _STANDARD + "\n".join(standard) + "\n"


def _find_kernels() -> Mapping[tuple[str, str], KernelRecord]:
    return {(domain, op_type): record for (domain, op_type, version), record in read_table().items() if version == 0}


def _format_row(name: str, record: KernelRecord | None) -> str:
    if record is None:
        return f"| `{name}` | not there: {LACKING[name]} | | |"
    singles = sorted(f"`{key}={values[0]}`" for key, values in record.choices.items() if len(values) == 1)
    place = ", on the host" if record.runs_on_host else ""
    note = f"; {NOTES[name]}" if name in NOTES else ""
    return f"| `{name}` | right{place}{note} | {describe_dtypes(record)} | {', '.join(singles)} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(format_page())
