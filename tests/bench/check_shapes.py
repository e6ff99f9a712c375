"""Checks models for many sizes against ONNX Runtime: resnet50 at 160 and for batches 1 to 8, an encoder for lengths 1 to 512.

Every device and a split, before and after export and import. Raises on the first difference; prints what was checked.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

from hetero_core import Core
from hetero_core.network.reader import read_network
from hetero_core.testing.transformers import VOCABULARY, encoder_model
from hetero_core.transforms.editing import edit


def load_cases() -> ModuleType:
    """Returns the module of the short tests, whose oracle and comparison these are, too."""
    path = Path(__file__).parents[1] / "flow" / "test_reshaped_models.py"
    spec = importlib.util.spec_from_file_location("reshaped_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_images(core: Core, cases: ModuleType) -> None:
    """Checks resnet50 for each batch on CPU and split, for the first also on TEMPLATE."""
    model = cases.open_resnet()
    name = model.graph.input[0].name
    images = np.random.default_rng(0).standard_normal((8, 3, 224, 224)).astype(np.float32)
    rows = [cases.run_engine(model, {name: images[index : index + 1]})[0] for index in range(8)]
    for batch in range(1, 9):
        network = edit(read_network(model)).with_batch(batch)
        for device in ("CPU", "HETERO:CPU,TEMPLATE", *(("TEMPLATE",) if batch == 1 else ())):
            pinned = cases.split(network) if "HETERO" in device else network
            cases.check(core, pinned, device, {name: images[:batch]}, [np.concatenate(rows[:batch])])
            print(f"resnet50, batch {batch}, {device}: equal", flush=True)


def check_lengths(core: Core, cases: ModuleType) -> None:
    """Checks an encoder for each length on CPU, TEMPLATE and split in turn."""
    model = encoder_model()
    network = edit(read_network(model))
    devices = ("CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU")
    for length in range(1, 513):
        tokens = np.random.default_rng(length).integers(0, VOCABULARY, (1, length))
        expected = cases.run_engine(model, {"tokens": tokens})
        shaped = network.with_shapes({"length": length, "batch": 1})
        pins = {node.name: ("TEMPLATE", "CPU")[index % 2] for index, node in enumerate(shaped.nodes)}
        for device in devices:
            cases.check(core, shaped.with_affinity(pins) if "HETERO" in device else shaped, device, {"tokens": tokens}, expected)
    print(f"encoder, lengths 1 to 512, {', '.join(devices)}: equal")


if __name__ == "__main__":
    with Core() as opened:
        loaded_cases = load_cases()
        check_lengths(opened, loaded_cases)
        check_images(opened, loaded_cases)
