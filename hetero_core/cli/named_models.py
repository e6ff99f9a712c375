"""A model by name: the light models, for every command that takes a model. Imports nothing heavy before a name is used."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from hetero_core.cli.answer import UsageError
from hetero_core.errors import enumerate_choices, suggest


def is_model_name(model: str) -> bool:
    """Says whether a text is the name of a light model, and no file is called so.

    Raises: UsageError for a plain word that is neither a file nor such a name.
    """
    if os.path.exists(model) or os.path.dirname(model) or os.path.splitext(model)[1]:
        return False
    from hetero_core.testing.models import LIGHT_MODELS  # with onnx

    if model in LIGHT_MODELS:
        return True
    hint = suggest(model, LIGHT_MODELS) or ";"
    raise UsageError(f"there is no file '{model}', and no model of this name{hint} these are {enumerate_choices(LIGHT_MODELS)}")


@contextlib.contextmanager
def open_named_model(model: str) -> Iterator[str]:
    """Gives the path of a model for other processes: a light model is written to a file for as long as the block runs.

    Raises: as `is_model_name`; OSError where there is no room for the file.
    """
    if not is_model_name(model):
        yield model
        return
    import onnx  # heavy

    from hetero_core.testing.models import light_model

    with tempfile.TemporaryDirectory(prefix="hetero-model-") as folder:
        path = os.path.join(folder, f"{model}.onnx")
        onnx.save(light_model(model), path)
        yield path
