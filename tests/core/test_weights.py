"""External weights: mapped lazily, kept inside the model's folder, checked against the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

from hetero_core.errors import NetworkNotFoundError, NetworkReadError
from hetero_core.network.reader import read_network


def model_with(**fields: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (y) { y = Add(x, w) }')
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=value)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.arange(8, dtype=np.float32).tofile(tmp_path / "w.bin")
    return tmp_path


def test_external_weights_are_found_beside_the_model_file(folder: Path) -> None:
    onnx.save(model_with(location="w.bin", offset="16", length="16"), folder / "m.onnx")
    assert read_network(folder / "m.onnx").initializers["w"].array.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("fields", [{}, {"offset": "0"}, {"length": "16"}])
def test_offset_and_length_may_be_left_out(folder: Path, fields: dict[str, str]) -> None:
    network = read_network(model_with(location="w.bin", **fields), base=folder)
    assert network.initializers["w"].array.tolist() == [0, 1, 2, 3]


def test_weights_of_one_file_are_views_of_one_map_and_read_only(folder: Path) -> None:
    model = model_with(location="w.bin")
    second = model.graph.initializer.add()
    second.CopyFrom(model.graph.initializer[0])
    second.name = "v"
    network = read_network(model, base=folder)
    first, second_view = (network.initializers[name].array for name in ("w", "v"))
    assert np.shares_memory(first, second_view)
    assert not first.flags.writeable


def test_unaligned_weights_are_copied_to_aligned_memory(folder: Path) -> None:
    (folder / "w.bin").write_bytes(b"\0" + np.arange(4, dtype=np.float32).tobytes())
    array = read_network(model_with(location="w.bin", offset="1"), base=folder).initializers["w"].array
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("location", ["w.bin", "./sub/../w.bin", "sub/other/../../w.bin", "sub/./deep.bin"])
def test_path_that_stays_inside_is_read(folder: Path, location: str) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.bin").write_bytes((folder / "w.bin").read_bytes())
    assert read_network(model_with(location=location), base=folder).initializers["w"].array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "location",
    [
        *("/etc/passwd", "../w.bin", "sub/../../w.bin", "sub/../../model/w.bin", ".."),
        *("..\\w.bin", "sub\\..\\..\\w.bin", "C:\\w.bin", "\\\\host\\w.bin"),
    ],
)
def test_location_outside_the_folder_is_refused(folder: Path, location: str) -> None:
    inside = folder / "model"
    inside.mkdir()
    with pytest.raises(NetworkReadError, match=r"initializer 'w' has its weights in '.*'; expected a path inside the folder"):
        read_network(model_with(location=location), base=inside)


def test_link_that_leaves_the_folder_is_refused(folder: Path) -> None:
    inside = folder / "model"
    inside.mkdir()
    (inside / "link.bin").symlink_to(folder / "w.bin")
    with pytest.raises(
        NetworkReadError, match=r"initializer 'w' has its weights in 'link.bin', a link to '.*w.bin' outside the folder"
    ):
        read_network(model_with(location="link.bin"), base=inside)


def test_link_inside_the_folder_is_followed(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder / "w.bin")
    assert read_network(model_with(location="link.bin"), base=folder).initializers["w"].array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"location": "*/_ORT_MEM_ADDR_/*", "offset": "140000000000"},
            r"points into the memory of another program \(location '\*/_ORT",
        ),
        ({}, "has external weights without a location"),
        ({"location": "w.bin", "offset": "20"}, "takes bytes 20 to 36 of weights file 'w.bin', which has only 32"),
        (
            {"location": "w.bin", "length": "12"},
            "takes 16 bytes by its type and shape, but 12 are stored for it in weights file 'w.bin'",
        ),
        ({"location": "w.bin", "offset": "-4"}, "has the external offset '-4'; expected a number of bytes"),
        ({"location": "w.bin", "offset": "1_0"}, "has the external offset '1_0'; expected a number of bytes"),
        ({"location": "w.bin", "length": "9" * 30}, "has the external length '999999999999999999999999999999'; expected a number"),
        ({"location": "w.bin", "offset": "9223372036854775807"}, "takes bytes 9223372036854775807 to 9223372036854775823"),
    ],
)
def test_weights_that_do_not_fit_the_file_are_refused(folder: Path, fields: dict[str, str], message: str) -> None:
    with pytest.raises(NetworkReadError, match=f"initializer 'w' {message}"):
        read_network(model_with(**fields), base=folder)


def test_missing_weights_file_is_named(folder: Path) -> None:
    with pytest.raises(
        NetworkNotFoundError, match=r"initializer 'w' has its weights in '.*absent.bin', which is missing. Put the file"
    ):
        read_network(model_with(location="absent.bin"), base=folder)


def test_external_weights_without_a_folder_are_refused() -> None:
    with pytest.raises(NetworkReadError, match="but the model was not read from a file; pass base=FOLDER"):
        read_network(model_with(location="w.bin"))


def test_external_strings_are_refused(folder: Path) -> None:
    model = model_with(location="w.bin")
    model.graph.initializer[0].data_type = TensorProto.STRING
    with pytest.raises(NetworkReadError, match="initializer 'w' holds strings in an external file, which ONNX does not allow"):
        read_network(model, base=folder)


def test_file_that_became_shorter_is_an_error_not_a_crash(folder: Path) -> None:
    np.zeros(1024, np.float32).tofile(folder / "w.bin")
    model = model_with(location="w.bin")
    model.graph.initializer[0].dims[:] = [1024]
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1024
    network = read_network(model, base=folder)
    (folder / "w.bin").write_bytes(b"1234")
    with pytest.raises(NetworkReadError, match=r"weights file '.*w.bin' became shorter since the model was read"):
        _ = network.initializers["w"].array


def test_weights_are_not_touched_by_reading(folder: Path) -> None:
    # The sparse file has 1 TiB, so a read that is not lazy fails.
    with open(folder / "huge.bin", "wb") as file:
        file.truncate(2**40)
    model = model_with(location="huge.bin")
    model.graph.initializer[0].dims[:] = [2**38]
    model.graph.node[0].op_type = "Max"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    network = read_network(model, base=folder)
    assert network.type_of("y") == network.initializers["w"].type
    assert network.initializers["w"].array[2**38 - 1] == 0


def test_way_back_does_not_lead_behind_a_link(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside" / "sub"
    inside.mkdir()
    outside.mkdir(parents=True)
    (inside / "sub").symlink_to(outside)
    (inside / "a.bin").write_bytes(np.array([1, 2, 3, 4], np.float32).tobytes())
    (outside.parent / "a.bin").write_bytes(np.array([8, 9, 8, 9], np.float32).tobytes())
    network = read_network(model_with(location="sub/../a.bin", length="16"), base=inside)
    assert network.initializers["w"].array.tolist() == [1, 2, 3, 4]
