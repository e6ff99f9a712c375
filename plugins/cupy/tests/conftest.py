"""A Core with the GPU plugin on simulated cards, and networks from ONNX text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx.parser
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Network


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime(cards=2)


@pytest.fixture
def core(runtime: FakeRuntime) -> Iterator[Core]:
    with Core() as opened:
        # If the plugin is installed, its entry point has the name GPU.
        if "GPU" in opened.device_names:
            opened.unregister_plugin("GPU")
        opened.register_plugin("GPU", GpuDevice("GPU", runtime))
        yield opened


@pytest.fixture
def read(core: Core) -> Callable[[str], Network]:
    return lambda text: core.read_network(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.acme": 1]> {text}')
    )
