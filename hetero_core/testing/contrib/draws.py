"""Draws of random cases of all contrib operators of ONNX Runtime: attributes, shapes, element types, absent inputs.

The inputs of a case are written as signatures, which `Generator.arrays` explains. Most operators have forms, which `add_form` enters:
signatures and values of attributes that fit together in any choice. The others have functions.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.testing.contrib.case import MICROSOFT, OPSET, ContribCase

Item = TypeVar("Item")

_WORD = re.compile(r"-(?= |$)|(\??)([A-Za-z]\w*)(?:\(([-.\d]+):([-.\d]+)\))?(?:\[([^\]]*)\])?")
_TYPES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys("TU", ("float32", "float16")),
    "D": ("float32", "float64"),
    "S": ("float32", "float64", "float16"),
    "B": ("int8", "uint8"),
    "Q": ("int8", "uint8", "int16", "uint16"),
    "Z": ("int4", "uint4"),
    "I": ("int32", "int64"),
    "N": ("int16", "int32", "int64"),
    "V": ("float32", "float64", "int32", "int64"),
    "A": ("float32", "float64", "int64", "int32", "uint8", "int8"),
}
"""Letter of a signature -> element types, of which a case has one."""
_SIZES: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("rows", "depth", "columns"), range(1, 20)),
    **dict.fromkeys(("high", "wide", "deep"), range(3, 6)),
    "length": range(1, 12),
    "hidden": (3, 16, 64),
    "group": (1, 2),
}
"""Name of a size -> its choices; all other names have the sizes from 1 to 6."""


class Generator(np.random.Generator):
    """NumPy's generator with further methods that draw the parts of cases."""

    def choose(self, items: Sequence[Item]) -> Item:
        """Returns a random item."""
        return items[int(self.integers(len(items)))]

    def flip(self) -> bool:
        """Returns True half of the time."""
        return bool(self.integers(2))

    def integer(self, low: int, high: int | None = None) -> int:
        """Returns an integer in [low, high), or in [0, low) without `high`."""
        return int(self.integers(low, high))

    def counts(self, low: int, high: int, count: int) -> list[int]:
        """Returns integers in [low, high)."""
        return [int(number) for number in self.integers(low, high, count)]

    def array(self, dtype: Any, limits: tuple[float, float] | None, shape: Sequence[int]) -> Any:
        """Returns numbers in [low, high); by default normally distributed floats, or integers from the whole range of their type."""
        if np.dtype(dtype).name.startswith(("float", "bfloat")):
            drawn: Any = self.standard_normal(shape) if limits is None else self.uniform(*limits, shape)
        elif limits is not None:
            drawn = self.integers(int(limits[0]), int(limits[1]), shape)
        else:
            low, high = (0, 1) if dtype == np.bool_ else (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max)
            drawn = self.integers(low, int(high) + 1, shape)
        return np.asarray(drawn).astype(dtype)

    def sizes(self, **limits: int | tuple[int, int]) -> dict[str, int]:
        """Returns a size of each name, in [1, limit) or in [low, high)."""
        return {name: self.integer(*((1, limit) if isinstance(limit, int) else limit)) for name, limit in limits.items()}

    def arrays(self, signature: str, sizes: dict[str, int] | None = None, **types: str | Sequence[str]) -> tuple[Any, ...]:
        """Returns an array for each word of a signature, such as "T[batch,2*heads+1] ?int32(0:9)[batch] scale -".

        A word is an element type, the limits of its numbers as in `array`, and its sizes, which are sums of products. A size that is not in
        `sizes` is drawn, and is added there. A letter is one of the types in `types` or _TYPES, the same in each word; a scale is a float32
        from 0.005 to 0.1. A word with ? gives None for every second case, and - an absent input.
        """
        sizes = {} if sizes is None else sizes
        chosen = {name: each if isinstance(each, str) else self.choose(each) for name, each in {**_TYPES, **types}.items()}
        signature = re.sub(r"\bscale\b", "float32(0.005:0.1)", signature)
        return tuple(self._draw_word(word, sizes, chosen) for word in _WORD.finditer(signature))

    def _draw_word(self, word: re.Match[str], sizes: dict[str, int], chosen: Mapping[str, str]) -> Any:
        mark, kind, low, high, shape = word.groups()
        if kind is None or (mark and self.flip()):
            return None
        limits = None if low is None else (float(low), float(high))
        measured = [self._measure(size, sizes) for size in (shape or "").split(",") if size]
        return self.array(numpy_dtype(chosen.get(kind, kind)), limits, measured)

    def _measure(self, text: str, sizes: dict[str, int]) -> int:
        terms = [[factor.strip() for factor in term.split("*")] for term in text.split("+")]
        for name in (factor for term in terms for factor in term if not factor.isdigit()):
            if name not in sizes:
                sizes[name] = self.choose(_SIZES.get(name, range(1, 7)))
        return sum(math.prod(int(factor) if factor.isdigit() else sizes[factor] for factor in term) for term in terms)


Draw = Callable[[Generator, str], ContribCase]
"""Draws a case of the operator of this name; equal states of the generator give equal cases."""
DRAWS: dict[str, Draw] = {}
"""Operator -> its draw."""


def draws(*op_types: str) -> Callable[[Draw], Draw]:
    """Returns a decorator that enters a function into DRAWS as the draw of these operators."""

    def enter(draw: Draw) -> Draw:
        DRAWS.update(dict.fromkeys(op_types, draw))
        return draw

    return enter


# Operators whose signatures and attributes fit together in any choice

_Outputs = tuple[bool, ...]
_ONE: tuple[_Outputs, ...] = ((True,),)
_TWO: tuple[_Outputs, ...] = ((True, True),)
_THREE: tuple[_Outputs, ...] = ((True, True, True),)
_FORMS: dict[str, list[Draw]] = {}


class _Size(str):
    """An attribute whose value is the size of this name."""

    __slots__ = ()


def add_form(
    op_types: str,
    *signatures: str,
    outputs: Sequence[_Outputs] = _ONE,
    constants: Sequence[int] = (),
    packed: Sequence[int] = (),
    domain: str = MICROSOFT,
    opsets: Sequence[int] = (OPSET,),
    tolerance: float = 1e-4,
    **attributes: Any,
) -> None:
    """Enters a form of operators into DRAWS. A case draws a form of its operator, then a signature, `outputs` and an opset of the form.

    An attribute with a tuple of values takes one of them; None leaves the attribute out. `constants` are inputs
    that are constants of the model half of the time, `packed` always.
    """

    def draw(rng: Generator, op_type: str) -> ContribCase:
        sizes: dict[str, int] = {}
        inputs = rng.arrays(rng.choose(signatures), sizes)
        drawn = {name: rng.choose(value) if isinstance(value, tuple) else value for name, value in attributes.items()}
        values = {name: sizes[value] if isinstance(value, _Size) else value for name, value in drawn.items() if value is not None}
        initializers = frozenset(packed or (constants if rng.flip() else ()))
        return ContribCase(op_type, inputs, values, rng.choose(outputs), initializers, domain, tolerance, rng.choose(opsets))

    for op_type in op_types.split():
        _FORMS.setdefault(op_type, []).append(draw)
        DRAWS[op_type] = _draw_form


def _draw_form(rng: Generator, op_type: str) -> ContribCase:
    return rng.choose(_FORMS[op_type])(rng, op_type)


_BIT = (0, 1)
_EPSILON = 1e-5

for _a, _b in (("a,b,c", "a,b,c"), ("a,b,c", "b,1"), ("c", "a,b,c"), ("97", "97"), ("2,64", "64"), ("a,b", "")):
    add_form("QLinearAdd QLinearMul", f"B[{_a}] scale B B[{_b}] scale B float32(0.005:0.8) B", constants=(6, 7))
add_form("QLinearLeakyRelu", "B[a,b,c] scale ?B scale ?B", alpha=(0.01, 0.1, 0.5))
add_form("QLinearSigmoid", "B[a,b,c] scale ?B float32(0.0034:0.01) ?B")
add_form(
    "QLinearWhere", *(f"bool[{_a}] B[{_b}] scale B B[a,1,c] scale B scale B" for _a, _b in (("a,b,c", "b,c"), ("1,c", "a,b,c")))
)
add_form("QLinearGlobalAveragePool", "B[2,columns,h,w] scale B scale B", channels_last=_BIT)
add_form("QuantizeLinear", "float32(-9:9)[a,b,c] scale[b] Q[b]", axis=(1, -2))
add_form("QuantizeLinear", "float32(-2000:2000)[a,b] scale Q", "float32(-9:9)[a] scale")
add_form("DequantizeLinear", "Q[a,b,c] scale[b] ?Q[b]", axis=(1, -2))
add_form("DequantizeLinear", "Q[a,b] scale ?Q", "int32[a,b] scale")
add_form("DequantizeLinear", "Z[a,b,c] scale[b] ?Z[b]", axis=(1, -2), packed=(0, 2))
add_form(
    "MatMulIntegerToFloat",
    "uint8[rows,depth] B[depth,columns] scale scale[columns] ?uint8 ?B[columns] ?float32[columns]",
    "uint8[2,3,rows,depth] B[depth,columns] scale scale ?uint8 ?B ?float32[columns]",
    "int8[2,rows,depth] int8[2,depth,columns] scale scale ?int8 ?int8 ?float32[columns]",
    constants=(1, 3),
)
add_form(
    "DynamicQuantizeMatMul",
    "float32[rows,depth] B[depth,columns] scale[columns] ?B[columns] ?float32[columns]",
    "float32(0:6)[2,3,rows,depth] B[depth,columns] scale ?B ?float32[columns]",
    "float32(-6:0)[2,rows,depth] B[2,depth,columns] scale ?B ?float32[columns]",
    "float32(0:0)[rows,depth] B[depth,columns] scale ?B",
    constants=(1, 2),
)
add_form("MatMulInteger16", "int16(-512:512)[2,rows,depth] int16(-512:512)[depth,columns]")
for _skip in ("batch,steps,", "1,steps,", "steps,"):
    _inputs = f"T[batch,steps,hidden] T[{_skip}hidden] T[hidden] ?T[hidden]"
    add_form("SkipLayerNormalization", f"{_inputs} ?T[hidden]", outputs=(*_ONE, (True, False, False, True)), epsilon=_EPSILON)
    add_form("SkipSimplifiedLayerNormalization", _inputs, outputs=(*_ONE, (True, False, False, True)), epsilon=_EPSILON)
for _scale, _axes in (("c", (2, -1)), ("b,c", (1, -2))):
    _normalized: dict[str, Any] = {"domain": "", "axis": _axes, "epsilon": _EPSILON}
    add_form("SimplifiedLayerNormalization", f"S[a,b,c] S[{_scale}]", outputs=((True, False), *_TWO), **_normalized)
    # Without float64: ONNX computes the statistics in float32, ONNX Runtime in float64.
    _inputs = f"T[a,b,c] T[{_scale}] ?T[{_scale}]"
    add_form("LayerNormalization", _inputs, outputs=(*_ONE, (True, False, True), *_THREE), opsets=range(9, 17), **_normalized)
add_form("MeanVarianceNormalization", "float32[a,b,c,d]", domain="", opsets=(8,), across_channels=_BIT, normalize_variance=_BIT)
add_form("ThresholdedRelu", "float32[a,b,c]", domain="", opsets=(9,), alpha=(0.25, 1.5))
_IDS = "int32(0:20)[batch,steps]"
_SEGMENTS = "int32(0:2)[batch,steps]"
add_form(
    "EmbedLayerNormalization",
    f"{_IDS} {_SEGMENTS} float32[20,8] float32[9,8] float32[2,8] float32[8] float32[8] ?{_SEGMENTS} ?int32(0:9)[batch,steps]",
    f"{_IDS} - float32[20,8] float32[9,8] - float32[8] float32[8] ?{_SEGMENTS} int32(0:9)[1,steps]",
    outputs=(*_TWO, *_THREE),
    epsilon=_EPSILON,
)
add_form(
    "QEmbedLayerNormalization",
    f"{_IDS} {_SEGMENTS} B[20,16] B[9,16] B[2,16] B[16] B[16] ?{_SEGMENTS} scale scale scale scale scale B B B B B",
    f"{_IDS} - B[20,16] B[9,16] - B[16] B[16] ?{_SEGMENTS} scale scale - scale scale B B - B B",
    outputs=_TWO,
    epsilon=_EPSILON,
)
add_form("BiasGelu", "float32(-9:9)[a,b,16] float32[16]")
add_form("FastGelu", "float32(-9:9)[a,b,16] ?float32[16]")
add_form("Gelu", "float32(-9:9)[a,b,16]")
add_form("QuickGelu", "float32(-9:9)[a,b,16]", alpha=(None, 0.5, 1.75))
add_form("ScaledSiLU", "T[a,b,c] ?U(0.5:2)", alpha=0.5)
add_form(
    "ConvTransposeWithDynamicPads",
    "float32[2,2*group,5,6] float32[2*group,3,2,3] int64(0:2)[4] ?float32[3*group]",
    kernel_shape=[2, 3],
    strides=([1, 1], [1, 2], [2, 1]),
    group=_Size("group"),
)
add_form("GatedRMSNorm", "T[2,3,heads*8] T[8] T[2,3,heads*8]", activation=("silu", "swish", "sigmoid"), epsilon=_EPSILON)
add_form("GatedAdd", "T[a,b,c] T[a,b,c] T[a,b,1]")
add_form("ExpandDims", "A[a,b,c] int32(-4:4)", "A[a] int32(-2:2)")
add_form("GatherND", "A[4,5,3] I(-3:3)[2,3,3]", "A[4,5,3] I(-4:4)[2,2]", "A[4,5,3] I(-4:4)[2,3,1]")
add_form("Trilu", *(f"{_type}[{_shape}] ?int64(-4:5)" for _type in ("D", "int64") for _shape in ("a,b,c", "a,b")), upper=_BIT)
add_form("UnfoldTensor", "V[5,6,7]", dim=(0, 1, -1), size=(1, 2, 4), step=(1, 2, 3))
add_form("CDist", "D[rows,size] D[others,size]", metric=("euclidean", "sqeuclidean"), tolerance=1e-3)
add_form("Range", "N(-5:5) N(6:20) ?N(1:4)", "N(-5:5)[1] N(6:20)[1] ?N(1:4)[1]", "N(6:20) N(-5:5) N(-3:0)")
add_form("Range", "D(-5:5) D(6:20) ?D(1:4)", "D(6:20)[1] D(-5:5)[1] D(-3:-1)[1]")
add_form(
    "Pad",
    "float32[high] int64(0:3)[2]",
    "float32[high,wide] int64(0:3)[1,4] ?float32",
    "float32[high,wide,deep] int64(0:3)[6] ?float32[1]",
    mode=("constant", "edge", "reflect"),
)
add_form("DynamicTimeWarping", "float32[a,b]", "float32[1,a,b]")
add_form(
    "CropAndResize",
    "float32[2,3,7,9] float32(-0.2:1.2)[boxes,4] int32(0:2)[boxes] int32(1:6)[2]",
    mode=("bilinear", "nearest"),
    extrapolation_value=(0.0, 0.5, -1.25),
)
add_form(
    "GridSample",
    "float32[2,3,6,7] float32(-1.3:1.3)[2,4,5,2]",
    mode=("bilinear", "nearest", "bicubic"),
    align_corners=_BIT,
    padding_mode=("zeros", "border", "reflection"),
)
add_form("NGramRepeatBlock", "int64(0:4)[3,length] float32[3,5]", ngram_size=(1, 2, 3, 4))
_OLD: dict[str, Any] = {"domain": "", "opsets": (9,)}
add_form("Affine ScaledTanh ParametricSoftplus", "float32[a,b,c]", alpha=(0.25, 1.5), beta=(0.5, 2.0), **_OLD)
add_form("Scale", "float32[a,b,c]", scale=(0.25, 1.5), **_OLD)
add_form("ImageScaler", "float32[2,3,4,5]", scale=0.5, bias=[0.5, -1.0, 0.25], **_OLD)
add_form("Crop", "float32[2,3,7,8]", border=([0, 1, 2, 1], [2, 0, 0, 2]), scale=(None, [2, 3]), **_OLD)
add_form("DynamicSlice", "A[5,6,7] I(-3:2)[3] I(2:9)[3]", "A[5,6,7] I(-3:2)[1] I(2:9)[1] I(-3:3)[1]", **_OLD)
_ROUTED: dict[str, Any] = {"k": (1, 2, 3), "normalize_routing_weights": _BIT}
_SWIGLU: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.5, "activation_beta": 1.0}
for _lead in ("6", "2,3"):
    _inputs = f"float32[{_lead},8] float32[6,5] float32[5,@,8] ?float32[5,@] float32[5,8,12] ?float32[5,8]"
    add_form("MoE", _inputs.replace("@", "12"), activation_type=("relu", "gelu", "silu", "identity"), **_ROUTED)
    add_form("MoE", _inputs.replace("@", "24"), swiglu_limit=(None, 0.75), **_SWIGLU, **_ROUTED)
_inputs = "T[2,3,8] float32(-0.2:0.2)[8]"
add_form(
    "DecoderMaskedMultiHeadAttention",
    "float32[batch,1,heads*4] float32[batch,heads,others,4] float32[batch,heads,others,4] ?int32(0:2)[batch,others] "
    "- - - - - - ?float32[3*heads*4]",
    scale=(None, 0.25),
    num_heads=_Size("heads"),
)
for _pairs, _turned, _heads in ((4, None, None), (2, 4, _Size("heads"))):
    _caches = f"T(-1:1)[20,{_pairs}] T(-1:1)[20,{_pairs}]"
    _inputs = f"T[batch,heads,steps,8] int64(0:20)[batch,steps] {_caches}"
    _flat = f"T[batch,steps,heads*8] int64(0:14)[1] {_caches}"
    add_form("RotaryEmbedding", _inputs, _flat, interleaved=_BIT, rotary_embedding_dim=_turned, num_heads=_heads)
for _pairs, _layout, _sections in (
    *((8, 0, ([5, 2, 1], [8, 0, 0], [1, 2, 5])), (8, 1, [4, 2, 2])),
    *((6, 0, ([3, 2, 1], [6, 0, 0], [1, 2, 3])), (6, 1, [2, 2, 2])),
):
    _inputs = f"int64(0:20)[3,batch,steps] T(-1:1)[20,{_pairs}] T(-1:1)[20,{_pairs}]"
    add_form(
        "MRotaryEmbedding",
        *(f"T[{_shape}] {_inputs}" for _shape in ("batch,steps,heads*16", "batch,heads,steps,16")),
        interleaved=_BIT,
        mrope_layout=_layout,
        mrope_section=_sections,
        num_heads=_Size("heads"),
        rotary_embedding_dim=12 if _pairs == 6 else None,
    )
_GEMM: Mapping[str, dict[str, Any]] = {
    **{name: {} for name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign")},
    "LeakyRelu": {"activation_alpha": 0.25},
    "Elu": {"activation_alpha": 0.5},
    "HardSigmoid": {"activation_alpha": 0.25, "activation_beta": 0.5},
    **{name: {"activation_alpha": 0.75} for name in ("ThresholdedRelu", "Celu")},
    **{name: {"activation_alpha": 0.5, "activation_beta": 1.25} for name in ("ParametricSoftplus", "ScaledTanh")},
}
"""Activation of FusedGemm -> the attributes of its parameters."""
for _turns in itertools.product(_BIT, _BIT):
    _a, _b = "[depth,rows]" if _turns[0] else "[rows,depth]", "[columns,depth]" if _turns[1] else "[depth,columns]"
    _flags: dict[str, Any] = {"transA": _turns[0], "transB": _turns[1], "alpha": (0.25, 1.5)}
    _words = [f"float32{_lead}{_a[1:]} float32{_lead}{_b[1:]}" for _lead in ("[", "[2,", "[2,3,")]
    add_form("FusedMatMul TransposeMatMul", *_words, **_flags)
    for _moves in itertools.product(_BIT, _BIT):
        _left, _right = (
            _shape.replace(",", ",2,3,") if _is_moved else _shape.replace("[", "[2,3,")
            for _shape, _is_moved in zip((_a, _b), _moves, strict=True)
        )
        add_form("FusedMatMul", f"D{_left} D{_right}", transBatchA=_moves[0], transBatchB=_moves[1], **_flags)
    for _name, _more in _GEMM.items():
        _words = [f"float32{_a} float32{_b} ?float32{_c}" for _c in ("[columns]", "[1,columns]", "[rows,columns]", "[rows,1]")]
        _fixed: dict[str, Any] = {"transA": _turns[0], "transB": _turns[1], "alpha": 0.5, "beta": 2.0}
        add_form("FusedGemm", *_words, activation=_name, **_fixed, **_more)
    for _each, _c in (("", ""), ("[columns]", "[columns]"), ("", "[1,columns]"), ("[columns]", "[rows,columns]"), ("", "[rows,1]")):
        for _left, _right in (("int8", "int8"), ("uint8", "B")):
            _inputs = f"{_left}{_a} scale {_left} {_right}{_b} scale{_each} {_right}{_each} ?int32(-9999:9999){_c}"
            _words = [_inputs, f"{_inputs} float32(0.1:2) {_left}"]
            add_form("QGemm", *_words, transA=_turns[0], transB=_turns[1], alpha=(1.0, 0.75, 2.0))
add_form("LinearAttentionGate", "T[2,3,heads] float32[heads] float32(-2:0)[heads]")
add_form("LinearAttentionGate", "T[2,3,heads] float32[heads] float32(-2:0)[heads] T[2,3,heads]", outputs=_TWO)


# Quantized values, windows over images, and products


@draws("QLinearSoftmax")
def _draw_qlinear_softmax(rng: Generator, op_type: str) -> ContribCase:
    kind, zero, scale = rng.choose((("uint8", 0, 1 / 256), ("uint8", 0, 1 / 128), ("int8", -128, 1 / 255), ("int8", 0, 1 / 127)))
    inputs = (*rng.arrays("B[a,b,c] scale B", B=kind), np.array(scale, np.float32), np.array(zero, kind))
    return ContribCase(op_type, inputs, {"opset": rng.choose((11, 13)), "axis": rng.integer(-3, 3)})


@draws("QLinearConcat")
def _draw_qlinear_concat(rng: Generator, op_type: str) -> ContribCase:
    kind, axis = rng.choose(_TYPES["B"]), rng.integer(-2, 2)
    sizes = {"rows": 3, "columns": 4}
    inputs = rng.arrays("scale B", B=kind)
    for _ in range(rng.integer(1, 4)):
        sizes[("rows", "columns")[axis]] = rng.integer(1, 5)
        x, *quantization = rng.arrays("B[rows,columns] scale B", sizes, B=kind)
        inputs = (*inputs, x, *(quantization if rng.integer(4) else inputs[:2]))
    constants = {index for index in range(len(inputs)) if index < 2 or index % 3 != 2} if rng.flip() else ()
    return ContribCase(op_type, inputs, {"axis": axis}, constants=frozenset(constants))


def _draw_windows(rng: Generator, rank: int, *, dilates: bool = False, has_ceil: bool = False) -> dict[str, Any]:
    """Returns attributes of a convolution or a pooling over sizes of at least 7."""
    kernel = rng.counts(1, 4, rank)
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if rng.flip():
        attributes["strides"] = rng.counts(1, 4, rank)
    if dilates and rng.flip():
        attributes["dilations"] = rng.counts(1, 3, rank)
    match rng.integer(3):
        case 0:
            attributes["pads"] = [rng.integer(size) for size in kernel * 2]
        case 1:
            attributes["auto_pad"] = rng.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if has_ceil and "auto_pad" not in attributes and rng.flip():
        attributes["ceil_mode"] = 1
    return attributes


def _draw_image(rng: Generator, channels: int, rank: int) -> tuple[int, list[int]]:
    """Returns whether the channels come last, and a shape."""
    is_last, sizes = rng.integer(2), rng.counts(7, 10, rank)
    return is_last, [2, *sizes, channels] if is_last else [2, channels, *sizes]


@draws("QLinearAveragePool")
def _draw_qlinear_average_pool(rng: Generator, op_type: str) -> ContribCase:
    rank = rng.integer(1, 4)
    is_last, shape = _draw_image(rng, 3, rank)
    attributes = _draw_windows(rng, rank, has_ceil=True) | {"channels_last": is_last, "count_include_pad": rng.integer(2)}
    return ContribCase(op_type, rng.arrays(f"B{shape} scale B scale B"), attributes)


_GROUPS = ((1, 4, 3), (2, 4, 3), (3, 3, 1))
"""Groups, outputs and channels of a group of a convolution."""


@draws("QLinearConv")
def _draw_qlinear_conv(rng: Generator, op_type: str) -> ContribCase:
    group, outputs, channels = rng.choose(_GROUPS)
    rank, (x_type, w_type) = rng.integer(1, 3), rng.choose((("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")))
    is_last, shape = _draw_image(rng, group * channels, rank)
    attributes = _draw_windows(rng, rank, dilates=True) | {"group": group, "channels_last": is_last}
    each = [outputs] if rng.flip() else []
    zero = f"W(0:1){each}" if each or w_type == "int8" else "W"
    weight = f"W{[outputs, channels, *attributes['kernel_shape']]} scale{each} {zero}"
    inputs = rng.arrays(f"B{shape} scale B {weight} float32(0.1:2) B ?int32(-9999:9999)[{outputs}]", B=x_type, W=w_type)
    return ContribCase(op_type, inputs, attributes, constants=frozenset({3, 4, 5, 8} if rng.flip() else ()))


DRAWS["NhwcMaxPool"] = lambda rng, op_type: ContribCase(
    op_type, rng.arrays("B[2,8,9,3]"), _draw_windows(rng, 2, dilates=True, has_ceil=True)
)


@draws("FusedConv")
def _draw_fused_conv(rng: Generator, op_type: str) -> ContribCase:
    rank, (group, outputs, channels) = rng.integer(1, 3), rng.choose(_GROUPS)
    windows = _draw_windows(rng, rank, dilates=True)
    windows.pop("auto_pad", None)
    params = {"LeakyRelu": [0.25], "Clip": [-0.5, 0.75], "HardSigmoid": [0.25, 0.5]}
    name = rng.choose(("Relu", "Tanh", "Sigmoid", "HardSwish", *params))
    attributes = {**windows, "group": group, "activation": name}
    attributes |= {"activation_params": params[name]} if name in params else {}
    weight = f"float32{[outputs, channels, *windows['kernel_shape']]}"
    inputs = rng.arrays(f"float32{[2, group * channels, *rng.counts(7, 10, rank)]} {weight} ?float32[{outputs}]")
    return ContribCase(op_type, inputs, attributes)


@draws("Inverse")
def _draw_inverse(rng: Generator, op_type: str) -> ContribCase:
    size, dtype = rng.integer(1, 6), rng.choose((np.float32, np.float64, np.float16))
    x = rng.standard_normal((*rng.choose(((), (3,), (2, 2))), size, size)) + 4 * size * np.eye(size)
    return ContribCase(op_type, (x.astype(dtype),), tolerance=1e-3)


# Texts, numbers of tokens, and hashes


DRAWS["Unique"] = lambda rng, op_type: ContribCase(
    op_type, (rng.integers(0, 6, rng.integer(1, 12)).astype(np.float32),), outputs=_THREE[0]
)


@draws("MurmurHash3")
def _draw_murmur_hash3(rng: Generator, op_type: str) -> ContribCase:
    (x,) = rng.arrays("A(-999:999)[a,b]", A=("int32", "uint32", "int64", "uint64", "float32", "float64"))
    texts = np.array([["", "a"], ["text of a few words", "größe"]], object)
    return ContribCase(op_type, (rng.choose((x, x, texts)),), {"positive": rng.integer(2), "seed": rng.integer(9)})


@draws("Tokenizer")
def _draw_tokenizer(rng: Generator, op_type: str) -> ContribCase:
    texts = ["".join(rng.choose("ab ,") for _ in range(rng.integer(1, 9))) for _ in range(4)]
    rules: Any = ({"separators": [" "]}, {"separators": [" ", ","]}, {"separators": [""]}, {"tokenexp": "[a-b]+"})
    rule = rng.choose(rules)
    least = 1 if rule.get("separators") == [""] else rng.integer(1, 3)
    x = np.array(texts, object).reshape(rng.choose(((4,), (2, 2))))
    return ContribCase(op_type, (x,), {"mark": 0, "mincharnum": least, "pad_value": "#", **rule})


# Weights quantized in blocks, and mixtures of experts


@draws("MatMulNBits")
def _draw_mat_mul_nbits(rng: Generator, op_type: str) -> ContribCase:
    bits, size, depth, columns = rng.choose((2, 4, 8)), rng.choose((16, 32, 64)), rng.integer(1, 130), rng.integer(1, 40)
    blocks = -(-depth // size)
    zeros = ["-", f"uint8[{columns},{-(-blocks * bits // 8)}]", *([] if bits == 8 else [f"T(-6:6)[{columns},{blocks}]"])]
    inputs = rng.arrays(
        f"T[{rng.choose(('1', '3', '2,3'))},{depth}] uint8[{columns},{blocks},{size * bits // 8}] T(0.005:0.1)[{columns},{blocks}] "
        f"{rng.choose(zeros)} - ?T[{columns}]"
    )
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": size}
    return ContribCase(op_type, inputs, attributes, constants=frozenset({1, 2, 3} if rng.flip() else ()), tolerance=1e-3)


@draws("MatMulBnb4")
def _draw_mat_mul_bnb4(rng: Generator, op_type: str) -> ContribCase:
    size, depth, columns = rng.choose((16, 32, 64)), rng.integer(1, 70), rng.integer(1, 20)
    count = depth * columns
    inputs = rng.arrays(f"float32[{rng.choose(('3', '2,3'))},{depth}] uint8[{(count + 1) // 2}] scale[{-(-count // size)}]")
    attributes = {"K": depth, "N": columns, "block_size": size, "quant_type": rng.integer(2)}
    return ContribCase(op_type, inputs, attributes, tolerance=1e-3)


_INDICES = ("I(-6:6)", "I(-6:6)[3]", "I(-6:6)[2,3]")


@draws("GatherBlockQuantized")
def _draw_gather_block_quantized(rng: Generator, op_type: str) -> ContribCase:
    indices, kind = rng.choose(_INDICES), rng.choose(("uint8", "int4", "uint4"))
    if kind == "uint8":
        bits, size, blocks = rng.choose((4, 8)), rng.choose((16, 32)), rng.integer(1, 4)
        shapes = [6, blocks * size * bits // 8], [6, blocks], [6, -(-blocks * bits // 8)]
        attributes = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
    else:
        axis, quantized = rng.choose(((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)))
        x, scales = ([size if index == quantized else 6 for index in range(3)] for size in (40, 3))
        shapes = x, scales, scales
        attributes = {"block_size": 16, "gather_axis": axis, "quantize_axis": quantized}
    signature = f"W{shapes[0]} {indices} T(0.005:0.1){shapes[1]} ?W{shapes[2]}"
    return ContribCase(op_type, rng.arrays(signature, W=kind), attributes, constants=frozenset({0, 2, 3}))


@draws("QMoE")
def _draw_qmo_e(rng: Generator, op_type: str) -> ContribCase:
    bits, hidden, inner = rng.choose((4, 8)), 32, 64
    size = rng.choose((0, 16, 32)) if bits == 4 else 0
    gate = rng.choose(({"activation_type": "silu"}, {"activation_type": "relu"}, _SWIGLU | {"swiglu_limit": 0.75}))
    attributes = {"k": rng.integer(1, 4), "normalize_routing_weights": rng.integer(2)}
    attributes |= {"expert_weight_bits": bits, "weights_prepacked": 0}
    attributes |= gate | ({"block_size": size} if size else {})
    shapes = ((inner * (2 if gate["activation_type"] == "swiglu" else 1), hidden), (hidden, inner))
    signature = f"float32[{rng.choose(('6', '2,3'))},{hidden}] float32[6,4]"
    zeros = ""
    for rows, depth in shapes:
        blocks = [depth // size] if size else []
        signature += f" uint8[4,{rows},{depth * bits // 8}] scale{[4, rows, *blocks]} ?float32[4,{rows}]"
        zeros += f" uint8{[4, rows, -(-blocks[0] * bits // 8)] if size else [4, -(-rows * bits // 8)]}"
    signature += rng.choose(("", f" - - -{zeros}", f" - - -{zeros} - float32(0.1:1)[6,4]"))
    return ContribCase(op_type, rng.arrays(signature), attributes, tolerance=1e-2 if bits == 8 else 1e-3)


# Attention, its caches and masks

_MASKED = 4e-3
"""In a row with all keys masked, 10,000 is subtracted from each score, which leaves a resolution of about a thousandth."""
_SCALED: tuple[dict[str, Any], ...] = ({}, {"scale": 0.25, "mask_filter_value": -5000.0})
_BIASES = tuple(f"float32[{batch},{heads},steps,before+others]" for batch in ("1", "batch") for heads in ("1", "heads"))


def _draw_mask(rng: Generator, sizes: dict[str, int]) -> Any:
    """Returns None, or a mask in a form that ONNX Runtime's CPU kernels take."""
    words = ("-", "int32(1:keys)[batch]", "int32(0:2)[batch,before+steps]", "int32(0:2)[batch,steps,before+steps]")
    keys = sizes["before"] + sizes["steps"]
    (mask,) = rng.arrays(rng.choose(words).replace("keys", str(keys + 1)), sizes)
    if mask is None or mask.ndim > 1:
        if mask is not None:
            mask[..., 0] = 1
        return mask
    return mask if rng.flip() else np.concatenate([mask, rng.integers(0, mask)]).astype(np.int32)


@draws("Attention")
def _draw_attention(rng: Generator, op_type: str) -> ContribCase:
    sizes = rng.sizes(batch=4, steps=7, heads=4, size=(2, 6), width=(4, 12)) | {"before": rng.choose((0, 0, 1, 4))}
    heads, size, before = sizes["heads"], sizes["size"], sizes["before"]
    own = not before and rng.flip()
    sizes |= {"wide": size + 2 if own else size, "others": sizes["steps"]}
    columns = "[2*heads*size+heads*wide]"
    past = "float32[2,batch,heads,before,size]" if before else "-"
    bias = rng.choose(_BIASES) if rng.integer(3) == 0 and not before else "-"
    x, weight, added, past, bias = rng.arrays(
        f"float32[batch,steps,width] float32[width,{columns[1:]} ?float32{columns} {past} {bias}", sizes
    )
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": rng.integer(2), **rng.choose(_SCALED)}
    if own:
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * sizes["wide"]]
    outputs = (True, True) if before or (not own and rng.flip()) else (True,)
    return ContribCase(op_type, (x, weight, added, _draw_mask(rng, sizes), past, bias), attributes, outputs, tolerance=_MASKED)


@draws("QAttention")
def _draw_qattention(rng: Generator, op_type: str) -> ContribCase:
    sizes = rng.sizes(batch=4, steps=7, heads=4, size=(2, 6), width=(4, 12)) | {"before": rng.choose((0, 1, 4))}
    each = rng.choose(("", "[3*heads*size]"))
    first = f"uint8[batch,steps,width] B[width,3*heads*size] float32[3*heads*size] float32(0.0006:0.0125) scale{each}"
    past = "float32[2,batch,heads,before,size]" if sizes["before"] else "-"
    *inputs, x_zero, w_zero, past = rng.arrays(f"{first} ?uint8 ?B{each} {past}", sizes)
    attributes = {"num_heads": sizes["heads"], "unidirectional": rng.integer(2)}
    outputs = (True, True) if sizes["before"] else (True,)
    return ContribCase(op_type, (*inputs, _draw_mask(rng, sizes), x_zero, w_zero, past), attributes, outputs, tolerance=_MASKED)


@draws("MultiHeadAttention")
def _draw_multi_head_attention(rng: Generator, op_type: str) -> ContribCase:
    kind = rng.choose(("self", "cross", "cached", "encoder"))
    sizes = rng.sizes(batch=4, steps=7, others=7, heads=4, size=(2, 6)) | {"before": rng.integer(1, 5) if kind == "cached" else 0}
    if kind in ("self", "cached"):
        sizes["others"] = sizes["steps"]
    sizes["wide"] = sizes["size"] + (2 if kind in ("self", "cross") and rng.flip() else 0)
    keys = "float32[batch,others,heads*size] float32[batch,others,heads*wide] ?float32[2*heads*size+heads*wide]"
    if kind == "encoder":
        keys = "float32[batch,heads,others,size] float32[batch,heads,others,size] -"
    masks = ["-", "int32(0:2)[batch,before+others]"] + ([] if kind == "cached" else [f"int32(1:{sizes['others'] + 1})[batch]"])
    bias = "-" if rng.integer(3) else rng.choose(_BIASES)
    past = "float32[batch,heads,before,size] float32[batch,heads,before,size]" if kind == "cached" else "- -"
    inputs = rng.arrays(f"float32[batch,steps,heads*size] {keys} {rng.choose(masks)} {bias} {past}", sizes)
    is_causal = int(kind in ("self", "cached") and rng.flip())
    attributes = {"num_heads": sizes["heads"], "unidirectional": is_causal, **rng.choose(_SCALED)}
    outputs = (True, True, True) if kind == "cached" else (True,)
    return ContribCase(op_type, inputs, attributes, outputs, tolerance=_MASKED)


@draws("GroupQueryAttention")
def _draw_group_query_attention(rng: Generator, op_type: str) -> ContribCase:
    kind = rng.choose(("float32", "float32", "float16"))
    sizes = rng.sizes(batch=4, groups=3, repeats=4, steps=(2, 8)) | {"size": rng.choose((16, 32))}
    batch, is_prompt, does_rotate = sizes["batch"], rng.flip(), rng.flip()
    heads = sizes["heads"] = sizes["groups"] * sizes["repeats"]
    total, past = sizes["steps"], "- -"
    if not is_prompt:
        sizes["steps"] = 1 if batch > 1 else rng.integer(1, 4)
        before = rng.integer(1, 8)
        total, past = before + sizes["steps"], " ".join([f"T[batch,groups,{before + rng.choose((0, 0, 5))},size]"] * 2)
    steps = sizes["steps"]
    counts = np.full(batch, total)
    if not is_prompt and steps == 1:
        counts[1:] = rng.integers(2, total + 1, batch - 1)
    separate = "T[batch,steps,heads*size] T[batch,steps,groups*size] T[batch,steps,groups*size]"
    packed = "T[batch,steps,heads*size+2*groups*size] - -"
    caches = f"T(-1:1)[16,{sizes['size'] // 2}]" if does_rotate else "-"
    bias = "-" if rng.integer(4) else rng.choose(_BIASES).replace("float32", "T").replace("before+others", str(total))
    sink = "-" if rng.integer(4) else "T[heads]"
    signature = f"{rng.choose((separate, separate, packed))} {past} {caches} {caches} {bias} {sink}"
    *inputs, cosines, sines, bias, sink = rng.arrays(signature, sizes, T=kind)
    positions = counts[:, None] - steps + np.arange(steps) if does_rotate and rng.integer(4) == 0 else None
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": sizes["groups"]}
    attributes |= {"do_rotary": 1, "rotary_interleaved": rng.integer(2)} if does_rotate else {}
    for name, value in (("local_window_size", rng.integer(1, 6)), ("softcap", 5.0), ("scale", 0.25)):
        attributes |= {} if rng.integer(3) else {name: value}
    if sink is None and rng.integer(4) == 0:
        attributes["smooth_softmax"] = 1
    lengths = np.asarray(counts - 1, np.int32), np.array(total, np.int32)
    return ContribCase(op_type, (*inputs, *lengths, cosines, sines, positions, bias, sink), attributes, (True, True, True))


@draws("SparseAttention")
def _draw_sparse_attention(rng: Generator, op_type: str) -> ContribCase:
    sizes, is_prompt, does_rotate = rng.sizes(batch=3, groups=3, repeats=3), rng.flip(), rng.flip()
    heads = sizes["heads"] = sizes["groups"] * sizes["repeats"]
    sizes["steps"] = rng.integer(2, 40) if is_prompt else 1
    total = sizes["steps"] if is_prompt else rng.integer(2, 48)
    layouts = 1 if heads % 2 else rng.choose((1, 2))
    masks = [np.tril(rng.integers(0, 2, (3, 3))) | np.eye(3, dtype=np.int64) for _ in range(layouts)]
    rows = np.stack([np.cumsum([0, *mask.sum(axis=1)]) for mask in masks]).astype(np.int32)
    columns = np.full((layouts, int(rows.max())), -1, np.int32)
    for index, mask in enumerate(masks):
        places = np.nonzero(mask)[1]
        columns[index, : len(places)] = places
    past = "float32[batch,groups,48,16]"
    first = f"float32[batch,steps,heads*16] float32[batch,steps,groups*16] float32[batch,steps,groups*16] {past} {past}"
    caches = rng.arrays("float32(-1:1)[64,8] float32(-1:1)[64,8]") if does_rotate else ()
    lengths = np.array(total, np.int32), np.full(sizes["batch"], total, np.int32)
    attributes = {"num_heads": heads, "kv_num_heads": sizes["groups"], "sparse_block_size": 16}
    attributes |= {"do_rotary": 1, "rotary_interleaved": rng.integer(2)} if does_rotate else {}
    inputs = (*rng.arrays(first, sizes), rows, columns, *lengths, *caches)
    return ContribCase(op_type, inputs, attributes, (True, True, True), aliases=((1, 3), (2, 4)))


# LSTMs, linear attention, and convolutions with a state

_STEP = 1e-2
"""A hidden state on the border between two codes of 8 bits falls to either side by the last bit of a sigmoid."""
_LSTM_INPUTS = "?float32[directions,8*size] ?int32(1:{})[batch] ?float32[directions,batch,size] ?float32[directions,batch,size] {}"


def _draw_lstm(rng: Generator) -> tuple[dict[str, Any], dict[str, int], str]:
    """Returns attributes of an LSTM, its sizes, and the signature from its bias to its peepholes."""
    sizes = rng.sizes(steps=6, batch=4, width=(2, 8), size=(2, 6))
    attributes: dict[str, Any] = {"hidden_size": sizes["size"], "direction": rng.choose(("forward", "reverse", "bidirectional"))}
    sizes["directions"] = 2 if attributes["direction"] == "bidirectional" else 1
    for name, value in (("clip", 0.75), ("input_forget", 1), ("activations", ["Sigmoid", "Tanh", "Relu"] * sizes["directions"])):
        attributes |= {} if rng.integer(4) else {name: value}
    peepholes = "-" if rng.integer(3) else "float32[directions,3*size]"
    return attributes, sizes, _LSTM_INPUTS.format(sizes["steps"] + 1, peepholes)


@draws("DynamicQuantizeLSTM")
def _draw_dynamic_quantize_lstm(rng: Generator, op_type: str) -> ContribCase:
    attributes, sizes, middle = _draw_lstm(rng)
    each = rng.choose(("[directions]", "[directions,4*size]"))
    zero = rng.integer(256) if rng.flip() else 0
    kind, limits = ("uint8", f"({zero}:{zero + 1})") if zero else ("int8", "(0:1)")
    quantization = f"float32(0.0005:0.01){each} B{limits}{each}"
    weights = "B[directions,width,4*size] B[directions,size,4*size]"
    inputs = rng.arrays(f"float32[steps,batch,width] {weights} {middle} {quantization} {quantization}", sizes, B=kind)
    constants = frozenset({1, 2, 8, 9, 10, 11})
    return ContribCase(op_type, inputs, attributes, (True, True, True), constants, tolerance=_STEP)


_RULES = ("linear", "gated", "delta", "gated_delta")


@draws("LinearAttention")
def _draw_linear_attention(rng: Generator, op_type: str) -> ContribCase:
    heads, groups = rng.choose(((2, 2), (4, 2), (1, 1), (2, 4)))
    sizes = rng.sizes(batch=3, steps=6) | {"heads": heads, "groups": groups, "size": rng.choose((4, 8)), "wide": rng.choose((4, 6))}
    rule = rng.choose(_RULES)
    decay = rng.choose(("float32(-2:0)[batch,steps,groups]", "float32(-2:0)[batch,steps,groups*size]"))
    beta = rng.choose(("float32(0:1)[batch,steps,1]", "float32(0:1)[batch,steps,groups]"))
    gates = f"{decay if rule.startswith('gated') else '-'} {beta if rule.endswith('delta') else '-'}"
    values = "float32[batch,steps,groups*wide] ?float32[batch,groups,size,wide]"
    query, key, *others = rng.arrays(f"float32[batch,steps,heads*size] float32[batch,steps,groups,size] {values} {gates}", sizes)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    attributes = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule, **rng.choose(({}, {"scale": 0.5}))}
    inputs = (query, key.reshape(*key.shape[:2], -1), *others)
    return ContribCase(op_type, inputs, attributes, (True, True), tolerance=1e-3)


def _draw_taps(rng: Generator) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the attributes of a causal convolution, and its sizes; past is the number of steps in its state."""
    sizes = rng.sizes(channels=6, taps=5)
    dilation = rng.integer(1, 3)
    sizes["past"] = (sizes["taps"] - 1) * dilation
    return {"activation": rng.choose(("none", "silu", "swish")), "dilation": dilation}, sizes


@draws("CausalConvWithState")
def _draw_causal_conv_with_state(rng: Generator, op_type: str) -> ContribCase:
    attributes, sizes = _draw_taps(rng)
    is_last = rng.integer(2)
    x, past = ("steps,channels", "past,channels") if is_last else ("channels,steps", "channels,past")
    inputs = rng.arrays(f"float32[batch,{x}] float32[channels,1,taps] ?float32[channels] ?float32[batch,{past}]", sizes)
    return ContribCase(op_type, inputs, {**attributes, "channels_last": is_last}, (True, True))
