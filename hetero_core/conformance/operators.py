"""Operators: every case of ONNX's backend suite, each as a check.

The device must compute a case right if it claims all of its nodes; otherwise `load_network` must refuse the case, with the nodes and
reasons that `query_network` gave. There is no third outcome.

Expected values are ONNX's own. The suite has random outputs in Bernoulli, also written out as a function, and in Dropout for training.
Properties of every right answer are checked in their place: shape, element type, the set of possible values, and shares within six
standard deviations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from timeit import repeat
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, load_claimed, require_refusal
from hetero_core.conformance.runner import describe_error
from hetero_core.dtypes import TOLERANCES, bits_of_dtype, dtype_of_numpy
from hetero_core.errors import HeteroError
from hetero_core.testing.backend_cases import RANDOM_OPERATORS, BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_first_mismatch, describe_mismatch

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network, Node
    from hetero_core.runtime.executable import ExecutableNetwork


LEAST_TOLERANCE = 1e-4
"""The least tolerance of short types and long networks; some of the suite's own are tighter than sums in another order allow."""
UNIT = 2.0**-23
"""A unit in the last place of float32, relative to its largest power of two."""
FUNCTION_UNITS, SUM_UNITS = 16, 10
"""Units that a function may differ by, and a sum for the root of the number of its terms: roundings of a sum go up and down at random.
Right devices differ by 6 units at most."""
STEP_NOISE = 2.0**-20
"""Relative rounding noise, in float32, of a real value that is a product of scales, before it is rounded to an integer."""
MOVES = re.compile(
    "Compress|Concat|DepthToSpace|Expand|Flatten|Gather|GatherElements|GatherND|Identity|Pad|Reshape|ReverseSequence|ScatterElements|"
    "ScatterND|Slice|SpaceToDepth|Split|Squeeze|Tile|TopK|Transpose|Trilu|Unsqueeze|Where"
)
"""Operators that move data, whose outputs are equal to the bit; the reductions of scatters are sums, which the suite keeps exact."""
SUMS = re.compile("Attention|Conv|Einsum|GRU|Gemm|LRN|LSTM|Loss|MatMul|Norm|Pool|RNN|Reduce|Softmax|Sum")
"""Parts of the names of operators that sum; DFT and STFT are sums, too, and few in the suite's cases."""
FEW_DIGITS = (
    *("test_averagepool_2d_ceil_last_window_starts_on_pad", "test_gridsample_bicubic", "test_roialign_aligned_false"),
    "test_roialign_aligned_true",
)
"""Cases whose expected values the suite writes with four or five digits."""

ROUNDING = {"bf16": 2e-2, "bfloat16": 2e-2}
"""Functions of bfloat16 that are written out round after each operator: two right answers differ by a few units of 2**-8."""

TIMED_RUNS, LEAST_SECONDS = 3, 5e-5
"""Runs of which the median is taken, and the least time of NumPy's kernels that is compared."""

PASSED, REFUSED, WRONG = "passed", "refused", "wrong"


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The result of a device on a case, with the reason unless it passed. `is_native`: only kernels of the device ran.

    `is_free`: the outputs are random, so only their properties were checked. `operators` holds the operator of each node, its element
    type in the matrix, and whether the device claims it. `slowdown` is the time of a run relative to NumPy's kernels, 0 if it was not
    measured.
    """

    name: str
    status: str
    reason: str
    operators: tuple[tuple[str, str, bool], ...]
    is_native: bool = False
    is_free: bool = False
    slowdown: float = 0.0


@cache
def list_cases() -> tuple[BackendCase, ...]:
    """Returns all cases of the suite; cached, since building them takes some seconds."""
    return tuple(iterate_backend_cases())


@cache
def list_operator_checks() -> tuple[Check, ...]:
    """Returns a check for each case, such as "operators.test_abs"; a consistent refusal is a skip with its reason."""
    return tuple(Check(f"operators.{case.name}", "operators", partial(check_case, case), shares_core=True) for case in list_cases())


def check_case(case: BackendCase, context: CheckContext) -> CaseOutcome:
    """A case of ONNX's backend suite is computed right, or query and load refuse it with the same reason.

    Raises: CheckFailed; Skip for a refusal.
    """
    outcome = judge_case(case, context.core, context.device)
    if outcome.status == WRONG:
        raise CheckFailed(outcome.reason, outcome)
    if outcome.status == REFUSED:
        raise Skip(outcome.reason, outcome)
    return outcome


def judge_case(case: BackendCase, core: Core, device: str) -> CaseOutcome:
    """Returns the outcome of a case on the device; an error of the device becomes an outcome and is not raised."""
    try:
        network = core.read_network(case.model)
    except HeteroError as error:
        return CaseOutcome(case.name, REFUSED, f"the core cannot read it: {error}", ())
    try:
        result = core.query_network(network, device)
    except Exception as error:  # noqa: BLE001  # a device may raise anything
        return CaseOutcome(case.name, WRONG, f"query_network raised {describe_error(error)}", ())
    operators = tuple((node.operator, find_dtype(node, network), node.name in result.supported) for node in network.nodes)
    feeds = [dict(zip((spec.name for spec in network.inputs), inputs, strict=False)) for inputs, _ in case.runs]
    is_free = any(draws_freely(network, feed) for feed in feeds)

    def conclude(status: str, reason: str, *, is_native: bool = False, slowdown: float = 0.0) -> CaseOutcome:
        return CaseOutcome(case.name, status, reason, operators, is_native, is_free, slowdown)

    from onnx.reference import ReferenceEvaluator  # heavy
    from onnx.reference.op_run import OpRun

    # A device may call the evaluator, or make an operator of it; its own claim does not prove that its kernels are native.
    made, ran = (
        patch.object(owner, name, autospec=True, side_effect=getattr(owner, name))
        for owner, name in ((OpRun, "__init__"), (ReferenceEvaluator, "run"))
    )
    try:
        if result.refused:
            return conclude(REFUSED, require_refusal(core, network, device, result))
        with made as operator, ran as evaluator, load_claimed(core, network, device) as loaded:
            mismatch = find_mismatch(case, network, loaded, flushes="DENORMALS" in core.get_metric(device, "VALUE_DEVIATIONS"))
            foreign = loaded.get_metric("REFERENCE_NODES")
            slowdown = measure_slowdown(case, network, loaded) if mismatch is None else 0.0
    except CheckFailed as failure:
        return conclude(WRONG, str(failure))
    except Exception as error:  # noqa: BLE001  # as above
        return conclude(WRONG, f"{describe_error(error)}{_describe_nodes(network)}")
    if mismatch is not None:
        return conclude(WRONG, mismatch + _describe_nodes(network))
    if (operator.called or evaluator.called) and network.nodes and not foreign:
        return conclude(WRONG, "onnx's reference evaluator ran, and the device does not say so in the metric REFERENCE_NODES")
    return conclude(PASSED, "", is_native=not foreign, slowdown=slowdown)


def find_mismatch(case: BackendCase, network: Network, loaded: ExecutableNetwork, *, flushes: bool = False) -> str | None:
    """Returns the first difference of an output from the case's expected value, or None. `flushes`: denormal numbers count as 0."""
    for inputs, expected in case.runs:
        tolerance = find_tolerance(case, network, [*inputs, *expected])
        # Copies, so that writes of the device to its inputs are found and do not spoil the case.
        feeds = {spec.name: copy.deepcopy(value) for spec, value in zip(loaded.inputs, inputs, strict=False)}
        if draws_freely(network, feeds):
            mismatch = describe_free_mismatch(network, loaded, feeds, expected)
        else:
            outputs = loaded.infer(feeds)
            written = _find_written(feeds, inputs)
            run = partial(_run_kernels, network)
            accepted = accept_half_steps(network, inputs, list(outputs.values()), expected, run)
            if flushes:
                outputs, accepted = {name: _flush(array) for name, array in outputs.items()}, list(map(_flush, accepted))
            mismatch = written if written else describe_first_mismatch(outputs, accepted, rtol=tolerance)
        if mismatch is not None:
            return mismatch
    return None


def _flush(value: Any) -> Any:
    is_float = isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)
    return np.where(np.abs(value) < np.finfo(value.dtype).tiny, value * 0, value) if is_float else value


def _run_kernels(network: Network, inputs: Sequence[Any]) -> Sequence[Any]:
    """Returns the outputs of NumPy's kernels: a run of onnx's evaluator would count as the device's."""
    from hetero_core.kernels.program import compile_program  # imports all kernels

    return compile_program(network).run(tuple(inputs))


def accept_half_steps(
    network: Network,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    expected: Sequence[Any],
    run: Callable[[Sequence[Any]], Sequence[Any]],
) -> Sequence[Any]:
    """Returns the expected outputs, those of a quantizing network with the device's integer in each place where rounding noise of the
    real value decides between the two.

    A network quantizes if it is a single such node, or ONNX's function of DynamicQuantizeLinear. The limits are the integers that `run`
    computes with a value that is smaller and one that is larger by STEP_NOISE: the scale, or the input of a dynamic scale apart from its
    ends, which make the scale. A device's integer is one step off at most. Powers of two as scales leave no noise: a half is a half, and
    is rounded to even.
    """
    operator = network.nodes[0].op_type if len(network.nodes) == 1 else ""
    is_dynamic = operator == "DynamicQuantizeLinear" or network.name.startswith("test_dynamicquantizelinear")
    floats = [index for index, array in enumerate(inputs) if isinstance(array, np.ndarray) and array.dtype == np.float32]
    scales = [expected[1]] if is_dynamic else [inputs[index] for index in floats if index]
    is_exact = all((np.frexp(scale)[0] == 0.5).all() for scale in scales)
    is_quantizing = is_dynamic or operator.startswith("Q")
    if not is_quantizing or is_exact or describe_mismatch(list(outputs), list(expected)) is None:
        return expected
    place = 0 if is_dynamic else next(index for index in floats if index)
    value = inputs[place]
    is_end = np.isin(value, (value.min(), value.max())) if is_dynamic else False
    limits = []
    for factor in (1 - STEP_NOISE, 1 + STEP_NOISE):
        scaled = list(inputs)
        scaled[place] = np.where(is_end, value, value * np.float32(factor))
        limits.append(run(scaled))
    return [_accept(*arrays) for arrays in zip(outputs, expected, *limits, strict=True)]


def _accept(actual: Any, expected: Any, low: Any, high: Any) -> Any:
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype) or "int" not in (dtype_of_numpy(actual.dtype) or ""):
        return expected
    step, middle, *ends = (each.astype(np.int64) for each in (actual, expected, low, high))
    is_near = (np.abs(step - middle) <= 1) & (np.minimum(*ends) <= step) & (step <= np.maximum(*ends))
    return np.where(is_near, actual, expected)


def measure_slowdown(case: BackendCase, network: Network, loaded: ExecutableNetwork) -> float:
    """Returns how many times as long as NumPy's kernels the device takes for a case of one node; 0 if they cannot run it.

    NumPy's time counts as LEAST_SECONDS at least, since a run of a few numbers is the call of a device and nothing else.
    """
    from hetero_core.kernels.program import compile_program  # imports all kernels

    if len(network.nodes) != 1:
        return 0.0
    inputs = tuple(copy.deepcopy(case.runs[0][0]))
    feeds = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
    try:
        program = compile_program(network)
        seconds = _measure(lambda: program.run(inputs))
    except (HeteroError, ValueError):
        return 0.0
    return _measure(lambda: loaded.infer(feeds)) / max(seconds, LEAST_SECONDS)


def _measure(run: Callable[[], object]) -> float:
    return median(repeat(run, number=1, repeat=TIMED_RUNS))


def find_tolerance(case: BackendCase, network: Network, values: Sequence[Any]) -> float:
    """Returns the tolerance of a run with these inputs and outputs: 0 if data is only moved, some units of float32 for functions, and
    more for sums, by their number of terms. Shorter types are rounded once by each node, to a unit of theirs; sums of theirs are made in a
    wider type. No tolerance is above that of the suite."""
    operators = {node.op_type for node in network.nodes}
    if all(MOVES.fullmatch(operator) for operator in operators):
        return 0.0
    most = max(case.rtol, LEAST_TOLERANCE, *(value for key, value in ROUNDING.items() if key in case.name), 0.0)
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    short = [float(ml_dtypes.finfo(array.dtype).eps) for array in arrays if is_short(array.dtype)]
    if case.name in FEW_DIGITS or short:
        return float(min(most, max(short, default=1.0) * np.sqrt(len(network.nodes))))
    constants = [constant.array for constant in network.initializers.values()]
    is_sum = len(network.nodes) > 1 or any(map(SUMS.search, operators))
    terms = len(network.nodes) * max((array.size for array in (*arrays, *constants)), default=1) if is_sum else 1
    return float(min(most, UNIT * max(FUNCTION_UNITS, SUM_UNITS * np.sqrt(terms))))


def is_short(dtype: Any) -> bool:
    """Says whether an element type is a float of 16 bits or less."""
    name = dtype_of_numpy(dtype) or ""
    return name in TOLERANCES and (bits_of_dtype(name) or 0) <= 16


def _find_written(feeds: dict[str, Any], inputs: Sequence[Any]) -> str | None:
    """Returns the input array that the device has written to, or None; sequences and maps are not checked."""
    for (name, value), original in zip(feeds.items(), inputs, strict=False):
        if isinstance(value, np.ndarray) and value.dtype != object and value.tobytes() != original.tobytes():
            return f"the device wrote to input '{name}', which is the caller's"
    return None


def _describe_nodes(network: Network) -> str:
    """Returns the operators and attributes of a case, such as "; in Gemm-13 with beta=0.5", which hints at an ignored attribute. Empty
    for more than a few nodes."""
    if len(network.nodes) > 3:
        return ""
    nodes = []
    for node in network.nodes:
        values = [f"{name}={value}" for name, value in node.attributes.items() if isinstance(value, (int, float, str, tuple))]
        nodes.append(f"{node.operator} with {', '.join(values)}" if values else node.operator)
    return f"; in {', '.join(nodes)}"[:300]


def find_dtype(node: Node, network: Network) -> str:
    """Returns the element type of a node for the matrix: that of its first typed input, else of its first output."""
    types = [network.type_of(value) for value in (*node.reads, *node.writes)]
    dtypes = [str(dtype) for value_type in types if (dtype := getattr(value_type, "dtype", None)) is not None]
    kinds = [type(value_type).__name__.removesuffix("Type").lower() for value_type in types if value_type is not None]
    return next(iter((*dtypes, *kinds)), "unknown")


DEVIATIONS = 6.0


def draws_freely(network: Network, feeds: Mapping[str, Any]) -> bool:
    """Says whether some output of a run with these inputs is random."""
    return any(node.op_type in RANDOM_OPERATORS or _is_dropping(node, network, feeds) for node in network.nodes if not node.domain)


def _is_dropping(node: Any, network: Network, feeds: Mapping[str, Any]) -> bool:
    """Says whether a node is a Dropout in training mode with a ratio above 0."""
    if node.op_type != "Dropout" or node.since_version < 12 or len(node.inputs) < 3:
        return False
    ratio = 0.5 if not node.inputs[1] else float(_find_value(node.inputs[1], network, feeds))
    return bool(_find_value(node.inputs[2], network, feeds)) and ratio > 0


def _find_value(name: str, network: Network, feeds: Mapping[str, Any]) -> Any:
    return feeds[name] if name in feeds else network.initializers[name].array


def describe_free_mismatch(
    network: Network, loaded: ExecutableNetwork, feeds: Mapping[str, Any], expected: Sequence[Any]
) -> str | None:
    """Returns the property that the random outputs violate, or None; runs the network with these inputs and with extreme inputs."""
    outputs = loaded.infer(feeds)
    for (name, value), reference in zip(outputs.items(), expected, strict=True):
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return f"{name}: expected {reference.dtype}{list(reference.shape)}, got {value.dtype}{list(value.shape)}"
    if any(node.op_type == "Dropout" for node in network.nodes):
        return _judge_dropout(network, feeds, list(outputs.values()))
    if len(outputs) == 1 and len(feeds) == 1:
        return _judge_bernoulli(network, loaded, feeds, next(iter(outputs.values())))
    return None


def _judge_bernoulli(network: Network, loaded: ExecutableNetwork, feeds: Mapping[str, Any], drawn: Any) -> str | None:
    """Each value is 1 with the probability that the input gives, else 0.

    ONNX's function body inverts this: 1 if a uniform number is greater than the input.
    """
    (name, x), *_ = feeds.items()
    is_inverted = any(node.op_type == "Greater" for node in network.nodes)
    if not np.isin(drawn, (0, 1)).all():
        return f"Bernoulli gave {sorted(set(drawn.tolist()))[:4]}; expected 0 and 1 alone"
    for chance in (0, 1):
        certain = next(iter(loaded.infer({name: np.full_like(x, chance)}).values()))
        if not (certain == (1 - chance if is_inverted else chance)).all():
            return f"Bernoulli of an input of {chance} gave {certain.tolist()}"
    chances = x.astype(np.float64)
    return _judge_share(int(drawn.astype(np.float64).sum()), 1 - chances if is_inverted else chances)


def _judge_dropout(network: Network, feeds: Mapping[str, Any], outputs: list[Any]) -> str | None:
    """Each element is dropped, or kept and scaled by 1 / (1 - ratio); the mask, if it is an output, is True for kept elements."""
    (node,) = [candidate for candidate in network.nodes if candidate.op_type == "Dropout"]
    x = feeds[node.inputs[0]].astype(np.float64)
    ratio = float(_find_value(node.inputs[1], network, feeds)) if node.inputs[1] else 0.5
    y = outputs[0].astype(np.float64)
    is_kept = ~np.isclose(y, 0) if ratio >= 1 else np.isclose(y, x / (1 - ratio), rtol=1e-4) & (x != 0)
    if not (is_kept | (y == 0)).all():
        return f"Dropout gave elements that are neither 0 nor x / (1 - {ratio:g})"
    if len(outputs) > 1 and not (outputs[1] == is_kept)[x != 0].all():
        return "the mask of Dropout does not say what was kept"
    return _judge_share(int(is_kept.sum()), np.full(x.shape, 1 - ratio))


def _judge_share(count: int, chances: np.ndarray[Any, Any]) -> str | None:
    mean, deviation = float(chances.sum()), float(np.sqrt((chances * (1 - chances)).sum()))
    if abs(count - mean) <= DEVIATIONS * deviation + 1e-9:
        return None
    return f"{count} of {chances.size} elements were drawn; expected {mean:g}, give or take {DEVIATIONS * deviation:.3g}"
