"""CACHE_DIR: which changes of network, device and configuration turn a cache hit into a miss."""

from __future__ import annotations

import dataclasses
import itertools
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, ExecutableNetwork, Extension, Network, TensorType

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Neg(a) }"
X = np.array([3, 4], np.float32)
Y = [-3, -8]


def list_entries(folder: Path) -> list[Path]:
    assert [path.name for path in folder.iterdir() if path.suffix != ".blob"] == [], "no partial files and locks stay behind"
    return sorted(folder.iterdir())


def test_without_the_key_nothing_is_cached(core: Core, count: Any, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read(TEXT), "COUNT")
    assert loaded.get_metric("LOADED_FROM_CACHE") is False
    assert (core.get_config("COUNT", "CACHE_DIR"), core.get_config("COUNT", "CACHE_SIZE_LIMIT")) == ("", 0)


def test_second_load_takes_the_entry_of_the_first(load: Callable[..., bool], count: Any, folder: Path) -> None:
    assert [load(), load(), load()] == [False, True, True]
    assert count.compiled == ["g"]
    (entry,) = list_entries(folder)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def change_version(core: Core, count: Any) -> None:
    entry = core._registry.device("COUNT")
    entry.provenance = dataclasses.replace(entry.provenance, read=lambda: ("hetero-cpu", "9.9"))


def change_core_version(core: Core, count: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_core.blobs.cache.find_core_version", lambda: "9.9")


def add_extension(core: Core, count: Any) -> None:
    core.add_extension(Extension("com.acme", "Twist", 1, lambda x: x, lambda types, _: (TensorType("float32"),)), "COUNT")


@pytest.mark.parametrize(
    "changed",
    [
        {"text": TEXT.replace("{1, 2}", "{1, 3}"), "expected": [-3, -12]},
        {"text": TEXT.replace("g (", "h (")},
        {"text": TEXT.replace("Neg", "Abs"), "expected": [3, 8]},
        {"device": "COUNT.1"},
        {"pins": {"op:Neg": "COUNT"}},
    ],
    ids=["weights", "name", "operator", "id", "pins"],
)
def test_other_network_or_device_is_a_miss(load: Callable[..., bool], changed: Mapping[str, Any]) -> None:
    assert not load()
    assert not load(**changed)
    assert load(**changed)
    assert load()


@pytest.mark.parametrize("change", [change_version, add_extension, "architecture", "core"])
def test_changed_version_or_architecture_is_a_miss(
    core: Core, count: Any, load: Callable[..., bool], change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load()
    if change == "architecture":
        count.architecture = "two"
    elif change == "core":
        change_core_version(core, count, monkeypatch)
    else:
        change(core, count)
    assert not load()
    assert load()


def test_changed_key_is_a_miss_only_if_it_shapes_the_network(load: Callable[..., bool]) -> None:
    assert not load("TEMPLATE")
    assert load("TEMPLATE", PERF_COUNT=True)
    assert load("TEMPLATE", CACHE_SIZE_LIMIT=10**9)
    assert not load("TEMPLATE", TEMPLATE_REFUSED_OPERATORS="Conv")
    assert load("TEMPLATE", TEMPLATE_REFUSED_OPERATORS=("Conv",))


def test_steering_key_of_the_call_holds_for_a_cached_network(
    core: Core, load: Callable[..., bool], read: Callable[..., Network], folder: Path
) -> None:
    assert not load()
    loaded = core.load_network(read(TEXT), "COUNT", {"CACHE_DIR": str(folder), "PERF_COUNT": True})
    request = loaded.create_infer_request()
    request.infer({"x": X})
    assert loaded.get_metric("LOADED_FROM_CACHE")
    assert [entry.node for entry in request.perf_counts] == ["Mul_0", "Neg_1"]


def test_order_of_priorities_matters_and_so_does_each_part(core: Core, count: Any, load: Callable[..., bool]) -> None:
    assert [load("HETERO:COUNT,TEMPLATE"), load("HETERO:COUNT,TEMPLATE")] == [False, True]
    assert [load("HETERO:TEMPLATE,COUNT"), load("HETERO:TEMPLATE,COUNT")] == [False, True]
    assert [load("HETERO", TARGET_FALLBACK="COUNT, TEMPLATE"), load("HETERO", TARGET_FALLBACK="CPU")] == [True, False]
    core.set_config({"TEMPLATE_REFUSED_OPERATORS": "Neg"}, "TEMPLATE")
    assert [load("HETERO:TEMPLATE,COUNT"), load("HETERO:TEMPLATE,COUNT")] == [False, True]
    change_version(core, count)
    assert [load("HETERO:TEMPLATE,COUNT"), load("HETERO:TEMPLATE,COUNT")] == [False, True]
    assert [load("HETERO:TEMPLATE,COUNT", pins={"op:Mul": "COUNT"}), load("HETERO:TEMPLATE,COUNT")] == [False, True]


def test_split_network_is_cached_as_a_whole(core: Core, count: Any, load: Callable[..., bool], folder: Path) -> None:
    for part in ("COUNT", "TEMPLATE"):
        core.set_config({"CACHE_DIR": str(folder)}, part)
    assert [load("HETERO:TEMPLATE,COUNT", TEMPLATE_REFUSED_OPERATORS="Neg") for _ in range(2)] == [False, True]
    assert len(list_entries(folder)) == 1
    assert len(count.compiled) == 1


def test_parts_are_cached_if_only_they_have_the_key(core: Core, count: Any, read: Callable[..., Network], folder: Path) -> None:
    core.set_config({"CACHE_DIR": str(folder)}, "COUNT")
    for _ in range(2):
        loaded = core.load_network(read(TEXT), "HETERO:TEMPLATE,COUNT", {"TEMPLATE_REFUSED_OPERATORS": "Neg"})
        assert loaded.infer({"x": X})["y"].tolist() == Y
    assert len(list_entries(folder)) == len(count.compiled) == 1


def test_entry_can_be_imported_as_a_blob(core: Core, load: Callable[..., bool], folder: Path) -> None:
    assert not load("CPU")
    (entry,) = list_entries(folder)
    imported = core.import_network(entry, "CPU")
    assert imported.infer({"x": X})["y"].tolist() == Y
    assert imported.get_metric("LOADED_FROM_CACHE") is False


def test_networks_of_a_removed_entry_still_run(core: Core, read: Callable[..., Network], folder: Path) -> None:
    # Weights of 4096 bytes are views of the mapped file; they are not copied.
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1024] x) => (float[1024] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(1024, dtype=np.float32), "w"))
    loaded: list[ExecutableNetwork] = [core.load_network(model, "CPU", {"CACHE_DIR": str(folder)}) for _ in range(2)]
    for entry in list_entries(folder):
        entry.unlink()
    for first, second in itertools.pairwise(loaded):
        zeros = np.zeros(1024, np.float32)
        np.testing.assert_array_equal(first.infer({"x": zeros})["y"], second.infer({"x": zeros})["y"])
