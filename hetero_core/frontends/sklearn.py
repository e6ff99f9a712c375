"""Estimators of scikit-learn over ONNX models: `HeteroClassifier` and `HeteroRegressor`, for converted pipelines.

    model, or a fitted estimator --skl2onnx, with the types of X--> network
    X: array or data frame --columns by name or by position--> inputs --infer--> labels, probabilities, scores

Imports scikit-learn, whose base classes these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError, InvalidNetworkError, NetworkReadError, word_missing
from hetero_core.frontends.shared_core import find_core
from hetero_core.network.types import TensorType, ValueSpec, shape_of

if TYPE_CHECKING:
    from typing import Self

    import onnx

    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

_OPSETS = {"": 18, "ai.onnx.ml": 3}
"""From ai.onnx.ml 3 on, trees have thresholds of float64."""

_PASSING = frozenset({"Cast", "Reshape", "Identity", "Squeeze"})
"""Operators through which a label goes unchanged."""


class _HeteroEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """An estimator that is fitted from the start: a clone has the same model, and `fit` learns nothing."""

    def __init__(self, model: Any, device: str = "AUTO", config: Mapping[str, Any] | None = None) -> None:
        """`model`: a path, bytes or a ModelProto; or a fitted estimator, which skl2onnx converts for the types of the first X."""
        self.model = model
        self.device = device
        self.config = config

    @property
    def _is_estimator(self) -> bool:
        """Says whether the model is an estimator of scikit-learn."""
        return hasattr(self.model, "predict")

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: N803  # scikit-learn's name
        """Returns the estimator itself, unchanged: its model is fitted."""
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns model, device and config; never the parameters of the fitted estimator, which a change would not fit again."""
        return super().get_params(deep=False)  # type: ignore[no-any-return]  # untyped

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params())

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_loaded", None)  # a loaded network belongs to its process
        return state

    def _run(self, X: Any, *, gives_scores: bool = False) -> list[Any]:  # noqa: N803
        """Returns the outputs of the model in order. Raises: errors of inputs, of the conversion, of the load and of the device."""
        rows = order_columns(self.model, X) if self._is_estimator else X
        network, names = self._find_network(rows, gives_scores=gives_scores)
        # skl2onnx writes the names of columns as identifiers.
        named = names if len(names) == len(network.inputs) else [spec.name for spec in network.inputs]
        return list(network.infer(read_columns(rows, network.inputs, named)).values())

    def _find_network(self, X: Any, *, gives_scores: bool) -> tuple[ExecutableNetwork, list[str]]:  # noqa: N803
        """Returns the network, and the columns of the data frame that its estimator was converted for."""
        types = None
        if self._is_estimator:
            columns = list_columns(X).values() if hasattr(X, "columns") else [np.asarray(X)]
            types = tuple(str(column.dtype) for column in columns)
        key = (id(self.model), self.device, repr(self.config), gives_scores, types)
        # The model is held beside its network, so that no later model gets its id.
        loaded: dict[Any, tuple[Any, ExecutableNetwork, list[str]]] = self.__dict__.setdefault("_loaded", {})
        if key not in loaded:
            model = convert_estimator(self.model, X, gives_scores=gives_scores) if self._is_estimator else self.model
            names = [str(name) for name in X.columns] if self._is_estimator and hasattr(X, "columns") else []
            try:
                loaded[key] = self.model, find_core().load_network(model, self.device, self.config), names
            except InvalidNetworkError as error:
                if types is None or "float64" not in types:
                    raise
                raise NetworkReadError(f"skl2onnx mixes float32 and float64 in {self.model!r}: give X in float32") from error
        return loaded[key][1:]


def _gives_probabilities(estimator: Any) -> bool:
    if estimator._is_estimator:
        return hasattr(estimator.model, "predict_proba")
    return len(find_core().read_network(estimator.model).outputs) > 1


def _gives_scores(estimator: Any) -> bool:
    return estimator._is_estimator and hasattr(estimator.model, "decision_function")


class HeteroClassifier(ClassifierMixin, _HeteroEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A classifier on a device: an ONNX model gives labels, then probabilities, as a tensor or as a map for each row."""

    @property
    def classes_(self) -> np.ndarray[Any, Any]:
        """The classes in the order of the probabilities. Raises: AttributeError if the model does not name them."""
        classes = self.model.classes_ if self._is_estimator else find_classes(find_core().read_network(self.model))
        if classes is None:
            raise AttributeError("the model names no classes: no classifier and no table of classes makes its first output")
        return np.asarray(classes)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the label of each row."""
        labels = self._run(X, gives_scores=not _gives_probabilities(self) and _gives_scores(self))[0]
        return labels.astype(self.classes_.dtype) if self._is_estimator else labels  # type: ignore[no-any-return]  # of a list

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]  # scikit-learn is untyped
    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the probability of each class for each row, of the shape (rows, classes)."""
        shares = self._run(X)[1]
        return np.array([[row[name] for name in self.classes_.tolist()] for row in shares]) if isinstance(shares, list) else shares

    @available_if(_gives_scores)  # type: ignore[untyped-decorator]  # scikit-learn is untyped
    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the score of each class, of the shape (rows, classes); of two classes that of the second, of the shape (rows,)."""
        scores: np.ndarray[Any, Any] = self._run(X, gives_scores=True)[1]
        return scores[:, -1] if len(self.classes_) == 2 and scores.ndim == 2 else scores


class HeteroRegressor(RegressorMixin, _HeteroEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A regressor that runs on a device: the first output of the model is the prediction."""

    def predict(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the prediction of each row, of the shape (rows,), or (rows, targets) for several targets."""
        values: np.ndarray[Any, Any] = self._run(X)[0]
        return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def convert_estimator(estimator: Any, X: Any, *, gives_scores: bool = False) -> onnx.ModelProto:  # noqa: N803
    """Returns the ONNX model of a fitted estimator for inputs of the types of X.

    Rows of numbers are a single input. A data frame has an input for each column if it holds other types, or if the estimator chooses
    columns by name.

    Raises: NetworkReadError without skl2onnx, and for an estimator that it cannot convert.
    """
    if find_spec("skl2onnx") is None:
        raise NetworkReadError(f"cannot convert {estimator!r}: run 'pip install skl2onnx', or pass an ONNX model")
    from skl2onnx import to_onnx  # heavy
    from skl2onnx.common.data_types import guess_data_type

    final = estimator[-1] if hasattr(estimator, "steps") else estimator
    if gives_scores and getattr(final, "probability", None) is True:  # by default a text: the option is deprecated
        raise NetworkReadError(f"skl2onnx writes probabilities in place of the scores of {final!r}; fit one with probability=False")
    first = None if hasattr(X, "columns") else np.asarray(X[:1].toarray() if hasattr(X, "toarray") else X[:1])
    types = None
    if first is None:
        columns = list_columns(X[:1])
        if all(column.dtype.kind in "biuf" for column in columns.values()):
            # Rows of numbers where the estimator takes them: skl2onnx 1.20 joins columns of int64 and float64 as int64.
            if len(columns) > 1:
                with suppress(NetworkReadError):
                    return convert_estimator(estimator, np.column_stack(list(columns.values())), gives_scores=gives_scores)
        else:
            # skl2onnx 1.20 joins float64 columns with the float32 of encoded texts, which ONNX does not allow.
            columns = {name: each.astype(np.float32) if each.dtype == np.float64 else each for name, each in columns.items()}
        types = [(name, guess_data_type(column.reshape(-1, 1))[0][1]) for name, column in columns.items()]
        types = [(name, type(each)([None, 1])) for name, each in types]
    scores = {"raw_scores": True} if gives_scores else {}
    convert = partial(to_onnx, estimator, first, initial_types=types, target_opset=_OPSETS)
    try:
        try:
            model = convert(options={id(final): {"zipmap": False, **scores}} if hasattr(final, "classes_") else None)
        except NameError:  # an estimator without maps does not know the option
            model = convert(options={id(final): scores} if scores else None)
    except Exception as error:
        raise NetworkReadError(f"skl2onnx cannot convert {estimator!r}: {type(error).__name__}: {error}") from error
    # skl2onnx 1.20 declares a single column for the scores of two classes, and float64 for trees that give float32; types are inferred.
    for output in model.graph.output:
        output.ClearField("type")
    model.graph.ClearField("value_info")
    return model


def find_classes(network: Network) -> Sequence[Any] | np.ndarray[Any, Any] | None:
    """Returns the classes of the first output, from the classifier or the table that makes it; None if neither does."""
    producers = {value: node for node in network.nodes for value in node.writes}
    value = network.outputs[0].name
    while (node := producers.get(value)) is not None:
        classes = [each for name, each in node.attributes.items() if name.startswith("classlabels") and len(each)]
        if classes:
            return classes[0]  # type: ignore[no-any-return]  # an attribute
        if node.op_type == "ArrayFeatureExtractor" and node.inputs[0] in network.initializers:
            return network.initializers[node.inputs[0]].array.ravel()
        if node.op_type not in _PASSING:
            return None
        value = node.inputs[0]
    return None


# Inputs


def order_columns(estimator: Any, X: Any) -> Any:  # noqa: N803
    """Returns a data frame with those columns that an estimator was fitted for, in its order; anything else as it is.

    Raises: InputNameError for a missing column; a ColumnTransformer, which may drop it, asks for its columns itself.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or not hasattr(X, "columns"):
        return X
    given = list(X.columns)
    missing = next((name for name in names if name not in given), None)
    first = estimator[0] if hasattr(estimator, "steps") else estimator
    if missing is not None and not hasattr(first, "transformers"):
        raise InputNameError(word_missing("the data frame", "column", missing, given))
    return X[[name for name in names if name in given]]


def read_columns(X: Any, specs: Sequence[ValueSpec], names: Sequence[str]) -> dict[str, Any]:  # noqa: N803
    """Returns the inputs of a network from an array or a data frame: columns by their `names`, one for each input, or by position.

    Numbers are converted to the element type of their input, except floats to integers.

    Raises: InputNameError for a missing column, InputShapeError for another number of columns, InputTypeError.
    """
    shapes = [shape_of(spec.type) or () for spec in specs]
    widths = [shape[1] if len(shape) == 2 and isinstance(shape[1], int) else 1 for shape in shapes]
    rows = X.toarray() if hasattr(X, "toarray") else X  # a sparse matrix
    if hasattr(X, "columns"):
        columns = list_columns(X)
        if len(specs) > 1 or (names[0] in columns and widths[0] == 1):
            missing = next((name for name in names if name not in columns), None)
            if missing is not None:
                raise InputNameError(word_missing("the data frame", "column", missing, columns))
            return {spec.name: _as_input(columns[name], spec) for spec, name in zip(specs, names, strict=True)}
        rows = np.column_stack(list(columns.values()))
    array = np.asarray(rows)
    if len(specs) == 1:
        return {specs[0].name: _as_input(array, specs[0])}
    if array.shape[1] != sum(widths):
        raise InputShapeError(f"the inputs {', '.join(map(str, specs))} take {sum(widths)} columns, and X has {array.shape[1]}")
    places = zip(specs, accumulate(widths), widths, strict=True)
    return {spec.name: _as_input(array[:, end - width : end], spec) for spec, end, width in places}


def list_columns(frame: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the columns of a data frame of pandas or polars by name; a missing value among numbers is NaN."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for name in frame.columns:
        column = frame[name]
        values = np.asarray(column)
        if values.dtype.hasobject and getattr(column.dtype, "kind", "O") in "iuf":  # numbers of pandas that may be missing
            values = column.to_numpy(np.float64 if column.hasnans else column.dtype.numpy_dtype, na_value=np.nan)
        columns[str(name)] = values
    return columns


def _as_input(values: Any, spec: ValueSpec) -> np.ndarray[Any, Any]:
    """Returns values in the element type and with the number of axes of an input."""
    array = np.asarray(values)
    if not isinstance(spec.type, TensorType) or spec.type.dtype is None:
        return array
    try:
        dtype = np.dtype(object) if spec.type.dtype == "string" else numpy_dtype(spec.type.dtype)
        array = np.array(array.tolist()) if array.dtype.hasobject and not dtype.hasobject else array
        array = array.astype(dtype, casting="unsafe" if dtype.hasobject else "same_kind", copy=False)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"input '{spec.name}': {array.dtype} does not convert to {spec.type.dtype}: {error}") from error
    rank = None if spec.type.shape is None else len(spec.type.shape)
    if rank == 2 and array.ndim == 1:
        return array.reshape(-1, 1)
    return array.ravel() if rank == 1 and array.ndim == 2 and array.shape[1] == 1 else array
