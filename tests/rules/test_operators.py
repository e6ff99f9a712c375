"""Each operator has a single home: its record, above its function, in a file of `kernels/operators`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hetero_tests

NEW_OPERATOR = """
from hetero_core.kernels.registry import FLOATS, INT64, kernel


@kernel("Repeat", since=(1,), domain="ai.onnx.ml", dtypes=(FLOATS, INT64), host=(1,), count_bytes=lambda x, n: x.nbytes * int(n))
def repeat(xp, x, n):
    return xp.repeat(x, int(n))
"""

USE_OF_IT = """if True:
    import sys
    from hetero_core.kernels import operators
    operators.__path__.append(sys.argv[1])
    import numpy as np
    from hetero_core.errors import MemoryLimitError
    from hetero_tests.ops_page import format_ops_page
    from hetero_core.kernels.program import compile_program
    from hetero_core.kernels.registry import find_refusal
    from hetero_core.limits import RunLimits
    from hetero_core.network.graph import Network, Node
    from hetero_core.network.types import TensorType, ValueSpec
    specs = [ValueSpec("x", TensorType("float32", (2,))), ValueSpec("n", TensorType("int64", ()))]
    types = [spec.type for spec in specs]
    node = Node("node", "Repeat", ("x", "n"), ("y",), "ai.onnx.ml", 5, 1)
    assert find_refusal(node, types) is None
    assert "dtype int32" in find_refusal(node, [TensorType("int32", (2,)), types[1]])
    program = compile_program(Network("g", tuple(specs), (ValueSpec("y", TensorType("float32")),), (node,)))
    assert program.run((np.array([1, 2], np.float32), np.array(2)))[0].tolist() == [1, 1, 2, 2]
    try:
        program.run((np.array([1, 2], np.float32), np.array(2**40)), limits=RunLimits("X", memory_limit=10**6))
    except MemoryLimitError as error:
        assert str(2**43) in str(error)
    else:
        raise AssertionError("the limit did not hold")
    assert "| `ai.onnx.ml:Repeat` | 1 | floats; int64 |" in format_ops_page()
"""


def test_new_operator_is_one_function_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(NEW_OPERATOR)
    paths = os.environ | {"PYTHONPATH": str(Path(hetero_tests.__file__).parents[1])}
    command = [sys.executable, "-c", USE_OF_IT, str(tmp_path)]
    ended = subprocess.run(command, env=paths, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stderr
