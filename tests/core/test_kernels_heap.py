"""Freed results stay in the heap of the process: page faults are counted in a fresh process, before any engine has changed the heap."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource
import numpy as np
import onnx.parser
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network

text = '<ir_version: 8, opset_import: ["": 13]> g (float[100000] x) => (float[100000] y) <float s = {0.5}, int8 z = {0}>'
network = read_network(onnx.parser.parse_model(text + " { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"))
program = compile_program(network)
x = np.ones(100000, np.float32)
for _ in range(5):
    program.run((x,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    program.run((x,))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give freed blocks back by rules of their own")
def test_repeated_runs_of_kernels_touch_no_new_pages() -> None:
    child = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=900)
    # An array of 400 KB has 98 pages.
    assert int(child.stdout) < 98
