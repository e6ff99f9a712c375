"""Operators on texts and tokens. They run on the host: no device has strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import repeat
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, Texts
from hetero_core.kernels.registry import FLOAT32, INDEX, INT64, STRING, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.operators import broadcast_sizes

_EXTRA = "needs google-re2, which is not installed; pip install hetero-core[text]"


def compile_match(pattern: str) -> Callable[[str], bool]:
    """Returns a function that says whether a pattern matches a whole text. Raises: ValueError."""
    expression = _compile(pattern, takes_longest=False)
    return lambda text: expression.fullmatch(_encode(text)) is not None


def compile_search(pattern: str) -> Callable[[str], list[tuple[int, int]]]:
    """Returns a function that lists the matches of a pattern in a text as ranges of characters; of several alternatives the longest
    matches.

    Raises: as `compile_match`.
    """
    expression = _compile(pattern, takes_longest=True)

    def search(text: str) -> list[tuple[int, int]]:
        encoded = _encode(text)
        # An empty match may lie between the bytes of a letter.
        spans = [span for span in (match.span() for match in expression.finditer(encoded)) if span[0] < span[1]]
        if len(encoded) == len(text):
            return spans
        letters = [place for place, byte in enumerate(encoded) if byte & 0xC0 != 0x80]
        index_of_place = {place: index for index, place in enumerate([*letters, len(encoded)])}
        return [(index_of_place[begin], index_of_place[end]) for begin, end in spans]

    return search


def _compile(pattern: Any, *, takes_longest: bool) -> Any:
    if not isinstance(pattern, str):
        raise ValueError(f"has the expression {pattern!r:.100}; expected a text")  # noqa: TRY004  # a reason of refusal
    if find_spec("re2") is None:
        raise ValueError(_EXTRA)
    import re2  # an extra, and a library of its own

    options = re2.Options()
    options.longest_match = takes_longest
    # It is said in the reason of the refusal, not on the error output.
    options.log_errors = False
    try:
        return re2.compile(_encode(pattern), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"has the expression {pattern!r:.100}, which is none of RE2's: {reason}") from error


def _encode(text: str) -> bytes:
    # Half of a pair of surrogates is no text, and no reason for an error about Unicode.
    return text.encode("utf-8", "surrogatepass")


def _count_concatenated(x: Array, y: Array) -> int:
    """A text for each element, as long as both together; 57 bytes are a short text and the pointer to it."""
    count = int(prod(broadcast_sizes(x.shape, y.shape)))
    return count * 57 + sum(count // max(int(part.size), 1) * sum(map(len, part.reshape(-1).tolist())) for part in (x, y))


def _count_pieces(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> int:
    """As many columns of pointers as the text with most pieces has."""
    texts = x.reshape(-1).tolist()
    pieces = max((text.count(delimiter) + 1 if delimiter else len(text.split()) for text in texts), default=0)
    return len(texts) * min(pieces, pieces if maxsplit is None else maxsplit + 1) * 8


@kernel("StringConcat", since=(20,), dtypes=STRING, runs_on_host=True, count_bytes=_count_concatenated)
def string_concat(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns the concatenation of both texts, element by element."""
    return np.asarray(x.astype(object) + y.astype(object), dtype=object)


@kernel("StringSplit", since=(20,), dtypes=STRING, outputs=2, runs_on_host=True, count_bytes=_count_pieces)
def string_split(xp: Namespace, x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """Returns the parts of each text along a new axis, filled up with "", and how many there are.

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


@kernel("RegexFullMatch", since=(20,), dtypes=STRING, runs_on_host=True, prepare=lambda xp, _, *, pattern: compile_match(pattern))
def regex_full_match(xp: Namespace, x: Array, *, prepared: Callable[[str], bool]) -> Array:
    """Returns whether the whole text matches, in time linear in its length."""
    matches = [prepared(str(text)) for text in x.reshape(-1)]
    return np.asarray(matches, dtype=bool).reshape(x.shape)


_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@kernel(
    "StringNormalizer",
    since=(10,),
    dtypes=STRING,
    choices={"case_change_action": ("LOWER", "UPPER", "NONE"), "is_case_sensitive": (0, 1)},
    runs_on_host=True,
    unread={"locale": None},
)
def string_normalizer(
    xp: Namespace, x: Array, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, stopwords: Texts = ()
) -> Array:
    """Returns the texts without stop words, with the case changed; a single empty text if all are removed.

    x is (texts,) or (1, texts). Case changes do not depend on the locale.
    """
    change = _CASES[case_change_action]
    fold = _CASES["NONE" if is_case_sensitive else "LOWER"]
    stops = {fold(word) for word in stopwords}
    words = [change(str(text)) for text in x.reshape(-1) if fold(str(text)) not in stops]
    y = np.asarray(words or [""], dtype=object)
    return y if x.ndim == 1 else y.reshape((1, -1))


@dataclass(frozen=True, slots=True)
class GramRule:
    """The output position of each n-gram, the (length, step) of those that are looked for, the outputs, and the mode with its weights."""

    slots: Mapping[tuple[str | int, ...], int]
    strides: tuple[tuple[int, int], ...]
    width: int
    mode: str
    scale: Array


def _prepare_tfidf(
    xp: Namespace,
    _: InputTypes,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Integers,
    ngram_indexes: Integers,
    pool_int64s: Integers = (),
    pool_strings: Texts = (),
    weights: Floats | None = None,
) -> GramRule:
    # A single element has nothing to skip.
    lengths, skips = range(min_gram_length, max_gram_length + 1), range(max_skip_count + 1)
    strides = [(length, skip + 1) for length in lengths for skip in (skips if length > 1 else range(1))]
    width = max(ngram_indexes) + 1
    scale = np.ones(width, dtype=np.float32)
    if weights is not None and mode != "TF":
        scale[list(ngram_indexes)] = weights
    # The pool holds all 1-grams, then all 2-grams, ...; ngram_counts holds the begin of each length.
    pool: Texts | Integers = pool_strings or pool_int64s
    slots: dict[tuple[str | int, ...], int] = {}
    for length, (begin, end) in enumerate(zip(ngram_counts, (*ngram_counts[1:], len(pool)), strict=True), start=1):
        for place in range(begin, end, length):
            slots[tuple(pool[place : place + length])] = ngram_indexes[len(slots)]
    return GramRule(slots, tuple(strides), width, mode, scale)


@kernel(
    "TfIdfVectorizer",
    since=(9,),
    dtypes=STRING | INDEX,
    choices={"mode": ("TF", "IDF", "TFIDF")},
    runs_on_host=True,
    prepare=_prepare_tfidf,
)
def tfidf_vectorizer(xp: Namespace, x: Array, *, prepared: GramRule) -> Array:
    """Returns how often each n-gram of the pool occurs in each row, with 0 to max_skip_count elements left out between its members.

    TF gives counts, IDF the weights of present n-grams, TFIDF their product.
    """
    # A list for each row would have Python's collector walk over all of them.
    flat, elements = x.ravel().tolist(), x.shape[-1] if x.ndim else 1
    counts = np.zeros((x.shape[0] if x.ndim > 1 else 1, prepared.width), dtype=np.float32)
    for length, step in prepared.strides:
        reach = (length - 1) * step
        if reach >= elements or not flat:
            continue
        count = len(flat) - reach
        grams = zip(*(flat[k * step : k * step + count] for k in range(length)), strict=True)
        slots = np.fromiter(map(prepared.slots.get, grams, repeat(-1)), np.int64, count)
        is_found = slots >= 0
        if reach:
            # An n-gram does not cross the end of a row.
            is_found &= np.arange(count) % elements < elements - reach
        (places,) = is_found.nonzero()
        np.add.at(counts.reshape(-1), places // elements * prepared.width + slots[places], np.float32(1))
    if prepared.mode != "TF":
        counts = (counts > 0) * prepared.scale if prepared.mode == "IDF" else counts * prepared.scale
    return counts.reshape(counts.shape[1:] if x.ndim <= 1 else counts.shape)


TokenRule = tuple[Callable[[str], list[str]], str]
"""The function that cuts a text into tokens, and the padding of rows with fewer tokens."""
_RUN = re.compile(r"(?:\[(?:[A-Za-z0-9](?:-[A-Za-z0-9])?|_|\\[dw])+\]|\\[dw])\+")
"""Runs of ASCII characters of one class, in which Python's expressions are RE2's; `re2` takes some microseconds for each match."""


def _prepare_tokenizer(
    xp: Namespace, _: InputTypes, *, mincharnum: int, pad_value: str, separators: Texts = (), tokenexp: str = ""
) -> TokenRule:
    if bool(separators) == bool(tokenexp):
        raise ValueError("needs either separators or a tokenexp")
    splits_letters = separators == ("",)
    searches = [] if splits_letters else [compile_search(expression) for expression in (separators or (tokenexp,))]
    for separator in separators:
        if not splits_letters and compile_match(separator)(""):
            # Not as it stands in any specification: ONNX Runtime then makes no tokens at all.
            raise ValueError(f"has the separator {separator!r}, which matches the empty text")

    least = max(mincharnum, 1)
    if _RUN.fullmatch(tokenexp):
        return re.compile(f"{tokenexp[:-1]}{{{least},}}", re.ASCII).findall, pad_value

    def cut(text: str) -> list[str]:
        if tokenexp:
            pieces = [text[begin:end] for begin, end in searches[0](text)]
        elif splits_letters:
            pieces = list(text)
        else:
            pieces = [text]
            for search in searches:
                pieces = [part for piece in pieces for part in _split(piece, search(piece))]
        return [piece for piece in pieces if len(piece) >= least]

    return cut, pad_value


def _split(text: str, places: list[tuple[int, int]]) -> list[str]:
    """Returns the pieces of a text between these ranges."""
    begins, ends = [0, *(end for _, end in places)], [*(begin for begin, _ in places), len(text)]
    return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]


@microsoft_kernel(
    "Tokenizer",
    dtypes=STRING,
    choices={"mark": (0,)},
    runs_on_host=True,
    prepare=_prepare_tokenizer,
    unread={"mark": 0},
)
def tokenizer(xp: Namespace, x: Array, *, prepared: TokenRule) -> Array:
    """Returns the tokens of each text along a new axis, filled up with pad_value: the matches, or the text between separators.

    Of several matches at a place the longest counts.
    """
    (cut, pad_value), counts, flat = prepared, list[int](), list[str]()
    for text in x.reshape(-1).tolist():
        tokens = cut(str(text))
        counts.append(len(tokens))
        flat += tokens
    longest = max(counts, default=0)
    if longest * len(counts) == len(flat):
        return np.array(flat, object).reshape((*x.shape, longest))
    y = np.full((len(counts), longest), pad_value, dtype=object)
    y[np.arange(longest) < np.array(counts, np.int64)[:, None]] = flat
    return y.reshape((*x.shape, longest))


_HASHED = STRING | {"int32", "uint32", "int64", "uint64", "float32", "float64"}


@microsoft_kernel("NGramRepeatBlock", dtypes=(INT64, FLOAT32), runs_on_host=True)
def n_gram_repeat_block(xp: Namespace, input_ids: Array, scores: Array, *, ngram_size: int) -> Array:
    """Returns the scores with minus infinity for each token that would repeat an n-gram."""
    y = scores.copy()
    length, reach = input_ids.shape[1], ngram_size - 1
    if length + 1 < ngram_size:
        return y
    for row, ids in enumerate(input_ids):
        last = ids[length - reach :]
        for start in range(length - reach):
            if np.array_equal(ids[start : start + reach], last):
                y[row, ids[start + reach]] = -np.inf
    return y


@microsoft_kernel("MurmurHash3", dtypes=_HASHED, choices={"positive": (0, 1)}, runs_on_host=True)
def murmur_hash_3(xp: Namespace, x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """Returns a hash of 32 bits of each element's bytes. Source: Appleby, MurmurHash3_x86_32."""
    flat = x.reshape(-1)
    pieces = [str(item).encode() for item in flat] if x.dtype.kind == "O" else [item.tobytes() for item in flat]
    hashes = np.asarray([_hash(piece, seed & 0xFFFFFFFF) for piece in pieces], np.uint32).reshape(x.shape)
    return hashes if positive else hashes.view(np.int32)


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (32 - bits)) & 0xFFFFFFFF


def _hash(content: bytes, seed: int) -> int:
    """Returns MurmurHash3 for 32-bit machines."""
    state, whole = seed, len(content) // 4 * 4
    for start in range(0, whole, 4):
        state = _rotate(state ^ _mix(int.from_bytes(content[start : start + 4], "little")), 13)
        state = (state * 5 + 0xE6546B64) & 0xFFFFFFFF
    if whole < len(content):
        state ^= _mix(int.from_bytes(content[whole:], "little"))
    state ^= len(content)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = ((state ^ state >> shift) * factor) & 0xFFFFFFFF
    return state


def _mix(block: int) -> int:
    return _rotate(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
