"""The end of a model of rows: float64 sums of each row become scores, transformed as ONNX says, and the label of the greatest.

```text
sums (float64) ── base values ──> scores ── greatest, the first of equals ──> label (int64)
                                    └── rounded ──> float32 ── Sigmoid or softmax ──> y
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_core.kernels.registry import TOOLKIT, prepare_node
from hetero_cpu.machine.arithmetic import EMITTERS, emit_exponential_of_negative
from hetero_cpu.machine.calls import Array, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.recipe import Site

DOUBLE_BYTES = 8
ROWS_OF_CHUNK = 64
LARGEST = 1e30
"""Sums of numbers up to this size are finite in float32, too."""
SCORE_PARAMETERS = ("y", "label", "labels", "targets", "base", "divisor", "rows", "sums")
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")


@dataclass(frozen=True, slots=True)
class ScoreForm:
    """The parts of a kernel that depend on the model. `opposite`: how the score of the first of two classes follows, as in the toolkit."""

    opposite: str
    transform: str
    has_label: bool
    divides: bool = False

    @property
    def name(self) -> str:
        """The part of a kernel's name."""
        return "_".join([self.transform.lower(), *filter(None, [self.opposite, "label" * self.has_label, "mean" * self.divides])])

    @property
    def is_supported(self) -> bool:
        """Says whether the transform has machine code."""
        return self.transform in _TRANSFORMS

    def count_columns(self, targets: int) -> int:
        """Returns the number of scores of a row."""
        return 2 if self.opposite else targets


def reads_rows(site: Site) -> bool:
    """Says whether a node reads rows of float32, and all of its outputs are asked for."""
    value, outputs = site.node.inputs[0], site.node.outputs
    x, count = site.prototypes[value], 2 if site.node.op_type.endswith("Classifier") else 1
    is_dense = site.is_float32(value) and x.ndim == 2 and bool(x.flags.c_contiguous)
    return is_dense and len(outputs) == count and all(outputs) and not site.group.epilogue


def prepare_model(site: Site) -> Any:
    """Returns the model of a node as the toolkit's kernel prepares it. Raises: ValueError for attributes that make no model."""
    record = TOOLKIT.find(site.node)
    assert record is not None
    return prepare_node(site.node, record, (site.types.get(site.node.inputs[0]),))


def measure_sums(targets: int, workers: int) -> int:
    """Returns the bytes of the sums of all workers."""
    return ROWS_OF_CHUNK * targets * DOUBLE_BYTES * workers


def list_scores(
    writes: tuple[Array, Array | None], labels: Array, base: Array, divisor: Array, rows: int, scratch: Array
) -> dict[str, int]:
    """Returns the numbers of a call; `writes`: the scores, and the labels if there are any."""
    y, label = writes
    return {
        "y": address_of(y), "label": 0 if label is None else address_of(label), "labels": address_of(labels), "targets": len(base),
        "base": address_of(base), "divisor": address_of(divisor), "rows": rows, "sums": address_of(scratch),
    }  # fmt: skip


def find_sums(p: dict[str, Number], worker: Number) -> Number:
    """Returns the address of a worker's sums, float64 (ROWS_OF_CHUNK, targets)."""
    return p["sums"] + worker * (p["targets"] * (ROWS_OF_CHUNK * DOUBLE_BYTES))


def emit_scores(code: Code, p: dict[str, Number], form: ScoreForm, sums: Number, begin: Number, end: Number) -> None:
    """Writes the scores and labels of rows `begin` to `end` - 1, whose sums are at `sums`."""
    columns = code.number(2) if form.opposite else p["targets"]
    with code.loop(begin, end) as row:
        source, y = sums + (row - begin) * (p["targets"] * DOUBLE_BYTES), p["y"] + row * (columns * FLOAT_BYTES)
        if form.opposite:
            _emit_two(code, p, form, _read_score(code, p, form, source, code.number(0)), y, row)
        else:
            _emit_all(code, p, form, source, y, row)
        if form.transform == "SOFTMAX":
            _emit_softmax(code, y, columns)
    if form.transform == "LOGISTIC":
        first = p["y"] + begin * (columns * FLOAT_BYTES)

        def transform(element: Number, mask: Mask | None) -> None:
            place = first + element * FLOAT_BYTES
            code.store(place, EMITTERS["Sigmoid"](code, code.load(place, mask=mask)), mask=mask)

        code.visit_vectors((end - begin) * columns, transform)


def _read_score(code: Code, p: dict[str, Number], form: ScoreForm, source: Number, target: Number) -> Floats:
    total = code.load_double(source + target * DOUBLE_BYTES)
    if form.divides:
        total = total / code.load_double(p["divisor"])
    return total + code.load_double(p["base"] + target * DOUBLE_BYTES)


def _emit_two(code: Code, p: dict[str, Number], form: ScoreForm, score: Floats, y: Number, row: Number) -> None:
    first = -score if form.opposite == "negative" else code.widen(code.constant(1.0, 1)) - score
    code.store(y, code.narrow(first))
    code.store(y, code.narrow(score), FLOAT_BYTES)
    if form.has_label:
        _store_label(code, p, row, (score > first).choose(code.number(1), code.number(0)))


def _emit_all(code: Code, p: dict[str, Number], form: ScoreForm, source: Number, y: Number, row: Number) -> None:
    greatest, position = code.variable(_read_score(code, p, form, source, code.number(0))), code.variable(code.number(0))
    with code.loop(0, p["targets"]) as target:
        score = _read_score(code, p, form, source, target)
        code.store(y + target * FLOAT_BYTES, code.narrow(score))
        if form.has_label:
            best, before = greatest.get(), position.get()
            is_greater, is_nan = score > best, score.is_nan()
            # The first NaN is the greatest, as in NumPy.
            first = best.is_nan().choose(before, target)
            position.set(is_nan.choose(first, is_greater.choose(target, before)))
            greatest.set(is_nan.choose(score, is_greater.choose(score, best)))
    if form.has_label:
        _store_label(code, p, row, position.get())


def _store_label(code: Code, p: dict[str, Number], row: Number, position: Number) -> None:
    code.store_number(p["label"] + row * 8, code.load_number(p["labels"] + position * 8))


def _emit_softmax(code: Code, y: Number, columns: Number) -> None:
    peak, total = code.variable(code.load_scalar(y)), code.variable(code.constant(0.0, 1))
    with code.loop(1, columns) as column:
        peak.set(peak.get().at_least(code.load_scalar(y + column * FLOAT_BYTES)))
    with code.loop(0, columns) as column:
        place = y + column * FLOAT_BYTES
        part = emit_exponential_of_negative(code, code.load_scalar(place) - peak.get())
        code.store(place, part)
        total.set(total.get() + part)
    with code.loop(0, columns) as column:
        place = y + column * FLOAT_BYTES
        code.store(place, code.load_scalar(place) / total.get())
