"""Conversion of inputs: values without an element type, copies, and the texts of refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError

Load = Callable[..., ExecutableNetwork]


@pytest.fixture
def load(core: Core, read: Callable[..., Network]) -> Load:
    """Loads an Identity network of an input type on CPU."""

    def load_identity(input_type: str) -> ExecutableNetwork:
        network = read(f"g ({input_type} x) => ({input_type} y) {{ y = Identity(x) }}")
        return core.load_network(network, "CPU", {"PERF_COUNT": True})

    return load_identity


CONVERTED: list[tuple[str, Any, list[Any]]] = [
    ("float[N]", [1, 2.5, True], [1.0, 2.5, 1.0]),
    ("float[N]", [0.1], [np.float32(0.1).item()]),
    ("float[N]", [16777216], [16777216.0]),
    ("float16[N]", (1.5, 65504), [1.5, 65504.0]),
    ("int64[N]", [1, -2], [1, -2]),
    ("int8[2,2]", [[1, -128], [127, 0]], [[1, -128], [127, 0]]),
    ("uint8[N]", [0, 255], [0, 255]),
    ("bool[N]", [True, False], [True, False]),
    ("float[N]", [], []),
    ("float[N]", [np.inf, -np.inf], [np.inf, -np.inf]),
    ("string[N]", ["a", "b"], ["a", "b"]),
    ("uint8[2,N]", b"\x01\x02\x03\xff", [[1, 2], [3, 255]]),
    ("uint8[2]", bytearray(b"ab"), [97, 98]),
    ("uint8[2]", memoryview(b"ab"), [97, 98]),
]


def name_row(row: tuple[str, Any, Any]) -> str:
    """Returns an id that is equal in every process; the text of a memoryview has its address."""
    value = "memoryview" if isinstance(row[1], memoryview) else str(row[1])
    return f"{row[0]}-{value}"[:30]


@pytest.mark.parametrize(("input_type", "value", "expected"), CONVERTED, ids=[name_row(row) for row in CONVERTED])
def test_value_in_the_range_of_the_type_is_converted(load: Load, input_type: str, value: Any, expected: list[Any]) -> None:
    assert load(input_type).infer({"x": value})["y"].tolist() == expected


LOST: list[tuple[str, Any, type[Exception], str]] = [
    (
        "uint8[N]",
        [1, 256],
        InputTypeError,
        "expected uint8, got the number 256, which it does not have; say what is meant with np.array(values)",
    ),
    ("int8[N]", [-129], InputTypeError, "got the number -129, which it does not have"),
    ("uint64[N]", [-1], InputTypeError, "got the number -1, which it does not have"),
    (
        "int64[N]",
        [1.5],
        InputTypeError,
        "expected int64, got numbers of type float; say what is meant with np.array(values).astype('int64')",
    ),
    ("int64[N]", [1.0], InputTypeError, "expected int64, got numbers of type float"),
    ("float[N]", [16777217], InputTypeError, "expected float32, got the number 16777217, which it does not have"),
    ("float[N]", [1e39], InputTypeError, "expected float32, got the number 1e+39, which it does not have"),
    ("float16[N]", [70000.0], InputTypeError, "expected float16, got the number 70000.0, which it does not have"),
    ("bool[N]", [1], InputTypeError, "expected bool, got numbers of type int"),
    ("float[N]", ["1"], InputTypeError, "expected float32, got numbers of type str"),
    ("float[N]", [None], InputTypeError, "expected float32, got numbers of type object"),
    ("float[2,N]", [[1, 2], [3]], InputShapeError, "input 'x' of network 'g': the lists are of different lengths"),
    ("uint8[2,2]", b"abc", InputShapeError, "3 bytes cannot become uint8[2,2]; give an array of that shape, or as many bytes"),
    (
        "float[N]",
        b"abcd",
        InputTypeError,
        "expected an array for float32[N], got bytes; give anything with __array__ or __dlpack__",
    ),
]


@pytest.mark.parametrize(("input_type", "value", "error", "message"), LOST, ids=[f"{row[0]}-{row[1]}"[:30] for row in LOST])
def test_value_that_would_be_lost_is_refused(load: Load, input_type: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        load(input_type).infer({"x": value})
    assert message in str(caught.value)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


COPIED: list[tuple[str, Callable[[Path], Any], int]] = [
    ("contiguous", lambda _: np.arange(6, dtype=np.float32).reshape(2, 3), 0),
    ("read-only", lambda _: read_only(np.arange(6, dtype=np.float32).reshape(2, 3)), 0),
    ("transposed", lambda _: np.arange(6, dtype=np.float32).reshape(2, 3).copy(order="F"), 24),
    ("stepped", lambda _: np.repeat(np.arange(6, dtype=np.float32).reshape(2, 3), 2, axis=0)[::2], 24),
    ("swapped", lambda _: np.arange(6, dtype=">f4").reshape(2, 3), 24),
    ("mapped", lambda folder: map_file(folder), 0),
    ("list", lambda _: [[0, 1, 2], [3, 4, 5]], 24),
    ("dlpack", lambda _: Foreign(np.arange(6, dtype=np.float32).reshape(2, 3)), 0),
]


class Foreign:
    """An array of another library that supports only DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def map_file(folder: Path) -> np.ndarray:
    np.arange(6, dtype=np.float32).tofile(folder / "x.bin")
    return np.memmap(folder / "x.bin", np.float32, "r", shape=(2, 3))


@pytest.mark.parametrize(("make", "copied"), [row[1:] for row in COPIED], ids=[row[0] for row in COPIED])
def test_array_is_taken_and_its_copy_is_counted(load: Load, tmp_path: Path, make: Callable[[Path], Any], copied: int) -> None:
    request = load("float[2,3]").create_infer_request()
    assert request.infer({"x": make(tmp_path)})["y"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert request.host_copied_bytes == copied


BEHIND = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("feed", "error", "message"),
    [
        ({"x": BEHIND.astype(np.float64), "b": BEHIND}, InputTypeError, "expected float32, got float64"),
        ({"x": BEHIND, "b": np.zeros((5, 3), np.float32)}, InputShapeError, "'n' is 5 here and 2 in input 'x'"),
        ({"x": BEHIND[:, :2], "b": BEHIND}, InputShapeError, "axis 1 has 2 instead of 3"),
        ({"x": BEHIND[None], "b": BEHIND}, InputShapeError, "3 dimensions instead of 2"),
        ({"x": BEHIND, "c": BEHIND}, InputNameError, "has no input 'c'"),
        ({"x": BEHIND}, InputNameError, "misses the inputs b"),
        ({"x": BEHIND, "b": BEHIND, "c": BEHIND}, InputNameError, "has no input 'c'"),
    ],
)
def test_inputs_after_an_accepted_run_are_checked(
    core: Core, read: Callable[..., Network], feed: dict[str, Any], error: type[Exception], message: str
) -> None:
    network = core.load_network(read("g (float[n,3] x, float[n,3] b) => (float[n,3] y) { y = Add(x, b) }"), "CPU")
    for _ in range(2):
        assert network.infer({"x": BEHIND, "b": BEHIND})["y"].tolist() == (2 * BEHIND).tolist()
    with pytest.raises(error, match=message):
        network.infer(feed)


@pytest.mark.parametrize(
    "value",
    [BEHIND.astype(">f4"), np.asfortranarray(BEHIND), pickle.loads(pickle.dumps(BEHIND)), BEHIND.tolist()],
    ids=["swapped", "turned", "pickled", "list"],
)
def test_values_after_an_accepted_run_are_converted(core: Core, read: Callable[..., Network], value: Any) -> None:
    network = core.load_network(read("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }"), "CPU")
    for each in (BEHIND, value, value, BEHIND):
        assert network.infer({"x": each})["y"].tolist() == (-BEHIND).tolist()


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_objects_that_are_no_texts_are_written_as_texts(core: Core, read: Callable[..., Network], device: str) -> None:
    """ONNX Runtime writes them in the same way; columns of data frames have missing values among their texts."""
    network = read("g (string[N] x) => (string[N] y) { y = Identity(x) }")
    loaded = core.load_network(network, device)
    for texts in (["a", "b", "c"], ["a", np.nan, None], [np.str_("a"), 5, 1.5], ["nan", "None", "c"]):
        outputs = loaded.infer({"x": np.array(texts, object)})["y"].tolist()
        assert (outputs, {isinstance(each, str) for each in outputs}) == (list(map(str, texts)), {True})


def test_bytes_are_not_copied(load: Load) -> None:
    request = load("uint8[2]").create_infer_request()
    request.infer({"x": b"ab"})
    assert request.host_copied_bytes == 0


def test_copies_are_not_counted_unless_times_are_taken(core: Core, read: Callable[..., Network]) -> None:
    request = core.load_network(read("g (float[1] x) => (float[1] y) { y = Identity(x) }"), "CPU").create_infer_request()
    request.infer({"x": [1]})
    assert request.host_copied_bytes == 0


def test_image_of_pillow_is_converted_to_its_pixels(load: Load) -> None:
    Image = pytest.importorskip("PIL.Image")  # noqa: N806  # a module that is named like a class
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    assert load("uint8[h,w,3]").infer({"x": image})["y"].tolist() == pixels.tolist()
    assert load("uint8[h,w]").infer({"x": image.convert("L")})["y"].shape == (4, 5)
    with pytest.raises(
        InputTypeError, match=r"an image of mode 'P' has no pixels of its own as an array; convert it with image.convert\('RGB'\)"
    ):
        load("uint8[h,w]").infer({"x": image.convert("P")})
    with pytest.raises(
        InputTypeError, match=r"expected float32, got uint8; .* network.with_inputs\(\{'x': InputInfo\(precision='U8'\)\}\)"
    ):
        load("float[h,w,3]").infer({"x": image})


ADVICE: list[tuple[str, tuple[int, ...], str]] = [
    ("float[1,3,8,6]", (1, 8, 6, 3), "network.with_inputs({'x': InputInfo(layout='NHWC')}) would take it"),
    ("float[1,3,8,6]", (1, 20, 30, 3), "InputInfo(layout='NHWC', shape=(1, 20, 30, 3), resize='bilinear')}) would take it"),
    ("float[1,3,8,6]", (1, 3, 20, 30), "InputInfo(shape=(1, 3, 20, 30), resize='bilinear')}) would take it"),
]


@pytest.mark.parametrize(("input_type", "shape", "advice"), ADVICE)
def test_advice_of_a_refusal_makes_the_network_take_the_array(
    core: Core, read: Callable[..., Network], input_type: str, shape: tuple[int, ...], advice: str
) -> None:
    from hetero_core.network.border import InputInfo

    network = read(f"g ({input_type} x) => ({input_type} y) {{ y = Identity(x) }}")
    x = np.ones(shape, np.float32)
    with pytest.raises(InputShapeError) as caught:
        core.load_network(network, "CPU").infer({"x": x})
    assert advice in str(caught.value)
    changed = eval(
        str(caught.value).partition("; ")[2].removesuffix(" would take it"), {"network": network, "InputInfo": InputInfo}
    )
    assert core.load_network(changed, "CPU").infer({"x": x})["y"].shape == (1, 3, 8, 6)


def test_unreadable_tensor_is_refused_with_the_reason(load: Load) -> None:
    class Recording:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("call detach() first")

    with pytest.raises(InputTypeError, match=r"input 'x' of network 'g': this Recording gives no array: call detach\(\) first"):
        load("float[1]").infer({"x": Recording()})
