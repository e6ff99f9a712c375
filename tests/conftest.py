"""Fixtures for all tests: a Core that is closed after the test, and networks from ONNX text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx.parser
import pytest

from hetero_core import Core, Network


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Callable[[str], Network]:
    """Reads a network from ONNX text; the header is added."""

    def read_text(text: str, opset: int = 17) -> Network:
        return core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.acme": 1]> {text}'))

    return read_text
