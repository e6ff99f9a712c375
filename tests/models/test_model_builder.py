"""Language models from the model builder of onnxruntime-genai, with random weights."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("torch")
pytest.importorskip("onnxruntime_genai")

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save_source(name: str, folder: Path) -> None:
    """Writes the inputs of the builder: configuration, random weights and a word tokenizer."""
    import torch

    torch.manual_seed(3)
    more = {"original_max_position_embeddings": 64} if name == "Phi3" else {}
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    config.architectures = [f"{name}ForCausalLM"]
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{index}": index for index in range(SIZES["vocab_size"])}, unk_token="w3")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), bos_token="w1", eos_token="w2", pad_token="w0", unk_token="w3"
    )
    tokenizer.save_pretrained(folder)


def build(name: str, precision: str, folder: Path) -> onnx.ModelProto:
    save_source(name, folder / "source")
    package = importlib.util.find_spec("onnxruntime_genai")
    assert package is not None
    assert package.origin is not None
    builder = Path(package.origin).parent / "models" / "builder.py"
    command = [sys.executable, str(builder), "-m", f"tiny/{name}", "-i", str(folder / "source"), "-o", str(folder / "built")]
    # Accuracy level 1 requests products in float32.
    options = ["-p", precision, "-e", "cpu", "-c", str(folder / "cache"), "--extra_options", "accuracy_level=1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, *options], check=True, cwd=folder, env=environment, capture_output=True)
    return onnx.load(folder / "built" / "model.onnx")


def draw_inputs(model: onnx.ModelProto, batch: int, length: int, past: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    inputs: dict[str, Any] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if value.name == "input_ids":
            array = rng.integers(3, SIZES["vocab_size"], (batch, length))
        elif value.name == "attention_mask":
            array = np.ones((batch, length + past))
        elif value.name == "position_ids":
            array = np.tile(np.arange(past, past + length), (batch, 1))
        else:
            array = rng.standard_normal((batch, SIZES["num_key_value_heads"], past, 16))
        inputs[value.name] = array.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return inputs


# The builder declares a one-element constant without its dimension.
@pytest.mark.filterwarnings("ignore:value '/model/constants:hetero_core.errors.NetworkDeclarationWarning")
@pytest.mark.parametrize(
    ("name", "precision"), [("Llama", "fp32"), ("Llama", "int4"), ("Qwen2", "int4"), ("Phi3", "fp32"), ("Qwen2", "fp16")]
)
def test_model_of_the_builder_answers_as_in_onnxruntime(
    tmp_path: Path, check_everywhere: Callable[..., Any], name: str, precision: str
) -> None:
    model = build(name, precision, tmp_path)
    operators = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
    assert operators >= ({"MatMulNBits"} if precision == "int4" else {"SkipSimplifiedLayerNormalization"})
    check_everywhere(model, draw_inputs(model, 2, 5, 0))
    if precision != "fp16":  # ONNX Runtime 1.32 refuses the builder's float16 models with a past
        check_everywhere(model, draw_inputs(model, 2, 1, 5))
