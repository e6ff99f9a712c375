"""ONNX Runtime's own operators on tokens: hashes, n-grams, and the search for where two sequences part. They run on the host."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import FLOAT32, INDEX, INT32, INT64, STRING, microsoft_kernel

_HASHED = frozenset({"int32", "uint32", "int64", "uint64", "float32", "float64"}) | STRING


@microsoft_kernel("NGramRepeatBlock", dtypes=(INT64, FLOAT32), runs_on_host=True)
def n_gram_repeat_block(xp: Namespace, input_ids: Array, scores: Array, *, ngram_size: int) -> Array:
    """Returns the scores with minus infinity for each token that would repeat an n-gram.

    Source: ONNX Runtime, com.microsoft.NGramRepeatBlock-1.
    """
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
    """Returns the current tokens with the predicted ones up to the first mismatch, and the position of their end in the source.

    The position is -1 if no n-gram of the end occurs in the source, or the longest that does occurs more than once.
    Source: ONNX Runtime, com.microsoft.BifurcationDetector-1.
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


@microsoft_kernel(
    "NGramHashMapping",
    dtypes=(INDEX, INDEX, INDEX, INDEX, INDEX, INDEX, frozenset({"int32"})),
    outputs=2,
    choices={"reset_on_eos": (0, 1)},
    runs_on_host=True,
)
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
    """Returns for each token the hashes of the n-grams that end there, and the ids that the next call needs.

    Source: ONNX Runtime, com.microsoft.NGramHashMapping-1.
    """
    reach = max_ngram_size - 1
    eos = None if eos_token_id is None else int(eos_token_id.reshape(()))
    filler = pad_id if eos is None else eos
    rows, presents = [], []
    for row, ids in enumerate(input_ids):
        past = np.full(reach, filler, ids.dtype) if past_ids is None else past_ids[row]
        # Before the ids of this call no segment is known: they never part.
        segments = None if segment_ids is None else np.concatenate([np.repeat(segment_ids[row][:1], reach), segment_ids[row]])
        shifts = shift_ids(np.concatenate([past, ids]), reach, segments, eos if reset_on_eos else None, filler)
        rows.append(hash_shifts(shifts, multipliers, vocab_sizes, head_offsets, n_head_per_ngram))
        presents.append(np.concatenate([past, ids])[len(ids) :])
    heads = reach * n_head_per_ngram
    hashes = np.stack(rows) if rows else np.zeros((*input_ids.shape, heads), input_ids.dtype)
    return hashes, np.stack(presents) if presents else np.zeros((0, reach), input_ids.dtype)


def shift_ids(ids: Any, reach: int, segments: Any, eos: int | None, filler: int) -> list[Any]:
    """Returns the ids of each position, of the one before it, and so on; positions behind a boundary get the filler."""
    count = len(ids) - reach
    is_cut = np.zeros(count, bool)
    shifts = [ids[reach:]]
    for back in range(1, reach + 1):
        behind = ids[reach - back : reach - back + count]
        if eos is not None:
            is_cut = is_cut | (behind == eos)
        if segments is not None:
            is_cut = is_cut | (
                segments[reach - back + 1 : reach - back + 1 + count] != segments[reach - back : reach - back + count]
            )
        shifts.append(np.where(is_cut, np.asarray(filler, ids.dtype), behind))
    return shifts


def hash_shifts(shifts: list[Any], multipliers: Any, vocab_sizes: Any, head_offsets: Any, heads: int) -> Any:
    """Returns (positions, orders * heads): products with the multipliers, joined by xor, modulo each head's vocabulary."""
    columns = []
    with np.errstate(over="ignore"):
        mix = shifts[0] * multipliers[0]
        for order in range(1, len(shifts)):
            mix = mix ^ (shifts[order] * multipliers[order])
            for head in range(heads):
                place = (order - 1) * heads + head
                code = np.mod(mix, vocab_sizes[place])
                columns.append(code if head_offsets is None else code + head_offsets[place])
    return np.stack(columns, axis=-1).astype(shifts[0].dtype)


@microsoft_kernel(
    "VarlenNGramHashMapping",
    dtypes=(INDEX, INDEX, INDEX, INT32, INDEX, INDEX, INDEX, INT32, INT32, INT32),
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
    """Returns the results of NGramHashMapping for concatenated sequences; their segments, and the ids after each token.

    Source: ONNX Runtime, com.microsoft.VarlenNGramHashMapping-1.
    """
    reach, bounds = max_ngram_size - 1, [int(bound) for bound in cumulative_sequence_length]
    eos = None if eos_token_id is None else int(eos_token_id.reshape(()))
    filler = pad_id if eos is None else eos
    rows, presents, marks = [], [], []
    updates = np.full((len(bounds) - 1, state_update_capacity, reach), pad_id, input_ids.dtype)
    for row, (begin, end) in enumerate(pairwise(bounds)):
        past = np.full(reach, filler, input_ids.dtype) if past_ids is None else past_ids[row]
        ids = np.concatenate([past, input_ids[begin:end]])
        segments = None
        if segment_ids is not None:
            before = np.repeat(segment_ids[begin : begin + 1], reach) if past_segment_ids is None else past_segment_ids[row]
            segments = np.concatenate([before, segment_ids[begin:end]])
        shifts = shift_ids(ids, reach, segments, eos if reset_on_eos else None, filler)
        rows.append(hash_shifts(shifts, multipliers, vocab_sizes, head_offsets, n_head_per_ngram))
        presents.append(ids[len(ids) - reach :])
        marks.append(np.zeros(reach, np.int32) if segments is None else segments[len(segments) - reach :])
        count = 0 if capture_count is None else max(min(int(capture_count[row]), state_update_capacity, end - begin), 0)
        for place in range(count):
            updates[row, place] = ids[place + 1 : place + 1 + reach]
    return np.concatenate(rows), np.stack(presents), np.stack(marks).astype(np.int32), updates
