"""Tiny decoders of Hugging Face's library with random weights, and with caches as inputs and outputs.

Batch, new words and the length of the caches are open; a call has two texts of different lengths, the next call has a single word.
"""

from __future__ import annotations

import inspect
import warnings
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed; nox -s models installs it", exc_type=ImportError)
pytest.importorskip("transformers", reason="transformers is not installed; nox -s models installs it")

import torch
import transformers
from torch import Tensor, nn

# The exporter and its tools emit warnings about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 32, 4, 2, 64, 64
COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager"}
PLAIN = {
    **COMMON, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48,
    "max_position_embeddings": LENGTH, "pad_token_id": 0,
}  # fmt: skip
OLDER = {**COMMON, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "Bloom": {**COMMON, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS},
    "Falcon": {**COMMON, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
    "Gemma2": {**GROUPED, "head_dim": 8, "sliding_window": 4},
    "GPT2": OLDER,
    "Llama": GROUPED,
    "OPT": {**COMMON, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "ffn_dim": 48,
            "max_position_embeddings": LENGTH, "word_embed_proj_dim": WIDTH},
}  # fmt: skip
CACHES = tuple(f"past_{kind}_{layer}" for layer in range(LAYERS) for kind in ("keys", "values"))
NAMES = ("input_ids", "attention_mask", "position_ids", *CACHES)
RESULTS = ("logits", *(name.replace("past", "present") for name in CACHES))
AXES = {
    "input_ids": {0: "batch", 1: "new"}, "attention_mask": {0: "batch", 1: "total"}, "position_ids": {0: "batch", 1: "new"},
    **{name: {0: "batch", 2: "past"} for name in CACHES},
}  # fmt: skip
SIZES = ((2, 3, 5), (1, 1, 9))
"""The texts, new words and cached words of each call."""


class Flat(nn.Module):
    """A decoder with its caches as plain arrays."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.has_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(self, words: Tensor, mask: Tensor, positions: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        cache = transformers.DynamicCache()
        for layer in range(LAYERS):
            cache.update(caches[2 * layer], caches[2 * layer + 1], layer)
        named = {"position_ids": positions} if self.has_positions else {}
        result = self.model(input_ids=words, attention_mask=mask, past_key_values=cache, use_cache=True, **named)
        arrays = (array for layer in result.past_key_values.layers for array in (layer.keys, layer.values))
        return (result.logits, *arrays)


def draw_inputs(sizes: tuple[int, int, int], heads: int) -> tuple[Tensor, ...]:
    """Returns words, a mask that hides the first two words of the last of several texts, positions and caches."""
    texts, new, past = sizes
    generator = torch.Generator().manual_seed(new)
    mask = torch.ones(texts, past + new, dtype=torch.int64)
    if texts > 1:
        mask[-1, :2] = 0
    caches = (torch.randn(texts, heads, past, WIDTH // HEADS, generator=generator) for _ in CACHES)
    words = torch.randint(3, VOCABULARY, (texts, new), generator=generator)
    return (words, mask, torch.arange(past, past + new).repeat(texts, 1), *caches)


@pytest.mark.parametrize("name", MODELS)
def test_decoder_with_caches(check_everywhere: Any, name: str) -> None:
    torch.manual_seed(0)
    model = Flat(getattr(transformers, f"{name}ForCausalLM" if name != "GPT2" else "GPT2LMHeadModel")(
        getattr(transformers, f"{name}Config")(**MODELS[name])
    )).eval()  # fmt: skip
    heads = 1 if name == "Falcon" else MODELS[name].get("num_key_value_heads", HEADS)
    calls = [draw_inputs(sizes, heads) for sizes in SIZES]
    stream = BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"input_names": NAMES, "output_names": RESULTS, "dynamic_axes": AXES, "opset_version": 17}
        torch.onnx.export(model, calls[0], stream, dynamo=False, **options)
    proto = onnx.load_from_string(stream.getvalue())
    names = {each.name for each in proto.graph.input}
    for arrays in calls:
        inputs = {each: array.numpy() for each, array in zip(NAMES, arrays, strict=True) if each in names}
        answers = check_everywhere(proto, inputs)
        with torch.no_grad():
            for answer, expected in zip(answers, model(*arrays), strict=True):
                np.testing.assert_allclose(answer, expected.numpy(), rtol=1e-3, atol=1e-4)
