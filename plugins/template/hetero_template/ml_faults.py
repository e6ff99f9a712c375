"""What `onnx.reference` 1.23 computes wrongly in the domain ai.onnx.ml: refused, with the reason. Gone when onnx has mended it."""

from __future__ import annotations

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType

# Their outputs are float32 whatever the input; the evaluator gives them the type of the input.
_FLOAT32_OUTPUT = frozenset(
    {"FeatureVectorizer", "LinearClassifier", "LinearRegressor", "Normalizer", "SVMClassifier", "SVMRegressor", "Scaler",
     "TreeEnsembleRegressor"}
)  # fmt: skip
_WITHOUT_TRANSFORM = frozenset({"LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "TreeEnsemble"})


def find_ml_fault(node: Node, network: Network) -> str | None:
    """Returns why the evaluator's answer for this node of ai.onnx.ml could not be trusted, or None."""
    attributes, dtypes = node.attributes, [_dtype_of(network, value) for value in node.inputs]
    if node.op_type in _FLOAT32_OUTPUT and dtypes[:1] != ["float32"]:
        return f"{node.operator} is supported for float32; onnx.reference gives an output of the type of its input"
    if node.op_type in _WITHOUT_TRANSFORM and attributes.get("post_transform", "NONE") not in ("NONE", 0):
        return f"{node.operator} is supported without post_transform"
    match node.op_type:
        case "Normalizer" if attributes.get("norm", "MAX") == "MAX":
            return f"{node.operator} with norm MAX: onnx.reference takes the greatest magnitude"
        case "FeatureVectorizer" if any(_rank_of(network, value) != 2 for value in node.inputs):
            return f"{node.operator} is supported for matrices; onnx.reference makes a column of a vector"
        case "OneHotEncoder" if dtypes[0] in (None, "float32", "float64"):
            return f"{node.operator} is supported for integers and strings; onnx.reference does not truncate floats"
        case "LabelEncoder" if any(key != key for key in attributes.get("keys_floats", ())):
            return f"{node.operator} with a NaN among its keys: onnx.reference does not find it"
        case "DictVectorizer":
            return f"{node.operator}: onnx.reference gives a vector of float64"
        case "LinearClassifier" if len(attributes.get("intercepts", ())) == 1:
            return f"{node.operator} with one score for two classes, which engines read in different ways"
        case "SVMClassifier":
            return _find_svm_fault(node)
        case "TreeEnsembleClassifier":
            return _find_classifier_fault(node)
        case "TreeEnsembleRegressor" if "base_values_as_tensor" in attributes:
            return f"{node.operator} with base_values_as_tensor, which onnx.reference leaves out"
    return None


def _find_svm_fault(node: Node) -> str | None:
    classes = len(node.attributes.get("classlabels_ints", ()) or node.attributes.get("classlabels_strings", ()))
    if "prob_a" in node.attributes and classes > 2:
        return f"{node.operator} with probabilities of {classes} classes: onnx.reference couples pairs wrongly"
    if classes == 2 and node.attributes.get("post_transform", "NONE").startswith("SOFTMAX"):
        return f"{node.operator} with one score for two classes, which engines read in different ways"
    return None


def _find_classifier_fault(node: Node) -> str | None:
    if "base_values_as_tensor" in node.attributes:
        return f"{node.operator} with base_values_as_tensor, which onnx.reference leaves out"
    if len(set(node.attributes.get("class_ids", ()))) != 1:
        return None
    transform = node.attributes.get("post_transform", "NONE")
    has_negative = any(weight < 0 for weight in node.attributes.get("class_weights", (-1,)))
    if set(node.attributes["class_ids"]) != {0} or transform not in ("LOGISTIC", "NONE") or (has_negative and transform == "NONE"):
        return f"{node.operator} that weighs one class alone is supported for the first, with LOGISTIC or with probabilities"
    return None


def _dtype_of(network: Network, value: str) -> str | None:
    found = network.type_of(value)
    return found.dtype if isinstance(found, TensorType) else None


def _rank_of(network: Network, value: str) -> int | None:
    found = network.type_of(value)
    return len(found.shape) if isinstance(found, TensorType) and found.shape is not None else None
