"""The cases of the ONNX backend suite: models with inputs and the outputs that the standard expects.

Cases are built on demand. Nothing is downloaded, and nothing is written to disk outside the folder that the variable NODE_CASES names.
Imports onnx and NumPy only inside functions.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

FOLDER_VARIABLE = "NODE_CASES"
"""The environment variable with the folder of a file of node cases: the first process computes them, later processes read the file.

onnx computes the expected values of its pooling cases in Python loops: five seconds in each process.
"""
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
"""Made in memory; four folders of the onnx wheel, of which "real" has large networks with constant weights."""


@dataclass(frozen=True)
class BackendCase:
    """A case: a model and one or more pairs of inputs and expected outputs, by position.

    Arrays are NumPy arrays, sequences lists, an absent optional None. `rtol` and `atol` are the suite's own.
    """

    name: str
    kind: str
    rtol: float
    atol: float
    load_model: Callable[[], onnx.ModelProto] = field(repr=False)
    load_runs: Callable[[], Sequence[tuple[Sequence[Any], Sequence[Any]]]] = field(repr=False)

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model, read once."""
        return self.load_model()

    @cached_property
    def runs(self) -> list[tuple[list[Any], list[Any]]]:
        """Pairs of inputs and expected outputs."""
        return [
            ([_normalize(each) for each in inputs], [_normalize(each) for each in outputs]) for inputs, outputs in self.load_runs()
        ]

    @property
    def is_random(self) -> bool:
        """Says whether the model draws random numbers, so that no two runs agree."""
        return any(op_type in RANDOM_OPERATORS for op_type in _op_types(self.model.graph))


RANDOM_OPERATORS = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
"""Operators with an output that differs between runs, unless a seed is set and the same engine is used."""


def iterate_backend_cases(pattern: str = "", *, kinds: Sequence[str] = KINDS) -> Iterator[BackendCase]:
    """Yields the cases with names that match the regular expression `pattern`, by kind, sorted by name. The first case takes 2 s."""
    search = re.compile(pattern).search
    makers = {"node": _node_case, "real": _light_case}
    for kind in kinds:
        make = makers.get(kind, _file_case)
        for case in sorted(_load_kind(kind), key=lambda case: str(case.name)):
            if search(case.name):
                yield make(case)


def _load_kind(kind: str) -> list[Any]:
    folder = os.environ.get(FOLDER_VARIABLE)
    if kind != "node" or not folder:
        return _compute_kind(kind)
    # The cases depend on the versions of the packages that compute them.
    versions = "-".join(version(name) for name in ("onnx", "numpy", "ml_dtypes"))
    path = Path(folder) / f"node-cases-{sys.implementation.cache_tag}-{versions}.pickle"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_bytes(pickle.dumps(_compute_kind(kind), pickle.HIGHEST_PROTOCOL))
        written.replace(path)
    cases: list[Any] = pickle.loads(path.read_bytes())
    return cases


def _compute_kind(kind: str) -> list[Any]:
    from onnx.backend.test.loader import load_model_tests  # heavy

    with warnings.catch_warnings():
        # The suite's own scripts overflow and divide by zero on purpose while they compute expected values.
        warnings.simplefilter("ignore")
        cases: list[Any] = load_model_tests(kind=kind)
    return cases


def _node_case(case: Any) -> BackendCase:
    return BackendCase(case.name, "node", case.rtol, case.atol, lambda: case.model, lambda: case.data_sets)


def _file_case(case: Any) -> BackendCase:
    import onnx

    folder = case.model_dir
    loaders = (lambda: onnx.load(os.path.join(folder, "model.onnx")), lambda: _load_runs(folder))
    return BackendCase(case.name, case.kind, case.rtol, case.atol, *loaders)


def _load_runs(folder: str) -> list[tuple[list[Any], list[Any]]]:
    import onnx

    graph = onnx.load(Path(folder, "model.onnx"), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [spec for spec in graph.input if spec.name not in constants]
    runs = []
    for data_set in sorted(Path(folder).glob("test_data_set_*")):
        # IR 3 models list their constants as inputs; their data sets may give values for those, too.
        specs = inputs if len(inputs) == len(list(data_set.glob("input_*.pb"))) else list(graph.input)
        values = _load_values(data_set, "input", specs)
        feeds = [value for spec, value in zip(specs, values, strict=False) if spec.name not in constants]
        runs.append((feeds, _load_values(data_set, "output", list(graph.output))))
    return runs


def _load_values(folder: Path, kind: str, specs: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    return [_load_value(folder / f"{kind}_{index}.pb", specs[index]) for index in range(len(list(folder.glob(f"{kind}_*.pb"))))]


def _load_value(path: str | Path, spec: onnx.ValueInfoProto) -> Any:
    import onnx
    from onnx import numpy_helper

    content = Path(path).read_bytes()
    kind = spec.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def _light_case(case: Any) -> BackendCase:
    import onnx

    source = os.path.join(os.path.dirname(os.path.dirname(onnx.__file__)), case.url)
    logit = SQUEEZENET_LOGIT if case.name == "test_squeezenet" else None
    return BackendCase(
        case.name, "real", case.rtol, case.atol, lambda: _load_light(source, logit), lambda: _light_runs(source, logit)
    )


SQUEEZENET_LOGIT = 9475687164.03
"""Each logit of test_squeezenet, by onnx's reference evaluator with weights and image in float64.

All weights of the model are alike, and float32 has numbers of this size in steps of 1,024: roundings decide the softmax of the logits, so
the case ends in front of it.
"""


def _load_light(source: str, logit: float | None) -> onnx.ModelProto:
    import onnx

    model = onnx.load(source)
    if logit is not None:
        model.graph.output[0].name = model.graph.node.pop().input[0]
    return model


def _light_runs(source: str, logit: float | None) -> list[tuple[list[Any], list[Any]]]:
    """Returns the input of the suite's own runner for these networks, a ramp, and their stored output, or a logit for each element."""
    import numpy as np
    import onnx

    graph = onnx.load(source).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = []
    for spec in graph.input:
        if spec.name not in constants:
            shape = [size.dim_value if size.HasField("dim_value") else 1 for size in spec.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    stored = f"{os.path.splitext(source)[0]}_output_{{}}.pb"
    outputs = [_load_value(stored.format(index), spec) for index, spec in enumerate(graph.output)]
    return [(inputs, outputs if logit is None else [np.full_like(outputs[0], logit)])]


def _normalize(value: Any) -> Any:
    """Returns protos as arrays; lists and None stay."""
    import onnx
    from onnx import numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _op_types(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _op_types(attribute.g)
