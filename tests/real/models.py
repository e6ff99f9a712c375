"""optimum's ONNX Runtime models of tiny networks with random weights: `python models.py FOLDER` exports them, `open_...` loads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 95}


def export_models(folder: Path) -> None:
    """Writes a decoder, an encoder with a decoder, and a classifier."""
    import torch
    import transformers
    from optimum.exporters.onnx import main_export

    torch.manual_seed(0)
    decoder = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **SIZES)
    both = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, **{**SIZES, "bos_token_id": None}
    )
    encoder = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=3, **SIZES
    )
    models = {
        "decoder": (transformers.GPT2LMHeadModel(decoder), "text-generation-with-past"),
        "both": (transformers.T5ForConditionalGeneration(both), "text2text-generation-with-past"),
        "classifier": (transformers.BertForSequenceClassification(encoder), "text-classification"),
    }
    for name, (model, task) in models.items():
        model.eval().save_pretrained(folder / f"{name}-torch")
        main_export(str(folder / f"{name}-torch"), output=folder / name, task=task, do_validation=False)


def open_generators(folder: Path) -> Iterator[tuple[Any, int]]:
    """Yields the models that generate tokens, each with the number of new tokens."""
    from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM

    yield ORTModelForCausalLM.from_pretrained(folder / "decoder"), 12
    yield ORTModelForCausalLM.from_pretrained(folder / "decoder", use_io_binding=True), 12
    yield ORTModelForSeq2SeqLM.from_pretrained(folder / "both"), 8


def open_classifier(folder: Path) -> Any:
    """Returns the classifier, with inputs and outputs bound to torch's memory."""
    from optimum.onnxruntime import ORTModelForSequenceClassification

    return ORTModelForSequenceClassification.from_pretrained(folder / "classifier", use_io_binding=True)


if __name__ == "__main__":
    export_models(Path(sys.argv[1]))
