"""The table of schemas says what the installed onnx says, for every operator and version."""

from __future__ import annotations

import subprocess
import sys

import onnx
import onnx.defs

from hetero_core.network import schemas
from hetero_core.network.schemas import ask_onnx, find_latest_opsets, format_table

# The answers of a process that has not imported onnx, as text.
ASK = """
import sys
from hetero_core.network.schemas import find_latest_opsets, find_schema, find_since_version
for line in sys.stdin.read().splitlines():
    op_type, domain, opset = line.split(",")
    since = find_since_version(op_type, domain, int(opset))
    print(since, find_schema(op_type, since, domain) if since else None)
print(sorted(find_latest_opsets().items()))
assert "onnx" not in sys.modules
"""


def test_table_is_fresh() -> None:
    with open(schemas._FILE, encoding="utf-8") as file:
        table = file.read()
    # The release may be a later one with the same schemas: then onnx is asked.
    assert table.partition("\n")[2] == format_table().partition("\n")[2], "run: python -m hetero_core.network.schemas"


def test_table_answers_every_operator_and_opset_as_onnx_does() -> None:
    operators = sorted({(schema.name, schema.domain) for schema in onnx.defs.get_all_schemas_with_history()})
    questions = [(name, domain, opset) for name, domain in operators for opset in range(1, find_latest_opsets()[domain] + 2)]
    questions += [("Absent", "", 7), ("Relu", "com.acme", 1), ("Twist", "", 2**31 - 1)]
    text = "\n".join(f"{name},{domain},{opset}" for name, domain, opset in questions)
    ended = subprocess.run([sys.executable, "-c", ASK], input=text, capture_output=True, text=True, check=False, timeout=900)
    expected = []
    for name, domain, opset in questions:
        has = onnx.defs.has(name, max_inclusive_version=opset, domain=domain)
        since = onnx.defs.get_schema(name, opset, domain).since_version if has else 0
        expected.append(f"{since} {ask_onnx(name, since, domain) if since else None}")
    expected.append(str(sorted(find_latest_opsets().items())))
    assert ended.returncode == 0, ended.stderr
    assert sorted(map(normalize, ended.stdout.splitlines())) == sorted(map(normalize, expected))


def normalize(line: str) -> str:
    """Returns a line with its characters sorted: the attributes of a schema have no order."""
    return "".join(sorted(line))
