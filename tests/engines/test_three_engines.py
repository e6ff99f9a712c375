"""Networks over three engines: ONNX's own cases and the light models on OpenVINO, ONNX Runtime and CPU, with any split."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from hetero_core import Core, ExecutableNetwork, Extension, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch
from hetero_core.testing.models import LIGHT_MODELS, light_inputs, light_model

pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'hetero-openvino[test]'")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'hetero-onnxruntime[cpu]'")

DEVICES = ("OPENVINO", "ORT", "CPU")
ALL = "HETERO:OPENVINO,ORT,CPU"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
# An expanded bfloat16 function rounds after each operator, so two correct outputs differ by a few units of 2**-8.
ROUNDING = {"bf16": 2e-2, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return [case for case in iterate_backend_cases(kinds=KINDS) if not case.is_random]


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        missing = sorted(set(DEVICES) - set(opened.device_names))
        if missing:
            pytest.skip(f"needs the plugins of {', '.join(missing)}")
        yield opened


def find_mismatch(case: BackendCase, loaded: ExecutableNetwork) -> str | None:
    tolerance = max(case.rtol, 1e-4, *(value for key, value in ROUNDING.items() if key in case.name), 0.0)
    for inputs, expected in case.runs:
        outputs = loaded.infer({spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)})
        for (name, value), reference in zip(outputs.items(), expected, strict=True):
            mismatch = describe_mismatch(value, reference, rtol=tolerance, name=name)
            if mismatch is not None:
                return mismatch
    return None


def check_case(core: Core, case: BackendCase, network: Network, device: str) -> str | None:
    """Returns the fault of a case on a device that supports it, None if it is correct."""
    try:
        with core.load_network(network, device) as loaded:
            return find_mismatch(case, loaded)
    except Exception as error:  # noqa: BLE001  # the kind and the text go into the list that the test shows
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(("device", "least"), [("OPENVINO", 1350), ("ORT", 1700), (ALL, 2007)], ids=["openvino", "ort", "three"])
def test_every_supported_case_is_right(
    core: Core, cases: list[BackendCase], capsys: pytest.CaptureFixture[str], device: str, least: int
) -> None:
    wrong, refused, passed = {}, [], 0
    for case in cases:
        network = core.read_network(case.model)
        if core.query_network(network, device).refused:
            refused.append(case.name)
            if device == ALL:
                assert has_node_that_all_refuse(core, network), case.name
            continue
        problem = check_case(core, case, network, device)
        if problem is not None:
            wrong[case.name] = problem
        passed += problem is None
    with capsys.disabled():
        sys.stdout.write(f"\n{device}: {passed} of {len(cases)} cases passed, {len(refused)} are refused\n")
    assert wrong == {}
    assert passed >= least


def has_node_that_all_refuse(core: Core, network: Network) -> bool:
    refusals = [set(core.query_network(network, device).refused) for device in DEVICES]
    return bool(set.intersection(*refusals))


def draw_devices(core: Core, network: Network, seed: str) -> dict[str, str]:
    """Returns node -> a random device that supports it."""
    supported = {device: core.query_network(network, device).supported for device in DEVICES}
    draw = random.Random(seed)
    return {node.name: draw.choice([device for device in DEVICES if node.name in supported[device]]) for node in network.nodes}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_light_model_split_over_three_engines_equals_one_engine(core: Core, name: str, seed: int) -> None:
    model = light_model(name)
    network = core.read_network(model)
    inputs = light_inputs(model, seed=seed)
    with core.load_network(network, "CPU") as alone:
        expected = alone.infer(inputs)
    pins = draw_devices(core, network, f"{name} {seed}")
    with core.load_network(network.with_affinity(pins), ALL) as loaded:
        outputs = loaded.infer(inputs)
        ran = Counter(device for device, _ in loaded.get_metric("HETERO_SUBGRAPHS"))
    for key, value in expected.items():
        assert describe_mismatch(outputs[key], value, rtol=1e-3, name=key) is None
    assert set(ran) == set(DEVICES)


def load_divided(core: Core, network: Network, pins: dict[str, str]) -> tuple[ExecutableNetwork, list[str]]:
    """Returns the loaded network, and the nodes of refused and removed pins.

    OPENVINO supports some nodes only in the whole network, because it knows their ranks there; it refuses a pin that cuts them off.
    """
    freed: list[str] = []
    while True:
        try:
            return core.load_network(network.with_affinity(pins), ALL), freed
        except UnsupportedNodesError as error:
            for name, reasons in error.refusals.items():
                assert list(reasons) == ["OPENVINO"], reasons
                assert pins.pop(name) == "OPENVINO"
                freed.append(name)


@pytest.mark.parametrize("seed", [1, 2])
def test_case_divided_at_random_over_three_engines_is_right(
    core: Core, cases: list[BackendCase], capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    wrong, counted, parts, freed = {}, 0, 0, 0
    for case in cases:
        network = core.read_network(case.model)
        if len(network.nodes) < 2 or core.query_network(network, ALL).refused:
            continue
        pins = draw_devices(core, network, f"{case.name} {seed}")
        counted += 1
        try:
            divided, without_pin = load_divided(core, network, pins)
            freed += len(without_pin)
            with divided as loaded:
                parts += len(loaded.get_metric("HETERO_SUBGRAPHS"))
                problem = find_mismatch(case, loaded)
        except Exception as error:  # noqa: BLE001  # as above
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            wrong[case.name] = problem
    with capsys.disabled():
        sys.stdout.write(f"\n{counted} cases divided at random into {parts} subgraphs, {freed} pins were refused\n")
    assert wrong == {}
    assert counted > 400
    assert freed < 10


@pytest.mark.parametrize("rest", ["ORT", "OPENVINO", "OPENVINO,ORT"])
def test_custom_operator_on_cpu_works_in_a_network_on_engines(core: Core, rest: str) -> None:
    """resnet50 with a custom operator in place of a Relu gives the same outputs as with the standard Relu."""

    def infer_types(types: tuple[Any, ...], attributes: Any) -> tuple[Any, ...]:
        return (types[0],)

    domain = f"com.acme.{rest.replace(',', '.').lower()}"
    core.add_extension(Extension(domain, "Own", 1, lambda x: np.maximum(x, 0), infer_types), "CPU")
    model = light_model("resnet50")
    inputs = light_inputs(model, seed=1)
    with core.load_network(model, "CPU") as alone:
        expected = alone.infer(inputs)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    middle = [node for node in changed.graph.node if node.op_type == "Relu"][20]
    middle.op_type, middle.domain, middle.name = "Own", domain, "own"
    network = core.read_network(changed)
    for engine in rest.split(","):
        assert set(core.query_network(network, engine).refused) == {"own"}
    with core.load_network(network, f"HETERO:{rest},CPU") as loaded:
        on_cpu = [nodes for device, nodes in loaded.get_metric("HETERO_SUBGRAPHS") if device == "CPU"]
        outputs = loaded.infer(inputs)
    assert on_cpu == [("own",)]
    for key, value in expected.items():
        assert describe_mismatch(outputs[key], value, rtol=1e-3, name=key) is None
