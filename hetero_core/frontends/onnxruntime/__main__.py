"""Runs a program with this front end in the place of ONNX Runtime: python -m hetero_core.frontends.onnxruntime [-d DEVICE] APP.py."""

import sys

from hetero_core.frontends.replacement import run_program

if __name__ == "__main__":
    sys.exit(run_program("onnxruntime", sys.argv[1:]))
