"""Estimators of scikit-learn over ONNX models: `HeteroClassifier` and `HeteroRegressor`, for converted pipelines.

    X: array or data frame --columns by name or by position--> inputs --infer--> labels, probabilities

Imports scikit-learn, whose base classes these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError, word_missing
from hetero_core.frontends.shared_core import find_core
from hetero_core.network.types import TensorType, ValueSpec

if TYPE_CHECKING:
    from typing import Self

    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

_PASSING = frozenset({"Cast", "Reshape", "Identity", "Squeeze"})
"""Operators through which a label goes unchanged."""


class _HeteroEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """An estimator that is fitted from the start: a clone has the same model, and `fit` learns nothing."""

    def __init__(self, model: Any, device: str = "AUTO", config: Mapping[str, Any] | None = None) -> None:
        """`model`: a path, bytes or a ModelProto, as skl2onnx converts it."""
        self.model = model
        self.device = device
        self.config = config

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: N803  # scikit-learn's name
        """Returns the estimator itself, unchanged: its model is fitted."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_loaded", None)  # a loaded network belongs to its process
        return state

    def _run(self, X: Any) -> list[Any]:  # noqa: N803
        """Returns the outputs of the model in order. Raises: errors of inputs, of the load and of the device."""
        key = (id(self.model), self.device, repr(self.config))
        # The model is held beside its network, so that no later model gets its id.
        loaded: dict[Any, tuple[Any, ExecutableNetwork]] = self.__dict__.setdefault("_loaded", {})
        if key not in loaded:
            loaded[key] = self.model, find_core().load_network(self.model, self.device, self.config)
        network = loaded[key][1]
        return list(network.infer(list(read_columns(X, network.inputs).values())).values())


def _gives_probabilities(estimator: Any) -> bool:
    return len(find_core().read_network(estimator.model).outputs) > 1


class HeteroClassifier(ClassifierMixin, _HeteroEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A classifier that runs on a device. The first output of an ONNX model is the label, the second the probabilities, as a tensor
    or as a map for each row.
    """

    @property
    def classes_(self) -> np.ndarray[Any, Any]:
        """The classes in the order of the probabilities. Raises: AttributeError if the model does not name them."""
        classes = find_classes(find_core().read_network(self.model))
        if classes is None:
            raise AttributeError("the model names no classes: no classifier and no table of classes makes its first output")
        return np.asarray(classes)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the label of each row."""
        return self._run(X)[0]  # type: ignore[no-any-return]  # of a list

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]  # scikit-learn is untyped
    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the probability of each class for each row, of the shape (rows, classes)."""
        shares = self._run(X)[1]
        return np.array([[row[name] for name in self.classes_.tolist()] for row in shares]) if isinstance(shares, list) else shares


class HeteroRegressor(RegressorMixin, _HeteroEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A regressor that runs on a device: the first output of the model is the prediction."""

    def predict(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """Returns the prediction of each row, of the shape (rows,), or (rows, targets) for several targets."""
        values: np.ndarray[Any, Any] = self._run(X)[0]
        return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


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


def read_columns(X: Any, specs: Sequence[ValueSpec]) -> dict[str, Any]:  # noqa: N803
    """Returns the inputs of a network from an array or a data frame: columns by the names of the inputs, else by their positions.

    Numbers are converted to the element type of their input, except floats to integers.

    Raises: InputNameError for a missing column, InputShapeError for another number of columns, InputTypeError.
    """
    columns = list_columns(X) if hasattr(X, "columns") else None
    names = None if columns is None else list(columns)
    rows = X.toarray() if hasattr(X, "toarray") else X  # a sparse matrix
    if len(specs) == 1 and (names is None or specs[0].name not in names):
        return {specs[0].name: _as_input(rows, specs[0])}
    if columns is not None and names is not None:
        missing = next((spec.name for spec in specs if spec.name not in names), None)
        if missing is not None:
            raise InputNameError(word_missing("the data frame", "column", missing, names))
        return {spec.name: _as_input(columns[spec.name], spec) for spec in specs}
    array, feeds, start = np.asarray(rows), {}, 0
    for spec in specs:
        shape = spec.type.shape if isinstance(spec.type, TensorType) and spec.type.shape is not None else ()
        width = shape[1] if len(shape) == 2 and isinstance(shape[1], int) else 1
        feeds[spec.name] = _as_input(array[:, start : start + width], spec)
        start += width
    if array.shape[1] != start:
        raise InputShapeError(f"the inputs {', '.join(map(str, specs))} take {start} columns, and X has {array.shape[1]}")
    return feeds


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
