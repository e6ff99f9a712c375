"""Products with an epilogue: which nodes are joined, what cuBLASLt is told, and that its numbers are those of its header."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hetero_cupy import cublaslt_library
from hetero_cupy.cublaslt_library import CublasLt, HeuristicResult, MatrixLayout, ProductForm, load_cublaslt
from hetero_cupy.cublaslt_products import LtProducts
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime
from hetero_tests.larger_models import bert_model

from hetero_core import Core, Network
from hetero_core.errors import ConfigValueError
from hetero_core.testing.compare import max_relative_difference

from .compiled import transform_network
from .test_gemm import DTYPES, ELEMENTS, LIBRARY, HostArray, draw, read_matrix

ON = {"GPU_CUBLASLT": True}
MLP = """g (float[3,4] x) => (float[3,2] y) <float[6] b = {1,-1,2,-2,3,-3},
    float[4,6] w = {1,2,3,4,5,6,-1,-2,-3,-4,-5,-6,1,0,1,0,1,0,0,1,0,1,0,1}, float[2,6] v = {1,0,1,0,1,0,0,1,0,1,0,1}, float[2] c = {1, -2}>
    { p = MatMul (x, w) q = Add (b, p) r = Relu (q) y = Gemm <transB = 1> (r, v, c) }"""


def list_operators(network: Network, *, fuses: bool = False, precision: str = "f32") -> list[str]:
    return [node.op_type for node in transform_network(network, precision=precision, fuses=fuses, has_epilogues=True).nodes]


def test_bias_and_activation_join_their_product(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    network = read(MLP)
    assert list_operators(network) == list_operators(network, fuses=True) == ["Linear", "Linear"]
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    found = core.load_network(network, "GPU", ON).infer({"x": x})["y"]
    assert runtime.cards()[0].epilogues == ["Relu", ""]
    np.testing.assert_allclose(found, core.load_network(network, "CPU").infer({"x": x})["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "operators", "reason"),
    [
        ("Add (p, x)", ["MatMul", "Add"], "a residual is no bias"),
        ("Add (p, one)", ["MatMul", "Add"], "one number is no vector of columns"),
        ("Sub (p, b)", ["MatMul", "Sub"], "not added"),
        ("Add (p, b)", ["Linear"], "a bias"),
    ],
)
def test_only_a_constant_vector_is_a_bias(read: Callable[..., Network], text: str, operators: list[str], reason: str) -> None:
    network = read(
        f"g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {{1,2,3,4}}, float[2] b = {{1,2}}, float[1] one = {{1}}>"
        f"{{ p = MatMul (x, w) y = {text} }}"
    )
    assert list_operators(network) == operators, reason


def test_gelu_by_erf_joins_in_16_bits_alone(core: Core) -> None:
    network = core.read_network(bert_model(1, layers=1, length=4))
    assert list_operators(network).count("Gelu") == 1
    assert list_operators(network, precision="f16").count("Gelu") == 0
    inputs = {"states": np.random.default_rng(0).standard_normal((1, 4, 768)).astype(np.float32)}
    expected = core.load_network(network, "CPU").infer(inputs)
    for hint, bound in (("f32", 1e-5), ("f16", 2e-3), ("bf16", 2e-2)):
        config = {**ON, "INFERENCE_PRECISION_HINT": hint, "GPU_FUSION": True, "GPU_GRAPHS": True, "GPU_ATTENTION": True}
        loaded = core.load_network(network, "GPU", config)
        for name, found in loaded.infer(inputs).items():
            assert max_relative_difference(found, expected[name]) <= bound


def test_shape_that_the_library_has_no_plan_for_is_a_product_and_formulas(
    core: Core, read: Callable[..., Network], runtime: FakeRuntime
) -> None:
    for activation, function in (("Relu", lambda x: np.maximum(x, 0)), ("Tanh", np.tanh)):
        network = read(
            "g (float[2,2] x) => (float[2,3] y) <float[2,3] w = {1,2,3,4,5,6}, float[3] b = {-1,2,-9}>"
            f"{{ p = MatMul (x, w) q = Add (p, b) y = {activation} (q) }}"
        )
        x = np.array([[1, -1], [0.5, 2]], np.float32)
        w = np.arange(1, 7, dtype=np.float64).reshape(2, 3)
        found = core.load_network(network, "GPU", ON).infer({"x": x})["y"]
        np.testing.assert_allclose(found, function(x @ w + [-1, 2, -9]), rtol=1e-5)
    assert runtime.cards()[0].epilogues == []


def test_library_that_is_not_there_is_an_error(read: Callable[..., Network]) -> None:
    runtime = FakeRuntime()
    runtime.cards()[0].find_products = lambda: None  # type: ignore[method-assign,return-value]  # a machine without it
    with Core() as core:
        core.register_plugin("BARE", GpuDevice("BARE", runtime))
        with pytest.raises(
            ConfigValueError, match="GPU_CUBLASLT of device BARE: libcublasLt, which comes with cuBLAS, is not found; pip"
        ):
            core.load_network(read(MLP), "BARE", ON)
        x = np.ones((3, 4), np.float32)
        assert core.load_network(read(MLP), "BARE", {"GPU_CUBLASLT": False}).infer({"x": x})["y"].shape == (3, 2)


class HostLt:
    """cublasLtMatmul as its manual describes it, on the form of a product."""

    def __init__(self) -> None:
        self.forms: list[ProductForm] = []
        self.has_plan = True

    def plan(self, form: ProductForm) -> Any:
        self.forms.append(form)
        return SimpleNamespace(form=form, workspace_bytes=16) if self.has_plan else None

    def run(self, plan: Any, *, a: int, b: int, d: int, workspace: int, stream: int) -> None:
        form, element = plan.form, next(kind for kind, dtype in ELEMENTS.items() if dtype.name == plan.form.dtype)
        assert (workspace != 0, stream) == (True, 7)
        assert all(address % layout.alignment == 0 for address, layout in ((a, form.a), (b, form.b), (d, form.d)))
        left, right = (
            read_matrix(address, element, layout.rows, layout.columns, layout.lead).astype(np.float32)
            for address, layout in ((a, form.a), (b, form.b))
        )
        left, right = left.T if form.turns_a else left, right.T if form.turns_b else right
        y = left @ right
        if form.epilogue & 4:
            y = y + read_matrix(form.bias, element, form.d.rows, 1, form.d.rows).astype(np.float32)
        if form.epilogue & 2:
            y = np.maximum(y, 0)
        read_matrix(d, element, form.d.rows, form.d.columns, form.d.lead)[...] = y


CUPY = SimpleNamespace(
    **{
        **vars(LIBRARY),
        "empty": lambda shape, dtype: np.full(shape, 99, dtype).view(HostArray),
        "cuda": SimpleNamespace(**vars(LIBRARY.cuda), get_current_stream=lambda: SimpleNamespace(ptr=7)),
    }
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 4, 3), (2, 1, 5, 3)])
@pytest.mark.parametrize("turned", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("activation", ["", "Relu"])
def test_library_is_told_the_product_whatever_lies_how(dtype: Any, shape: tuple[int, ...], turned: Any, activation: str) -> None:
    a, b, bias = draw(shape, dtype, seed=0), draw((3, 4), dtype, seed=1), draw((4,), dtype, seed=2)
    if 0 in turned:
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).view(HostArray).swapaxes(-1, -2)
    if 1 in turned:
        b = np.ascontiguousarray(b.T).view(HostArray).T
    library = HostLt()
    products = LtProducts(CUPY, library)
    expected = np.matmul(*(np.asarray(x).astype(np.float64) for x in (a, b))) + np.asarray(bias).astype(np.float64)
    for _ in range(2):
        found = products.multiply(a, b, bias, activation=activation, uses_tf32=False)
        np.testing.assert_array_equal(np.asarray(found).astype(np.float64), np.maximum(expected, 0) if activation else expected)
    (form,) = {(one.epilogue, one.compute, one.dtype) for one in library.forms}
    assert form == (6 if activation else 4, 68, dtype.name)


def test_precision_and_missing_plans_are_said() -> None:
    library = HostLt()
    a, b, bias = (draw(shape, np.float32, seed=0) for shape in ((2, 2), (2, 2), (2,)))
    LtProducts(CUPY, library).multiply(a, b, bias, activation="Gelu", uses_tf32=True)
    assert [(form.compute, form.epilogue) for form in library.forms] == [(77, 36)]
    library.has_plan = False
    assert LtProducts(CUPY, library).multiply(a, b, bias, activation="", uses_tf32=False) is None
    assert LtProducts(CUPY, library).multiply(a[:0], b, bias, activation="", uses_tf32=False) is None


NAMES = {
    "CUBLASLT_EPILOGUE_DEFAULT": cublaslt_library.EPILOGUE_DEFAULT,
    "CUBLASLT_EPILOGUE_RELU": cublaslt_library.EPILOGUE_RELU,
    "CUBLASLT_EPILOGUE_BIAS": cublaslt_library.EPILOGUE_BIAS,
    "CUBLASLT_EPILOGUE_GELU": cublaslt_library.EPILOGUE_GELU,
    "CUBLASLT_EPILOGUE_RELU_BIAS": cublaslt_library.EPILOGUE_RELU | cublaslt_library.EPILOGUE_BIAS,
    "CUBLASLT_EPILOGUE_GELU_BIAS": cublaslt_library.EPILOGUE_GELU | cublaslt_library.EPILOGUE_BIAS,
    "CUBLASLT_MATMUL_DESC_TRANSA": cublaslt_library.DESC_TRANSA,
    "CUBLASLT_MATMUL_DESC_TRANSB": cublaslt_library.DESC_TRANSB,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": cublaslt_library.DESC_EPILOGUE,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": cublaslt_library.DESC_BIAS_POINTER,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": cublaslt_library.PREF_MAX_WORKSPACE_BYTES,
    **{
        f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{matrix}_BYTES": number
        for matrix, number in zip("ABCD", cublaslt_library.PREF_MIN_ALIGNMENTS, strict=True)
    },
    "CUBLAS_OP_N": cublaslt_library.OP_N,
    "CUBLAS_OP_T": cublaslt_library.OP_T,
    "CUBLAS_COMPUTE_32F": cublaslt_library.COMPUTE_32F,
    "CUBLAS_COMPUTE_32F_FAST_TF32": cublaslt_library.COMPUTE_32F_FAST_TF32,
    "CUDA_R_32F": cublaslt_library.KINDS["float32"],
    "CUDA_R_16F": cublaslt_library.KINDS["float16"],
    "CUDA_R_16BF": cublaslt_library.KINDS["bfloat16"],
    "sizeof(cublasLtMatmulHeuristicResult_t)": ctypes.sizeof(HeuristicResult),
    **{
        f"offsetof(cublasLtMatmulHeuristicResult_t, {name})": getattr(HeuristicResult, name).offset
        for name in ("algo", "workspaceSize", "state", "wavesCount", "reserved")
    },
}


def find_headers() -> list[str]:
    found = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found is not None else []
    places = [*(path.parent for folder in folders for path in folder.glob("*/include/*.h")), Path("/usr/local/cuda/include")]
    return list(dict.fromkeys(str(place) for place in places if place.is_dir()))


def has_headers() -> bool:
    return all(any(Path(place, name).exists() for place in find_headers()) for name in ("cublasLt.h", "library_types.h"))


@pytest.mark.skipif(
    not has_headers() or shutil.which("g++") is None, reason="no cublasLt.h: pip install nvidia-cublas-cu12, and CUDA"
)
def test_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    lines = "\n".join(f'printf("%zu\\n", (size_t)({name}));' for name in NAMES)
    source = f"#include <cstdio>\n#include <cstddef>\n#include <cublasLt.h>\nint main() {{ {lines} }}"
    program = tmp_path / "probe"
    command = ["g++", "-x", "c++", "-", "-o", str(program), *(f"-I{place}" for place in find_headers())]
    subprocess.run(command, input=source, text=True, check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(NAMES, map(int, found), strict=True)) == NAMES


@pytest.mark.skipif(load_cublaslt(12) is None, reason="no libcublasLt: pip install nvidia-cublas-cu12")
def test_library_keeps_what_it_is_told() -> None:
    """The library itself, which makes descriptors without a card."""
    lt = load_cublaslt(12)
    assert lt is not None
    form = ProductForm(
        "bfloat16", 68, True, False, 36, 0x7000, MatrixLayout(3, 4, 5, 16), MatrixLayout(4, 6, 4, 256), MatrixLayout(3, 6, 3, 8)
    )
    description, layouts = lt.describe(form)

    def read(get: str, target: Any, attribute: int, kind: Any) -> int:
        value, written = kind(), ctypes.c_size_t()
        status = getattr(lt._library, get)(
            target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(kind)), ctypes.byref(written)
        )
        assert (status, written.value) == (0, ctypes.sizeof(kind))
        return int(value.value)

    of_product = "cublasLtMatmulDescGetAttribute"
    assert read(of_product, description, 0, ctypes.c_int32) == 68
    assert read(of_product, description, 1, ctypes.c_int32) == 0
    assert [read(of_product, description, name, ctypes.c_int32) for name in (3, 4)] == [1, 0]
    assert read(of_product, description, 7, ctypes.c_uint32) == 36
    assert read(of_product, description, 8, ctypes.c_uint64) == 0x7000
    of_matrix = "cublasLtMatrixLayoutGetAttribute"
    for found, wanted in zip(layouts, (form.a, form.b, form.d), strict=True):
        sizes = [read(of_matrix, found, name, ctypes.c_uint64) for name in (2, 3, 4)]
        assert (read(of_matrix, found, 0, ctypes.c_uint32), sizes) == (14, [wanted.rows, wanted.columns, wanted.lead])
    preference = lt.prefer(form)
    of_preference = "cublasLtMatmulPreferenceGetAttribute"
    assert read(of_preference, preference, 1, ctypes.c_uint64) == 32 << 20
    assert [read(of_preference, preference, name, ctypes.c_uint32) for name in (5, 6, 7, 8)] == [16, 256, 8, 8]


def test_call_that_fails_names_itself() -> None:
    library = CublasLt(SimpleNamespace(cublasLtCreate=lambda handle: 1))
    form = ProductForm(
        "float32", 68, False, False, 1, 0, MatrixLayout(1, 1, 1, 4), MatrixLayout(1, 1, 1, 4), MatrixLayout(1, 1, 1, 4)
    )
    with pytest.raises(RuntimeError, match="cublasLtCreate of cuBLASLt returned status 1"):
        library.plan(form)


def test_library_that_cannot_be_loaded_is_none() -> None:
    def refuse(name: str) -> Any:
        raise OSError(name)

    assert load_cublaslt(12, load=refuse) is None
