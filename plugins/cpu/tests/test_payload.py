"""Blobs of networks that machine code runs: packed weights in the blob, the plan beside it in the private folder."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from hetero_cpu.machine.compiler import COMPILER, find_width
from hetero_cpu.operators.tiling import ColumnPacking, choose_tiling, restore_columns
from hetero_cpu.stored.payload import KIND
from hetero_tests.larger_models import bert_model, vit_tiny_model

from hetero_core import Core
from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.blobs.store import FOLDER
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, BlobMismatchError, MemoryLimitError
from hetero_core.testing.models import dynamic_batch_model, light_inputs, light_model, residual_model

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

JIT = {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 1}
SECTIONS = ("index", "model", "weights", "packed")
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": lambda: bert_model(layers=1, length=16),
    "dynamic_batch": dynamic_batch_model,
    "residual": residual_model,
    "shufflenet": lambda: light_model("shufflenet"),
    "squeezenet": lambda: light_model("squeezenet"),
    "vit_tiny": lambda: vit_tiny_model(layers=1),
}


@pytest.fixture
def no_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Core with an empty private folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def export(core: Core, model: onnx.ModelProto, path: Path, **config: Any) -> dict[str, Any]:
    """Runs a model once and writes its blob; returns the answers."""
    loaded = core.load_network(model, "CPU", {**JIT, **config})
    answers = loaded.infer(light_inputs(model))
    loaded.export_network(path)
    loaded.close()
    return answers


def takes_up_plan(network: Any) -> bool:
    """Says whether an imported network uses the plan stored beside its blob."""
    return network.executable.source.payload is not None


def check_equal(answers: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(answers) == list(expected)
    for name, value in answers.items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("name", MODELS)
def test_imports_with_and_without_plan_are_equal_bit_for_bit(
    core: Core, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    inputs = light_inputs(model)
    expected = export(core, model, tmp_path / "x.blob")
    is_static = all(size.HasField("dim_value") for size in model.graph.input[0].type.tensor_type.shape.dim)
    for step, takes_plan in enumerate((True, False, is_static)):
        if step == 1:
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
        # An import without a stored plan stores its own plan for the next import, if the shapes are known.
        assert takes_up_plan(imported) is takes_plan
        check_equal(imported.infer(inputs), expected)
        check_equal(imported.infer(inputs), expected)


def test_imported_network_reports_as_the_loaded_network(core: Core, tmp_path: Path) -> None:
    model = light_model("squeezenet")
    loaded = core.load_network(model, "CPU", JIT)
    loaded.export_network(tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1})
    assert (imported.inputs, imported.outputs, imported.name) == (loaded.inputs, loaded.outputs, loaded.name)
    for metric in ("CPU_NATIVE_STEPS", "CPU_FOREIGN_STEPS", "CPU_ARENA_BYTES", "CPU_KERNELS_READY"):
        assert imported.get_metric(metric) == loaded.get_metric(metric)
    for metric in ("CPU_WEIGHT_BYTES", "CPU_CONSTANT_BYTES"):
        assert imported.get_metric(metric) >= loaded.get_metric(metric)
    profiles = []
    for network in (core.load_network(model, "CPU", {**JIT, "PERF_COUNT": True}), imported):
        request = network.create_infer_request()
        request.infer(light_inputs(model))
        profiles.append([(entry.node, entry.operator) for entry in request.perf_counts])
    assert profiles[0] == profiles[1]


def test_constants_that_are_only_rearranged_are_in_the_blob_once(core: Core, tmp_path: Path) -> None:
    model = bert_model(layers=1, length=16)
    nbytes = sum(int(np.prod(tensor.dims)) * 4 for tensor in model.graph.initializer)
    export(core, model, tmp_path / "x.blob")
    sections = read_blob(tmp_path / "x.blob")[1].sections
    assert tuple(sections) == SECTIONS
    assert sections["weights"].nbytes < nbytes / 100
    assert (tmp_path / "x.blob").stat().st_size < 1.01 * nbytes


def test_blob_written_again_is_the_same(core: Core, tmp_path: Path) -> None:
    export(core, residual_model(), tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
    stream = io.BytesIO()
    imported.export_network(stream)
    assert stream.getvalue() == (tmp_path / "x.blob").read_bytes()


def test_input_shapes_beyond_the_plan_get_a_new_plan(core: Core, tmp_path: Path) -> None:
    model = dynamic_batch_model()
    export(core, model, tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
    loaded = core.load_network(model, "CPU", JIT)
    assert imported.get_metric("CPU_PLANS") == (1, 16)
    for batch in (5, 1, 3):
        images = np.random.default_rng(batch).standard_normal((batch, 3, 16, 16), np.float32)
        check_equal(imported.infer({"images": images}), loaded.infer({"images": images}))
    assert imported.get_metric("CPU_PLANS") == (3, 16)
    assert imported.get_metric("CPU_KERNELS_READY")


def test_limit_below_the_arena_runs_node_by_node(core: Core, tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((200, 3, 16, 16), np.float32)
    loaded = core.load_network(dynamic_batch_model(), "CPU", JIT)
    expected = loaded.infer({"images": images})["scores"]
    loaded.export_network(tmp_path / "x.blob")
    # Only the arena of the import counts, as its outputs lie outside.
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
    imported.infer({"images": images})
    arena = imported.get_metric("CPU_ARENA_BYTES")
    limited = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1, "MEMORY_LIMIT": arena - 1})
    assert takes_up_plan(limited)
    with pytest.raises(MemoryLimitError, match=rf"node '.*' .*MEMORY_LIMIT is {arena - 1}"):
        limited.infer({"images": images})
    few = limited.infer({"images": images[:50]})["scores"]
    np.testing.assert_allclose(few, expected[:50], rtol=1e-4, atol=1e-4)


def test_threads_of_the_import_may_differ(core: Core, tmp_path: Path) -> None:
    model = light_model("squeezenet")
    expected = export(core, model, tmp_path / "x.blob", INFERENCE_NUM_THREADS=1)
    threads = min(2, os.cpu_count() or 1)
    imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": threads})
    check_equal(imported.infer(light_inputs(model)), expected)


@pytest.mark.parametrize("first", ["JIT", "NUMPY"])
def test_kernels_of_the_import_are_those_of_the_blob(core: Core, tmp_path: Path, first: str) -> None:
    model = residual_model()
    expected = export(core, model, tmp_path / "x.blob", CPU_KERNELS=first)
    second = {"JIT": "NUMPY", "NUMPY": "JIT"}[first]
    with pytest.raises(BlobMismatchError, match=f"CPU_KERNELS is '{second}' in the call and '{first}' in the blob"):
        core.import_network(tmp_path / "x.blob", "CPU", {"CPU_KERNELS": second})
    check_equal(core.import_network(tmp_path / "x.blob", "CPU").infer(light_inputs(model)), expected)


CHILD = """
import json, sys
blob, folder, kind = sys.argv[1:]
UNUSED = ("llvmlite.binding", "onnx", "hetero_core.kernels.registry", "hetero_core.network.reader", "hetero_cpu.machine.code",
          "hetero_cpu.operators.convolution", "hetero_cpu.symbols.arrays", "hetero_cpu.plan.passes", "hetero_cpu.plan.planner")
if kind == "numpy":
    sys.modules["llvmlite"] = None
import hetero_cpu.machine.compiler as compiler
if kind == "narrow":
    compiler.find_width = lambda: 8
import numpy as np
from hetero_core import Core
with Core() as core, np.load(folder + "/inputs.npz") as inputs, np.load(folder + "/expected.npz") as expected:
    network = core.import_network(blob, "CPU", {"INFERENCE_NUM_THREADS": 1})
    found = network.infer(dict(inputs))
    error = max(float(np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max()) for name in expected)
    print(json.dumps({
        "error": error, "kind": "plan" if network.executable.source.plan else "network", "steps": network.get_metric("CPU_NATIVE_STEPS"),
        "modules": [name for name in UNUSED if name in sys.modules],
    }))
"""


def import_elsewhere(blob: Path, folder: Path, kind: str, cache: Path | None) -> Any:
    """Returns the report of a child process; `cache` is its private folder, None for the folder of this process."""
    environment = os.environ if cache is None else {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", CHILD, str(blob), str(folder), kind]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


@pytest.fixture
def blob(core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The blob of a network that AUTO runs by machine code, with inputs and answers beside it."""
    # A test before may have compiled kernels into a folder of its own.
    monkeypatch.setattr(COMPILER, "_addresses", {})
    model = light_model("squeezenet")
    np.savez(tmp_path / "inputs.npz", **light_inputs(model))
    with Core() as first:
        # JIT stores the kernels in the cache, so AUTO has them at once.
        first.load_network(model, "CPU", JIT)
    np.savez(tmp_path / "expected.npz", **export(core, model, tmp_path / "x.blob", CPU_KERNELS="AUTO"))
    assert tuple(read_blob(tmp_path / "x.blob")[1].sections) == SECTIONS
    return tmp_path / "x.blob"


def test_import_loads_neither_onnx_nor_llvm_nor_the_steps(blob: Path) -> None:
    # The first import reads the network to verify the plan.
    import_elsewhere(blob, blob.parent, "plain", None)
    report = import_elsewhere(blob, blob.parent, "plain", None)
    assert (report["kind"], report["modules"], report["error"]) == ("plan", [], 0.0)


def test_process_without_llvmlite_restores_weights_for_numpy(blob: Path) -> None:
    report = import_elsewhere(blob, blob.parent, "numpy", None)
    assert (report["kind"], report["steps"]) == ("network", 0)
    assert report["error"] < 1e-4


@pytest.mark.skipif(find_width() <= 8, reason="weights are packed for vectors of AVX2 here already")
def test_processor_with_other_vector_width_repacks_the_weights(blob: Path, tmp_path: Path) -> None:
    report = import_elsewhere(blob, blob.parent, "narrow", tmp_path / "cache")
    assert report["kind"] == "network"
    assert report["error"] < 1e-4


@pytest.mark.parametrize("section", SECTIONS)
def test_damage_anywhere_in_a_section_is_named(core: Core, section: str, tmp_path: Path) -> None:
    export(core, light_model("squeezenet"), tmp_path / "x.blob")
    content = bytearray((tmp_path / "x.blob").read_bytes())
    held = bytes(read_blob(bytes(content))[1].sections[section])
    begin = content.index(held[:256])
    for position in (0, len(held) // 2, len(held) - 1):
        content[begin + position] ^= 0x10
        with pytest.raises(BlobDamagedError, match=f"the blob is damaged: the digest of its section '{section}' differs"):
            core.import_network(bytes(content), "CPU")
        content[begin + position] ^= 0x10


def repack(path: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Returns the blob with a changed index and correct digests."""
    header, payload = read_blob(path)
    index = json.loads(bytes(payload.sections["index"]))
    change(index)
    stream = io.BytesIO()
    write_blob(header, Payload({**payload.sections, "index": json.dumps(index).encode()}, payload.version), stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.clear(), "contradicts its sections: KeyError: 'size'"),
        (lambda index: index.update(size=1 << 60), "its constants take 1152921504606846976 bytes"),
        (lambda index: index.update(size=-1), "its constants take -1 bytes"),
        (lambda index: index.update(kept=7), "TypeError"),
        (lambda index: index["unpacked"][0].__setitem__(1, 1 << 40), "bytes 1099511627776 to .* of "),
        (lambda index: index["unpacked"][0].__setitem__(0, -64), "bytes -64 to "),
        (lambda index: index["unpacked"][0].__setitem__(5, 0), "ZeroDivisionError"),
        (lambda index: index["unpacked"][0].__setitem__(3, [1, 2, 3]), "ValueError"),
        (lambda index: index["unpacked"].extend(index["unpacked"]), "its packed constants take [0-9]+ bytes of [0-9]+"),
        (
            lambda index: index["unpacked"].pop(),
            "has no constant of [0-9]+ bytes at [0-9]+, where .* is to lie; export the network again",
        ),
    ],
)
def test_index_that_contradicts_the_sections_is_an_error(
    core: Core, change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    export(core, light_model("squeezenet"), tmp_path / "x.blob")
    with pytest.raises(BlobDamagedError, match=message):
        core.import_network(repack(tmp_path / "x.blob", change), "CPU")


def test_index_that_is_no_object_is_an_error(core: Core, tmp_path: Path) -> None:
    export(core, residual_model(), tmp_path / "x.blob")
    header, payload = read_blob(tmp_path / "x.blob")
    for content, message in ((b"{", "an index that cannot be read"), (b"[]", r"an index that is \[\]; expected an object")):
        stream = io.BytesIO()
        write_blob(header, Payload({**payload.sections, "index": content}, payload.version), stream)
        with pytest.raises(BlobDamagedError, match=message):
            core.import_network(stream.getvalue(), "CPU")


def test_blob_with_a_key_of_another_version_names_both_versions(core: Core, tmp_path: Path) -> None:
    export(core, residual_model(), tmp_path / "x.blob")
    header, payload = read_blob(tmp_path / "x.blob")
    stream = io.BytesIO()
    write_blob(replace(header, config={**header.config, "CPU_OF_OLD": True}), payload, stream)
    message = (
        r"the blob, of hetero-cpu [0-9.]+, has the configuration keys CPU_OF_OLD, which plugin CPU \(hetero-cpu [0-9.]+\) does"
    )
    with pytest.raises(BlobMismatchError, match=message):
        core.import_network(stream.getvalue(), "CPU")


def test_plan_is_found_by_the_content_of_the_blob_alone(core: Core, tmp_path: Path) -> None:
    """Blobs with equal shapes and unequal weights never share a plan."""
    texts = [
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[2, 300] x) => (float[2, 2] y)
        <float[300, 2] w = {{{", ".join(["0.5"] * 599 + [last])}}}> {{ y = MatMul (x, w) }}"""
        for last in ("0.5", "-0.5")
    ]
    x = np.ones((2, 300), np.float32)
    for name, text in zip("ab", texts, strict=True):
        loaded = core.load_network(onnx.parser.parse_model(text), "CPU", JIT)
        loaded.export_network(tmp_path / name)
    for name, expected in (("a", 150.0), ("b", 149.0)):
        imported = core.import_network(tmp_path / name, "CPU", {"INFERENCE_NUM_THREADS": 1})
        assert takes_up_plan(imported)
        assert imported.infer({"x": x})["y"].tolist() == [[150.0, expected]] * 2


@pytest.mark.usefixtures("no_plans")
def test_damaged_plan_warns_and_is_planned_again(core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = residual_model()
    expected = export(core, model, tmp_path / "x.blob")
    (plan,) = (tmp_path / "hetero" / FOLDER).glob(f"{KIND}-*")
    plan.write_bytes(plan.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        imported = core.import_network(tmp_path / "x.blob", "CPU", {"INFERENCE_NUM_THREADS": 1})
    assert [record.getMessage() for record in caplog.records] == [f"'{plan}' is damaged; it is made anew"]
    check_equal(imported.infer(light_inputs(model)), expected)


def test_unwritable_folder_costs_only_the_plan(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    model = residual_model()
    loaded = core.load_network(model, "CPU", JIT)
    expected = loaded.infer(light_inputs(model))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        loaded.export_network(tmp_path / "x.blob")
    assert any("nothing is kept for later processes: cannot make the folder" in record.getMessage() for record in caplog.records)
    check_equal(core.import_network(tmp_path / "x.blob", "CPU").infer(light_inputs(model)), expected)


def test_cache_entries_and_parts_of_a_split_use_stored_plans(core: Core, tmp_path: Path) -> None:
    model = light_model("squeezenet")
    cached = {**JIT, "CACHE_DIR": str(tmp_path / "cache")}
    expected = core.load_network(model, "CPU", cached).infer(light_inputs(model))
    again = core.load_network(model, "CPU", cached)
    assert takes_up_plan(again)
    check_equal(again.infer(light_inputs(model)), expected)


def test_network_that_is_partly_numpy_is_stored_as_a_network(core: Core, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { a = Neg (x) b = Round (a) y = Hardmax (b) }'
    model = onnx.parser.parse_model(text)
    loaded = core.load_network(model, "CPU", JIT)
    assert loaded.get_metric("CPU_FOREIGN_STEPS") > 0
    loaded.export_network(tmp_path / "x.blob")
    assert tuple(read_blob(tmp_path / "x.blob")[1].sections) == ("model", "weights")
    assert core.import_network(tmp_path / "x.blob", "CPU").infer({"x": np.arange(4, dtype=np.float32)})["y"].tolist() == [
        1,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("seed", range(12))
def test_restored_weights_equal_the_packed_weights(seed: int) -> None:
    random = np.random.default_rng(seed)
    depth, outputs, pixels, height, width = (int(size) for size in random.integers(1, (40, 300, 200, 4, 4)))
    matrix = random.standard_normal((depth, outputs), np.float32)
    filters = random.standard_normal((outputs, depth, height, width), np.float32)
    # Weights are compared by their bits, since NaN equals no number.
    matrix[0, 0] = filters[0, 0] = np.nan
    for vector in (8, 16):
        tiling = choose_tiling(pixels, outputs, vector)
        for weight, is_turned in ((matrix, False), (np.ascontiguousarray(matrix.T), True), (filters, False)):
            packing = ColumnPacking(tiling, is_turned)
            restored = restore_columns(packing(weight), weight.shape, is_turned=is_turned, columns=packing.columns)
            assert restored.tobytes() == weight.tobytes()
