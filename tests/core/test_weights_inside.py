"""External weights whose path has ways back: inside of the model's folder they are read, outside they are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import NetworkReadError

TEXT = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add (x, w) }'


def write_model(folder: Path, location: str) -> Path:
    model = onnx.parser.parse_model(TEXT)
    weights = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2])
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "location", ["a.bin", "./a.bin", "./sub/../a.bin", "sub/../a.bin", "sub/other/../../a.bin", "sub/./deep.bin"]
)
def test_path_that_stays_inside_is_read(tmp_path: Path, location: str) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.bin", "sub/deep.bin"):
        (tmp_path / name).write_bytes(np.array([1, 2], np.float32).tobytes())
    with Core() as core:
        loaded = core.load_network(write_model(tmp_path, location), "TEMPLATE")
        assert loaded.infer({"x": np.zeros(2, np.float32)})["y"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "location", ["../a.bin", "sub/../../a.bin", "sub/../../inside/a.bin", "/a.bin", "..", "sub\\..\\..\\a.bin"]
)
def test_path_that_leaves_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    for folder in (tmp_path, inside):
        (folder / "a.bin").write_bytes(bytes(8))
    with Core() as core, pytest.raises(NetworkReadError, match="expected a path inside the folder of the model"):
        core.read_network(write_model(inside, location))


def test_way_back_does_not_lead_behind_a_link(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside" / "sub"
    inside.mkdir()
    outside.mkdir(parents=True)
    (inside / "sub").symlink_to(outside)
    (inside / "a.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    (outside.parent / "a.bin").write_bytes(np.array([8, 9], np.float32).tobytes())
    with Core() as core:
        loaded = core.load_network(write_model(inside, "sub/../a.bin"), "TEMPLATE")
        assert loaded.infer({"x": np.zeros(2, np.float32)})["y"].tolist() == [1, 2]
