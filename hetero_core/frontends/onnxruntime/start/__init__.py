"""The start of a program whose `import onnxruntime` gets this front end; `sitecustomize` is imported by Python itself."""

from pathlib import Path

START_FOLDER = Path(__file__).parent
"""The folder on PYTHONPATH."""
SWITCH_VARIABLE = "HETERO_ONNXRUNTIME"
"""With the value 1 the front end takes the place of ONNX Runtime in every Python process of the program."""
