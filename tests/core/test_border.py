"""The border of a network in files and foreign blobs: it survives a round trip, and is refused if it contradicts its network."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, InputInfo, Network
from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, InvalidNetworkError
from hetero_core.network.border import Border, State, border_of_json, border_to_json, pack_border, unpack_border
from hetero_core.network.initializers import Initializer

SUM = "g (float[2] x, float[2] past) => (float[2] y, float[2] present) { present = Add(x, past) y = Add(present, present) }"
Read = Callable[..., Network]


def test_border_comes_back_with_its_constants_to_the_bit() -> None:
    first = Initializer.of_array(np.array([-0.0, 1.5], np.float32))
    state = State("present", "past", Initializer.of_array(np.array([np.nan], np.float16)))
    written = Border((state,), {"w": first}, ("b",), {"n": (1, 8)}, {"x": "NHWC"})
    read = unpack_border(pack_border(written))
    assert read.states[0].initial.array.tobytes() == state.initial.array.tobytes()
    assert read.defaults["w"].array.tobytes() == first.array.tobytes()
    assert (read.replaceable, dict(read.bounds), dict(read.layouts)) == (("b",), {"n": (1, 8)}, {"x": "NHWC"})


def test_zeros_are_stored_without_their_bytes() -> None:
    state = State("present", "past", Initializer("float32", (1000, 1000), lambda: np.zeros((1000, 1000), np.float32)))
    text = border_to_json(Border((state,)))
    assert len(text) < 100
    assert border_of_json(text, {}).states[0].initial.array.shape == (1000, 1000)


CONTRADICTIONS = [
    (
        '{"states": [["presents", "past", ["float32", [2], ""]]]}',
        "output 'presents' is tied to input 'past', and one of them is not there",
    ),
    ('{"states": [["present", "past", ["float32", [3], ""]]]}', "the first value float32[3] are tied to input past: float32[2]"),
    ('{"states": [["present", "past", ["int32", [2], ""]]]}', "the first value int32[2] are tied to input past: float32[2]"),
    (
        '{"states": [["present", "past", ["float32", [2], ""]], ["y", "past", ["float32", [2], ""]]]}',
        "an input or an output is tied twice",
    ),
    ('{"layouts": {"x": "NHWC"}}', "the layout of x: float32[2] is 'NHWC'"),
]


@pytest.mark.parametrize(("text", "message"), CONTRADICTIONS)
def test_model_that_contradicts_its_border_is_refused(core: Core, text: str, message: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {SUM}')
    model.metadata_props.add(key="hetero.border", value=text)
    with pytest.raises(InvalidNetworkError) as caught:
        core.read_network(model)
    assert "the 'hetero.border' of the model contradicts it: " in str(caught.value)
    assert message in str(caught.value)


def forge(core: Core, network: Network, change: Callable[[bytes], bytes]) -> bytes:
    """Returns the blob of a network with a changed border and a valid digest."""
    stream, forged = io.BytesIO(), io.BytesIO()
    core.load_network(network, "CPU").export_network(stream)
    header, payload = read_blob(stream.getvalue())
    sections = {name: bytes(section) for name, section in payload.sections.items()}
    sections["hetero/border"] = change(sections["hetero/border"])
    write_blob(header, Payload(sections, payload.version), forged)
    return forged.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"{", "the 'hetero.border' of a blob cannot be read: JSONDecodeError"),
        (lambda _: b"[]", "the 'hetero.border' of a blob cannot be read: TypeError"),
        (
            lambda raw: raw.replace(b"present", b"absent_"),
            "the border of the blob contradicts its network: output 'absent_' is tied",
        ),
        (lambda raw: raw.replace(b"float32", b"float64"), "the first value float64[2] are tied to input past: float32[2]"),
        (lambda raw: raw.replace(b"[2]", b"[-2]"), "has -2; expected <class 'int'>"),
    ],
)
def test_blob_that_contradicts_its_border_is_refused(
    core: Core, read: Read, change: Callable[[bytes], bytes], message: str
) -> None:
    blob = forge(core, read(SUM).with_state({"present": "past"}), change)
    with pytest.raises(BlobDamagedError) as caught:
        core.import_network(blob, "CPU")
    assert message in str(caught.value)


def test_strings_in_a_border_are_refused_by_the_export(core: Core) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (string[1] x, string[1] w) => (string[1] y) <string[1] w = {"a"}> { y = Identity(w) }'
    )
    network = core.read_network(model).with_optional_inputs(["w"])
    loaded = core.load_network(network, "TEMPLATE")
    with pytest.raises(InvalidNetworkError, match="a state or a default that holds strings cannot be written into a blob"):
        loaded.export_network(io.BytesIO())


def test_subnetwork_has_no_border(read: Read) -> None:
    from hetero_core.network.subnetwork import cut_subnetwork

    network = read(SUM).with_state({"present": "past"})
    assert not cut_subnetwork(network, [network.nodes[0].name]).border.shapes_runs
    assert dataclasses.replace(network, name="h").border is network.border


def test_states_refuse_inputs_with_a_default_and_sequences(core: Core, read: Read) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {2, 3}> { y = Mul(x, w) }'
    )
    freed = core.read_network(onnx.parser.parse_model(text)).with_optional_inputs(["w"])
    with pytest.raises(
        InvalidNetworkError, match="the input has a default; give it as the initial value, and tie the input before"
    ):
        freed.with_state({"y": "w"})
    sequence: Any = read("g (seq(float[2]) x) => (seq(float[2]) y) { y = Identity(x) }")
    with pytest.raises(InvalidNetworkError, match="a state is a tensor; these are"):
        sequence.with_state({"y": "x"})
    with pytest.raises(
        InvalidNetworkError, match=r"input 'x' of network 'g': expected a tensor to describe, it is sequence\(float32\[...\]\)"
    ):
        sequence.with_inputs({"x": InputInfo("U8")})
