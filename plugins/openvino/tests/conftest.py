"""Fixtures: a Core with OPENVINO, and networks from ONNX text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx.parser
import pytest

from hetero_core import Core, Network


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    """A Core that the tests of a file share, since it takes a while to open the engine."""
    with Core() as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Callable[..., Network]:
    def read_text(text: str, opset: int = 17) -> Network:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.acme": 1]> {text}')
        return core.read_network(model)

    return read_text
