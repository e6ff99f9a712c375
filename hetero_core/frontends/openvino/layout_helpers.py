"""`openvino.layout_helpers`: layouts of the inputs and outputs of a model, as functions."""

from __future__ import annotations

from functools import partial
from typing import Any

from hetero_core.frontends.openvino.ports import ConstOutput, Output
from hetero_core.frontends.openvino.shapes import Layout


def get_layout(port: ConstOutput) -> Layout:
    """Returns the order of the axes, empty if it was not said and for a compiled model."""
    return port.layout if isinstance(port, Output) else Layout("")


def set_layout(port: Output, layout: Any) -> None:
    """Sets the order of the axes. Raises: RuntimeError without a letter for each axis."""
    port.layout = layout


# Whether a layout has an axis, and which it is. Raises: RuntimeError, by the second, if no axis has the letter.
has_batch, has_channels, has_depth, has_height, has_width = (partial(Layout.has_name, name=letter) for letter in "NCDHW")
batch_idx, channels_idx, depth_idx, height_idx, width_idx = (partial(Layout.get_index_by_name, name=letter) for letter in "NCDHW")
