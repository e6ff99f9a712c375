"""`openvino.layout_helpers`: layouts of the inputs and outputs of a model, as functions."""

from __future__ import annotations

from typing import Any

from hetero_core.frontends.openvino.ports import ConstOutput, Output
from hetero_core.frontends.openvino.shapes import Layout


def get_layout(port: ConstOutput) -> Layout:
    """Returns the order of the axes, empty if it was not said and for a compiled model."""
    return port.layout if isinstance(port, Output) else Layout("")


def set_layout(port: Output, layout: Any) -> None:
    """Sets the order of the axes. Raises: RuntimeError without a letter for each axis."""
    port.layout = layout
