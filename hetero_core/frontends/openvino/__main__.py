"""Runs a program with this front end in the place of OpenVINO: python -m hetero_core.frontends.openvino APP.py."""

import sys

from hetero_core.frontends.replacement import run_program

run_program("openvino", sys.argv[1:])
