"""Tokenizer of com.microsoft, ONNX Runtime's own operator, which exporters of text models use. It runs on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_core.kernels.expressions import compile_match, compile_search
from hetero_core.kernels.operators.ml_scores import InputTypes
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import STRING, kernel


@dataclass(frozen=True, slots=True)
class TokenRule:
    """The rule that cuts one text into tokens, and the padding of rows with fewer tokens."""

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
    splits_letters = separators == ("",)
    searches = [] if splits_letters else [compile_search(expression) for expression in (separators or (tokenexp,))]
    for separator in separators:
        if not splits_letters and compile_match(separator)(""):
            # Not as it stands in any specification: ONNX Runtime then makes no tokens at all.
            raise ValueError(f"has the separator {separator!r}, which matches the empty text")

    def cut(text: str) -> list[str]:
        if tokenexp:
            pieces = [text[begin:end] for begin, end in searches[0](text)]
        elif splits_letters:
            pieces = list(text)
        else:
            pieces = [text]
            for search in searches:
                pieces = [part for piece in pieces for part in _split(piece, search(piece))]
        return [piece for piece in pieces if len(piece) >= max(mincharnum, 1)]

    return TokenRule(cut, pad_value)


def _split(text: str, places: list[tuple[int, int]]) -> list[str]:
    """Returns what lies between places of a text."""
    begins, ends = [0, *(end for _, end in places)], [*(begin for begin, _ in places), len(text)]
    return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]


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

    Of several matches at a place the longest counts. Source: ONNX Runtime, com.microsoft.Tokenizer-1.
    """
    cut = [prepared.cut(str(text)) for text in x.reshape(-1)]
    y = np.full((len(cut), max((len(tokens) for tokens in cut), default=0)), prepared.pad_value, dtype=object)
    for row, tokens in enumerate(cut):
        y[row, : len(tokens)] = tokens
    return y.reshape((*x.shape, y.shape[1]))
