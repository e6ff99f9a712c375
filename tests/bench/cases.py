"""The benchmark's cases: a model with seeded random weights, the inputs of a run, and the feedback of a generating model."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from hetero_tests.block_models import BlockNetwork  # the path is set above
from hetero_tests.genai_models import make_genai_decoder
from hetero_tests.half_models import set_float_type
from hetero_tests.larger_models import larger_model
from hetero_tests.network_writer import NetworkWriter
from hetero_tests.open_models import make_decoder, make_detector, make_encoder
from hetero_tests.open_variants import make_gpt, make_unet

from hetero_core.testing.models import light_inputs, light_model, residual_model

LIGHT = ("densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet", "vgg19")
LARGER = ("bert", "gpt2_step", "mobilenet_v2", "u_net", "vit_tiny")
FIXED = (*LIGHT, *LARGER)
PROMPT, TOKENS = 128, 100
QUANTIZERS = ("dynamic", "qdq", "qoperator")
Feeds = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A benchmark case. `runs`: the feeds of a timed pass, in order; a decoder continues its prompt by `tokens` generated tokens."""

    model: onnx.ModelProto
    runs: Sequence[Feeds]
    tokens: int = 0


def make_case(name: str, batch: int = 1) -> Case:
    """Returns a case, bit-identical for the same name and batch. Raises: KeyError.

    Only the fixed models have a batch. A case has a form of float16, `half:NAME`, and quantized forms, which need onnxruntime:
    `qdq:NAME`, `qoperator:NAME` and `dynamic:NAME`. `sklearn:NAME` needs skl2onnx.
    """
    if name in FIXED or name == "residual":
        model = larger_model(name, batch) if name in LARGER else widen_batch(_make_light(name), batch)
        return Case(model, [light_inputs(model)])
    kind, _, count = name.partition(":")
    if kind == "half":
        whole = make_case(count, batch)
        runs = [
            {key: array.astype(np.float16) if array.dtype == np.float32 else array for key, array in run.items()}
            for run in whole.runs
        ]
        return Case(set_float_type(whole.model, TensorProto.FLOAT16), runs)
    if kind == "sklearn":
        return make_fitted(count)
    if kind in QUANTIZERS:
        return quantize_case(make_case(count, batch), kind)
    if count:
        return _make_chain(kind, int(count))
    return OTHERS[name]()


def list_cases() -> tuple[str, ...]:
    """Returns the names of all cases except the chains, which have a length after a colon."""
    return (*FIXED, *OTHERS)


def write_case(case: Case, folder: Path) -> None:
    """Writes the files of a case for a measuring process, which builds no models."""
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    np.savez(
        folder / "inputs.npz", **{f"{index}/{name}": array for index, run in enumerate(case.runs) for name, array in run.items()}
    )
    (folder / "case.json").write_text(json.dumps({"runs": len(case.runs), "tokens": case.tokens}), encoding="utf-8")


def _make_light(name: str) -> onnx.ModelProto:
    return residual_model() if name == "residual" else light_model(name)


def widen_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Returns a single-image model with a larger batch: changes its inputs, outputs and constant Reshape targets in place."""
    if batch == 1:
        return model
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    targets = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in targets:
            sizes = numpy_helper.to_array(tensor).copy()
            # 0 copies the size of the input.
            sizes[0] = 0 if sizes[0] == 1 else sizes[0]
            tensor.CopyFrom(numpy_helper.from_array(sizes, tensor.name))
    del model.graph.value_info[:]
    return model


def _make_chain(kind: str, length: int) -> Case:
    """Returns `length` operators on 16 elements: `elementwise` cycles through Add, Abs, Mul, Tanh; in `mixed` every fourth is a MatMul."""
    operators = {"elementwise": ("Add", "Abs", "Mul", "Tanh"), "mixed": ("MatMul", "Tanh", "Mul", "Abs")}[kind]
    writer = NetworkWriter(kind)
    x = writer.add_input("x", (4, 4))
    for index in range(length):
        op_type = operators[index % 4]
        shape = {"Add": (4,), "Mul": (4,), "MatMul": (4, 4)}.get(op_type)
        x = writer.add_node(op_type, x, *() if shape is None else (writer.draw_weight(*shape, deviation=0.5, mean=0.5),))
    writer.add_output(x, (4, 4))
    model = writer.build_model()
    return Case(model, [light_inputs(model)])


def _make_generation(make_model: Callable[[], onnx.ModelProto]) -> Case:
    model = make_model()
    return Case(model, [{"tokens": np.arange(PROMPT)[None] % 1000, **_empty_past(model)}], TOKENS)


def _make_genai(bits: int) -> Case:
    model, prompt = make_genai_decoder(bits=bits), 16
    feeds = {"tokens": np.arange(prompt)[None] % 1000, "attention_mask": np.ones((1, prompt), np.int64), **_empty_past(model)}
    return Case(model, [feeds], 64)


def _make_prefill() -> Case:
    model, rng = make_decoder(), np.random.default_rng(5)
    lengths = rng.choice(np.arange(16, 300), 17, replace=False)
    past = _empty_past(model)
    return Case(model, [{"tokens": rng.integers(0, 1000, (1, int(length))), **past} for length in lengths])


def _empty_past(model: onnx.ModelProto) -> Feeds:
    """Returns empty past keys and values."""
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return {name: np.zeros((1, size[1], 0, size[3]), np.float32) for name, size in sizes.items() if name.startswith("past")}


def _make_encoder() -> Case:
    rng = np.random.default_rng(5)
    shapes = [(int(rng.integers(1, 9)), int(rng.integers(8, 129))) for _ in range(30)]
    return Case(make_encoder(), [{"tokens": rng.integers(0, 1000, s), "mask": np.ones(s, np.int64)} for s in shapes])


def _make_images(model: onnx.ModelProto, channels: int, step: int) -> Case:
    """Returns twenty images with sides of 64 to 256 pixels in multiples of `step`."""
    rng = np.random.default_rng(5)
    sizes = [tuple(int(size) * step for size in rng.integers(64 // step, 256 // step + 1, 2)) for _ in range(20)]
    return Case(model, [{"image": rng.standard_normal((1, channels, *size), np.float32)} for size in sizes])


def make_int8_resnet(size: int = 224) -> Case:
    """Returns a ResNet-18 in QDQ form. Source: He et al. 2015, table 1."""
    writer, generator = NetworkWriter("int8_resnet"), np.random.default_rng(0)
    step, zero = writer.add_scalar(0.03), writer.add_constant(np.array(0, np.int8))

    def quantize(x: str) -> str:
        return str(writer.add_node("DequantizeLinear", writer.add_node("QuantizeLinear", x, step, zero), step, zero))

    def add_conv(x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        weight = writer.add_constant(generator.integers(-127, 128, (outputs, inputs, kernel, kernel)).astype(np.int8))
        scale = writer.add_scalar(1 / (73 * (inputs * kernel * kernel) ** 0.5))
        weights = writer.add_node("DequantizeLinear", weight, scale, zero)
        return str(writer.add_node("Conv", x, weights, strides=[stride] * 2, pads=[kernel // 2] * 4))

    x = quantize(writer.add_input("images", (1, 3, size, size)))
    x = quantize(writer.add_node("Relu", add_conv(x, 3, 64, 7, 2)))
    x = str(writer.add_node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    channels = 64
    for outputs, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            y = quantize(writer.add_node("Relu", add_conv(x, channels, outputs, 3, stride)))
            y = quantize(add_conv(y, outputs, outputs, 3, 1))
            shortcut = x if stride == 1 and channels == outputs else quantize(add_conv(x, channels, outputs, 1, stride))
            x, channels = quantize(writer.add_node("Relu", writer.add_node("Add", y, shortcut))), outputs
    x = writer.add_node("Flatten", writer.add_node("GlobalAveragePool", x))
    writer.add_output(writer.add_node("MatMul", x, writer.draw_weight(512, 1000)), (1, 1000))
    model = writer.build_model()
    return Case(model, [light_inputs(model)])


def quantize_case(case: Case, kind: str) -> Case:
    """Returns a case with the model quantized to 8 bits by onnxruntime, calibrated with its first run."""
    from onnxruntime import quantization  # only these cases need it

    class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._runs = iter(case.runs[:1])

        def get_next(self) -> Feeds | None:
            return next(self._runs, None)

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "floats.onnx"), Path(folder, "bytes.onnx")
        onnx.save(case.model, source)
        if kind == "dynamic":
            quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8)
        else:
            form = quantization.QuantFormat.QDQ if kind == "qdq" else quantization.QuantFormat.QOperator
            quantization.quantize_static(source, target, Calibration(), quant_format=form, per_channel=kind == "qdq")
        return Case(onnx.load(target), case.runs, case.tokens)


def make_trees(*, trees: int = 200, depth: int = 6, features: int = 30, rows: int = 100) -> Case:
    """Returns a tree ensemble regressor of full trees with random thresholds, in the form of boosting libraries."""
    rng, inner = np.random.default_rng(0), 2**depth - 1
    total = 2 * inner + 1
    # Node n of a tree has the children 2n + 1 and 2n + 2; all nodes after the first `inner` are leaves.
    nodes = np.arange(total)
    is_inner = nodes < inner
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=np.repeat(np.arange(trees), total),
        nodes_nodeids=np.tile(nodes, trees),
        nodes_featureids=rng.integers(0, features, trees * total),
        nodes_modes=["BRANCH_LEQ" if inner_node else "LEAF" for inner_node in np.tile(is_inner, trees)],
        nodes_values=rng.standard_normal(trees * total).astype(np.float32),
        nodes_truenodeids=np.tile(np.where(is_inner, 2 * nodes + 1, 0), trees),
        nodes_falsenodeids=np.tile(np.where(is_inner, 2 * nodes + 2, 0), trees),
        target_treeids=np.repeat(np.arange(trees), inner + 1),
        target_nodeids=np.tile(nodes[~is_inner], trees),
        target_ids=np.zeros(trees * (inner + 1), np.int64),
        target_weights=rng.standard_normal(trees * (inner + 1)).astype(np.float32),
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    return _make_rows([node], [y], [], features, rows)


def make_pipeline(*, features: int = 30, classes: int = 3, rows: int = 1) -> Case:
    """Returns a scaler and a logistic regression with a map of probabilities for each row."""
    rng = np.random.default_rng(0)
    labels = list(range(10, 10 + classes))
    scaler = {"offset": rng.standard_normal(features), "scale": np.full(features, 0.5)}
    model = {"coefficients": rng.standard_normal(classes * features), "intercepts": rng.standard_normal(classes)}
    nodes = [
        helper.make_node("Scaler", ["x"], ["scaled"], **scaler),
        helper.make_node(
            "LinearClassifier", ["scaled"], ["label", "scores"], classlabels_ints=labels, post_transform="SOFTMAX", **model
        ),
        helper.make_node("Normalizer", ["scores"], ["shares"], norm="L1"),
        helper.make_node("ZipMap", ["shares"], ["probabilities"], classlabels_int64s=labels),
    ]
    for node in nodes:
        node.domain = "ai.onnx.ml"
    probabilities = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(probabilities)),
    ]
    return _make_rows(nodes, outputs, [], features, rows)


def make_boosting(*, machines: int = 50, features: int = 30, classes: int = 3, rows: int = 1) -> Case:
    """Returns an AdaBoost classifier as converters write it: votes of small trees in a chain of nodes."""
    rng = np.random.default_rng(0)
    labels, one, zero = np.arange(classes)[None], np.ones(1, np.float32), np.full(1, -0.5, np.float32)
    constants = [numpy_helper.from_array(array, name) for name, array in (("labels", labels), ("one", one), ("zero", zero))]
    nodes, votes = [], [f"vote_{machine}" for machine in range(machines)]
    for machine in range(machines):
        nodes += [
            helper.make_node(
                "TreeEnsembleClassifier", ["x"], [f"label_{machine}", f"scores_{machine}"], domain="ai.onnx.ml",
                classlabels_int64s=labels[0].tolist(), post_transform="NONE", nodes_treeids=[0] * 3, nodes_nodeids=[0, 1, 2],
                nodes_featureids=[int(rng.integers(features)), 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_values=[float(rng.standard_normal()), 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
                class_treeids=[0] * 2 * classes, class_nodeids=[1] * classes + [2] * classes, class_ids=[*range(classes)] * 2,
                class_weights=rng.random(2 * classes),
            ),
            helper.make_node("ArgMax", [f"scores_{machine}"], [f"place_{machine}"], axis=1),
            helper.make_node("Equal", [f"place_{machine}", "labels"], [f"chosen_{machine}"]),
            helper.make_node("Where", [f"chosen_{machine}", "one", "zero"], [votes[machine]]),
        ]  # fmt: skip
    nodes += [helper.make_node("Sum", votes, ["y"]), helper.make_node("ArgMax", ["y"], ["place"], axis=1, keepdims=0)]
    outputs = [helper.make_tensor_value_info("place", TensorProto.INT64, ["n"])]
    return _make_rows(nodes, outputs, constants, features, rows)


def _make_rows(nodes: list[Any], outputs: list[Any], constants: list[Any], features: int, rows: int) -> Case:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "rows", [x], outputs, constants), opset_imports=opsets, ir_version=10)
    return Case(model, [{"x": np.random.default_rng(1).standard_normal((rows, features), np.float32)}])


def make_fitted(name: str, *, features: int = 20, rows: int = 1) -> Case:
    """Returns a model of scikit-learn, fitted to drawn rows and converted by skl2onnx: `forest`, `pipeline` or `ridge`."""
    from skl2onnx import to_onnx  # only these cases need it
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline as chain
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    model = {
        "forest": RandomForestClassifier(100, max_depth=8, random_state=0),
        "pipeline": chain(StandardScaler(), LogisticRegression()),
        "ridge": chain(PolynomialFeatures(2), Ridge()),
    }[name]
    x = np.random.default_rng(0).standard_normal((500, features), np.float32)
    model.fit(x, (x[:, 0] + x[:, 1] > 0).astype(np.int64))
    return Case(to_onnx(model, x[:1], target_opset=17), [{"X": x[:rows]}])


def make_int4_products() -> Case:
    """Returns six products of 1024 x 4096 weights of 4 bits behind a table: a prompt, then single rows as a decoder reads them."""
    model = BlockNetwork(1024, 4096, 3, vocabulary=1000, zeros="drawn").make()
    return Case(model, [{"tokens": np.arange(rows)[None]} for rows in (PROMPT, *(1,) * TOKENS)])


OTHERS: Mapping[str, Callable[[], Case]] = {
    "encoder": _make_encoder,
    "detector": lambda: _make_images(make_detector(), 3, 1),
    "open_unet": lambda: _make_images(make_unet(), 1, 16),
    "prefill": _make_prefill,
    "decoder": lambda: _make_generation(make_decoder),
    "gpt": lambda: _make_generation(make_gpt),
    "genai_decoder": lambda: _make_genai(32),
    "int4_decoder": lambda: _make_genai(4),
    "int4_products": make_int4_products,
    "int8_resnet": make_int8_resnet,
    "trees": make_trees,
    "trees_of_one_row": lambda: make_trees(trees=100, rows=1),
    "trees_of_many_rows": lambda: make_trees(trees=100, rows=10_000),
    "pipeline_of_one_row": make_pipeline,
    "pipeline_of_many_rows": lambda: make_pipeline(rows=10_000),
    "boosting_of_one_row": make_boosting,
}
