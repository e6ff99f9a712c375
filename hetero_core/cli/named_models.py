"""A model by name, for commands that time models: the light models, written to a file for as long as the command runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from hetero_core.cli.answer import UsageError
from hetero_core.errors import enumerate_choices, suggest


@contextlib.contextmanager
def open_named_model(model: str) -> Iterator[str]:
    """Gives the path of a model: of a light model where this is the name of one and no file is called so, else the text itself.

    Raises: OSError where there is no room for the file.
    """
    if os.path.exists(model):
        yield model
        return
    from hetero_core.testing.models import LIGHT_MODELS, light_model

    if model not in LIGHT_MODELS:
        if not os.path.dirname(model) and not os.path.splitext(model)[1]:
            hint = suggest(model, LIGHT_MODELS) or ";"
            raise UsageError(
                f"there is no file '{model}', and no model of this name{hint} these are {enumerate_choices(LIGHT_MODELS)}"
            )
        yield model
        return
    import onnx  # heavy

    with tempfile.TemporaryDirectory(prefix="hetero-model-") as folder:
        path = os.path.join(folder, f"{model}.onnx")
        onnx.save(light_model(model), path)
        yield path
