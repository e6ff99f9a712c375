"""RAY: a network split over the nodes of a cluster equals the whole network, and only its border values pass through this program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_ray import FollowedCluster

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import (
    DeviceCrashedError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    RequestCancelledError,
)
from hetero_core.testing.transformers import HEADS, WIDTH, decoder_model, ties_of_decoder

MODEL = """<ir_version: 8, opset_import: ["": 17]>
mixed (float[n,8] x, float[8,4] w) => (float[n,4] y, int64[2] s) { h = MatMul (x, w) r = Relu (h) y = Softmax (r) s = Shape (r) }"""
NODES = ("MatMul_0", "Relu_1", "Softmax_2", "Shape_3")


@pytest.fixture
def mixed(core: Core) -> Network:
    return core.read_network(onnx.parser.parse_model(MODEL))


def draw(rows: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {"x": random.standard_normal((rows, 8), np.float32), "w": random.standard_normal((8, 4), np.float32)}


def compute(inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """softmax(max(x w, 0)) in float64."""
    scores = np.maximum(inputs["x"].astype(np.float64) @ inputs["w"], 0)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def require_right(network: ExecutableNetwork, inputs: dict[str, np.ndarray[Any, Any]]) -> None:
    outputs = network.infer(inputs)
    np.testing.assert_allclose(outputs["y"], compute(inputs), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs["s"], [len(inputs["x"]), 4])


def read_traffic(core: Core) -> np.ndarray[Any, Any]:
    return np.array([core.get_metric("RAY", name) for name in ("BYTES_PUT", "BYTES_GOT")])


def test_nodes_and_their_devices_are_listed(core: Core) -> None:
    assert [name for name in core.available_devices if name.startswith("RAY")] == ["RAY.A", "RAY.B", "RAY.C"]
    devices = core.get_metric("RAY", "DEVICES_OF_NODES")
    assert list(devices) == ["A", "B", "C"]
    assert all("CPU" in names for names in devices.values())


def test_unknown_node_is_an_error_that_names_the_nodes(core: Core, mixed: Network) -> None:
    with pytest.raises(DeviceNotFoundError, match="no id 'D'; its ids are A, B, C"):
        core.load_network(mixed, "RAY.d:CPU")


def test_split_over_two_nodes_keeps_inner_values_on_the_nodes(core: Core, mixed: Network) -> None:
    pins = dict(zip(NODES, ("RAY.a:CPU", "RAY.b:CPU", "RAY.a:CPU", "RAY.b:CPU"), strict=True))
    network = core.load_network(mixed.with_affinity(pins), "HETERO:RAY.a:CPU,RAY.b:CPU")
    assert len(network.get_metric("HETERO_SUBGRAPHS")) >= 3
    whole = core.load_network(mixed, "CPU")
    for rows in (1, 100):
        inputs, before = draw(rows), read_traffic(core)
        outputs = network.infer(inputs)
        for name, value in whole.infer(inputs).items():
            # Each CPU switches from NumPy to machine code at its own time.
            np.testing.assert_allclose(outputs[name], value, rtol=1e-6)
        np.testing.assert_array_equal(
            read_traffic(core) - before, [sum(value.nbytes for value in side.values()) for side in (inputs, outputs)]
        )


def test_texts_travel_with_the_message(core: Core) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (string[n] x, bool c) => (string[n] y) { y = Identity (x) }'
    network = core.load_network(core.read_network(onnx.parser.parse_model(text)), "RAY.a:CPU")
    assert network.infer({"x": np.array(["a", "ü"], object), "c": np.array(True)})["y"].tolist() == ["a", "ü"]


def test_tokens_with_states_on_two_nodes_equal_a_single_device(core: Core) -> None:
    zeros = {name: np.zeros((1, HEADS, 0, WIDTH // HEADS), np.float32) for name in ties_of_decoder().values()}
    network = core.read_network(decoder_model()).with_state(ties_of_decoder(), initial=zeros)
    names = [node.name for node in network.nodes]
    middle = next(index for index, name in enumerate(names) if name.endswith("_1"))
    pins = {name: "RAY.a:CPU" if index < middle else "RAY.b:CPU" for index, name in enumerate(names)}
    split = core.load_network(network.with_affinity(pins), "HETERO:RAY.a:CPU,RAY.b:CPU").create_infer_request()
    local = core.load_network(network, "CPU").create_infer_request()
    tokens, before = [1], read_traffic(core)
    for _ in range(200):
        inputs = {"tokens": np.array([tokens[-1:]])}
        logits = split.infer(inputs)["logits"]
        np.testing.assert_allclose(logits, local.infer(inputs)["logits"], rtol=1e-4, atol=1e-5)
        tokens.append(int(logits[0, -1].argmax()))
    assert len(set(tokens)) > 30
    # 200 tokens in, 200 rows of logits out; states and inner values stay on the nodes. The initial states are empty.
    np.testing.assert_array_equal(read_traffic(core) - before, [200 * 8, 200 * logits.nbytes])
    assert split.states["past_key_1"].value.shape[2] == 200


def test_network_is_put_into_the_store_once_for_all_nodes(core: Core, mixed: Network, tmp_path: Any) -> None:
    weights = np.arange(4000, dtype=np.float32)
    text = (
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[{weights.size}] x) => (float[{weights.size}] y) {{ y = Add (x, w) }}"""
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    put = [core.get_metric("RAY", "NETWORK_BYTES_PUT")]
    network = core.load_network(model, "MULTI:RAY.a:CPU,RAY.b:CPU,RAY.c:CPU")
    again = core.load_network(onnx.ModelProto.FromString(model.SerializeToString()), "RAY.b:CPU")
    put.append(core.get_metric("RAY", "NETWORK_BYTES_PUT"))
    # The weights once, and the model without them once.
    assert weights.nbytes < put[1] - put[0] < weights.nbytes + 4000
    x = np.ones_like(weights)
    for each in (network, again):
        np.testing.assert_array_equal(each.infer({"x": x})["y"], x + weights)


def test_gpu_is_sought_on_nodes_with_a_gpu(core: Core, mixed: Network, extra: Callable[..., Any]) -> None:
    with pytest.raises(DeviceUnavailableError, match="no living node of the Ray cluster has a free GPU for GPU; 3 nodes live"):
        core.load_network(mixed, "RAY:GPU")
    with pytest.raises(DeviceUnavailableError, match="node A of the Ray cluster has no free GPU for device GPU"):
        core.load_network(mixed, "RAY.a:GPU")
    extra("g", num_gpus=1)
    # Ray counts a GPU on that node, but the node lacks the plugin and says so.
    with pytest.raises(DeviceNotFoundError, match="raised by device GPU on node G"):
        core.load_network(mixed, "RAY:GPU")
    with pytest.raises(DeviceUnavailableError, match="node G of the Ray cluster has no free GPU for device GPU"):
        core.load_network(mixed, "RAY.g:GPU")


def test_blob_of_a_node_is_imported_on_another(core: Core, mixed: Network, tmp_path: Any) -> None:
    core.load_network(mixed, "RAY.a:CPU").export_network(tmp_path / "blob")
    require_right(core.import_network(tmp_path / "blob", "RAY.b:CPU", trust=True), draw(5))


def test_times_of_nodes_come_back(core: Core, mixed: Network) -> None:
    request = core.load_network(mixed, "RAY.a:CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer(draw(3))
    operators = {entry.operator for entry in request.perf_counts}
    assert {"MatMul-13", "Softmax-13", "transfer"} <= operators


def wait_until(holds: Callable[[], bool]) -> bool:
    """Says whether a condition becomes true within two minutes; a busy machine takes some seconds to start a node's processes."""
    clock, end = threading.Event(), monotonic() + 120
    while not holds():
        if monotonic() > end:
            return False
        clock.wait(0.05)
    return True


class Load:
    """Runs requests on several threads until it is told to end."""

    def __init__(self, network: ExecutableNetwork, threads: int) -> None:
        self.count = 0
        self._is_ended = False
        self._network = network
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads)
        self._runs = [self._pool.submit(self._run, index) for index in range(threads)]

    def _run(self, index: int) -> None:
        while not self._is_ended:
            require_right(self._network, draw(4, index))
            with self._lock:
                self.count += 1

    def await_more(self, count: int) -> None:
        clock, goal = threading.Event(), self.count + count
        while self.count < goal and not any(run.done() for run in self._runs):
            clock.wait(0.02)

    def end(self) -> None:
        self._is_ended = True
        for run in self._runs:
            run.result()
        self._pool.shutdown()


@pytest.fixture
def extra(cluster: Any, add: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    nodes: list[Any] = []

    def open_node(name: str, **resources: int) -> Any:
        nodes.append(add(name, **resources))
        return nodes[-1]

    yield open_node
    for node in nodes:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


def test_no_request_is_lost_with_a_node_and_a_new_node_is_used(
    core: Core, mixed: Network, cluster: Any, extra: Callable[..., Any]
) -> None:
    lost = extra("x")
    network = core.load_network(mixed, "MULTI:RAY.a:CPU,RAY.b:CPU,RAY.x:CPU")
    load = Load(network, 6)
    try:
        load.await_more(60)
        assert network.get_metric("REQUESTS_OF_DEVICES")["RAY.X:CPU"] > 0
        cluster.remove_node(lost, allow_graceful=False)
        load.await_more(60)
        extra("y")
        network.set_config({"MULTI_DEVICE_PRIORITIES": "RAY.a:CPU,RAY.b:CPU,RAY.y:CPU"})
        load.await_more(60)
    finally:
        load.end()
    assert network.get_metric("REQUESTS_OF_DEVICES")["RAY.Y:CPU"] > 0


def test_followed_cluster_uses_new_nodes_and_drops_lost_nodes(
    core: Core, mixed: Network, cluster: Any, extra: Callable[..., Any]
) -> None:
    network = core.load_network(mixed, "MULTI:RAY.a:CPU,RAY.b:CPU")
    load = Load(network, 6)
    try:
        with FollowedCluster(network, interval=0.2) as followed:
            assert set(followed.devices) >= {"RAY.A:CPU", "RAY.B:CPU", "RAY.C:CPU"}
            joined = extra("w")
            assert wait_until(lambda: "RAY.W:CPU" in followed.devices)
            assert wait_until(lambda: network.get_metric("REQUESTS_OF_DEVICES").get("RAY.W:CPU", 0) > 0)
            cluster.remove_node(joined, allow_graceful=False)
            assert wait_until(lambda: "RAY.W:CPU" not in followed.devices)
            assert network.get_metric("EXECUTION_DEVICES") == followed.devices
            load.await_more(60)
    finally:
        load.end()


def test_split_names_the_lost_node_and_loads_its_part_elsewhere(
    core: Core, mixed: Network, cluster: Any, extra: Callable[..., Any]
) -> None:
    lost = extra("z")
    pins = dict(zip(NODES, ("RAY.a:CPU", "RAY.z:CPU", "RAY.a:CPU", "RAY.a:CPU"), strict=True))
    network = core.load_network(mixed.with_affinity(pins), "HETERO:RAY.a:CPU,RAY.z:CPU")
    require_right(network, draw(3))
    cluster.remove_node(lost, allow_graceful=False)
    with pytest.raises(
        DeviceCrashedError, match="device CPU on node Z of the Ray cluster (was lost with its node|cannot be reached any more)"
    ):
        network.infer(draw(3))
    require_right(network, draw(3))
    require_right(network, draw(5))


def test_state_lost_with_its_node_is_an_error_until_reset(core: Core, cluster: Any, extra: Callable[..., Any]) -> None:
    lost = extra("v")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] past) => (float[2] y) { y = Add (x, past) }'
    network = core.read_network(onnx.parser.parse_model(text)).with_state({"y": "past"})
    request = core.load_network(network, "RAY.v:CPU").create_infer_request()
    inputs = {"x": np.ones(2, np.float32)}
    for _ in range(3):
        request.infer(inputs)
    # The state is not read here: a read would leave a copy in the store of this program's node.
    cluster.remove_node(lost, allow_graceful=False)
    with pytest.raises(DeviceCrashedError, match="on node V of the Ray cluster"):
        request.infer(inputs)
    with pytest.raises(DeviceCrashedError, match="lost with what made it, on node V; .* reset its states"):
        request.infer(inputs)
    request.states.reset()
    request.infer(inputs)
    np.testing.assert_array_equal(request.states["past"].value, [1, 1])


@pytest.fixture
def breaking(core: Core) -> ExecutableNetwork:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg (x) }'
    return core.load_network(core.read_network(onnx.parser.parse_model(text)), "RAY.b:BREAKING")


def test_device_that_ends_its_process_is_started_again(breaking: ExecutableNetwork) -> None:
    pid = breaking.get_metric("PID")
    with pytest.raises(DeviceCrashedError, match="device BREAKING on node B of the Ray cluster ended"):
        breaking.infer({"x": np.full(1, 13, np.float32)})
    np.testing.assert_array_equal(breaking.infer({"x": np.ones(1, np.float32)})["y"], [-1])
    assert breaking.get_metric("PID") != pid


def test_device_that_hangs_is_ended_when_its_run_is_cancelled(breaking: ExecutableNetwork) -> None:
    pid = breaking.get_metric("PID")
    request = breaking.create_infer_request()
    request.start_async({"x": np.full(1, 14, np.float32)})
    assert not request.wait(1)
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait()
    clock = threading.Event()
    assert any(breaking.get_metric("PID") != pid or clock.wait(0.2) for _ in range(50))
    np.testing.assert_array_equal(breaking.infer({"x": np.ones(1, np.float32)})["y"], [-1])
