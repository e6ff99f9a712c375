"""The inputs of `hetero run`: every kind of file, names, random values and images, and the errors of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from PIL import Image

from hetero_core.cli.answer import UsageError
from hetero_core.cli.inputs import fill_inputs, read_image, read_inputs, require_complete
from hetero_core.network.types import Dimension, OptionalType, TensorType, ValueSpec

X = ValueSpec("x", TensorType("float32", (2, 3)))
Y = ValueSpec("y", TensorType("int64", ("n",)))
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def read_one(path: Path, spec: ValueSpec = X, prefix: str = "") -> Any:
    return read_inputs([f"{prefix}{path}"], [spec], network="net")[spec.name]


def image_spec(dtype: str, *shape: Dimension) -> ValueSpec:
    return ValueSpec("image", TensorType(dtype, shape))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A PNG of 2 rows and 5 columns; channel c of pixel (row, column) is 100 * c + 10 * row + column."""
    path = tmp_path / "picture.png"
    Image.fromarray(expected_pixels()).save(path)
    return path


def expected_pixels() -> np.ndarray[Any, Any]:
    return np.array([[[100 * c + 10 * row + column for c in range(3)] for column in range(5)] for row in range(2)], np.uint8)


def test_npy_is_read_by_name_and_for_the_only_input(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ARRAY)
    np.testing.assert_array_equal(read_one(path), ARRAY)
    np.testing.assert_array_equal(read_one(path, prefix="x="), ARRAY)


def test_bare_npz_gives_each_array_to_the_input_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, x=ARRAY, y=np.arange(2))
    inputs = read_inputs([str(path)], [X, Y], network="net")
    assert list(inputs) == ["x", "y"]
    np.testing.assert_array_equal(inputs["x"], ARRAY)


def test_named_npz_gives_the_array_of_that_name_or_the_only_one(tmp_path: Path) -> None:
    path_of_two, path_of_single = tmp_path / "two.npz", tmp_path / "each.npz"
    np.savez(path_of_two, x=ARRAY, label=np.arange(2))
    np.savez(path_of_single, other=ARRAY + 1)
    np.testing.assert_array_equal(read_one(path_of_two, prefix="x="), ARRAY)
    np.testing.assert_array_equal(read_one(path_of_single, prefix="x="), ARRAY + 1)


def test_tensor_proto_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pb"
    path.write_bytes(onnx.numpy_helper.from_array(ARRAY).SerializeToString())
    np.testing.assert_array_equal(read_one(path), ARRAY)


def test_bfloat16_gets_its_element_type_back_from_npy(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ARRAY.astype(ml_dtypes.bfloat16))
    read = read_one(path, ValueSpec("x", TensorType("bfloat16", (2, 3))))
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read.astype(np.float32), ARRAY)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["z=x.npy"], "network 'net' has no input 'z'; its inputs are x: float32[2,3]; y: int64[n]"),
        (["X=x.npy"], "did you mean 'x'?"),
        (["x.npy"], "network 'net' has 2 inputs; say which, as in -i x="),
        (["x=x.npy", "x=x.npy"], "input 'x' is given twice"),
        (["x=missing.npy"], "No such file or directory"),
        (["x=x.txt"], "these are .jpeg, .jpg, .npy, .npz, .pb, .png"),
        (["x=damaged.npy"], "it is damaged or of another kind"),
        (["x=damaged.npz"], "it is damaged or of another kind"),
        (["damaged.npz"], "it is damaged or of another kind"),
        (["x=damaged.pb"], "it is no ONNX TensorProto"),
        (["x=objects.npy"], "Object arrays cannot be loaded"),
        (["x=renamed.npz"], "is no .npz archive"),
        (["x=foreign.npz"], "has no array 'x'; it has a, b"),
        (["foreign.npz"], "has no input 'a'"),
    ],
)
def test_bad_file_is_an_error_that_names_it(texts: list[str], message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    (tmp_path / "renamed.npz").write_bytes((tmp_path / "x.npy").read_bytes())
    np.savez(tmp_path / "foreign.npz", a=ARRAY, b=ARRAY)
    for suffix in ("npy", "npz", "pb"):
        (tmp_path / f"damaged.{suffix}").write_bytes(b"\x08\xff no array")
    placed = [text.replace("=", f"={tmp_path}/") if "=" in text else f"{tmp_path}/{text}" for text in texts]
    with pytest.raises(UsageError) as raised:
        read_inputs(placed, [X, Y], network="net")
    assert message in str(raised.value)
    assert "-i " in str(raised.value) or str(tmp_path) in str(raised.value)


def test_missing_inputs_are_listed_with_their_types() -> None:
    optional = ValueSpec("z", OptionalType(TensorType("float32", ())))
    with pytest.raises(UsageError, match=r"network 'net' misses the inputs x: float32\[2,3\]; y: int64\[n\]. Give each with -i"):
        require_complete({}, [X, Y, optional], network="net")
    require_complete({"x": ARRAY, "y": ARRAY}, [X, Y, optional], network="net")


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "f"),
        ("float16", "f"),
        ("bfloat16", "V"),
        ("int64", "i"),
        ("uint8", "u"),
        ("bool", "b"),
        ("complex64", "c"),
        ("string", "O"),
    ],
)
def test_random_values_repeat_with_the_seed(dtype: str, kind: str) -> None:
    spec = ValueSpec("x", TensorType(dtype, (4, 5)))
    drawn = fill_inputs({}, [spec], {}, seed=1)["x"]
    assert (drawn.dtype.kind, drawn.shape) == (kind, (4, 5))
    np.testing.assert_array_equal(drawn, fill_inputs({}, [spec], {}, seed=1)["x"])
    assert (drawn != fill_inputs({}, [spec], {}, seed=2)["x"]).any()


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((1, 3, 2, 5), (2, 0, 1)),
        (("n", 3, "h", "w"), (2, 0, 1)),
        ((1, 2, 5, 3), (0, 1, 2)),
        (("n", None, None, 3), (0, 1, 2)),
        ((3, 2, 5), (2, 0, 1)),
        ((2, "w", 3), (0, 1, 2)),
    ],
)
def test_layout_of_an_image_follows_the_shape_of_the_input(
    shape: tuple[Dimension, ...], order: tuple[int, ...], picture: Path
) -> None:
    read = read_one(picture, image_spec("uint8", *shape))
    expected = expected_pixels().transpose(order)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, expected[None] if len(shape) == 4 else expected)


def test_float_input_gets_pixels_divided_by_255(picture: Path) -> None:
    read = read_one(picture, image_spec("float32", 1, 2, 5, 3))
    assert read.dtype == np.float32
    np.testing.assert_allclose(read[0], expected_pixels() / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (image_spec("uint8", 1, 3, 2, 3), "cannot be laid out"),
        (image_spec("uint8", 1, None, None, None), "cannot be laid out"),
        (image_spec("uint8", 30), "cannot be laid out"),
        (ValueSpec("image", TensorType("uint8", None)), "cannot be laid out"),
        (image_spec("int64", 1, 3, 2, 5), "gives uint8 or floats; input image: int64[1,3,2,5] takes neither"),
    ],
)
def test_image_that_does_not_fit_is_an_error(spec: ValueSpec, message: str, picture: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_image(picture, spec)
    assert message in str(raised.value)


@pytest.mark.parametrize("shape", [(2, 5), (1, 1, 2, 5)])
def test_colors_are_converted_to_the_channels_of_the_input(shape: tuple[int, ...], picture: Path) -> None:
    gray = Image.open(picture).convert("L")
    np.testing.assert_array_equal(read_one(picture, image_spec("uint8", *shape)), np.asarray(gray).reshape(shape))


def test_image_of_more_than_8_bits_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((2, 5), 1000, np.uint16)).save(path)
    with pytest.raises(UsageError, match="has mode I;16; expected at most 8 bits a channel. Convert it first"):
        read_one(path, image_spec("uint8", 2, 5))


def test_damaged_image_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "damaged.png"
    path.write_bytes(b"no picture")
    with pytest.raises(UsageError, match="cannot identify image file"):
        read_one(path, image_spec("uint8", 2, 5))
