"""Operators on texts and tokens. They run on the host: no device has strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise, repeat
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, Texts
from hetero_core.kernels.registry import FLOAT32, INDEX, INT32, INT64, NUMBERS, STRING, kernel, microsoft_kernel
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
    dtypes=STRING | (NUMBERS & {"int32", "int64"}),
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


@kernel(
    "Tokenizer",
    domain="com.microsoft",
    # ONNX has no schema for it, hence no version.
    since=(0,),
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


_HASHED = frozenset({"int32", "uint32", "int64", "uint64", "float32", "float64"}) | STRING


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


@microsoft_kernel("BifurcationDetector", dtypes=INT64, outputs=2, runs_on_host=True)
def bifurcation_detector(
    xp: Namespace,
    src_tokens: Array,
    cur_tokens: Array,
    prev_suffix_match_idx: Array,
    pred_tokens: Array | None = None,
    *,
    max_ngram_size: int,
    min_ngram_size: int,
) -> tuple[Array, Array]:
    """Returns the current tokens with predicted tokens up to the first mismatch, and the position of their end in the source.

    The position is -1 if no n-gram of the end occurs in the source, or the longest that does occurs more than once.
    """
    source, tokens = src_tokens.reshape(-1), cur_tokens.reshape(-1)
    start = int(prev_suffix_match_idx.reshape(()))
    if pred_tokens is not None:
        predicted, rest = pred_tokens.reshape(-1), source[start:]
        count = min(len(rest), len(predicted) - 1)
        parted = np.flatnonzero(predicted[:count] != rest[:count])
        place = int(parted[0]) if len(parted) else count
        tokens = np.concatenate([tokens, predicted[: place + 1]])
    match = -1
    for size in range(min_ngram_size, max_ngram_size + 1):
        if size > len(tokens):
            break
        end = tokens[len(tokens) - size :]
        places = [at for at in range(len(source) - size + 1) if np.array_equal(source[at : at + size], end)]
        if not places:
            break
        match = places[0] + size
        if match >= len(source):
            break
        if len(places) > 1:
            match = -1
    return tokens.astype(np.int64), np.asarray(match, np.int64).reshape(prev_suffix_match_idx.shape)


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


@microsoft_kernel("NGramHashMapping", dtypes=(*(INDEX,) * 6, INT32), outputs=2, choices={"reset_on_eos": (0, 1)}, runs_on_host=True)
def n_gram_hash_mapping(
    xp: Namespace,
    input_ids: Array,
    multipliers: Array,
    vocab_sizes: Array,
    past_ids: Array | None = None,
    head_offsets: Array | None = None,
    eos_token_id: Array | None = None,
    segment_ids: Array | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
) -> tuple[Array, Array]:
    """Returns for each token the hashes of the n-grams that end there, and the ids that the next call needs."""
    batch, steps = input_ids.shape
    hashes, presents, _, _ = packed_n_gram_hash_mapping(
        xp, input_ids.reshape(-1), multipliers, vocab_sizes, np.arange(batch + 1) * steps, past_ids, head_offsets, eos_token_id,
        None if segment_ids is None else segment_ids.reshape(-1), max_ngram_size=max_ngram_size, n_head_per_ngram=n_head_per_ngram,
        pad_id=pad_id, reset_on_eos=reset_on_eos,
    )  # fmt: skip
    return hashes.reshape((batch, steps, hashes.shape[1])), presents


def shift_ids(ids: Any, reach: int, segments: Any, eos: int | None, filler: int) -> list[Any]:
    """Returns the ids of each position, of the position before it, and so on; positions behind a boundary get the filler."""
    count = len(ids) - reach
    is_cut = np.zeros(count, bool)
    shifts = [ids[reach:]]
    for at in reversed(range(reach)):
        behind = ids[at : at + count]
        if eos is not None:
            is_cut = is_cut | (behind == eos)
        if segments is not None:
            is_cut = is_cut | (segments[at + 1 : at + 1 + count] != segments[at : at + count])
        shifts.append(np.where(is_cut, np.asarray(filler, ids.dtype), behind))
    return shifts


def hash_shifts(shifts: list[Any], multipliers: Any, vocab_sizes: Any, head_offsets: Any, heads: int) -> Any:
    """Returns (positions, orders * heads): products with the multipliers, joined by xor, modulo each head's vocabulary."""
    columns = []
    with np.errstate(over="ignore"):
        mix = shifts[0] * multipliers[0]
        for order in range(1, len(shifts)):
            mix = mix ^ (shifts[order] * multipliers[order])
            for place in range((order - 1) * heads, order * heads):
                code = np.mod(mix, vocab_sizes[place])
                columns.append(code if head_offsets is None else code + head_offsets[place])
    return np.stack(columns, axis=-1).astype(shifts[0].dtype)


@microsoft_kernel(
    "VarlenNGramHashMapping",
    dtypes=(*(INDEX,) * 3, INT32, *(INDEX,) * 3, *(INT32,) * 3),
    outputs=4,
    choices={"reset_on_eos": (0, 1)},
    runs_on_host=True,
)
def packed_n_gram_hash_mapping(
    xp: Namespace,
    input_ids: Array,
    multipliers: Array,
    vocab_sizes: Array,
    cumulative_sequence_length: Array,
    past_ids: Array | None = None,
    head_offsets: Array | None = None,
    eos_token_id: Array | None = None,
    segment_ids: Array | None = None,
    past_segment_ids: Array | None = None,
    capture_count: Array | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
    state_update_capacity: int = 0,
) -> tuple[Array, Array, Array, Array]:
    """Returns the results of NGramHashMapping for concatenated sequences; their segments, and the ids after each token."""
    reach, bounds = max_ngram_size - 1, [int(bound) for bound in cumulative_sequence_length]
    eos = None if eos_token_id is None else int(eos_token_id.reshape(()))
    filler = pad_id if eos is None else eos
    rows, presents, marks = [np.zeros((0, reach * n_head_per_ngram), input_ids.dtype)], [], []
    updates = np.full((len(bounds) - 1, state_update_capacity, reach), pad_id, input_ids.dtype)
    for row, (begin, end) in enumerate(pairwise(bounds)):
        past = np.full(reach, filler, input_ids.dtype) if past_ids is None else past_ids[row]
        ids = np.concatenate([past, input_ids[begin:end]])
        segments = None
        if segment_ids is not None:
            # Before the ids of this call no segment is known: they never part.
            before = np.repeat(segment_ids[begin : begin + 1], reach) if past_segment_ids is None else past_segment_ids[row]
            segments = np.concatenate([before, segment_ids[begin:end]])
        shifts = shift_ids(ids, reach, segments, eos if reset_on_eos else None, filler)
        rows.append(hash_shifts(shifts, multipliers, vocab_sizes, head_offsets, n_head_per_ngram))
        presents.append(ids[len(ids) - reach :])
        marks.append(np.zeros(reach, np.int32) if segments is None else segments[len(segments) - reach :])
        count = 0 if capture_count is None else max(min(int(capture_count[row]), state_update_capacity, end - begin), 0)
        for place in range(count):
            updates[row, place] = ids[place + 1 : place + 1 + reach]
    ends = np.reshape(presents, (-1, reach)).astype(input_ids.dtype), np.reshape(marks, (-1, reach)).astype(np.int32)
    return np.concatenate(rows), *ends, updates
