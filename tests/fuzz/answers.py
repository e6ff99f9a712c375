"""Runs changed models on CPU, TEMPLATE, ORT and OPENVINO, each answer beside ONNX Runtime's without optimizations.

    python tests/fuzz/answers.py --device CPU --seed 1 --cases 1000      goes on where the file of ranges says that the seed ended
    python tests/fuzz/answers.py --device CPU --seed 1 --only 17         one case, in this process, with its traceback

A finding is a signal, a limit (2 GiB resident, 20 s of the processor), an exception that is not hetero's, an InternalError, or another
answer than ONNX Runtime's where both have one. Findings go into a folder, one file each; ends with 1 where there was one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

# ruff: noqa: E402  # one thread is asked for before NumPy starts others: children are forked from this process
for _key in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_key, "1")

import numpy as np
import onnx
import onnx.printer
from cases import make_case
from check import is_small
from children import Death, run_in_children
from hetero_onnxruntime.known_errors import find_known_error

from hetero_core import Core, HeteroError, Network, errors
from hetero_core.dtypes import numpy_dtype
from hetero_core.network.graph import Node, iterate_graphs
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import RANDOM_OPERATORS

BATCH = 24
RANGES = Path(__file__).with_name("ranges.json")
UNBOUNDED = frozenset({"Loop", "Scan", "SequenceMap"})
FLAGS = (
    *(
        "exclusive",
        "interleaved",
        "is_causal",
        "keepdims",
        "largest",
        "noop_with_empty_axes",
        "periodic",
        "reverse",
        "sorted",
        "upper",
    ),
    *("allowzero", "antialias", "ceil_mode", "count_include_pad", "exclude_outside", "onesided", "training_mode"),
)
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-3}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int)
    parser.add_argument("--only", type=int)
    parser.add_argument("--ranges", type=Path, default=RANGES)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    arguments = parser.parse_args()
    logging.getLogger("hetero_core").setLevel(logging.CRITICAL)
    logging.getLogger("hetero_cpu").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if arguments.only is not None:
        name, content, _ = make_case(arguments.seed, arguments.only)
        say(name)
        say(describe(content)[:3000])
        mine = answer((arguments.seed, arguments.only, arguments.device))
        say(str(mine))
        if "answer" in mine:
            say(str(ask_oracle((arguments.seed, arguments.only, mine["feeds"]))))
        return 0
    return 1 if run_range(arguments) else 0


def say(text: str) -> None:
    """Writes a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def describe(content: bytes) -> str:
    """Returns a model as text, as far as it is one."""
    try:
        return onnx.printer.to_text(onnx.ModelProto.FromString(content))
    except Exception as error:  # noqa: BLE001  # the printer is onnx's, and the model damaged
        return f"{len(content)} bytes ({error})"


def run_range(arguments: argparse.Namespace) -> int:
    """Runs the next cases of a seed; returns the number of findings and notes the range."""
    warm_up()
    key = f"{arguments.device} {arguments.seed}"
    ranges: dict[str, Any] = json.loads(arguments.ranges.read_text()) if arguments.ranges.exists() else {}
    first = ranges.get(key, {}).get("cases", 0) if arguments.first is None else arguments.first
    counts: Counter[str] = Counter(ranges.get(key, {}).get("outcomes", {}))
    findings = 0
    for begin in range(first, first + arguments.cases, BATCH):
        indices = range(begin, min(begin + BATCH, first + arguments.cases))
        for index, outcome, text in run_batch(arguments.device, arguments.seed, indices):
            counts[outcome] += 1
            if text:
                findings += 1
                write_finding(arguments, index, outcome, text)
        if arguments.first is None:
            # Read again: another process may have noted the range of another device.
            ranges = json.loads(arguments.ranges.read_text()) if arguments.ranges.exists() else {}
            ranges[key] = {"cases": indices.stop, "outcomes": dict(sorted(counts.items()))}
            arguments.ranges.write_text(json.dumps(ranges, indent=1, sort_keys=True) + "\n")
    say(f"{key}: cases {first} to {first + arguments.cases}, {findings} findings; {dict(counts)}")
    return findings


def write_finding(arguments: argparse.Namespace, index: int, outcome: str, text: str) -> None:
    """Writes what is needed to look at a finding."""
    arguments.findings.mkdir(parents=True, exist_ok=True)
    name, content, _ = make_case(arguments.seed, index)
    path = arguments.findings / f"{arguments.device}-{arguments.seed}-{index}.txt"
    path.write_text(f"{outcome}: {name}\n{text}\n\n{describe(content)[:20000]}\n", encoding="utf-8", errors="replace")
    say(f"{path.name} {outcome} {name}: {text.strip().splitlines()[-1][:200]}")


def run_batch(device: str, seed: int, indices: range) -> list[tuple[int, str, str]]:
    """Returns (case, outcome, text of the finding, empty where it is none)."""
    mine = run_in_children(answer, [(seed, index, device) for index in indices])
    asked = [position for position, result in enumerate(mine) if isinstance(result, dict) and "answer" in result]
    oracle = run_in_children(ask_oracle, [(seed, indices[position], mine[position]["feeds"]) for position in asked])
    theirs = dict(zip(asked, oracle, strict=True))
    return [
        (index, *judge(result, theirs.get(position))) for position, (index, result) in enumerate(zip(indices, mine, strict=True))
    ]


def judge(mine: Any, theirs: Any) -> tuple[str, str]:
    """Returns (outcome, text of the finding)."""
    if isinstance(mine, Death):
        return "death", mine.reason
    if "foreign" in mine:
        return "foreign", mine["foreign"]
    if "answer" not in mine:
        return mine["outcome"], ""
    if isinstance(theirs, Death):
        return "run alone", ""
    if "answer" not in theirs:
        return "run alone", ""
    if mine["is_random"]:
        return "random", ""
    if mine["is_beyond_oracle"]:
        return "oracle known to be wrong", ""
    if mine["is_undefined"]:
        return "undefined", ""
    for name, array in mine["answer"].items():
        difference = compare(array, theirs["answer"].get(name), keeps_nan=mine["keeps_nan"])
        if difference:
            return "different", f"output {name!r}: {difference}\ninputs {mine['feeds']}"
    return "same", ""


def compare(mine: Any, theirs: Any, *, keeps_nan: bool) -> str:
    """Returns how two arrays differ, empty where they do not; without `keeps_nan` the device may have anything where a NaN is right."""
    if not isinstance(mine, np.ndarray) or not isinstance(theirs, np.ndarray):
        return ""
    if mine.shape != theirs.shape:
        return f"shape {mine.shape}, ONNX Runtime has {theirs.shape}"
    if mine.dtype == object or theirs.dtype == object:
        texts = [
            [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()] for array in (mine, theirs)
        ]
        return "" if all(map(_is_same_text, *texts)) else f"{texts[0][:20]}, ONNX Runtime has {texts[1][:20]}"
    if theirs.dtype == np.uint8 and mine.dtype.itemsize == 1 and mine.dtype.kind not in "biu":
        # ONNX Runtime gives the bytes of floats of 8 bits.
        theirs = theirs.view(mine.dtype)
    first, second = mine.astype(np.float64), theirs.astype(np.float64)
    tolerance = TOLERANCES.get(mine.dtype.name, 0.0)
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(second[np.isfinite(second)]), initial=1.0)
        near = _is_extreme(mine) | _is_extreme(theirs)
        near |= (np.abs(first - second) <= tolerance * scale) | (first == second) | (np.isnan(first) & np.isnan(second))
    if not keeps_nan:
        near |= np.isnan(second)
    if near.all():
        return ""
    places = np.argwhere(~near)[:5].tolist()
    return f"{int((~near).sum())} of {near.size} elements, at {places}: {first[~near][:5]}, ONNX Runtime has {second[~near][:5]}"


def is_undefined(node: Node, graph: Any) -> bool:
    """Says whether the standard leaves the result of a node open, so that engines make what they like.

    That is so where a flag is neither 0 nor 1, where the formula of Celu divides by 0 or an infinity, for a mean of nothing, and for
    infinite weights of a Conv, which some multiply by the zeros of the padding and others do not, and of an InstanceNormalization, whose
    mean some subtract before the product and others after it. The square root of what a DFT makes of nothing hangs on the sign of its
    rounding.
    """
    if node.op_type in ("Conv", "ConvTranspose", "InstanceNormalization"):
        weights = [graph.initializers[name].array for name in node.reads if name in graph.initializers]
        if not all(np.isfinite(array).all() for array in weights if array.dtype.kind == "f"):
            return True
    if node.op_type == "Sqrt" and node.inputs[0] in graph.index_of_producer:
        return graph.nodes[graph.index_of_producer[node.inputs[0]]].op_type in ("DFT", "STFT")
    if node.op_type == "Celu" and node.attributes.get("alpha", 1.0) in (0.0, np.inf, -np.inf):
        return True
    if node.op_type == "ReduceMean" and 0 in (getattr(graph.type_of(node.inputs[0]), "shape", None) or ()):
        return True
    return any(node.attributes.get(name, 0) not in (0, 1) for name in FLAGS)


def _is_same_text(mine: str, theirs: str) -> bool:
    """Says whether two texts are equal, or the same number to eight digits: the standard leaves open how many of them a Cast writes."""
    try:
        return mine == theirs or bool(np.isclose(float(mine), float(theirs), rtol=1e-7, atol=0, equal_nan=True))
    except ValueError:
        return False


def _is_extreme(array: np.ndarray[Any, Any]) -> Any:
    """Says which integers are the least or the greatest of their type: there an operation may have passed the end."""
    if array.dtype.kind not in "iu":
        return np.zeros(array.shape, bool)
    limits = np.iinfo(array.dtype)
    return (array == limits.max) | ((array == limits.min) & (limits.min < 0))


def warm_up() -> None:
    """Imports what children need, so that no case pays for it. Engines are imported, and none of their sessions made."""
    import importlib
    import pkgutil

    import onnxruntime  # noqa: F401  # the oracle
    import openvino  # noqa: F401  # a device

    for name in ("hetero_core", "hetero_cpu", "hetero_template", "hetero_onnxruntime", "hetero_openvino"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            if ".testing" not in module.name and "conformance" not in module.name and not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ImportError:
                    continue
    make_case(0, 0)
    from cases import list_models, list_trained

    list_models(), list_trained()


@cache
def open_core() -> Core:
    """Returns the Core of this child."""
    return Core(device_timeout=None)


def answer(argument: tuple[int, int, str]) -> dict[str, Any]:
    """Returns what a device makes of a case."""
    seed, index, device = argument
    _, content, arrays = make_case(seed, index)
    core = open_core()
    try:
        network = core.read_network(content)
    except HeteroError as error:
        return tell(error, "refused")
    try:
        loaded = core.load_network(network, device, {"MEMORY_LIMIT": 512 << 20, "PERF_COUNT": False})
    except HeteroError as error:
        return tell(error, "not loaded")
    operators = {node.op_type for graph in iterate_graphs(network) for node in graph.nodes}
    feeds = make_feeds(network, arrays, index)
    is_known = is_small(network) and all(value in network.types for node in network.nodes for value in node.writes)
    if feeds is None or (device not in ("CPU", "TEMPLATE") and (not is_known or operators & UNBOUNDED)):
        return {"outcome": "loaded"}
    loaded.deadline = 5.0
    try:
        outputs = loaded.infer(feeds)
    except errors.DeadlineExceededError:
        return {"outcome": "late", "is_last": True}
    except HeteroError as error:
        return tell(error, "failed")
    return {
        "answer": {name: np.array(value) if hasattr(value, "dtype") else value for name, value in outputs.items()},
        "feeds": feeds,
        "keeps_nan": "NAN" not in find_deviations(core, device),
        "is_random": bool(operators & RANDOM_OPERATORS),
        "is_undefined": any(is_undefined(node, graph) for graph in iterate_graphs(network) for node in graph.nodes),
        "is_beyond_oracle": any(find_known_error(node, graph) for graph in iterate_graphs(network) for node in graph.nodes),  # type: ignore[arg-type]  # bodies, too
    }


@cache
def find_deviations(core: Core, device: str) -> tuple[str, ...]:
    """Returns the values that a device says it treats in a way of its own."""
    has_some = "VALUE_DEVIATIONS" in core.get_metric(device, "SUPPORTED_METRICS")
    return tuple(core.get_metric(device, "VALUE_DEVIATIONS")) if has_some else ()


def tell(error: HeteroError, outcome: str) -> dict[str, Any]:
    """Returns the outcome of an error of hetero; the one that stands for another's is a finding."""
    if type(error).__name__ == "InternalError":
        import traceback

        return {"foreign": "".join(traceback.format_exception(error, limit=-12))}
    return {"outcome": outcome}


def make_feeds(network: Network, arrays: Any, index: int) -> dict[str, Any] | None:
    """Returns arrays for the inputs: those of the seed where they fit, drawn ones else; None where an input is no small tensor."""
    generator = np.random.default_rng(index)
    sizes: dict[Any, int] = {}
    feeds = {}
    for spec in network.inputs:
        if not isinstance(spec.type, TensorType) or spec.dtype is None:
            return None
        dtype = numpy_dtype(spec.dtype)
        known = arrays.get(spec.name)
        if isinstance(known, np.ndarray) and known.dtype == dtype and spec.shape is not None and fits(known.shape, spec.shape):
            feeds[spec.name] = known
            continue
        shape = tuple(size if isinstance(size, int) else sizes.setdefault(size or object(), 2) for size in spec.shape or ())
        if np.prod([float(size) for size in shape]) > 1 << 20:
            return None
        drawn = generator.integers(0 if spec.dtype[0] in "ub" else -3, 4, shape)
        if spec.dtype == "string":
            feeds[spec.name] = np.full(shape, "a", object)
        elif spec.dtype.startswith(("float", "bfloat")):
            feeds[spec.name] = (generator.standard_normal(shape) * 2).astype(dtype)
        else:
            feeds[spec.name] = np.asarray(drawn).astype(dtype)
    return feeds


def fits(shape: tuple[int, ...], declared: tuple[Any, ...]) -> bool:
    """Says whether an array has a declared shape."""
    return len(shape) == len(declared) and all(
        not isinstance(size, int) or size == own for own, size in zip(shape, declared, strict=True)
    )


def ask_oracle(argument: tuple[int, int, dict[str, Any]]) -> dict[str, Any]:
    """Returns what ONNX Runtime makes of a case without optimizations, on one thread."""
    import onnxruntime

    seed, index, feeds = argument
    _, content, _ = make_case(seed, index)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        values = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
    except Exception as error:  # noqa: BLE001  # its answer is that it has none
        return {"refused": str(error)[:300]}
    return {"answer": dict(zip(names, values, strict=True))}


if __name__ == "__main__":
    sys.exit(main())
