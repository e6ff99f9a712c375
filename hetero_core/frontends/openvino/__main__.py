"""Runs a program with this front end in the place of OpenVINO: python -m hetero_core.frontends.openvino [-d DEVICE] APP.py."""

import sys

from hetero_core.frontends.replacement import run_program

if __name__ == "__main__":
    sys.exit(run_program("openvino", sys.argv[1:]))
