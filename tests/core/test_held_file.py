"""Weights that are read from the model file on first use: they are released, read again, and refused if the file has changed."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from pathlib import Path
from weakref import ref

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import NetworkReadError
from hetero_core.network.reader import read_network

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no positional reads")

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[4, 64] x) => (float[4, 96] y) { y = MatMul(x, w) }'
X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
AGE = 100
"""Seconds."""


def save_model(path: Path, seed: int) -> np.ndarray:
    """Overwrites the file with a model of random weights and an old modification time; returns the weights."""
    w = np.random.default_rng(seed).standard_normal((64, 96)).astype(np.float32)
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path.write_bytes(model.SerializeToString())
    then = time.time() - AGE + seed
    os.utime(path, (then, then))
    return w


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_model(tmp_path / "m.onnx", 0)
    return tmp_path / "m.onnx"


def test_weights_are_read_on_use_and_again_after_a_release(path: Path) -> None:
    w = save_model(path, 0)
    constant = read_network(path, holds_weights=False).initializers["w"]
    assert constant.is_renewable
    held = ref(constant.array)
    assert np.array_equal(constant.array, w)
    constant.release()
    gc.collect()
    assert held() is None
    assert np.array_equal(constant.array, w)


def test_read_network_holds_its_weights(core: Core, path: Path) -> None:
    w = save_model(path, 0)
    network = core.read_network(path)
    save_model(path, 1)
    assert not network.initializers["w"].is_renewable
    assert np.array_equal(network.initializers["w"].array, w)


def test_network_runs_and_is_exported_after_its_file_is_gone(core: Core, path: Path, tmp_path: Path) -> None:
    w = save_model(path, 0)
    loaded = core.load_network(path, "CPU")
    path.unlink()
    loaded.export_network(tmp_path / "g.blob")
    for network in (loaded, core.import_network(tmp_path / "g.blob", "CPU")):
        np.testing.assert_allclose(network.infer({"x": X})["y"], X.astype(np.float64) @ w, rtol=1e-4, atol=1e-5)


def test_replaced_file_does_not_change_the_loaded_network(core: Core, path: Path, tmp_path: Path) -> None:
    save_model(path, 0)
    expected = core.read_network(path).fingerprint
    loaded = core.load_network(path, "CPU")
    save_model(tmp_path / "new.onnx", 1)
    os.replace(tmp_path / "new.onnx", path)
    assert loaded.fingerprint == expected


def test_overwritten_file_is_refused_by_name(core: Core, path: Path) -> None:
    w = save_model(path, 0)
    constant = read_network(path, holds_weights=False).initializers["w"]
    loaded = core.load_network(path, "CPU", {"CPU_KERNELS": "NUMPY"})
    save_model(path, 1)
    message = re.escape(
        f"cannot read weights from '{path}': the file was changed after the network was loaded from it. Load it again"
    )
    with pytest.raises(NetworkReadError, match=message):
        _ = constant.array
    # The loaded network keeps its copy of the old weights.
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], X.astype(np.float64) @ w, rtol=1e-4, atol=1e-5)


def test_truncated_file_is_refused(path: Path) -> None:
    constant = read_network(path, holds_weights=False).initializers["w"]
    status = path.stat()
    os.truncate(path, 100)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(NetworkReadError, match="was changed after the network was loaded"):
        _ = constant.array


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_file_is_open_as_long_as_the_network_lives(path: Path) -> None:
    def count() -> int:
        return sum(link.is_symlink() and os.readlink(link) == str(path) for link in Path("/proc/self/fd").iterdir())

    network = read_network(path, holds_weights=False)
    assert count() == 1
    del network
    gc.collect()
    assert count() == 0
