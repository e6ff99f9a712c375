from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import AffinityError, InvalidNetworkError, NetworkDeclarationWarning
from hetero_core.network.affinity import read_pins, resolve_pins
from hetero_core.network.reader import read_network

NODES = [("conv1", "Conv"), ("conv2", "Conv"), ("block/relu", "Relu"), ("block/add", "Add")]


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"conv1": "GPU"}, {"conv1": "GPU"}),
        ({"conv*": "GPU"}, {"conv1": "GPU", "conv2": "GPU"}),
        ({"block/*": "CPU"}, {"block/relu": "CPU", "block/add": "CPU"}),
        ({"re:conv[2-9]": "GPU"}, {"conv2": "GPU"}),
        ({"op:Conv": "GPU"}, {"conv1": "GPU", "conv2": "GPU"}),
        ({"op:Conv": "GPU", "conv*": "NPU", "conv2": "CPU"}, {"conv1": "NPU", "conv2": "CPU"}),
        ({"conv2": "CPU", "conv*": "NPU", "op:Conv": "GPU"}, {"conv1": "NPU", "conv2": "CPU"}),
        ({"conv*": "GPU", "re:.*1": "GPU"}, {"conv1": "GPU", "conv2": "GPU"}),
        ({}, {}),
    ],
)
def test_pins_resolve_by_rank(pins: dict[str, str], expected: dict[str, str]) -> None:
    assert resolve_pins(NODES, pins) == expected


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"conv3": "GPU"}, r"pin 'conv3' -> GPU matches none of the 4 nodes, did you mean 'conv[12]' or 'conv[12]'\?"),
        ({"op:Cnv": "GPU"}, r"pin 'op:Cnv' -> GPU matches none of the 4 nodes, did you mean 'Conv'\?"),
        ({"re:zzz": "GPU"}, "pin 're:zzz' -> GPU matches none of the 4 nodes"),
        ({"re:(": "GPU"}, r"pin 're:\(' is no regular expression"),
        ({"conv1": " "}, "pin 'conv1': expected a device name, got ' '"),
        ({3: "GPU"}, "a pin is the name of a node or a pattern as text; got 3"),
        ({"conv1": 3}, "pin 'conv1': expected a device name, got 3"),
        (
            {"conv*": "GPU", "re:.*1": "CPU"},
            r"pins 'conv\*' -> GPU and 're:\.\*1' -> CPU are of one rank and disagree on node 'conv1'; pin the node by its",
        ),
    ],
)
def test_empty_or_ambiguous_pins_are_refused(pins: dict[str, str], message: str) -> None:
    with pytest.raises(AffinityError, match=message):
        resolve_pins(NODES, pins)


def test_later_pins_replace_earlier_pins_of_the_same_node() -> None:
    network = read_network(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (y) { [a] a = Relu(x) [b] y = Neg(a) }')
    )
    pinned = network.with_affinity({"a": "GPU", "b": "CPU"}).with_affinity({"op:Neg": "NPU"})
    assert pinned.affinity == {"a": "GPU", "b": "NPU"}
    assert network.affinity == {}
    assert pinned.nodes is network.nodes


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"a[0]": "GPU"}, {"a[0]": "GPU"}),
        ({"a?": "CPU"}, {"a0": "CPU", "a*": "CPU"}),
        ({"a*": "GPU"}, {"a*": "GPU"}),
        ({"a[[]0]": "GPU"}, {"a[0]": "GPU"}),
        ({"re:a0": "CPU"}, {"re:a0": "CPU"}),
        ({"op:Relu": "GPU", "*": "CPU"}, {"a[0]": "CPU", "a0": "CPU", "a*": "CPU", "re:a0": "CPU", "op:Relu": "GPU"}),
    ],
)
def test_name_that_looks_like_a_pattern_is_matched_exactly_first(pins: dict[str, str], expected: dict[str, str]) -> None:
    nodes = [("a[0]", "Relu"), ("a0", "Relu"), ("a*", "Relu"), ("re:a0", "Relu"), ("op:Relu", "Abs")]
    assert resolve_pins(nodes, pins) == expected


def test_file_of_pins_holds_patterns_in_order(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    path.write_text('[affinity]\n"block.*" = "GPU.1"  # quoted: it has a dot\n\'re:conv\\d+\' = \'CPU\'\nrelu = "CPU"\n')
    assert list(read_pins(path).items()) == [("block.*", "GPU.1"), (r"re:conv\d+", "CPU"), ("relu", "CPU")]
    path.write_text("[affinity]\n")
    assert read_pins(str(path)) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read pins from '{path}': No such file or directory"),
        ("[affinity\n", "cannot read pins from '{path}': it is no TOML: Expected ']'"),
        ("", '\'{path}\': expected a table [affinity] with lines such as "conv1" = "GPU", found None'),
        ("affinity = 3\n", '\'{path}\': expected a table [affinity] with lines such as "conv1" = "GPU", found 3'),
        ("[afinity]\na = 'CPU'\n", "'{path}' has 'afinity' at its top, did you mean 'affinity'?"),
        ("[affinity]\n[config]\n", "expected the table [affinity] alone, found affinity, config"),
        ("[affinity]\nconv1 = 3\n", "'{path}', [affinity], key 'conv1': expected a device as text, got 3"),
        ("[affinity]\nconv1 = ' '\n", "'{path}', [affinity], key 'conv1': expected a device as text, got ' '"),
        (
            "[affinity]\nblock.conv1 = 'GPU'\n",
            "key 'block': expected a device as text, got {'conv1': 'GPU'}; quote a pattern that has dots",
        ),
    ],
)
def test_bad_file_of_pins_is_refused_with_file_and_key(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AffinityError) as caught:
        read_pins(path)
    assert message.replace("{path}", str(path)) in str(caught.value)


TEXT = """<ir_version: 11, opset_import: ["": 21, "local": 1]> g (float[2] x, bool t) => (float[2] y) <float[2] w = {3, 4}> {
    [c] k = Constant <value = float[2] {1, 2}> ()
    [add] a = Add (x, k)
    [mul] b = Mul (a, w)
    [choose] y = If (t) <
        then_branch = u () => (float[2] p) { [inner] q = Constant <value_floats = [5.0, 6.0]> () [sub] p = Sub (b, q) },
        else_branch = v () => (float[2] r) { [keep] r = Identity (b) }> }"""


def pinned(**device_of_place: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    graph = model.graph
    place_of_name = {"x": graph.input[0], "y": graph.output[0], "w": graph.initializer[0]}
    place_of_name |= {node.name: node for node in (*graph.node, *graph.node[-1].attribute[0].g.node)}
    for name, device in device_of_place.items():
        key, _, name_of_place = name.rpartition("__")
        place_of_name[name_of_place].metadata_props.add(key=key or "hetero.affinity", value=device)
    return model


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        ({"c": "CPU"}, "Constant node 'c' -> CPU"),
        ({"affinity__c": "CPU", "add": "TEMPLATE"}, "Constant node 'c' -> CPU"),
        ({"inner": "CPU"}, "Constant node 'inner' -> CPU"),
        ({"w": "CPU"}, "initializer 'w' -> CPU"),
        ({"x": "CPU", "y": "TEMPLATE"}, "input 'x' -> CPU, output 'y' -> TEMPLATE"),
        (
            {"c": "A", "inner": "A", "w": "B", "x": "C", "y": "C"},
            "initializer 'w' -> B, input 'x' -> C, output 'y' -> C and 2 more",
        ),
    ],
)
def test_pin_without_effect_is_named_in_a_single_warning(pins: dict[str, str], named: str) -> None:
    message = (
        f"the affinity of {named} has no effect: constants, inputs and outputs follow the nodes that read or make them. Pin these nodes, "
        "or remove the affinity."
    )
    model = pinned(**pins)
    # The bytes of a small model are read without protobuf.
    for source in (model, model.SerializeToString()):
        with pytest.warns(NetworkDeclarationWarning) as caught:
            network = read_network(source)
        assert [str(warning.message) for warning in caught] == [message]
    assert dict(network.affinity) == ({"add": "TEMPLATE"} if "add" in pins else {})


def test_valid_pins_and_empty_pins_of_constants_do_not_warn() -> None:
    assert dict(read_network(pinned(c=" ", add="CPU", choose="CPU")).affinity) == {"add": "CPU", "choose": "CPU"}


def test_pin_without_effect_in_a_file_is_named_at_each_load(tmp_path: Path) -> None:
    model = pinned(c="CPU")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1 << 16, np.float32), "large"))
    model.graph.initializer[-1].metadata_props.add(key="affinity", value="CPU")
    onnx.save(model, tmp_path / "m.onnx")
    with Core() as core:
        for device in ("CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU", "CPU"):
            with pytest.warns(
                NetworkDeclarationWarning, match="initializer 'large' -> CPU, Constant node 'c' -> CPU has no effect"
            ):
                core.load_network(tmp_path / "m.onnx", device)
        with (
            pytest.warns(NetworkDeclarationWarning),
            pytest.raises(InvalidNetworkError, match="cannot load network 'g' on CPU: the affinity of .* has no effect"),
        ):
            core.load_network(tmp_path / "m.onnx", "CPU", {"STRICT_DECLARATIONS": True})
