"""Tokenizer of com.microsoft, ONNX Runtime's own operator, which exporters of text models use. It runs on the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_core.kernels.ml_scores import InputTypes
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import STRING, kernel

# ONNX Runtime takes the longest match, Python the first alternative: they agree where there is neither choice nor reluctance.
_CHOICE = re.compile(r"(?<!\\)(?:\\\\)*[|(]|[*+?}][?+]")


@dataclass(frozen=True, slots=True)
class TokenRule:
    """How one text is cut, and what fills the rows of texts with fewer tokens."""

    cut: Callable[[str], list[str]]
    pad_value: str


def _prepare_tokenizer(
    xp: Namespace,
    input_types: InputTypes,
    *,
    mark: int = 0,
    mincharnum: int,
    pad_value: str,
    separators: tuple[str, ...] = (),
    tokenexp: str = "",
) -> TokenRule:
    if bool(separators) == bool(tokenexp):
        raise ValueError("needs either separators or a tokenexp")
    for expression in (tokenexp, *separators):
        if _CHOICE.search(expression):
            raise ValueError(
                f"has the expression {expression!r}; groups, alternatives and reluctant repetition are not implemented"
            )
        try:
            re.compile(expression)
        except re.error as error:
            raise ValueError(f"has the expression {expression!r}: {error}") from error

    def cut(text: str) -> list[str]:
        if tokenexp:
            pieces = re.findall(tokenexp, text)
        elif separators == ("",):
            pieces = list(text)
        else:
            pieces = [text]
            for separator in separators:
                pieces = [part for piece in pieces for part in re.split(separator, piece)]
        return [piece for piece in pieces if len(piece) >= max(mincharnum, 1)]

    return TokenRule(cut, pad_value)


@kernel(
    "Tokenizer",
    domain="com.microsoft",
    # ONNX has no schema for it, hence no version.
    since=(0,),
    dtypes=STRING,
    choices={"mark": (0,)},
    runs_on_host=True,
    prepare=_prepare_tokenizer,
)
def tokenizer(xp: Namespace, x: Array, *, prepared: TokenRule) -> Array:
    """Returns the tokens of each text along a new axis, filled up with pad_value: what matches, or lies between separators.

    Expressions are Python's; those of ONNX Runtime, RE2's. Source: ONNX Runtime, com.microsoft.Tokenizer-1.
    """
    cut = [prepared.cut(str(text)) for text in x.reshape(-1)]
    y = np.full((len(cut), max((len(tokens) for tokens in cut), default=0)), prepared.pad_value, dtype=object)
    for row, tokens in enumerate(cut):
        y[row, : len(tokens)] = tokens
    return y.reshape((*x.shape, y.shape[1]))
