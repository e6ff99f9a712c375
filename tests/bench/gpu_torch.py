"""PyTorch beside the GPU device: the same architectures with random weights, eager and compiled, on the same card.

Every time is between two CUDA events. Imports torch when it is asked.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

NAMES = {
    "resnet50": "resnet50",
    "vgg19": "vgg19",
    "densenet121": "densenet121",
    "squeezenet": "squeezenet1_0",
    "mobilenet_v2": "mobilenet_v2",
}
"""Our models -> torchvision's."""


def find_missing(name: str) -> str | None:
    """Returns why a model cannot be compared, None where it can."""
    module = "torchvision" if name in NAMES else "transformers"
    for needed in ("torch", module):
        if importlib.util.find_spec(needed) is None:
            return f"{needed} is not installed"
    import torch

    return None if torch.cuda.is_available() else "torch sees no card"


def make_run(name: str, batch: int, dtype: str) -> tuple[Any, Callable[[Any], Any]]:
    """Returns a network on the card, and a function that runs it, or what torch.compile made of it, once."""
    import torch

    kind = getattr(torch, dtype)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if name in NAMES:
        import torchvision

        network = getattr(torchvision.models, NAMES[name])(weights=None).eval().cuda().to(kind)
        images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=kind)
        return network, lambda called: called(images)
    import transformers

    if name == "bert":
        network = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False).eval().cuda().to(kind)
        states = torch.randn(batch, 128, 768, device="cuda", dtype=kind)
        return network, lambda called: called(inputs_embeds=states)
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().cuda().to(kind)
    tokens = torch.ones(batch, 1, device="cuda", dtype=torch.int64)
    past = [tuple(torch.randn(batch, 12, 128, 64, device="cuda", dtype=kind) for _ in range(2)) for _ in range(12)]

    def step(called: Any) -> Any:
        # A cache grows with each step: a fresh one holds the same tensors again, and is the host's work, as in any decoding.
        cache = transformers.DynamicCache()
        for layer, (key, value) in enumerate(past):
            cache.update(key, value, layer)
        return called(tokens, past_key_values=cache, use_cache=True)

    return network, step


def measure_by_events(work: Callable[[], Any]) -> float:
    """Returns seconds between two events around the work."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def time_torch(
    name: str, batch: int, dtype: str, *, time_median: Callable[..., float], may_compile: Callable[[], bool]
) -> tuple[float | None, float | None, str]:
    """Returns the seconds of a run, eager and compiled with CUDA graphs, None for what could not be measured, and why."""
    missing = find_missing(name)
    if missing is not None:
        return None, None, missing
    import torch

    with torch.inference_mode():
        network, run = make_run(name, batch, dtype)
        eager = time_median(measure_by_events, lambda: run(network))
        if not may_compile():
            return eager, None, "no time to compile"
        try:
            compiled = torch.compile(network, mode="reduce-overhead")
            return eager, time_median(measure_by_events, lambda: run(compiled)), ""
        except Exception as error:  # noqa: BLE001  # a compiler that fails on a network is a fact of the table
            return eager, None, f"torch.compile: {type(error).__name__}: {' '.join(str(error).split())[:80]}"
        finally:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
