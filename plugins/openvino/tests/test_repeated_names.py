"""Models that list a constant or an output twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hetero_tests.repeated_names import BUILDERS, check_device
from onnx import ModelProto

from hetero_core import Core


@pytest.mark.parametrize("build", BUILDERS)
def test_model_with_a_repeated_name_answers_as_in_onnxruntime(core: Core, build: Callable[[], ModelProto]) -> None:
    check_device(core, "OPENVINO", build())
