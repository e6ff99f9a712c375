"""MEMORY_LIMIT: which arrays count, their lifetimes and the node in the error, on every device, at load and at run."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_tests.fake_runtime import FakeCard

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.errors import ConfigValueError, MemoryLimitError, ReadLimitError
from hetero_core.kernels.program import compile_program
from hetero_core.limits import ReadLimits, RunLimits

CARD = FakeCard(0)

MIB = 2**20
GROW = "g (float[1] x, int64[N] s) => (float[M] y) { [first] a = Neg (x) [grow] y = Expand (a, s) }"
SPLIT = {"TEMPLATE_REFUSED_OPERATORS": "Neg"}
ONE = np.ones(1, np.float32)


def ones(nbytes: int) -> np.ndarray[Any, Any]:
    return np.ones(nbytes, np.uint8)


def test_values_count_from_allocation_until_release() -> None:
    limits = RunLimits("X", memory_limit=1000)
    first, second = ones(300), ones(400)
    limits.hold([first])
    limits.hold([second, None, [first]])
    assert limits.held == 700
    del first
    gc.collect()
    assert limits.held == 400


def test_views_of_one_memory_count_once_and_keep_it() -> None:
    limits = RunLimits("X", memory_limit=1000)
    array = ones(600)
    views = [array[:10], array[10:].reshape(10, 59)]
    limits.hold([array])
    limits.hold(views)
    del array
    assert limits.held == 600
    views.clear()
    assert limits.held == 0


def test_inputs_constants_and_views_of_them_count_nothing() -> None:
    limits = RunLimits("X", memory_limit=10)
    array = ones(600)
    limits.exempt([array])
    limits.hold([array[1:], np.frombuffer(b"mapped weights", np.uint8)])
    assert limits.held == 0


def test_texts_count_with_their_letters() -> None:
    limits = RunLimits("X", memory_limit=5000)
    limits.enter("'a'")
    with pytest.raises(MemoryLimitError, match=r"X: node 'a' needs \d+ bytes, beside 0 that are held; MEMORY_LIMIT is 5000"):
        limits.hold([np.array(["x" * 10_000], object)])


def test_without_a_limit_nothing_is_counted() -> None:
    limits = RunLimits("X")
    limits.hold([ones(600)])
    limits.require(2**62)
    assert limits.held == 0


class Unwatchable:
    """An array without weak references."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_array_without_weak_references_is_checked_alone() -> None:
    limits = RunLimits("X", memory_limit=100)
    limits.hold([Unwatchable(90), Unwatchable(90)])
    with pytest.raises(MemoryLimitError, match="101 bytes"):
        limits.hold([Unwatchable(101)])


@pytest.mark.parametrize(("device", "config"), [("CPU", {}), ("TEMPLATE", {}), ("HETERO:TEMPLATE,CPU", SPLIT)])
def test_growing_node_is_named_on_every_device(
    core: Core, read: Callable[..., Network], device: str, config: dict[str, str]
) -> None:
    network = core.load_network(read(GROW), device, {**config, "MEMORY_LIMIT": MIB})
    assert network.infer({"x": ONE, "s": np.array([5])})["y"].tolist() == [-1.0] * 5
    for run in (network.infer, network.create_infer_request().infer):
        with pytest.raises(MemoryLimitError) as caught:
            run({"x": ONE, "s": np.array([2**60])})
        title, _, held = str(caught.value).partition(" bytes, beside ")
        assert title == f"network 'g' on {device}: node 'grow' (Expand-13) needs {4 * 2**60}"
        # The input of the node takes 4 bytes; on CPU they may lie in the arena, which was counted before the run.
        assert int(held.partition(" that are held")[0]) in (0, 4)
    request = network.create_infer_request()
    request.start_async({"x": ONE, "s": np.array([2**60])})
    with pytest.raises(MemoryLimitError):
        request.wait(60)
    assert request.infer({"x": ONE, "s": np.array([2])})["y"].tolist() == [-1.0] * 2


def test_parts_of_a_split_network_share_one_limit(core: Core, read: Callable[..., Network]) -> None:
    # Both devices together hold three arrays of 400 KB, transferred copies included; each device alone holds at most two.
    text = "g (float[100000] x) => (float[100000] y) { a = Exp (x) b = Neg (a) c = Exp (b) d = Sum (a, b, c) y = Relu (d) }"
    config = {"TEMPLATE_REFUSED_OPERATORS": "Neg, Sum"}
    x = np.zeros(100_000, np.float32)
    network = core.load_network(read(text), "HETERO:TEMPLATE,CPU", {**config, "MEMORY_LIMIT": 1_000_000})
    with pytest.raises(MemoryLimitError, match=r"node '.*' \((Exp|Neg|Sum)-13\) needs 400000 bytes, beside 800000 that are held"):
        network.infer({"x": x})
    enough = core.load_network(read(text), "HETERO:TEMPLATE,CPU", {**config, "MEMORY_LIMIT": 2_000_000})
    assert enough.infer({"x": x})["y"].shape == (100_000,)


LOOP = """
g (int64 n, float[1000] x) => (float[1000] last, scans) {
  [loop] last, scans = Loop (n, , x) <body = b (int64 i, bool c, float[1000] before) => (bool d, float[1000] after, float[1000] scan) {
    d = Identity (c) [step] after = Neg (before) [kept] scan = Abs (before) }>
}
"""


def test_state_of_a_loop_counts_once_and_its_scan_outputs_each(core: Core, read: Callable[..., Network]) -> None:
    x = np.ones(1000, np.float32)
    text = (
        LOOP.replace(", scans) {", ") {")
        .replace("last, scans", "last")
        .replace(", float[1000] scan)", ")")
        .replace("[kept] scan = Abs (before)", "")
    )
    carried = core.load_network(read(text), "CPU", {"MEMORY_LIMIT": 50_000})
    assert carried.infer({"n": np.array(1001), "x": x})["last"].tolist() == [-1] * 1000
    collecting = core.load_network(read(LOOP), "CPU", {"MEMORY_LIMIT": 50_000})
    assert collecting.infer({"n": np.array(5), "x": x})["scans"].shape == (5, 1000)
    with pytest.raises(
        MemoryLimitError, match=r"node '(step|kept)' \((Neg|Abs)-13\) needs 4000 bytes, beside 4\d{4} that are held"
    ):
        collecting.infer({"n": np.array(2**62), "x": x})


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_views_returned_by_a_body_count_as_copies(core: Core, read: Callable[..., Network], device: str) -> None:
    body = "body = b (float[1] s, float[1] e) => (float[1] t, float[M] u) { t = Add (s, e) u = Expand (t, n) }"
    border = "(float[1] x, float[N,1] rows, int64[1] n) => (float[1] y, float[N,M] z)"
    text = f"g {border} {{ y, z = Scan <num_scan_inputs = 1, {body}> (x, rows) }}"
    network = core.load_network(read(text), device, {"MEMORY_LIMIT": 10 * MIB})
    inputs = {"x": ONE, "rows": np.ones((100, 1), np.float32), "n": np.array([MIB // 4])}
    with pytest.raises(MemoryLimitError, match=r"node 'Expand_1' \(Expand-13\) needs 1048576 bytes"):
        network.infer(inputs)
    outputs = network.infer({**inputs, "rows": inputs["rows"][:4]})
    assert outputs["z"][:, -1].tolist() == [2, 3, 4, 5]


def test_loop_that_doubles_a_text_ends_in_an_error(core: Core, read: Callable[..., Network]) -> None:
    text = """
    g (int64 n, string[1] x) => (string[1] y) {
      y = Loop (n, , x) <body = b (int64 i, bool c, string[1] t) => (bool d, string[1] u) {
        d = Identity (c) [twice] u = StringConcat (t, t) }>
    }
    """
    network = core.load_network(read(text, 21), "CPU", {"MEMORY_LIMIT": MIB})
    with pytest.raises(MemoryLimitError, match=r"node 'twice' \(StringConcat-20\) needs \d{6,7} bytes"):
        network.infer({"n": np.array(2**62), "x": np.array(["ab"], object)})


def test_core_checks_outputs_of_a_device_that_counts_no_memory(core: Core, read: Callable[..., Network]) -> None:
    class Careless(Executable):
        def __init__(self, network: Network) -> None:
            self.inputs, self.outputs = network.inputs, network.outputs

        def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
            return (np.zeros(MIB, np.float32),)

    class Device:
        @hookimpl
        def query_network(self, network: Network) -> QueryResult:
            return QueryResult({node.name: "CARELESS" for node in network.nodes})

        @hookimpl
        def load_network(self, network: Network) -> Executable:
            return Careless(network)

    core.register_plugin("CARELESS", Device())
    network = core.load_network(read("g (float[N] x) => (float[N] y) { y = Neg (x) }"), "CARELESS", {"MEMORY_LIMIT": MIB})
    for run in (network.infer, network.create_infer_request().infer):
        with pytest.raises(MemoryLimitError, match=f"'g' on CARELESS: its outputs need {4 * MIB} bytes, beside 0 that are held"):
            run({"x": ONE})


WEIGHTS = "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float b = {1}> { a = Mul (x, w) y = Add (a, b) }"


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
def test_constants_are_held_against_the_limit_at_load(core: Core, read: Callable[..., Network], device: str) -> None:
    with pytest.raises(MemoryLimitError) as caught:
        core.load_network(read(WEIGHTS), device, {"MEMORY_LIMIT": 19})
    assert str(caught.value) == (
        f"cannot load network 'g' on {device}: its constants take 20 bytes, the largest, 'w' float32[4], 16; MEMORY_LIMIT is 19. "
        "Raise the limit, or take a smaller network"
    )
    assert core.load_network(read(WEIGHTS), device, {"MEMORY_LIMIT": 20}).config["MEMORY_LIMIT"] == 20


def test_sparse_constant_is_refused_before_it_is_made_dense() -> None:
    import onnx
    from onnx import helper

    values = helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", onnx.TensorProto.INT64, [1], [5]), [2**28])
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2**28])],
        sparse_initializer=[sparse],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with (
        Core() as core,
        pytest.raises(ReadLimitError, match=r"sparse initializer 'w', when it is made dense, may take 1073741824 bytes"),
    ):
        core.load_network(model, "CPU")
    with (
        Core(read_limits=ReadLimits(memory=2**32)) as trusting,
        pytest.raises(MemoryLimitError, match=r"the largest, 'w' float32\[268435456\], 1073741824"),
    ):
        trusting.load_network(model, "CPU", {"MEMORY_LIMIT": MIB})


def test_import_takes_limits_from_the_call_not_from_the_blob(core: Core, read: Callable[..., Network]) -> None:
    stream = io.BytesIO()
    core.load_network(read(WEIGHTS), "CPU", {"MEMORY_LIMIT": 2**40, "DEADLINE": 1e6}).export_network(stream)
    imported = core.import_network(stream.getvalue(), "CPU")
    assert (imported.config["MEMORY_LIMIT"], imported.config["DEADLINE"]) == (None, None)
    core.set_config({"MEMORY_LIMIT": 10}, "CPU")
    with pytest.raises(MemoryLimitError, match=r"cannot import network 'g' on CPU: its blob holds \d+ bytes; MEMORY_LIMIT is 10"):
        core.import_network(stream.getvalue(), "CPU")
    assert core.import_network(stream.getvalue(), "CPU", {"MEMORY_LIMIT": MIB}).config["MEMORY_LIMIT"] == MIB


def test_stages_are_loaded_and_imported_with_limits_of_the_split(core: Core, read: Callable[..., Network]) -> None:
    config = {**SPLIT, "MEMORY_LIMIT": MIB, "DEADLINE": 100.0}
    network = core.load_network(read(GROW), "HETERO:TEMPLATE,CPU", config)
    stream = io.BytesIO()
    network.export_network(stream)
    imported = core.import_network(stream.getvalue(), "HETERO", {"MEMORY_LIMIT": 2 * MIB})
    for loaded, expected in ((network, (MIB, 100.0)), (imported, (2 * MIB, None))):
        stages: Any = loaded.executable
        assert [(stage.config["MEMORY_LIMIT"], stage.config["DEADLINE"]) for stage in stages.stages] == [expected] * 2


@pytest.mark.parametrize("value", [0, -1])
def test_limit_of_nothing_is_refused(core: Core, read: Callable[..., Network], value: int) -> None:
    with pytest.raises(ConfigValueError, match=f"MEMORY_LIMIT of device CPU: expected an int of 1 or more, got {value}"):
        core.load_network(read(WEIGHTS), "CPU", {"MEMORY_LIMIT": value})


def test_program_of_another_memory_is_limited_too(read: Callable[..., Network]) -> None:
    program = compile_program(
        read("g (float[2] x, int64[N] s) => (y) { [grow] y = Expand (x, s) }"),
        xp=CARD.xp,
        to_host=CARD.to_host,
        from_host=CARD.from_host,
    )
    inputs = tuple(CARD.from_host(value) for value in (np.ones(2, np.float32), np.array([2**40, 2])))
    with pytest.raises(MemoryLimitError, match=r"node 'grow' \(Expand-13\) needs"):
        program.run(inputs, limits=RunLimits("X", memory_limit=MIB))


BATCH = "g (float[N, 4096] x) => (float[N, 4096] y) { [first] a = Neg (x) [second] b = Exp (a) [third] y = Add (a, b) }"
BIG = np.zeros((50, 4096), np.float32)


def spare(nbytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("hetero_core.kernels.execution", "hetero_cpu.run.instance"):
        monkeypatch.setattr(f"{module}.read_spare_memory", lambda: nbytes)
        monkeypatch.setattr(f"{module}.LARGE_BYTES", 2**17)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_machine_without_room_is_an_error_before_the_run(
    device: str, kernels: str, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Network], core: Core
) -> None:
    config = {} if device == "TEMPLATE" else {"CPU_KERNELS": kernels}
    loaded = core.load_network(read(BATCH), device, config)
    spare(BIG.nbytes // 2, monkeypatch)
    message = rf"needs \d+ bytes, beside \d+ that are held; MEMORY_LIMIT is not set, and this machine has {BIG.nbytes // 2} bytes to spare"
    with pytest.raises(MemoryLimitError, match=message):
        loaded.infer({"x": BIG})
    assert loaded.infer({"x": BIG[:1]})["y"].tolist() == [[1] * 4096]
    spare(None, monkeypatch)
    assert loaded.infer({"x": BIG})["y"][-1, -1] == 1


def test_views_need_no_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch, read: Callable[..., Network], core: Core) -> None:
    text = "g (float[N, 4096] x) => (int64[2] y) { [turn] a = Transpose (x) [same] b = Identity (a) [shape] y = Shape (b) }"
    loaded = core.load_network(read(text), "CPU", {"CPU_KERNELS": "NUMPY"})
    spare(1000, monkeypatch)
    assert loaded.infer({"x": BIG})["y"].tolist() == [4096, 50]


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_memory_limit_replaces_the_limit_of_the_machine(
    kernels: str, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Network], core: Core
) -> None:
    spare(0, monkeypatch)
    loaded = core.load_network(read(BATCH), "CPU", {"CPU_KERNELS": kernels, "MEMORY_LIMIT": 10 * BIG.nbytes})
    assert loaded.infer({"x": BIG})["y"][-1, -1] == 1


def test_growth_within_a_run_is_held_to_the_machine(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., Network], core: Core
) -> None:
    loaded = core.load_network(
        read(GROW.replace("(a, s) }", "(a, s) y = Concat <axis = 0> (z, z) }").replace("y = Expand", "z = Expand")), "TEMPLATE"
    )
    spare(MIB // 2, monkeypatch)
    with pytest.raises(MemoryLimitError, match=r"a run: node .*Concat"):
        loaded.infer({"x": ONE, "s": np.array([MIB // 8])})
