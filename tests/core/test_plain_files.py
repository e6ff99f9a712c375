"""Pipes, folders and other special files are refused with their kind, without blocking, by every function that opens a path."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import BlobDamagedError, NetworkReadError
from hetero_core.files import open_plain
from hetero_core.network.weights import MappedFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are neither pipes nor devices in folders")

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add(x, w) }'


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_pipe_as_a_model_is_refused(core: Core, pipe: Path) -> None:
    with pytest.raises(NetworkReadError, match=f"cannot read network from '{pipe}': '{pipe}' is a pipe, expected a plain file"):
        core.read_network(pipe)


@pytest.mark.parametrize("load", [lambda core, path: core.read_network(path), lambda core, path: core.load_network(path, "CPU")])
def test_device_without_end_as_a_model_is_refused(core: Core, load: Callable[[Core, str], object]) -> None:
    with pytest.raises(NetworkReadError, match="'/dev/zero' is a character device, expected a plain file"):
        load(core, "/dev/zero")


def test_pipe_and_device_as_a_blob_are_refused(core: Core, pipe: Path) -> None:
    with pytest.raises(BlobDamagedError, match=f"cannot read the blob '{pipe}': '{pipe}' is a pipe, expected a plain file"):
        core.import_network(pipe, "CPU")
    with pytest.raises(BlobDamagedError, match="'/dev/zero' is a character device, expected a plain file"):
        core.import_network("/dev/zero", "CPU")
    with pytest.raises(BlobDamagedError, match="cannot read the blob 'a\0b': embedded null"):
        core.import_network("a\0b", "CPU")


def test_pipe_in_the_place_of_weights_is_refused(core: Core, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    weight = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, "weights")
    weight.ClearField("raw_data")
    model.graph.initializer.append(weight)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    os.mkfifo(tmp_path / "weights")
    with pytest.raises(NetworkReadError, match="weights"):
        core.read_network(tmp_path / "model.onnx").initializers["w"].array.tolist()


@pytest.mark.parametrize(("change", "reason"), [("pipe", "is a pipe"), ("link", "is a link")])
def test_weights_replaced_before_mapping_are_refused(tmp_path: Path, change: str, reason: str) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(8))
    mapped = MappedFile(str(path))
    path.unlink()
    if change == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/etc/hostname")
    with pytest.raises(NetworkReadError, match=f"cannot read weights from '{path}': '{path}' {reason}, expected a plain file"):
        mapped.view(0, 8)


def test_descriptor_of_a_refused_file_is_closed(pipe: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(10):
        with pytest.raises(OSError, match="is a pipe"):
            open_plain(pipe)
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)
