"""One network over three engines: ONNX's own cases and the light models on OpenVINO, ONNX Runtime and CPU, however they are divided."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch
from hetero_core.testing.models import LIGHT_MODELS, light_inputs, light_model

pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'hetero-openvino[test]'")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'hetero-onnxruntime[cpu]'")

DEVICES = ("OPENVINO", "ORT", "CPU")
ALL = "HETERO:OPENVINO,ORT,CPU"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
# bfloat16 functions written out round after each operator, so two right answers differ by a few units of 2**-8.
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
        found = loaded.infer({spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)})
        for (name, value), wanted in zip(found.items(), expected, strict=True):
            mismatch = describe_mismatch(value, wanted, rtol=tolerance, name=name)
            if mismatch is not None:
                return mismatch
    return None


def check_case(core: Core, case: BackendCase, network: Network, device: str) -> str | None:
    """Returns what is wrong about a case on a device that takes it."""
    try:
        with core.load_network(network, device) as loaded:
            return find_mismatch(case, loaded)
    except Exception as error:  # noqa: BLE001  # the kind and the text go into the list that the test shows
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(("device", "least"), [("OPENVINO", 1500), ("ORT", 1700), (ALL, 1980)], ids=["openvino", "ort", "three"])
def test_every_case_that_is_taken_is_right(
    core: Core, cases: list[BackendCase], capsys: pytest.CaptureFixture[str], device: str, least: int
) -> None:
    wrong, passed = {}, 0
    for case in cases:
        network = core.read_network(case.model)
        if core.query_network(network, device).refused:
            continue
        problem = check_case(core, case, network, device)
        if problem is not None:
            wrong[case.name] = problem
        passed += problem is None
    with capsys.disabled():
        sys.stdout.write(f"\n{device}: {passed} of {len(cases)} cases passed\n")
    assert wrong == {}
    assert passed >= least


def draw_devices(core: Core, network: Network, seed: str) -> dict[str, str]:
    """Returns a device for every node, drawn from those that take it."""
    taken = {device: core.query_network(network, device).supported for device in DEVICES}
    draw = random.Random(seed)
    return {node.name: draw.choice([device for device in DEVICES if node.name in taken[device]]) for node in network.nodes}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_light_model_divided_at_random_over_three_engines_equals_one_of_them(core: Core, name: str, seed: int) -> None:
    model = light_model(name)
    network = core.read_network(model)
    inputs = light_inputs(model, seed=seed)
    with core.load_network(network, "CPU") as alone:
        expected = alone.infer(inputs)
    pins = draw_devices(core, network, f"{name} {seed}")
    with core.load_network(network.with_affinity(pins), ALL) as loaded:
        found = loaded.infer(inputs)
        ran = Counter(device for device, _ in loaded.get_metric("HETERO_SUBGRAPHS"))
    for key, value in expected.items():
        assert describe_mismatch(found[key], value, rtol=1e-3, name=key) is None
    assert set(ran) == set(DEVICES)


def test_case_divided_at_random_over_three_engines_is_right(
    core: Core, cases: list[BackendCase], capsys: pytest.CaptureFixture[str]
) -> None:
    """Some networks OpenVINO takes as a whole only, where it knows more about shapes: those it refuses to load in parts, and says so."""
    wrong, counted, refused = {}, 0, 0
    for case in cases:
        network = core.read_network(case.model)
        if len(network.nodes) < 3 or core.query_network(network, "OPENVINO").refused or core.query_network(network, "ORT").refused:
            continue
        pins = {node.name: random.Random(f"{case.name} {node.name}").choice(("OPENVINO", "ORT")) for node in network.nodes}
        try:
            loaded = core.load_network(network.with_affinity(pins), ALL)
        except UnsupportedNodesError:
            refused += 1
            continue
        except Exception as error:  # noqa: BLE001  # as above
            wrong[case.name] = f"{type(error).__name__}: {error}"
            continue
        counted += 1
        with loaded:
            try:
                problem = find_mismatch(case, loaded)
            except Exception as error:  # noqa: BLE001  # as above
                problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            wrong[case.name] = problem
    with capsys.disabled():
        sys.stdout.write(f"\n{counted} cases divided at random, {refused} refused in parts\n")
    assert wrong == {}
    assert counted > 100
