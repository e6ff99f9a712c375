"""Models of ai.onnx.ml in a form that has machine code: scalers and support vector machines as arithmetic, labels that are numbers.

```text
Scaler                           ──> Sub ── Mul
Binarizer                        ──> Greater ── Cast
Imputer                          ──> IsNaN or Equal ── Where
classifier, labels that are text ──> classifier, labels 0, 1, ... ── Gather from the texts
SVM, linear                      ──> MatMul ── Add ──> decisions
SVM, polynomial or sigmoid       ──> MatMul ── Add ──> products or Tanh ── MatMul ── Add ──> decisions
SVM, radial                      ──> Sub ── MatMul ── Sub ── Exp ── MatMul ── Add ──> decisions
decisions of pairs of classes    ──> votes ── MatMul ── ArgMax ── Gather ──> label
                                 └─> Mul ── Add ── CouplePairs ──> probabilities
ArrayFeatureExtractor            ──> Gather
OneHotEncoder of int64           ──> Unsqueeze ── Equal ── Cast
OneHotEncoder of texts           ──> LabelEncoder, categories 0, 1, ... ── Unsqueeze ── Equal ── Cast
ReduceProd of few columns        ──> Gather of each ── Mul
Concat of such products          ──> Gather of all first columns, of all second ... ── Mul
Gemm with a factor               ──> Gemm
Gemm with a computed summand     ──> Gemm ── Add
ReduceLogSumExp ── Sub ── Exp    ──> Softmax
Scan of rows: Sub, sum of squares or magnitudes ──> CDist
```

The squared distance of the radial kernel is |x|^2 - 2 x v + |v|^2. Rows and vectors are centered before, so that the terms are not much
larger than a distance that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.kernels.registry import TOOLKIT, prepare_node
from hetero_core.network.graph import Network, Node
from hetero_core.network.inference import read_numbers
from hetero_core.network.types import TensorType, rank_of
from hetero_core.transforms.matching import read_axes, read_integers
from hetero_cpu.transforms.writer import Rewrite, Writer, rewrite_operators

_LABELS = {"LinearClassifier": "classlabels_ints", "TreeEnsembleClassifier": "classlabels_int64s"}
_MODELS = (*_LABELS, *["ArrayFeatureExtractor", "Binarizer", "Imputer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler"])
_CODES = {"float32": 1, "float64": 11}
_SCALER = (("offset", 0.0), ("scale", 1.0))


def rewrite_models(network: Network) -> Network:
    """Returns the network with its Scalers of float32 as Sub and Mul, the texts of its classifiers in a Gather, and distances as CDist."""
    rewrites: dict[tuple[str, str], Rewrite] = {
        ("", "ReduceProd"): _multiply_columns,
        ("", "Concat"): _join_products,
        ("", "Exp"): _share_probability,
        ("", "Gemm"): _scale_weights,
        ("", "Scan"): _measure_distances,
        **{("ai.onnx.ml", op_type): _rewrite_model for op_type in _MODELS},
    }
    return rewrite_operators(network, rewrites)


def _rewrite_model(network: Network, node: Node, writer: Writer) -> bool:
    """Adds the nodes of a model of ai.onnx.ml."""
    texts = node.attributes.get("classlabels_strings")
    if node.op_type == "Scaler" and _is_plain(writer, node):
        offset, scale = (np.array(node.attributes.get(name, (default,)), np.float32) for name, default in _SCALER)
        centered = writer.add("Sub", node.inputs[0], writer.add_constant(offset))
        writer.add("Mul", centered, writer.add_constant(scale), output=node.outputs[0])
    elif node.op_type in _LABELS and texts and node.outputs[0]:
        index = writer.name("index")
        writer.types[index] = TensorType("int64", writer.shape(node.outputs[0]))
        attributes = {name: value for name, value in node.attributes.items() if name != "classlabels_strings"}
        attributes[_LABELS[node.op_type]] = tuple(range(len(texts)))
        writer.nodes.append(replace(node, outputs=(index, *node.outputs[1:]), attributes=MappingProxyType(attributes)))
        writer.add("Gather", writer.add_constant(np.array(texts, object)), index, output=node.outputs[0])
    elif node.op_type == "ArrayFeatureExtractor" and _has_columns(network, node):
        writer.add("Gather", *node.inputs, output=node.outputs[0], axis=1)
    elif node.op_type == "Binarizer" and (dtype := writer.dtype(node.inputs[0])) in _CODES:
        threshold = _add_floats(writer, dtype, node.attributes.get("threshold", 0.0))
        above = writer.add("Greater", node.inputs[0], threshold)
        writer.add("Cast", above, to=_CODES[dtype], output=node.outputs[0])
    elif node.op_type == "OneHotEncoder" and (categories := _find_categories(network, node)):
        x: str = node.inputs[0]
        if isinstance(categories[0], str):
            texts, categories = categories, tuple(range(len(categories)))
            place = writer.add("LabelEncoder", x, keys_strings=texts, values_int64s=categories)
            writer.types[place], x = TensorType("int64", writer.shape(x)), place
        column = writer.add("Unsqueeze", x, writer.add_integers(-1))
        is_category = writer.add("Equal", column, writer.add_integers(*categories))
        writer.add("Cast", is_category, to=_CODES["float32"], output=node.outputs[0])
    elif node.op_type == "Imputer":
        return _replace_missing(writer, node, network)
    elif node.op_type in ("SVMClassifier", "SVMRegressor") and _is_plain(writer, node):
        return _write_machine(writer, node, network)
    else:
        return False
    return True


def _find_categories(network: Network, node: Node) -> tuple[Any, ...]:
    """Returns the distinct categories of a OneHotEncoder of int64 or texts that gives zeros for others; nothing for any other."""
    x = network.type_of(node.inputs[0])
    if not isinstance(x, TensorType) or not x.shape or not node.attributes.get("zeros", 1):
        return ()
    categories = tuple(node.attributes.get({"int64": "cats_int64s", "string": "cats_strings"}.get(x.dtype or "", ""), ()))
    has_others = {"cats_int64s", "cats_strings"} <= {name for name, values in node.attributes.items() if values}
    return categories if not has_others and len(set(categories)) == len(categories) else ()


def _prepare(node: Node, network: Network) -> Any:
    """Returns a node's attributes as the toolkit's kernel prepares them. Raises: ValueError for those that the kernel refuses."""
    record = TOOLKIT.find(node)
    assert record is not None
    return prepare_node(node, record, (network.type_of(node.inputs[0]),))


def _replace_missing(writer: Writer, node: Node, network: Network) -> bool:
    """Adds the nodes of an Imputer; none for values that do not fit its input, which the toolkit's kernel refuses."""
    x = network.type_of(node.inputs[0])
    if not isinstance(x, TensorType) or not x.dtype or not x.shape:
        return False
    try:
        values, missing = _prepare(node, network)
    except ValueError:
        return False
    if len(values) not in (1, x.shape[-1]):
        return False
    imputed, replaced = (writer.add_constant(np.array(numbers, x.dtype)) for numbers in (values, missing))
    is_missing = writer.add("IsNaN", node.inputs[0]) if np.isnan(missing) else writer.add("Equal", node.inputs[0], replaced)
    writer.add("Where", is_missing, imputed, node.inputs[0], output=node.outputs[0])
    return True


_MOST_FACTORS = 4
"""Columns whose product is written out: features of polynomials have a column for each factor."""


def _multiply_columns(network: Network, node: Node, writer: Writer) -> bool:
    """Returns the products of a few columns of a matrix of floats in the order of the columns."""
    count = _count_factors(network, node)
    if not count:
        return False
    _write_product(writer, node.inputs[0], np.arange(count)[:, None], output=node.outputs[0])
    return True


def _write_product(writer: Writer, x: str, places: Any, output: str = "") -> str:
    """Adds the product of columns of x, and returns it: `places` (factors, columns) are positions in x."""
    factors = [writer.add("Gather", x, writer.add_constant(positions), axis=1) for positions in places]
    product = factors[0]
    for factor in factors[1:]:
        product = writer.add("Mul", product, factor)
    return writer.add("Identity", product, output=output) if output else product


def _join_products(network: Network, node: Node, writer: Writer) -> bool:
    """Returns a Concat of features of a polynomial with all neighbours of the same degree computed together."""
    if node.attributes.get("axis") not in (1, -1):
        return False
    inputs = list[str]()
    factors = {value: _find_factors(network, value) for value in node.inputs}
    for source, group in groupby(node.inputs, lambda value: factors[value] and (factors[value][0], len(factors[value][1]))):
        values = tuple(group)
        if source is None or len(values) == 1:
            inputs += values
        else:
            inputs.append(_write_product(writer, source[0], np.array([factors[value][1] for value in values]).T))
    if len(inputs) == len(node.inputs):
        return False
    writer.add("Concat", *inputs, axis=1, output=node.outputs[0])
    return True


def _share_probability(network: Network, node: Node, writer: Writer) -> bool:
    """Returns a Softmax for the exponentials of rows less the logarithm of their sum, as naive Bayes is exported."""
    difference = network.find_producer(node.inputs[0])
    if difference is None or difference.op_type != "Sub":
        return False
    x, logarithm = difference.inputs
    producer = network.find_producer(logarithm)
    if producer is not None and producer.op_type == "Reshape":
        if read_integers(network, producer.inputs[1]) != (-1, 1):
            return False
        producer = network.find_producer(producer.inputs[0])
    elif producer is not None and not producer.attributes.get("keepdims", 1):
        return False
    if producer is None or producer.op_type != "ReduceLogSumExp" or producer.inputs[0] != x:
        return False
    if rank_of(network.type_of(x)) != 2 or read_axes(network, producer) not in ((1,), (-1,)):
        return False
    writer.add("Softmax", x, axis=1, output=node.outputs[0])
    return True


_SMALL_WEIGHTS = 1 << 16
"""Bytes up to which weights are multiplied when a network is loaded."""


def _scale_weights(network: Network, node: Node, writer: Writer) -> bool:
    """Returns a Gemm of few weights without factor, and with an Add if its summand is computed; None if it has neither."""
    summand, weights = node.inputs[2] if len(node.inputs) > 2 else "", network.initializers.get(node.inputs[1])
    is_computed, alpha = bool(summand) and summand not in network.initializers, node.attributes.get("alpha", 1.0)
    if not (is_computed or alpha != 1.0) or weights is None or weights.nbytes > _SMALL_WEIGHTS:
        return False
    if node.since_version < 7 or weights.dtype != "float32" or (is_computed and node.attributes.get("beta", 1.0) != 1.0):
        return False
    scaled = writer.add_constant(weights.array * np.float32(alpha))
    attributes = MappingProxyType({name: value for name, value in node.attributes.items() if name != "alpha"})
    if not is_computed:
        writer.nodes.append(replace(node, inputs=(node.inputs[0], scaled, *node.inputs[2:]), attributes=attributes))
        return True
    product = writer.name("product")
    writer.types[product] = network.types[node.outputs[0]]
    writer.nodes.append(replace(node, inputs=(node.inputs[0], scaled), outputs=(product,), attributes=attributes))
    writer.add("Add", product, summand, output=node.outputs[0])
    return True


def _find_factors(network: Network, value: str) -> Any:
    """Returns the matrix and the columns of which a value is the product; None if it is no product of columns."""
    product = network.find_producer(value)
    if product is None or product.op_type != "ReduceProd" or not _count_factors(network, product):
        return None
    columns = network.find_producer(product.inputs[0])
    if columns is None or columns.op_type != "ArrayFeatureExtractor" or not _has_columns(network, columns):
        return None
    return columns.inputs[0], network.initializers[columns.inputs[1]].array.tolist()


def _count_factors(network: Network, node: Node) -> int:
    """Returns the number of columns that a ReduceProd multiplies if it is written out, otherwise 0."""
    x = network.type_of(node.inputs[0])
    if not isinstance(x, TensorType) or x.dtype not in ("float32", "float64") or not x.shape or len(x.shape) != 2:
        return 0
    is_row = read_axes(network, node) in ((1,), (-1,)) and node.attributes.get("keepdims", 1)
    return x.shape[1] if is_row and isinstance(x.shape[1], int) and x.shape[1] <= _MOST_FACTORS else 0


def _has_columns(network: Network, node: Node) -> bool:
    """Says whether an ArrayFeatureExtractor reads a matrix of numbers at constant places, a list of them, that it has."""
    x, places = network.type_of(node.inputs[0]), network.initializers.get(node.inputs[1])
    if not isinstance(x, TensorType) or x.dtype == "string" or not x.shape or len(x.shape) != 2 or places is None:
        return False
    return len(places.shape) == 1 and type(x.shape[1]) is int and bool(((places.array >= 0) & (places.array < x.shape[1])).all())


def _measure_distances(network: Network, node: Node, writer: Writer) -> bool:
    """Returns a CDist for a Scan over rows that takes each from all rows of its state, which stays, and sums squares or magnitudes.

    Neighbors and Gaussian processes of scikit-learn are exported so.
    """
    body, specs = node.bodies["body"], [network.type_of(value) for value in node.inputs]
    is_plain = len(specs) == 2 and len(node.outputs) == 2 and not node.captures and node.opset >= 9
    if not is_plain or any(value for name, value in node.attributes.items() if name.startswith("scan_") and any(value)):
        return False
    state, row = specs
    if not (isinstance(state, TensorType) and isinstance(row, TensorType) and state.dtype == row.dtype in ("float32", "float64")):
        return False
    if not (state.shape and row.shape and len(state.shape) == len(row.shape) == 2 and state.shape[1] == row.shape[1]):
        return False
    producers = {value: inner for inner in body.nodes for value in inner.writes}

    def find_source(value: str) -> str:
        while value in producers and producers[value].op_type == "Identity":
            value = producers[value].inputs[0]
        return value

    (state_name, row_name), (kept_name, sums_name) = ([spec.name for spec in own] for own in (body.inputs, body.outputs))
    sums = producers.get(find_source(sums_name))
    if find_source(kept_name) != state_name or sums is None or sums.attributes.get("keepdims", 1):
        return False
    axes = read_numbers(body.initializers, sums.inputs[1]) if len(sums.inputs) > 1 else sums.attributes.get("axes")
    difference = producers.get(find_source(sums.inputs[0]))
    if sums.op_type == "ReduceSum" and difference is not None and difference.op_type == "Abs":
        metric, difference = "cityblock", producers.get(find_source(difference.inputs[0]))
    elif sums.op_type == "ReduceSumSquare":
        metric = "sqeuclidean"
    else:
        return False
    if tuple(axes or ()) not in ((1,), (-1,)) or difference is None or difference.op_type != "Sub":
        return False
    if {find_source(value) for value in difference.inputs} != {state_name, row_name}:
        return False
    if node.outputs[0]:
        writer.add("Identity", node.inputs[0], output=node.outputs[0])
    # Machine code takes constants on the right; those that are not folded yet have rows of a known number.
    is_turned = node.inputs[1] in network.initializers or (isinstance(row.shape[0], int) and not isinstance(state.shape[0], int))
    inputs, output = (node.inputs, "") if is_turned else (node.inputs[::-1], node.outputs[1])
    distances = writer.add("CDist", *inputs, output=output, metric=metric)
    if is_turned:
        writer.types[distances] = TensorType(state.dtype, (state.shape[0], row.shape[0]))
        writer.add("Transpose", distances, perm=(1, 0), output=node.outputs[1])
    return True


_LARGEST_VALUE = 256.0
"""Of the exponent of the radial kernel for a vector and the center, of the argument of Tanh and of a power for a vector and itself:
float32 has its rounding as 1e-5.
"""
_LARGEST_DEGREE = 8


def _write_machine(writer: Writer, node: Node, network: Network) -> bool:
    """Adds the nodes of a support vector machine; none for degrees that are no small number, and for vectors that need float64.

    Source: ONNX-ML SVMClassifier-1, SVMRegressor-1, libsvm.
    """
    try:
        machine = _prepare(node, network)
    except ValueError:  # which the toolkit's kernel raises, too
        return False
    is_classifier = node.op_type == "SVMClassifier"
    weights = machine.pair_weights if is_classifier else machine.weights
    if is_classifier and machine.post_transform != "NONE":
        return False
    x, similarity, add_floats = node.inputs[0], machine.similarity, partial(_add_floats, writer, writer.dtype(node.inputs[0]))
    if similarity.kernel_type == "LINEAR":
        compared, weights = x, similarity.vectors @ weights
    elif similarity.kernel_type == "RBF":
        center = similarity.vectors.mean(axis=1)
        vectors = similarity.vectors - center[:, None]
        gamma, squares = similarity.gamma, (vectors**2).sum(axis=0)
        if not 0 <= gamma * squares.max() <= _LARGEST_VALUE:
            return False
        rows = writer.add("Sub", x, add_floats(center))
        products = writer.add("MatMul", rows, add_floats(2 * gamma * vectors))
        own = writer.add("MatMul", writer.add("Mul", rows, rows), add_floats(np.full((len(center), 1), gamma)))
        exponent = writer.add("Sub", writer.add("Sub", products, own), add_floats(gamma * squares))
        # Rounded, the distance of float32 from itself may be negative.
        is_short = writer.dtype(node.inputs[0]) == "float32"
        compared = writer.add("Exp", writer.add("Min", exponent, add_floats(np.zeros(1))) if is_short else exponent)
    else:
        degree = int(similarity.degree) if similarity.kernel_type == "POLY" else 1
        largest = abs(similarity.gamma) * similarity.squares.max() + abs(similarity.coef0)
        if not 1 <= degree <= _LARGEST_DEGREE or not largest**degree <= _LARGEST_VALUE:
            return False
        products = writer.add("MatMul", x, add_floats(similarity.gamma * similarity.vectors))
        affine = writer.add("Add", products, add_floats(np.array([similarity.coef0])))
        if similarity.kernel_type == "SIGMOID":
            compared = writer.add("Tanh", affine)
        else:
            compared = reduce(lambda power, _: writer.add("Mul", power, affine), range(degree - 1), affine)
    products = writer.add("MatMul", compared, add_floats(weights))
    decisions = writer.add("Add", products, add_floats(np.reshape(machine.rho, -1)))
    if is_classifier:
        _write_votes(writer, node, decisions, machine, add_floats)
    elif machine.is_one_class:
        zero, one, other = (add_floats(np.array([number])) for number in (0, 1, -1))
        decisions = writer.add("Where", writer.add("Greater", decisions, zero), one, other)
    if not is_classifier:
        writer.add("Cast", decisions, to=1, output=node.outputs[0])
    return True


def _write_votes(writer: Writer, node: Node, decisions: str, machine: Any, add_floats: Callable[[Any], str]) -> None:
    """Adds the label with most votes of the pairs, and the scores or probabilities."""
    label, scores = (*node.outputs, "")[:2]
    if label:
        sides = np.zeros((2, len(machine.pairs), len(machine.labels)), np.float32)
        for index, pair in enumerate(machine.pairs):
            sides[(0, 1), index, pair] = 1
        zero = add_floats(np.zeros(1))
        votes = [
            writer.add("MatMul", writer.add("Cast", writer.add(sign, decisions, zero), to=1), writer.add_constant(side))
            for sign, side in zip(("Greater", "LessOrEqual"), sides, strict=True)
        ]
        place = writer.add("ArgMax", writer.add("Add", *votes), axis=1, keepdims=0)
        writer.add("Gather", writer.add_constant(machine.labels), place, output=label)
    if not scores:
        return
    if len(machine.prob_a):
        exponents = writer.add("Add", writer.add("Mul", decisions, add_floats(machine.prob_a)), add_floats(machine.prob_b))
        rounded = writer.add("Cast", exponents, to=1)
        writer.add("CouplePairs", rounded, output=scores, classes=len(machine.labels))
        return
    both = writer.add("Concat", writer.add("Neg", decisions), decisions, axis=1) if len(machine.labels) == 2 else decisions
    writer.add("Cast", both, to=1, output=scores)


def _add_floats(writer: Writer, dtype: str, array: Any) -> str:
    """Adds a constant of float32 or float64."""
    return writer.add_constant(np.ascontiguousarray(array, dtype))


def _is_plain(writer: Writer, node: Node) -> bool:
    """Says whether a machine reads rows of floats, or a Scaler float32 with a number for each feature, or one for all."""
    shape, dtype = writer.shape(node.inputs[0]), writer.dtype(node.inputs[0])
    if node.op_type != "Scaler" or not shape:
        return dtype in _CODES and len(shape or ()) == 2
    return dtype == "float32" and all(len(node.attributes.get(name, (default,))) in (1, shape[-1]) for name, default in _SCALER)
