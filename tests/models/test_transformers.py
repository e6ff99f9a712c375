"""Tiny transformers of Hugging Face's library with random weights, exported with open sizes by torch's older exporter."""

from __future__ import annotations

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

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager",
}  # fmt: skip
ENCODERS = {"Albert": {"embedding_size": 16}, "Bert": {}, "DebertaV2": {}, "Electra": {}, "MPNet": {}, "Roberta": {}}
LAYERS = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 1,
}  # fmt: skip
PAIRS = ("Bart", "Marian", "T5")
TEXT_AXES = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}


class Named(nn.Module):
    """A wrapper that takes the inputs of a model in the order of `names` and returns its first output."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *arrays: Tensor) -> Tensor:
        result: Tensor = self.model(**dict(zip(self.names, arrays, strict=True)), **self.options)[0]
        return result


def draw_text(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Returns words, and a mask that hides the last two words of the last text."""
    words = torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - 2 :] = 0
    return words, mask


def check(check_everywhere: Any, model: Named, sets: list[tuple[Tensor, ...]], axes: dict[str, dict[int, str]]) -> None:
    stream = BytesIO()
    model.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"input_names": list(model.names), "dynamic_axes": axes, "opset_version": 17}
        torch.onnx.export(model, sets[0], stream, dynamo=False, **options)
    proto = onnx.load_from_string(stream.getvalue())
    for arrays in sets:
        inputs = {name: array.numpy() for name, array in zip(model.names, arrays, strict=True)}
        (answer,) = check_everywhere(proto, inputs)
        with torch.no_grad():
            np.testing.assert_allclose(answer, model(*arrays).numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(check_everywhere: Any, name: str) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES, **ENCODERS[name]))
    check(check_everywhere, Named(model, tuple(TEXT_AXES)), [draw_text(2, 9), draw_text(1, 5)], TEXT_AXES)


@pytest.mark.parametrize("name", PAIRS)
def test_encoder_with_decoder(check_everywhere: Any, name: str) -> None:
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**{**SIZES, **LAYERS})
    model = transformers.AutoModelForSeq2SeqLM.from_config(configuration, attn_implementation="eager")
    named = Named(model, (*TEXT_AXES, "decoder_input_ids"), use_cache=False)
    axes = {**TEXT_AXES, "decoder_input_ids": {0: "batch", 1: "step"}}
    sets = [(*draw_text(2, 9), draw_text(2, 4)[0]), (*draw_text(1, 5), draw_text(1, 6)[0])]
    check(check_everywhere, named, sets, axes)
