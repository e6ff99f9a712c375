"""Contract of values: tensors in and out; sizes, numbers and indices that small well-behaved inputs never show; formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import (
    Check,
    CheckContext,
    Skip,
    check,
    load_each,
    require,
    require_equal,
    require_error,
    skip_declared,
)
from hetero_core.conformance.samples import TYPES, load_sample, make_sample, make_samples, read_text
from hetero_core.errors import HeteroError, InferenceError
from hetero_core.testing.compare import describe_mismatch

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

# Tensors: inputs that are never written to, and the owner of each array.


@check("tensors")
def inputs_are_never_written(context: CheckContext) -> None:
    """The caller's input arrays are unchanged after a run, and may be read-only."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair", "through").items():
        loaded = context.load(sample.network)
        inputs = sample.draw(context.seed)
        for turn in range(2):
            sample.require_right(loaded.infer(inputs), inputs, f"network '{form}', run {turn + 1}")
        for value in inputs.values():
            value.flags.writeable = False
        sample.require_right(loaded.infer(inputs), inputs, f"network '{form}' with read-only inputs")


@check("tensors")
def results_belong_to_the_caller(context: CheckContext) -> None:
    """Outputs of `infer` of a loaded network do not change when it runs again, and are writable."""
    sample, loaded = load_sample(context, "fork")
    drawn = [sample.draw(context.seed + turn) for turn in range(4)]
    results, copies = [], []
    for inputs in drawn:
        results.append(loaded.infer(inputs))
        copies.append({name: value.tobytes() for name, value in results[-1].items()})
    for turn, (inputs, outputs) in enumerate(zip(drawn, results, strict=True)):
        for name, value in outputs.items():
            what = f"output '{name}' of run {turn + 1} changed with a later run"
            require(value.tobytes() == copies[turn][name], f"{what}: the device gave away memory that it goes on writing to")
        sample.require_right(outputs, inputs, f"result {turn} after {len(drawn) - 1 - turn} more runs")
        for value in outputs.values():
            value += np.ones((), value.dtype)
    again = loaded.infer(drawn[0])
    sample.require_right(again, drawn[0], "a run after the results were written to")


# Values: sizes, numbers and indices that small well-behaved inputs never show.

SIZES = (15, 16, 17, 31, 33, 63, 65, 257, 1025, 70_001, 1_048_579)
"""Row counts on both sides of the widths in which kernels and vector units work, past 16 bits, as grids of a card have them, and past a
million."""
PRODUCT_SIZES = ((1, 1, 1), (3, 5, 7), (17, 33, 9), (8, 1030, 8), (65, 64, 130), (1, 700, 257), (4, 2049, 1))
"""Rows, inner size and columns of matrix products, beside and past the tiles of kernels."""
RUNS = 40
"""Runs of a network, enough to show accumulated changes."""

NAN_NETWORKS = {
    "Relu": "(float[6] x) => (float[6] y) { y = Relu (x) }",
    "Clip": "(float[6] x) => (float[6] y) <float low = {-1}, float high = {1}> { y = Clip (x, low, high) }",
    "Max": "(float[6] x) => (float[6] y) <float[1] w = {0}> { y = Max (x, w) }",
    "Min": "(float[6] x) => (float[6] y) <float[1] w = {0}> { y = Min (x, w) }",
    "MaxPool": "(float[1,1,6] x) => (float[1,1,3] y) { y = MaxPool <kernel_shape = [2], strides = [2]> (x) }",
    "AveragePool": "(float[1,1,6] x) => (float[1,1,3] y) { y = AveragePool <kernel_shape = [2], strides = [2]> (x) }",
    "ReduceMax": "(float[3,2] x) => (float[3,1] y) { y = ReduceMax <axes = [1]> (x) }",
}
"""Operator -> network whose output element is NaN if one of its input elements is NaN."""

WIDE_NETWORKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Identity": ("y = Identity (x)", lambda x: x),
    "Neg": ("y = Neg (x)", lambda x: -x),
    "Add": ("y = Add (x, x)", lambda x: x + x),
    "Sub": ("a = Neg (x) y = Sub (x, a)", lambda x: x + x),
    "Mul": ("y = Mul (x, x)", lambda x: x * x),
    "Abs": ("y = Abs (x)", abs),
    "Max": ("y = Max (x, x)", lambda x: x),
}
"""Operator -> nodes on an input, and the same on a Python integer, which has no width, and on float64."""

INDEX_NETWORKS = {
    "Gather": "(float[3,2] x, int64[1] i) => (float[1,2] y) { y = Gather (x, i) }",
    "GatherElements": "(float[3] x, int64[1] i) => (float[1] y) { y = GatherElements (x, i) }",
    "GatherND": "(float[3] x, int64[1,1] i) => (float[1] y) { y = GatherND (x, i) }",
}
"""Operator -> network of which ONNX says that an index outside its axis is an error."""

WEIGHT_NETWORKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Add": ("float[2] w = {5, 5}", lambda x: x + 5),
    "Mul": ("float[2] w = {5, 5}", lambda x: x * 5),
    "Sub": ("float[2] w = {5, 5}", lambda x: x - 5),
    "MatMul": ("float[2,2] w = {5, 0, 0, 5}", lambda x: x * 5),
}
"""Operator -> its weight and its formula; every number has few bits, so that it is exact in all types."""


def _load_texts(context: CheckContext, texts: Mapping[str, str]) -> Iterator[tuple[str, ExecutableNetwork]]:
    """Yields each network that the device claims, loaded. Raises: Skip if it claims no network."""
    yield from load_each(context, {name: read_text(context, text, name=name) for name, text in texts.items()})


def _load_wide(context: CheckContext, declared: str) -> Iterator[tuple[str, Callable[[Any], Any], ExecutableNetwork]]:
    """Yields operator, meaning and loaded network of WIDE_NETWORKS, for inputs of this type and size, as "float[5]"."""
    texts = {operator: f"({declared} x) => ({declared} y) {{ {nodes} }}" for operator, (nodes, _) in WIDE_NETWORKS.items()}
    for operator, loaded in _load_texts(context, texts):
        yield operator, WIDE_NETWORKS[operator][1], loaded


def _count_bits(result: Any, exact: Any, most: int) -> int:
    """Returns the number of correct bits of the least accurate result, at most `most`."""
    error = float(np.max(np.abs(result - exact) / np.abs(exact)))
    return int(-np.log2(max(error, 2.0**-most)))


def _shape_of_input(loaded: ExecutableNetwork, index: int) -> tuple[int, ...]:
    return tuple(int(size or 0) for size in loaded.inputs[index].shape or ())


def _skip_shortened(context: CheckContext) -> None:
    """Raises: Skip under a configuration that lets the device compute in a shorter type."""
    if context.rtol is not None:
        raise Skip("the configuration asks for a shorter type")


@check("values")
def long_rows_are_computed_to_the_end(context: CheckContext) -> None:
    """Each row of a long input is computed like the first rows: past 16, 32, 64 and more, in the odd rest, past 65,535 (where a counter of
    16 bits would end) and past a million."""
    sample, loaded = load_sample(context, "dynamic")
    with loaded:
        for size in SIZES:
            sample.require_run(loaded, context.seed, x=(size, 2), what=f"an input of {size} rows")


@check("values")
def products_of_odd_sizes_are_right(context: CheckContext) -> None:
    """MatMul of sizes that no tile divides, and of long inner sizes, is summed to the end, in a network of open sizes."""
    _skip_shortened(context)
    generator = np.random.default_rng(context.seed)
    for _, loaded in _load_texts(context, {"MatMul": "(float[M,K] a, float[K,N] b) => (float[M,N] y) { y = MatMul (a, b) }"}):
        for rows, inner, columns in PRODUCT_SIZES:
            # Integers whose sums are exact in float32, in any order.
            a, b = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
            value = loaded.infer({"a": a.copy(), "b": b.copy()})["y"]
            wrong = int(np.count_nonzero(value != a.astype(np.float64) @ b))
            require(wrong == 0, f"MatMul of ({rows}, {inner}) and ({inner}, {columns}): {wrong} of {value.size} sums are wrong")


@check("values")
def float32_keeps_its_precision(context: CheckContext) -> None:
    """A float32 is not rounded to bfloat16 (8 bits), float16 or TF32 (11 bits) on its way: it has 24 bits."""
    _skip_shortened(context)
    x = np.float32(1) + np.float32(2) ** -np.arange(2, 20, dtype=np.float32)
    for operator, compute, loaded in _load_wide(context, "float[18]"):
        bits = _count_bits(loaded.infer({"x": x.copy()})["y"], compute(x.astype(np.float64)), 24)
        require(bits >= 20, f"{operator} of float32 is right to {_describe_bits(bits)}")
    # Each sum has a single term that is not 0, so that only the rounding of the inputs matters.
    wide = np.zeros((18, 32), np.float32)
    wide[np.arange(18), np.arange(18)] = x
    texts = {"MatMul": "(float[18,32] x, float[32,16] w) => (float[18,16] y) { y = MatMul (x, w) }"}
    with suppress(Skip):  # the device has the operators above
        for operator, loaded in _load_texts(context, texts):
            bits = _count_bits(
                loaded.infer({"x": wide, "w": np.ones((32, 16), np.float32)})["y"], x[:, None].astype(np.float64), 24
            )
            require(bits >= 20, f"{operator} of float32 is right to {_describe_bits(bits)}")


def _describe_bits(bits: int) -> str:
    if bits < 7:
        return f"{bits} bits of 24, fewer than the 8 of bfloat16: the result is wrong, not rounded to a shorter type"
    kind = "bfloat16" if bits < 10 else "TF32 or float16" if bits < 14 else "sums of several short types"
    return f"{bits} bits of 24; bfloat16 has 8, float16 and TF32 have 11, so that the device seems to compute in {kind}"


@check("values")
def float64_keeps_its_precision(context: CheckContext) -> None:
    """A float64 that the device takes is computed in float64, not in float32, which has 24 bits of 53."""
    skip_declared(context, "FLOAT64")
    x = 1 + 2.0 ** -np.arange(2, 50, dtype=np.float64)
    for operator, compute, loaded in _load_wide(context, "double[48]"):
        bits = _count_bits(loaded.infer({"x": x.copy()})["y"], compute(x), 53)
        require(bits >= 48, f"{operator} of float64 is right to {bits} bits of 53; float32 has 24")


@check("values")
def infinity_is_not_lost(context: CheckContext) -> None:
    """Infinities stay infinite, and overflow in float32 gives an infinity, not the largest finite number."""
    skip_declared(context, "INFINITY")
    _skip_shortened(context)
    x = np.array([np.inf, -np.inf, 3e38, -3e38, 1], np.float32)
    for operator, compute, loaded in _load_wide(context, "float[5]"):
        with np.errstate(over="ignore"):
            expected = compute(x.astype(np.float64)).astype(np.float32).tolist()
        require_equal(loaded.infer({"x": x.copy()})["y"].tolist(), expected, f"{operator} of infinity and of numbers near it")


@check("values")
def nan_is_not_lost(context: CheckContext) -> None:
    """Relu, Clip, Max, Min and pooling give NaN for NaN: a device that computes `x > 0 ? x : 0` hides that a model has gone wrong."""
    skip_declared(context, "NAN")
    x = np.array([1.5, np.nan, -2, 0.5, np.nan, np.nan], np.float32)
    for operator, loaded in _load_texts(context, NAN_NETWORKS):
        (value,) = loaded.infer({"x": x.reshape(_shape_of_input(loaded, 0)).copy()}).values()
        places = np.isnan(x).reshape(-1, x.size // value.size).any(axis=1)
        require_equal(np.isnan(value).ravel().tolist(), places.tolist(), f"{operator} of {x.tolist()}, which outputs are NaN")


@check("values")
def int64_keeps_its_width(context: CheckContext) -> None:
    """Integers past 32 bits come out whole, or are refused by an error that names int64; they are not computed in int32 or in float."""
    # The last number is past the 53 bits of a float64.
    numbers = (2**31, -(2**31) - 1, 2**31 + 12345, 3_000_000_019, 2**53 + 1)
    for operator, compute, loaded in _load_wide(context, "int64[5]"):
        try:
            results = [int(number) for number in loaded.infer({"x": np.array(numbers, np.int64)})["y"]]
        except HeteroError as error:
            require("int64" in str(error), f"{operator} of int64, past 32 bits: {type(error).__name__} does not say so: {error}")
            continue
        wrapped = [(compute(number) - 2**63) % 2**64 - 2**63 for number in numbers]
        require_equal(results, wrapped, f"{operator} of int64, past 32 bits")


@check("values")
def index_outside_its_axis_is_an_error(context: CheckContext) -> None:
    """An index that the axis does not have is an error of the run, never the nearest element or zero."""
    skip_declared(context, "INDICES")
    for operator, loaded in _load_texts(context, INDEX_NETWORKS):
        x = np.ones(_shape_of_input(loaded, 0), np.float32)
        for index in (3, -4, 2**31):
            feeds = {"x": x, "i": np.full(_shape_of_input(loaded, 1), index, np.int64)}
            require_error(HeteroError, loaded.infer, f"{operator} with the index {index} of an axis of 3", feeds)


@check("values")
def weights_stay_as_they_are(context: CheckContext) -> None:
    """The constants of a network are the same after many runs: nothing is added to a weight that a run only reads."""
    texts = {
        operator: f"(float[2] x) => (float[2] y) <{weight}> {{ y = {operator} (x, w) }}"
        for operator, (weight, _) in WEIGHT_NETWORKS.items()
    }
    for operator, loaded in _load_texts(context, texts):
        for turn in range(RUNS):
            x = np.array([1.25, -7.5], np.float32) + np.float32(turn % 2)
            expected = WEIGHT_NETWORKS[operator][1](x.astype(np.float64)).tolist()
            value = loaded.infer({"x": x.copy()})["y"].tolist()
            if value != expected:
                what = f"{operator} with a weight of 5, run {turn + 1} of one network: {_describe_runs(loaded, x, value, expected)}"
                require_equal(value, expected, what)


def _describe_runs(loaded: ExecutableNetwork, x: Any, value: Any, expected: Any) -> str:
    """Returns the kind of a wrong result, by four more runs on the same input."""
    values = [value, *(loaded.infer({"x": x.copy()})["y"].tolist() for _ in range(4))]
    errors = [float(np.max(np.abs(np.subtract(each, expected)))) for each in values]
    if max(errors) == min(errors):
        return "a wrong result, the same in each run"
    return "weights that drift" if errors == sorted(errors) else "results of equal runs that differ at random"


@check("values")
def array_that_changes_in_place_is_read_again(context: CheckContext) -> None:
    """An array changed in place gives new results: inputs are compared by content, not by identity."""
    sample = make_sample(context, "chain")
    with context.load(sample.network) as loaded:
        array = sample.draw(context.seed)["x"]
        for turn in range(5):
            # The last change is a single number, which a digest of a sample of the elements would miss.
            array[... if turn < 4 else 2] = sample.draw(context.seed + turn)["x"][... if turn < 4 else 2]
            before = array.copy()
            outputs = loaded.infer({"x": array})
            require(array.tobytes() == before.tobytes(), f"run {turn + 1} wrote to the input that it was given")
            sample.require_right(outputs, {"x": before}, f"run {turn + 1} on one array, whose numbers were changed in place")


# Formulas: fixed cases of the faults in kernels that ONNX's suite and its tolerances do not show.


@dataclass(frozen=True, slots=True)
class _Case:
    """The body of a graph in ONNX's text, its formula in float64, and its inputs x, w, r, b; `rtol` 0 demands equal results."""

    body: str
    formula: Callable[..., Any]
    inputs: tuple[Any, ...]
    rtol: float = 0.0
    opset: int = 17

    @property
    def feeds(self) -> dict[str, Any]:
        """Input name -> a copy of the array."""
        return {name: array.copy() for name, array in zip("xwrb", self.inputs, strict=False)}

    @property
    def graph(self) -> str:
        """The graph; a size of 0 is open."""
        word_of = {dtype: word for word, dtype in TYPES.items()}
        words = (f"{word_of[x.dtype.type]}[{','.join(str(n or 'K') for n in x.shape)}] {name}" for name, x in self.feeds.items())
        return f"({', '.join(words)}) => (y) {self.body}"


def _count(*shape: int) -> Any:
    """Returns small integers, whose sums and products are exact in float32."""
    return (np.arange(math.prod(shape), dtype=np.float32) * 5 % 11 - 4).reshape(shape)


def _floats(*values: float) -> tuple[Any]:
    return (np.array(values, np.float32),)


def _slide(x: Any, w: Any) -> Any:
    """Returns a convolution with dilations 2 and 1, and pads 1 and 0 before, 2 and 3 after."""
    x = np.pad(x[0, 0], ((1, 2), (0, 3)))
    rows, columns = x.shape[0] - 2 * (w.shape[2] - 1), x.shape[1] - w.shape[3] + 1
    places = np.ndindex(*w.shape[2:])
    return sum(w[0, 0, i, j] * x[2 * i : 2 * i + rows, j : j + columns] for i, j in places)[None, None]


def _gate(x: Any, w: Any, r: Any, b: Any) -> Any:
    """Returns GRU with linear_before_reset = 1. Source: ONNX GRU-14."""
    state, outputs = np.zeros((1, 2)), []
    for step in x:
        (wz, wr, wh), (rz, rr, rh) = np.split(step @ w[0].T + b[0, :6], 3, 1), np.split(state @ r[0].T + b[0, 6:], 3, 1)
        update, reset = 1 / (1 + np.exp(-(wz + rz))), 1 / (1 + np.exp(-(wr + rr)))
        state = (1 - update) * np.tanh(wh + reset * rh) + update * state
        outputs.append(state[None])
    return np.array(outputs)


_erf = np.vectorize(math.erf, otypes=[float])
_RAMP = (np.linspace(-4, 4, 97, dtype=np.float32),)
_HALVES = np.ones((1, 4096), np.float16)
_UNITS = (np.arange(1, 5, dtype=np.float32) * np.float32(1e-40),)

_CASES: Mapping[str, tuple[str, Mapping[str, _Case]]] = {
    "halves_are_rounded_to_even": (
        "QuantizeLinear and Round take the even neighbour of a number in the middle of two, not the one away from zero.",
        {
            "QuantizeLinear": _Case(
                "<float s = {2}, uint8 z = {3}> { y = QuantizeLinear (x, s, z) }",
                lambda x: np.rint(x / 2) + 3,
                _floats(1, 3, 5, 7, 9, 11, 13, -1),
            ),
            "Round": _Case("{ y = Round (x) }", np.rint, _floats(0.5, 1.5, 2.5, -2.5)),
        },
    ),
    "casts_to_integers_cut_the_fraction": (
        "Cast from float to an integer cuts the fraction off; it does not round.",
        {"Cast": _Case("{ y = Cast <to = 6> (x) }", np.trunc, _floats(1.7, -1.7, 2.5, -0.9, 0.5, 3.5))},
    ),
    "windows_have_pads_and_dilations_of_each_side": (
        "A convolution with dilations has its own pads at each side of each axis.",
        {
            "Conv": _Case(
                "{ y = Conv <dilations = [2, 1], pads = [1, 0, 2, 3]> (x, w) }", _slide, (_count(1, 1, 5, 6), _count(1, 1, 2, 3))
            )
        },
    ),
    "products_of_depth_0_are_zero": (
        "A product over an axis of size 0 is a sum of no terms, which is 0.",
        {"MatMul": _Case("{ y = MatMul (x, w) }", np.matmul, (np.ones((3, 0), np.float32), np.ones((0, 2), np.float32)))},
    ),
    "denormals_are_kept": (
        "Numbers below 1.2e-38 are computed as they are, not flushed to 0.",
        {
            "Add": _Case("{ y = Add (x, x) }", lambda x: 2 * x, _UNITS),
            "Mul": _Case("<float[1] w = {2}> { y = Mul (x, w) }", lambda x: 2 * x, _UNITS),
        },
    ),
    "float16_is_summed_in_a_wider_type": (
        "A sum of 4,096 ones is 4,096 in float16, which a sum in float16 never reaches: it stops at 2,048.",
        {
            "MatMul": _Case("{ y = MatMul (x, w) }", np.matmul, (_HALVES, _HALVES.T)),
            "ReduceSum": _Case("{ y = ReduceSum (x) }", lambda x: x.sum(keepdims=True).astype(x.dtype), (_HALVES,)),
        },
    ),
    "float16_overflows_to_infinity": (
        "A result past 65,504 in float16 is infinite, not the largest finite number.",
        {"Add": _Case("{ y = Add (x, x) }", lambda x: x + x, (np.array([60000, -60000], np.float16),))},
    ),
    "functions_are_those_of_the_standard": (
        "Erf and Gelu are right to float32, not computed by formulas of four digits; Gelu is by erf unless `approximate` says tanh.",
        {
            "Erf": _Case("{ y = Erf (x) }", _erf, _RAMP, rtol=3e-6),
            "Gelu": _Case("{ y = Gelu (x) }", lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))), _RAMP, rtol=3e-6, opset=20),
        },
    ),
    "inner_values_have_strides": (
        "A kernel reads an inner value by its strides: a transposed value or one of every second column.",
        {
            "Transpose": _Case("{ a = Transpose (x) y = Neg (a) }", lambda x: -x.T, (_count(3, 4),)),
            "Slice": _Case(
                "<int64[1] b = {0}, int64[1] e = {8}, int64[1] i = {1}, int64[1] s = {2}> { a = Slice (x, b, e, i, s) y = Neg (a) }",
                lambda x: -x[:, ::2],
                (_count(3, 8),),
            ),
        },
    ),
    "large_batches_are_computed_to_the_end": (
        "Each matrix and image of a batch of 7 is computed.",
        {
            "MatMul": _Case("{ y = MatMul (x, w) }", np.matmul, (_count(7, 2, 3), _count(7, 3, 2))),
            "Conv": _Case(
                "{ y = Conv (x, w) }",
                lambda x, w: np.einsum("bihw,oi->bohw", x, w[:, :, 0, 0]),
                (_count(7, 2, 3, 3), _count(4, 2, 1, 1)),
            ),
        },
    ),
    "linear_before_reset_is_followed": (
        "GRU with linear_before_reset multiplies by the reset gate after the product and its bias.",
        {
            "GRU": _Case(
                "{ y = GRU <hidden_size = 2, linear_before_reset = 1> (x, w, r, b) }",
                _gate,
                tuple(_count(*shape) / 4 for shape in ((3, 1, 2), (1, 6, 2), (1, 6, 2), (1, 12))),
                rtol=1e-5,
            )
        },
    ),
    "results_may_have_no_dimension": (
        "A result of rank 0 has the shape (), not (1,).",
        {
            "ReduceSum": _Case("{ y = ReduceSum <keepdims = 0> (x) }", np.sum, (_count(2, 3),)),
            "Squeeze": _Case("{ y = Squeeze (x) }", np.squeeze, (_count(1, 1),)),
        },
    ),
    "softmax_of_large_numbers_is_finite": (
        "Softmax subtracts the largest number first, since the exponential of 1,000 overflows.",
        {"Softmax": _Case("{ y = Softmax (x) }", lambda x: np.array([1, 0, 0]), _floats(1000, 0, -1000))},
    ),
    "clip_takes_the_upper_bound_last": (
        "Clip with a lower bound above the upper bound gives the upper bound.",
        {"Clip": _Case("<float low = {2}, float high = {1}> { y = Clip (x, low, high) }", np.ones_like, _floats(0, 1.5, 3))},
    ),
}
"""Name of a check -> its claim, and a case of each operator."""

_DEVIATIONS = {"denormals_are_kept": "DENORMALS"}
"""Name of a check -> the word of the metric VALUE_DEVIATIONS by which a device declares that it deviates there."""


def _make_check(name: str, claim: str, cases: Mapping[str, _Case]) -> Check:
    def check(context: CheckContext) -> None:
        skip_declared(context, _DEVIATIONS.get(name, ""))
        networks = {key: read_text(context, case.graph, name=key, opset=case.opset) for key, case in cases.items()}
        for operator, loaded in load_each(context, networks):
            case = cases[operator]
            try:
                (value,) = loaded.infer(case.feeds).values()
            except InferenceError as error:
                if error.__cause__ is None:  # the device refuses these sizes or numbers in words of its own
                    raise Skip(f"{operator}: {error}") from error
                raise
            with np.errstate(over="ignore"):
                expected = np.asarray(case.formula(*(array.astype(np.float64) for array in case.inputs))).astype(value.dtype)
            mismatch = describe_mismatch(value, expected, rtol=max(case.rtol, context.rtol or 0.0), name=operator)
            require(mismatch is None, f"{claim} {mismatch}")

    check.__doc__ = claim
    return Check(f"formulas.{name}", "contract", check)


FORMULA_CHECKS = tuple(_make_check(name, claim, cases) for name, (claim, cases) in _CASES.items())
