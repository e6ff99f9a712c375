"""Capabilities: OPTIMIZATION_CAPABILITIES names exactly the capabilities of the device; AUTO selects devices by these names."""

from __future__ import annotations

import io
from collections.abc import Mapping

from hetero_core.conformance.check import CheckContext, check, require, require_equal, require_error
from hetero_core.conformance.samples import make_sample, read_text
from hetero_core.errors import NotImplementedByDeviceError

_UNARY = tuple(f"(T[4] x) => (T[4] y) {{ [one] y = {operator} (x) }}" for operator in ("Relu", "Neg", "Abs", "Identity", "Sqrt"))
_BINARY = tuple(f"(T[4, 4] x) => (T[4, 4] y) {{ [one] y = {operator} (x, x) }}" for operator in ("Add", "Mul", "MatMul", "Gemm"))
_TYPES: Mapping[str, str] = {"FP32": "float", "FP64": "double", "FP16": "float16", "BF16": "bfloat16"}
_QUANTIZED = (
    "(uint8[4] x, float s, uint8 z) => (float[4] y) { [one] y = DequantizeLinear (x, s, z) }",
    "(float[4] x, float s, uint8 z) => (uint8[4] y) { [one] y = QuantizeLinear (x, s, z) }",
    "(uint8[4, 4] x) => (int32[4, 4] y) { [one] y = MatMulInteger (x, x) }",
    "(float[4, 4] x) => (float[4, 4] y) <float s = {0.1}, int8 z = {0}, int8[4, 4] w = "
    "{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> { [left] a = QuantizeLinear (x, s, z) [back] b = DequantizeLinear (a, s, z) "
    "[weights] c = DequantizeLinear (w, s, z) [one] y = MatMul (b, c) }",
)
MODELS: Mapping[str, tuple[str, ...]] = {
    "INT8": _QUANTIZED,
    **{name: tuple(text.replace("T[", f"{dtype}[") for text in (*_UNARY, *_BINARY)) for name, dtype in _TYPES.items()},
}
"""Capability -> networks of which a device that names it takes one at least."""


@check("contract")
def named_precision_is_taken(context: CheckContext) -> None:
    """The device takes a common operator in each precision that OPTIMIZATION_CAPABILITIES names."""
    core, device = context.core, context.device
    for capability in core.get_metric(device, "OPTIMIZATION_CAPABILITIES"):
        networks = [read_text(context, text, name=capability.lower()) for text in MODELS.get(capability, ())]
        answers = [core.query_network(network, device) for network in networks]
        reasons = [reason for answer in answers for reason in answer.refused.values()]
        require(
            not answers or any(not answer.refused for answer in answers),
            f"OPTIMIZATION_CAPABILITIES names {capability}, and the device takes none of {len(answers)} networks of it: {reasons[:1]}",
        )


@check("contract")
def taken_precision_is_named(context: CheckContext) -> None:
    """OPTIMIZATION_CAPABILITIES names each precision in which the device takes every common operator.

    FP16 is left out: engines name it only if the processor computes in it, but take it on every processor.
    """
    core, device = context.core, context.device
    named = core.get_metric(device, "OPTIMIZATION_CAPABILITIES")
    for capability in sorted(MODELS.keys() - {"FP16", *named}):
        networks = [read_text(context, text, name=capability.lower()) for text in MODELS[capability]]
        require(
            any(core.query_network(network, device).refused for network in networks),
            f"the device takes all {len(networks)} networks of {capability}, and OPTIMIZATION_CAPABILITIES does not name it: {named}",
        )


@check("contract")
def export_is_named_where_it_works(context: CheckContext) -> None:
    """EXPORT_IMPORT is named, and the cache has its keys, if and only if a loaded network can be exported."""
    core, device = context.core, context.device
    is_named = "EXPORT_IMPORT" in core.get_metric(device, "OPTIMIZATION_CAPABILITIES")
    require_equal(core.get_metric(device, "IMPORT_EXPORT_SUPPORT"), is_named, "IMPORT_EXPORT_SUPPORT, beside EXPORT_IMPORT")
    require_equal("CACHE_DIR" in core.config_keys(device), is_named, "whether there is a key CACHE_DIR, beside EXPORT_IMPORT")
    loaded = core.load_network(make_sample(context, "chain").network, device)
    stream = io.BytesIO()
    if not is_named:
        require_error(NotImplementedByDeviceError, lambda: loaded.export_network(stream), "an export that no capability names")
        return
    try:
        loaded.export_network(stream)
    except NotImplementedByDeviceError as error:
        require(condition=False, message=f"EXPORT_IMPORT is named, and the device cannot export: {error}")
    require(stream.tell(), "the blob is empty")
