"""Stands for `onnxruntime.capi._pybind_state`: the names of the front end, and the exceptions."""

import hetero_core.frontends.onnxruntime as _front
from hetero_core.frontends.onnxruntime.errors import EXCEPTIONS

globals().update({name: getattr(_front, name) for name in _front.PUT_NAMES}, **EXCEPTIONS)
