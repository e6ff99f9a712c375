"""Operators on texts. They run on the host: no device has strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_core.kernels.expressions import compile_match
from hetero_core.kernels.operators.ml_scores import InputTypes
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import NUMBERS, STRING, kernel
from hetero_core.kernels.sizes import broadcast_sizes, product


def _count_concatenated(x: Array, y: Array) -> int:
    """A text for each element, as long as both together; 57 bytes are a short text and the pointer to it."""
    count = product(broadcast_sizes(x.shape, y.shape))
    return count * 57 + sum(count // max(int(part.size), 1) * sum(map(len, part.reshape(-1).tolist())) for part in (x, y))


def _count_pieces(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> int:
    """As many columns of pointers as the text with most pieces has."""
    texts = x.reshape(-1).tolist()
    pieces = max((text.count(delimiter) + 1 if delimiter else len(text.split()) for text in texts), default=0)
    return len(texts) * min(pieces, pieces if maxsplit is None else maxsplit + 1) * 8


@kernel("StringConcat", since=(20,), dtypes=STRING, runs_on_host=True, count_bytes=_count_concatenated)
def string_concat(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns the concatenation of both texts, element by element. Source: ONNX StringConcat-20."""
    return np.asarray(x.astype(object) + y.astype(object), dtype=object)


@kernel("StringSplit", since=(20,), dtypes=STRING, outputs=2, runs_on_host=True, count_bytes=_count_pieces)
def string_split(xp: Namespace, x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """Returns the parts of each text along a new axis, filled up with "", and how many there are. Source: ONNX StringSplit-20.

    Without a delimiter runs of white space separate, and those at the ends are dropped.
    """
    limit = -1 if maxsplit is None else maxsplit
    parts = [str(text).split(delimiter or None, limit) if text != "" else [] for text in x.reshape(-1)]
    counts = [len(pieces) for pieces in parts]
    longest = max(counts, default=0)
    padded = np.full((len(parts), longest), "", dtype=object)
    for row, pieces in enumerate(parts):
        padded[row, : len(pieces)] = pieces
    return padded.reshape((*x.shape, longest)), np.asarray(counts, dtype=np.int64).reshape(x.shape)


def _prepare_match(xp: Namespace, input_types: InputTypes, *, pattern: str) -> Callable[[str], bool]:
    return compile_match(pattern)


@kernel("RegexFullMatch", since=(20,), dtypes=STRING, runs_on_host=True, prepare=_prepare_match)
def regex_full_match(xp: Namespace, x: Array, *, prepared: Callable[[str], bool]) -> Array:
    """Returns whether the whole text matches, in time linear in its length. Source: ONNX RegexFullMatch-20."""
    matches = [prepared(str(text)) for text in x.reshape(-1)]
    return np.asarray(matches, dtype=bool).reshape(x.shape)


_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@kernel(
    "StringNormalizer",
    since=(10,),
    dtypes=STRING,
    choices={"case_change_action": ("LOWER", "UPPER", "NONE"), "is_case_sensitive": (0, 1)},
    runs_on_host=True,
)
def string_normalizer(
    xp: Namespace,
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: tuple[str, ...] = (),
) -> Array:
    """Returns the texts without stop words, in another case; a single empty text if all are removed. Source: ONNX StringNormalizer-10.

    x is (texts,) or (1, texts). Case changes do not depend on the locale.
    """
    change = _CASES[case_change_action]
    fold = _CASES["NONE" if is_case_sensitive else "LOWER"]
    stops = {fold(word) for word in stopwords}
    words = [change(str(text)) for text in x.reshape(-1) if fold(str(text)) not in stops]
    y = np.asarray(words or [""], dtype=object)
    return y if x.ndim == 1 else y.reshape((1, -1))


def _count_grams(x: Array, *, ngram_indexes: tuple[int, ...], **_: Any) -> int:
    """A float32 column for each place that the attribute names."""
    return (max(ngram_indexes) + 1) * (int(x.shape[0]) if x.ndim > 1 else 1) * 4


@kernel(
    "TfIdfVectorizer",
    since=(9,),
    dtypes=STRING | (NUMBERS & {"int32", "int64"}),
    choices={"mode": ("TF", "IDF", "TFIDF")},
    runs_on_host=True,
    count_bytes=_count_grams,
)
def tfidf_vectorizer(
    xp: Namespace,
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    pool_int64s: tuple[int, ...] = (),
    pool_strings: tuple[str, ...] = (),
    weights: tuple[float, ...] | None = None,
) -> Array:
    """Returns how often each n-gram of the pool occurs in each row, with 0 to max_skip_count elements left out between its members.

    TF gives counts, IDF the weight of what occurs, TFIDF their product. Source: ONNX TfIdfVectorizer-9.
    """
    slots = _index_pool(pool_strings or pool_int64s, ngram_counts, ngram_indexes)
    rows = x.reshape((1, -1)) if x.ndim <= 1 else x
    counts = np.zeros((len(rows), max(ngram_indexes) + 1), dtype=np.float32)
    for row, elements in enumerate(rows.tolist()):
        for length in range(min_gram_length, max_gram_length + 1):
            # A single element has nothing to skip.
            for skip in range(max_skip_count + 1 if length > 1 else 1):
                step = skip + 1
                for begin in range(len(elements) - (length - 1) * step):
                    slot = slots.get(tuple(elements[begin : begin + (length - 1) * step + 1 : step]))
                    if slot is not None:
                        counts[row, slot] += 1
    if mode != "TF":
        scale = np.ones(counts.shape[1], dtype=np.float32)
        if weights is not None:
            scale[list(ngram_indexes)] = weights
        counts = (counts > 0) * scale if mode == "IDF" else counts * scale
    return counts.astype(np.float32).reshape(counts.shape[1:] if x.ndim <= 1 else counts.shape)


def _index_pool(
    pool: tuple[str, ...] | tuple[int, ...], ngram_counts: tuple[int, ...], ngram_indexes: tuple[int, ...]
) -> dict[tuple[str | int, ...], int]:
    """Returns n-gram -> output position. The pool holds all 1-grams, then all 2-grams, ...; ngram_counts says where each begins."""
    slots: dict[tuple[str | int, ...], int] = {}
    ends = (*ngram_counts[1:], len(pool))
    for length, (begin, end) in enumerate(zip(ngram_counts, ends, strict=True), start=1):
        for place in range(begin, end, length):
            slots[tuple(pool[place : place + length])] = ngram_indexes[len(slots)]
    return slots
