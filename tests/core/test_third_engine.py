"""The device of docs/how-to/wrap-an-engine.md wraps an engine in fewer than 300 lines and passes the conformance kit."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "wrap-an-engine.md"
MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { h = Neg (x) y = Exp (h) }'


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    """Executes the first code block of the page and returns its names."""
    (source, *_) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert source.count("\n") < 300
    names: dict[str, Any] = {"__name__": "wrapped_engine"}
    exec(compile(source, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("level", ["contract", "export"])
def test_third_engine_passes_the_level(code: dict[str, Any], level: str) -> None:
    # Every second check: an engine on the toolkit shares its code with those that run all of them.
    outcomes = tuple(run_checks(choose_checks([level])[::2], make_target("EVALUATOR", plugin=code["EvaluatorDevice"]())))
    assert {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"} == {}
    assert sum(outcome.status == "passed" for outcome in outcomes) > 3


def make_compiling_device(code: dict[str, Any], restored: list[dict[str, bytes]]) -> Any:
    """Returns the device of the page with a compiled form; it appends the sections of each restore to `restored`."""

    class CompilingDevice(code["EvaluatorDevice"]):  # type: ignore[misc]  # a class of the page
        def store(self, executable: Any) -> dict[str, bytes]:
            return {"form": b"compiled"}

        def restore(self, device: Any, network: Any, stored: Any, config: Any) -> Any:
            restored.append({name: bytes(section) for name, section in stored.items()})
            return self.compile(device, network, self.stamp(network), config)

    return CompilingDevice()


@pytest.mark.parametrize("device", ["EVALUATOR", "HETERO:EVALUATOR"])
@pytest.mark.parametrize("trust", [False, True])
def test_compiled_form_is_used_if_trusted_or_else_warned_about(
    code: dict[str, Any], caplog: pytest.LogCaptureFixture, device: str, trust: bool
) -> None:
    restored: list[dict[str, bytes]] = []
    stream = io.BytesIO()
    with Core() as core, caplog.at_level(logging.WARNING):
        core.register_plugin("EVALUATOR", make_compiling_device(code, restored))
        core.load_network(onnx.parser.parse_model(MODEL), device).export_network(stream)
        loaded = core.import_network(stream.getvalue(), device, trust=trust)
        np.testing.assert_allclose(loaded.infer({"x": np.array([0, 1], np.float32)})["y"], np.exp([0.0, -1.0]), rtol=1e-6)
    assert restored == ([{"form": b"compiled"}] if trust else [])
    warned = "is compiled again on EVALUATOR: the blob holds what compiling made, which is code and not trusted" in caplog.text
    assert warned is not trust


@pytest.mark.skipif(not hasattr(__import__("os"), "geteuid"), reason="folders have no owners here")
@pytest.mark.parametrize("device", ["EVALUATOR", "HETERO:EVALUATOR"])
def test_cache_keeps_the_compiled_form_in_a_folder_of_the_user(code: dict[str, Any], tmp_path: Path, device: str) -> None:
    restored: list[dict[str, bytes]] = []
    (tmp_path / "above").mkdir(mode=0o700)
    config = {"CACHE_DIR": str(tmp_path / "above" / "cache")}
    with Core() as core:
        core.register_plugin("EVALUATOR", make_compiling_device(code, restored))
        network = core.read_network(onnx.parser.parse_model(MODEL))
        for is_cached in (False, True):
            loaded = core.load_network(network, device, config)
            assert loaded.get_metric("LOADED_FROM_CACHE") is is_cached
            np.testing.assert_allclose(loaded.infer({"x": np.array([0, 1], np.float32)})["y"], np.exp([0.0, -1.0]), rtol=1e-6)
    assert restored == [{"form": b"compiled"}]


def test_compiled_form_of_another_machine_is_compiled_again(
    code: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hetero_core.engines import device

    restored: list[dict[str, bytes]] = []
    stream = io.BytesIO()
    with Core() as core, caplog.at_level(logging.WARNING):
        core.register_plugin("EVALUATOR", make_compiling_device(code, restored))
        core.load_network(onnx.parser.parse_model(MODEL), "EVALUATOR").export_network(stream)
        monkeypatch.setattr(device, "describe_machine", lambda: "another one")
        core.import_network(stream.getvalue(), "EVALUATOR", trust=True)
    assert restored == []
    assert "network 'g' was compiled on another machine; it is compiled again" in caplog.text


def test_network_survives_failures_of_store_and_restore(code: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    compiling = make_compiling_device(code, [])
    with Core() as core, caplog.at_level(logging.WARNING):
        core.register_plugin("EVALUATOR", compiling)
        loaded = core.load_network(onnx.parser.parse_model(MODEL), "EVALUATOR")
        blobs = []
        for store in (lambda executable: {"form": b"compiled"}, lambda executable: executable.no_such_form):
            compiling.store = store
            stream = io.BytesIO()
            loaded.export_network(stream)
            blobs.append(stream.getvalue())
        compiling.restore = lambda *arguments: arguments[0].no_such_form
        for blob in blobs:
            y = core.import_network(blob, "EVALUATOR", trust=True).infer({"x": np.array([0, 1], np.float32)})["y"]
            np.testing.assert_allclose(y, np.exp([0.0, -1.0]), rtol=1e-6)
    assert "onnx.reference gives no compiled form of network 'g'" in caplog.text
    assert "onnx.reference does not take what it compiled of network 'g'" in caplog.text
