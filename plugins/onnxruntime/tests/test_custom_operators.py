"""Custom operators of a library, here onnxruntime-extensions: run, split, exported, and refused without their library."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hetero_onnxruntime import custom_operators
from hetero_onnxruntime.custom_operators import LIBRARY_VARIABLE
from onnx import helper

from hetero_core import Core, TensorType
from hetero_core.errors import DeviceUnavailableError, UnsupportedNodesError

DOMAIN = "ai.onnx.contrib"
WORDS = np.array(["ab", "cde", ""], object)


def make_model(operator: str = "StringUpper") -> onnx.ModelProto:
    """Returns a model of custom operators without declared types: words in capital letters, and twice their lengths."""
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["words"], ["capitals"], domain=DOMAIN),
            helper.make_node("StringLength", ["capitals"], ["lengths"], domain=DOMAIN),
            helper.make_node("Add", ["lengths", "lengths"], ["doubled"], name="double"),
        ],
        "words",
        [helper.make_tensor_value_info("words", onnx.TensorProto.STRING, ["count"])],
        [onnx.ValueInfoProto(name="capitals"), onnx.ValueInfoProto(name="doubled")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)], ir_version=10)


def find_library() -> str:
    import onnxruntime_extensions

    return str(onnxruntime_extensions.get_library_path())


def test_types_of_operators_of_a_library_come_from_the_engine() -> None:
    with Core() as core:
        types = core.read_network(make_model()).types
    assert [types[name] for name in ("capitals", "lengths", "doubled")] == [
        TensorType("string"),
        TensorType("int64"),
        TensorType("int64"),
    ]


@pytest.mark.parametrize("device", ["ORT", "HETERO:CPU,ORT"])
def test_operators_of_a_library_run_alone_and_divided(device: str) -> None:
    with Core() as core:
        network = core.load_network(make_model(), device)
        for words in (WORDS, WORDS[:1]):
            outputs = network.infer({"words": words})
            assert outputs["capitals"].tolist() == [word.upper() for word in words]
            assert outputs["doubled"].tolist() == [2 * len(word) for word in words]
        if device != "ORT":
            assert network.get_metric("HETERO_SUBGRAPHS")[-1] == ("CPU", ("double",))


def test_exported_network_finds_its_library_again() -> None:
    with Core() as core:
        blob = io.BytesIO()
        core.load_network(make_model(), "ORT").export_network(blob)
        for trust in (False, True):
            network = core.import_network(blob.getvalue(), trust=trust)
            assert network.infer({"words": WORDS})["doubled"].tolist() == [4, 6, 0]


def test_library_of_the_user_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "operators.so"
    shutil.copy(find_library(), library)
    monkeypatch.setattr(custom_operators, "_PACKAGE", "no_such_package")
    assert importlib.util.find_spec("no_such_package") is None
    with Core() as core:
        with pytest.raises(
            UnsupportedNodesError, match=f"name a library that has it in the environment variable {LIBRARY_VARIABLE}"
        ):
            core.load_network(make_model(), "ORT")
        monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
        assert core.load_network(make_model(), "ORT").infer({"words": WORDS})["capitals"].tolist() == ["AB", "CDE", ""]


def test_library_that_no_session_uses_any_more_is_used_again(tmp_path: Path) -> None:
    """Beside another library of the same code, with which it shares symbols."""
    library = tmp_path / "operators.so"
    shutil.copy(find_library(), library)
    (tmp_path / "model.onnx").write_bytes(make_model().SerializeToString())
    code = """
import gc, onnxruntime_extensions
from hetero_onnxruntime import custom_operators
from hetero_core import Core
custom_operators._PACKAGE = "no_such_package"
for _ in range(3):
    custom_operators._ask.cache_clear()
    with Core() as core:
        print(core.load_network("model.onnx", "ORT").infer({"words": ["ab"]})["capitals"].tolist())
    gc.collect()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, LIBRARY_VARIABLE: str(library)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["['AB']"] * 3, done.stderr


def test_missing_file_and_invalid_library_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent, text = tmp_path / "absent.so", tmp_path / "text.so"
    text.write_text("no library")
    with Core() as core:
        monkeypatch.setenv(LIBRARY_VARIABLE, str(absent))
        with pytest.raises(DeviceUnavailableError, match=f"{LIBRARY_VARIABLE} names '{absent}', which is no file"):
            core.load_network(make_model(), "ORT")
        monkeypatch.setenv(LIBRARY_VARIABLE, str(text))
        with pytest.raises(DeviceUnavailableError, match=f"takes no operators from '{text}'"):
            core.load_network(make_model(), "ORT")


def test_operator_that_no_library_has_is_refused_with_the_cure() -> None:
    with (
        Core() as core,
        pytest.raises(UnsupportedNodesError, match=f"has {DOMAIN}:StringSideways-1 for these inputs; name a library"),
    ):
        core.load_network(make_model("StringSideways"), "ORT")
