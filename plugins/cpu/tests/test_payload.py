"""Blobs: the network after its passes, with the same answers; blobs of other versions are refused by name."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.larger_models import bert_model, vit_tiny_model

from hetero_core import Core
from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, BlobMismatchError
from hetero_core.testing.models import dynamic_batch_model, light_inputs, light_model, residual_model

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": lambda: bert_model(layers=1, length=16),
    "dynamic_batch": dynamic_batch_model,
    "residual": residual_model,
    "shufflenet": lambda: light_model("shufflenet"),
    "squeezenet": lambda: light_model("squeezenet"),
    "vit_tiny": lambda: vit_tiny_model(layers=1),
}


def export(core: Core, model: onnx.ModelProto, path: Path, kernels: str) -> dict[str, Any]:
    """Runs a model once and writes its blob; returns the answers."""
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": 1})
    answers = loaded.infer(light_inputs(model))
    loaded.export_network(path)
    return answers


@pytest.mark.parametrize("name", MODELS)
def test_imports_are_equal_bit_for_bit(core: Core, name: str, tmp_path: Path, kernels: str) -> None:
    model = MODELS[name]()
    expected = export(core, model, tmp_path / "x.blob", kernels)
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
    for _ in range(2):
        answers = imported.infer(light_inputs(model))
        assert list(answers) == list(expected)
        for value, array in answers.items():
            np.testing.assert_array_equal(array, expected[value])


@pytest.mark.parametrize("section", ["model", "weights"])
def test_damage_anywhere_in_a_section_is_named(core: Core, section: str, tmp_path: Path) -> None:
    export(core, light_model("squeezenet"), tmp_path / "x.blob", "AUTO")
    content = bytearray((tmp_path / "x.blob").read_bytes())
    held = bytes(read_blob(bytes(content))[1].sections[section])
    begin = content.index(held[:256])
    for position in (0, len(held) // 2, len(held) - 1):
        content[begin + position] ^= 0x10
        with pytest.raises(BlobDamagedError, match=f"the blob is damaged: the digest of its section '{section}' differs"):
            core.import_network(bytes(content), "CPU")
        content[begin + position] ^= 0x10


def rewrite(path: Path, config: dict[str, Any], sections: dict[str, bytes]) -> bytes:
    """Returns the blob with further keys and sections."""
    header, payload = read_blob(path)
    stream = io.BytesIO()
    payload = Payload({**payload.sections, **sections}, payload.version)
    write_blob(replace(header, config={**header.config, **config}), payload, stream)
    return stream.getvalue()


def test_blob_with_a_key_of_another_version_names_both_versions(core: Core, tmp_path: Path) -> None:
    export(core, residual_model(), tmp_path / "x.blob", "AUTO")
    message = (
        r"the blob, of hetero-cpu [0-9.]+, has the configuration keys CPU_OF_OLD, which plugin CPU \(hetero-cpu [0-9.]+\) does"
    )
    with pytest.raises(BlobMismatchError, match=message):
        core.import_network(rewrite(tmp_path / "x.blob", {"CPU_OF_OLD": True}, {}), "CPU")


def test_blob_with_packed_weights_is_refused(core: Core, tmp_path: Path) -> None:
    export(core, residual_model(), tmp_path / "x.blob", "AUTO")
    blob = rewrite(tmp_path / "x.blob", {}, {"packed": b"weights", "index": b"{}"})
    check = core.check_blob(blob)
    assert (check.answer, "packed for kernels" in check.reason) == ("does not fit", True)
    with pytest.raises(BlobMismatchError, match="packed for kernels.*load the model again and export it"):
        core.import_network(blob, "CPU")
