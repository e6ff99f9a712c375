"""Generates the reference page of operators from the table of kernels.

`PYTHONPATH=tests/shared python -m hetero_tests.ops_page docs/reference/ops.md` regenerates it after a change;
a test fails if the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hetero_core.kernels.registry import (
    ANY,
    BOOL,
    FLOATS,
    INDEX,
    INT64,
    INTEGERS,
    NOT_STRING,
    NUMBERS,
    SIGNED,
    STRING,
    Dtypes,
    KernelRecord,
    read_table,
)

_GROUPS: Mapping[str, Dtypes] = {
    "any": ANY,
    "not strings": NOT_STRING,
    "numbers": NUMBERS,
    "floats": FLOATS,
    "integers": INTEGERS,
    "signed": SIGNED,
    "indices": INDEX,
    "int64": INT64,
    "bool": BOOL,
    "string": STRING,
}

_HEAD = """# Operators of the kernels toolkit

This page lists the operators that CPU, TEMPLATE and GPU run with the kernels toolkit, on NumPy or CuPy. For a model, `hetero query` shows
which nodes a device refuses, and why:

```console
$ hetero query model.onnx -d CPU
```

This page is generated from the table of kernels: `PYTHONPATH=tests/shared python -m hetero_tests.ops_page docs/reference/ops.md`.

Versions are those of the operator: `Softmax-13` serves every opset from 13 on, up to the next version of Softmax. A node is refused, with
the reason, if its version is not listed, or if it has an attribute, an attribute value or an element type that is not implemented.
Element types are given for each input in order; the last one serves all further inputs. A device may have fewer. An operator of
another domain than ONNX's own has the domain before it. [ONNX Runtime's own operators](onnxruntime-operators.md) have a page of their own.

A node is also refused if ONNX leaves the meaning of its attributes open and engines differ, as for the scores of a classifier that
weighs one of two classes; the reason says so. Of ONNX's operators there is no kernel for
`Gradient`, which differentiates the graph around it. `ImageDecoder` needs Pillow (`pip install hetero-core[images]`),
`RegexFullMatch` and `Tokenizer` need RE2 (`pip install hetero-core[text]`). The `clip` of LSTM limits the inputs of its gates
and not the input of h, as in ONNX Runtime.

| types | element types |
|---|---|
"""


def format_ops_page() -> str:
    """Returns the page as Markdown: the groups of element types, then a row for each operator and set of element types."""
    groups = "".join(f"| {name} | {', '.join(sorted(dtypes))} |\n" for name, dtypes in _GROUPS.items())
    rows: dict[tuple[str, str, str], list[int]] = {}
    versions_of_onnx = {key: record for key, record in read_table().items() if key[2]}
    for (domain, op_type, version), record in versions_of_onnx.items():
        rows.setdefault((domain, op_type, describe_dtypes(record)), []).append(version)
    operators = {(domain, op_type) for domain, op_type, _ in rows}
    lines = [
        f"| `{domain + ':' if domain else ''}{op_type}` | {', '.join(map(str, versions))} | {dtypes} |"
        for (domain, op_type, dtypes), versions in rows.items()
    ]
    count = f"\n{len(operators)} operators in {len(versions_of_onnx)} versions.\n\n| operator | versions | element types |\n|---|---|---|\n"
    return _HEAD + groups + count + "\n".join(lines) + "\n"


def describe_dtypes(record: KernelRecord) -> str:
    """Returns the element types of a kernel's inputs in the spelling of the page."""
    texts = [_describe_set(dtypes) for dtypes in (record.dtypes if isinstance(record.dtypes, tuple) else (record.dtypes,))]
    while len(texts) > 1 and texts[-1] == texts[-2]:
        texts.pop()
    return "; ".join(texts)


def _describe_set(dtypes: Dtypes) -> str:
    for name, group in _GROUPS.items():
        if dtypes == group:
            return name
    for name, group in _GROUPS.items():
        missing = group - dtypes
        if dtypes < group and len(missing) <= 2 < len(dtypes):
            return f"{name} but {', '.join(sorted(missing))}"
    covered = [name for name, group in _GROUPS.items() if group <= dtypes]
    ungrouped = dtypes - frozenset().union(*(_GROUPS[name] for name in covered[:1]))
    return ", ".join([*covered[:1], *sorted(ungrouped)])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(format_ops_page())
