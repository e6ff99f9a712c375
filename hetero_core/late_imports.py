"""NumPy and json as modules that are imported when they are first used: naming the devices takes neither.

`from hetero_core.late_imports import np` at the head of a file stands for `import numpy as np` in its functions. Where NumPy itself is
a value, as the namespace of arrays that is compared by `is`, it is imported as usual. Imports nothing of the project.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["json", "np"]

if TYPE_CHECKING:
    import json

    import numpy as np
else:

    class _LateModule(ModuleType):
        """Stands for the module of its name, whose attributes it looks up when they are first asked for, each once."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    json, np = _LateModule("json"), _LateModule("numpy")
