"""cuDNN: used where it is asked for and has a plan. Its graphs are built by the library's own Python side; none can be run here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_cupy.cudnn_convolution import build_graph, find_strides
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Network
from hetero_core.errors import ConfigValueError
from hetero_core.kernels.windows import lay_windows

CONV = "g (float[1,2,1,2] x) => (float[1,1,1,1] y) <float[1,2,1,2] w = {1, 2, 3, 4}> { y = Conv (x, w) }"
X = np.array([[[[1, 2]], [[3, 4]]]], np.float32)


def test_key_without_the_library_is_an_error(core: Core, read: Callable[..., Network]) -> None:
    with pytest.raises(
        ConfigValueError,
        match=r"configuration key GPU_CUDNN of device GPU: nvidia-cudnn-frontend is not installed; pip install 'hetero-cupy\[cudnn\]', or",
    ):
        core.load_network(read(CONV), "GPU", {"GPU_CUDNN": True})


class Library:
    """A library of convolutions that has a plan for float16 alone, and answers with a number of its own."""

    def __init__(self, card: Any) -> None:
        self.card = card
        self.asked: list[str] = []

    def convolve(self, x: Any, w: Any, windows: Any, *, uses_tf32: bool) -> Any:
        self.asked.append(str(x.dtype))
        return self.card.from_host(np.full((1, 1, 1, 1), 7, np.float16)) if x.dtype == np.float16 else None


@pytest.mark.parametrize(
    ("config", "asked", "found"),
    [
        ({}, [], 30),
        ({"GPU_CUDNN": True}, ["float32"], 30),
        ({"GPU_CUDNN": True, "INFERENCE_PRECISION_HINT": "f16"}, ["float16"], 7),
    ],
)
def test_library_computes_what_it_has_a_plan_for_and_gemm_the_rest(
    read: Callable[..., Network], monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], asked: list[str], found: float
) -> None:
    runtime = FakeRuntime()
    (card,) = runtime.cards()
    library = Library(card)
    monkeypatch.setattr(card, "find_convolutions", lambda: library)
    with Core() as core:
        core.register_plugin("CARD", GpuDevice("CARD", runtime))
        assert core.load_network(read(CONV), "CARD", config).infer({"x": X})["y"].tolist() == [[[[found]]]]
    assert library.asked == asked


def test_strides_are_those_of_numpy() -> None:
    for shape in ((2, 3, 4, 5), (7,), (1, 1, 9)):
        assert find_strides(shape) == [stride // 4 for stride in np.zeros(shape, np.float32).strides]


@pytest.mark.skipif(importlib.util.find_spec("cudnn") is None, reason="nvidia-cudnn-frontend is not installed")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_graph_is_taken_by_the_library(dtype: str) -> None:
    import cudnn

    windows = lay_windows((9, 8), (3, 2), auto_pad="NOTSET", pads=(1, 0, 2, 1), strides=(2, 1), dilations=(1, 2))
    made = build_graph(cudnn, dtype, shape=(2, 8, 9, 8), filters=(6, 4, 3, 2), windows=windows)
    assert list(made.y.get_dim()) == [2, 6, *windows.outputs]
    for name in ("build", "execute", "get_workspace_size"):
        assert callable(getattr(made.graph, name))
    assert callable(cudnn.create_handle)
    assert issubclass(cudnn.cudnnGraphNotSupportedError, Exception)
    assert cudnn.heur_mode.A != cudnn.heur_mode.FALLBACK
