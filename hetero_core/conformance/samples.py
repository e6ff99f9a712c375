"""Samples: the smallest networks that a device takes, with formulas in float64 for their outputs.

A device may support a single operator. So a sample is a form, filled with the first operator and element type that the device claims.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip, require, require_equal
from hetero_core.contract import QueryResult
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network
from hetero_core.testing.compare import describe_mismatch

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.request import InferRequest

Arrays = dict[str, Any]
Formula = Callable[..., Any]

UNARY: Mapping[str, Formula] = {
    # First come operators that, applied twice, differ from both a single application and the identity.
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, 0),
    "Abs": np.abs,
    "Exp": np.exp,
    "Identity": lambda x: x,
}
BINARY: Mapping[str, Formula] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "MatMul": np.matmul}
TYPES: Mapping[str, Any] = {"float": np.float32, "float16": np.float16, "double": np.float64, "int32": np.int32}

WAIT_SECONDS = 120.0
"""Seconds that a run of four numbers may take before the device counts as hanging."""

UNKNOWN_OPERATOR = "com.acme.KnownToNobody"
"""An operator that no device has; networks with it must be refused."""


@dataclass(frozen=True, slots=True)
class Form:
    """A network as ONNX text with the placeholders T (element type) and OP (operator), and its outputs in order, from its inputs."""

    text: str
    compute: Callable[..., Arrays]
    operators: Mapping[str, Formula] = field(default_factory=lambda: UNARY)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input name -> shape, with 3 as the size N."""
        words = re.findall(r"T(?:\[(.*?)\])? (\w+)", self.text.partition("=>")[0])
        return {name: tuple(3 if size == "N" else int(size) for size in sizes.split(",") if size) for sizes, name in words}


def _chain(f: Formula, x: Any) -> Arrays:
    return {"y": f(f(x))}


FORMS: Mapping[str, Form] = {
    "chain": Form("(T[4] x) => (T[4] y) { [first] a = OP (x) [second] y = OP (a) }", _chain),
    "dynamic": Form("(T[N,2] x) => (T[N,2] y) { [first] a = OP (x) [second] y = OP (a) }", _chain),
    "fork": Form("(T[4] x) => (T[4] y, T[4] z) { [first] y = OP (x) [second] z = OP (y) }", lambda f, x: {"y": f(x), "z": f(f(x))}),
    "pair": Form("(T[2,2] x, T[2,2] w) => (T[2,2] y) { [only] y = OP (x, w) }", lambda f, x, w: {"y": f(x, w)}, BINARY),
    "constant": Form(
        "(T[2] x) => (T[2] y, T[2] k) <T[2] k = {5, 6}> { [only] y = OP (x) }", lambda f, x: {"y": f(x), "k": np.array([5, 6])}
    ),
    "through": Form("(T[2] x, T[2] w) => (T[2] y, T[2] w) { [only] y = OP (x) }", lambda f, x, w: {"y": f(x), "w": w}),
    "scalar": Form("(T x) => (T y) { [first] a = OP (x) [second] y = OP (a) }", _chain),
}


class DrawnInputs(dict[str, Any]):
    """Random inputs by name, with copies of their values, which show whether a device has written to the inputs."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self.originals = {name: value.copy() for name, value in arrays.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """A form with operator and element type in place: a network that the device takes whole."""

    network: Network
    dtype: Any
    form: Form
    formula: Formula
    rtol: float | None = None

    def draw(self, seed: int, **shapes: tuple[int, ...]) -> Arrays:
        """Returns random inputs between -3 and 3, for Exp between -2 and 2; `shapes` replace the form's shapes."""
        generator = np.random.default_rng(seed)
        # A choice may compute in float16, whose largest number is 65,504: exp(exp(2)) is 1,618, and exp(exp(3)) is above it.
        largest = 2 if self.formula is np.exp else 3
        arrays = {
            name: np.asarray(generator.uniform(-largest, largest, shapes.get(name, shape))).astype(self.dtype)
            for name, shape in self.form.shapes.items()
        }
        return DrawnInputs(arrays)

    def expect(self, inputs: Arrays) -> Arrays:
        """Returns the outputs by the formula, computed in float64 and rounded once."""
        wide = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
        return {name: np.asarray(value).astype(self.dtype) for name, value in self.form.compute(self.formula, **wide).items()}

    def require_right(self, outputs: Mapping[str, Any], inputs: Arrays, what: str) -> None:
        """Raises CheckFailed unless the outputs are those of the formula, by name and in order, and the inputs are unchanged."""
        for name, original in inputs.originals.items() if isinstance(inputs, DrawnInputs) else ():
            is_same = inputs[name].tobytes() == original.tobytes()
            require(is_same, f"{what}: the device wrote to input '{name}', which is the caller's")
        expected = self.expect(inputs)
        require_equal(list(outputs), list(expected), f"{what}, the names of the outputs")
        for name, value in expected.items():
            mismatch = describe_mismatch(outputs[name], value, rtol=self.rtol, name=f"{what}, output '{name}'")
            if mismatch is None:
                continue
            others = [other for other in expected if describe_mismatch(outputs[name], expected[other], rtol=self.rtol) is None]
            mixed = f"; '{name}' holds what is expected of '{others[0]}': overwritten, or exchanged" if others else ""
            raise CheckFailed(f"{mismatch}{mixed}")

    def require_working(self, run: Callable[[], Arrays], inputs: Arrays, what: str) -> None:
        """Runs. Raises: CheckFailed unless the outputs are those of the inputs, also for an error of the device."""
        try:
            outputs = run()
        except HeteroError as error:
            raise CheckFailed(f"{what}: {error}") from error
        self.require_right(outputs, inputs, what)

    def require_run(self, runner: ExecutableNetwork | InferRequest, seed: int, *, what: str, **shapes: tuple[int, ...]) -> None:
        """Runs the network, or its request, with drawn inputs. Raises: CheckFailed unless the outputs are right."""
        inputs = self.draw(seed, **shapes)
        self.require_right(runner.infer(inputs), inputs, what)

    def require_started(self, request: InferRequest, inputs: Arrays, what: str) -> None:
        """Runs a request asynchronously and waits for it. Raises: CheckFailed unless it ends and its outputs are right."""
        request.start_async(inputs)
        self.require_ended(request, inputs, what)

    def require_ended(self, request: InferRequest, inputs: Arrays, what: str) -> None:
        """Waits for a request that was started. Raises: CheckFailed unless it ends and its outputs are right."""
        require(request.wait(WAIT_SECONDS), f"{what}: the run did not end within {WAIT_SECONDS:g} seconds")
        outputs = {spec.name: request.get_tensor(spec.name) for spec in self.network.outputs}
        self.require_right(outputs, inputs, what)


def read_text(context: CheckContext, text: str, *, name: str = "sample", opset: int = 17) -> Network:
    """Returns the network of an ONNX text, to which a header with this opset and version 1 of com.acme is added."""
    import onnx.parser  # heavy

    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.acme": 1]>'
    return context.core.read_network(onnx.parser.parse_model(f"{header} {name} {text}"))


def make_sample(context: CheckContext, form: str) -> Sample:
    """Returns the form with the first operator and element type that the device takes. Raises: Skip if it takes no combination."""
    sample = next(iterate_samples(context, form), None)
    if sample is None:
        names = ", ".join(FORMS[form].operators)
        raise Skip(f"the device takes none of {names} in a network '{form}' of {', '.join(TYPES)}")
    return sample


def load_sample(context: CheckContext, form: str, config: Mapping[str, Any] | None = None) -> tuple[Sample, ExecutableNetwork]:
    """Returns the sample of a form, and its network as the device has loaded it. Raises: Skip as `make_sample`."""
    sample = make_sample(context, form)
    return sample, context.load(sample.network, config)


def open_request(context: CheckContext, form: str, config: Mapping[str, Any] | None = None) -> tuple[Sample, InferRequest]:
    """Returns the sample of a form, and a request of its network on the device. Raises: Skip as `make_sample`."""
    sample, loaded = load_sample(context, form, config)
    return sample, loaded.create_infer_request()


def make_samples(context: CheckContext, *forms: str) -> dict[str, Sample]:
    """Returns a sample of each form that the device takes, by form. Raises: Skip if it takes no form."""
    samples = {form: next(iterate_samples(context, form), None) for form in forms}
    accepted = {form: sample for form, sample in samples.items() if sample is not None}
    return accepted if accepted else {forms[0]: make_sample(context, forms[0])}


def iterate_samples(context: CheckContext, form: str) -> Iterator[Sample]:
    """Yields every filling of the form that the device takes."""
    chosen = FORMS[form]
    for type_name, dtype in TYPES.items():
        for operator, formula in chosen.operators.items():
            if dtype == np.int32 and operator in ("Tanh", "Sigmoid", "Exp"):
                continue
            network = read_text(context, _fill(chosen.text, operator, type_name), name=form)
            if not context.query(network).refused:
                yield Sample(network, dtype, chosen, formula, context.rtol)


def _fill(text: str, operator: str, type_name: str) -> str:
    filled = text.replace("OP", operator).replace("T[", f"{type_name}[").replace("(T ", f"({type_name} ")
    # ONNX text writes float16 constants as their bits, other types as numbers.
    return filled.replace("{5, 6}", "{17664, 17920}") if type_name == "float16" else filled


def export_bytes(loaded: ExecutableNetwork) -> bytes:
    """Returns the blob of a network."""
    stream = io.BytesIO()
    loaded.export_network(stream)
    return stream.getvalue()


def make_mixed(context: CheckContext) -> tuple[Network, QueryResult]:
    """Returns a network whose last node 'unknown' is refused by every device, and the device's query result for it."""
    text = f"(float[4] x) => (float[4] y) {{ [known] a = Identity (x) [negate] b = Neg (a) [unknown] y = {UNKNOWN_OPERATOR} (b) }}"
    network = read_text(context, text, name="mixed")
    return network, context.query(network)


ABSENT = 70
"""The exit code of a process that does not have the device."""
PROCESS_SECONDS = 240
_SCRIPT = f"""
import json, sys
import numpy as np
from hetero_core import Core

device, kind, config, source, inputs, outputs = sys.argv[1:]
with Core() as core:
    if device.partition(":")[0].partition(".")[0] not in core.device_names:
        sys.exit({ABSENT})
    open_network = core.import_network if kind == "blob" else core.load_network
    with np.load(inputs) as arrays, open_network(source, device, json.loads(config)) as network:
        np.savez(outputs, **network.infer(dict(arrays)))
"""


def run_in_own_process(
    context: CheckContext,
    write: Callable[[str], None],
    inputs: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    kind: str,
    what: str,
) -> dict[str, Any]:
    """Returns the outputs of a network of the kind "blob" or "model", which `write` writes to a path.

    Raises: CheckFailed, which begins with `what`, if the process fails; Skip if the device is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in (kind, "inputs.npz", "outputs.npz")]
        write(paths[0])
        np.savez(paths[1], **inputs)
        values = {key: context.core.get_config(context.device, key) for key in sorted(context.configured)}
        ended = subprocess.run(
            [sys.executable, "-c", _SCRIPT, context.device, kind, json.dumps({**values, **config}), *paths],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PROCESS_SECONDS,
        )
        if ended.returncode == ABSENT:
            raise Skip("the device is not installed, so that another process has none")
        if ended.returncode != 0:
            raise CheckFailed(f"{what}: {(ended.stderr.strip().splitlines() or ['no message'])[-1]}")
        with np.load(paths[2]) as outputs:
            return dict(outputs)
