"""GroupQueryAttention of ONNX Runtime as operators of ONNX, for runs in which all rows of a batch are equally long.

```text
inputs of a run ── do all rows have past + new keys? ── yes ──> Split, rotation, Concat with the caches, Attention (a class of sizes)
                                                     └─ no ───> GroupQueryAttention as it is, by the toolkit
```

The operator reads the number of keys of each row as values (seqlens_k). New keys stand behind the counted ones, so a padded row has
them at other places than its neighbours; a cache may also be a buffer that is longer than its contents. `EvenRows` tells the cases
apart before a run. ONNX's operators append at the end of the past, which is what equally long rows need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np

from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType, ValueType
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.matching import read_axes, read_integers, read_shape
from hetero_cpu.transforms.microsoft import Angles, find_angles, read_input, turn_heads
from hetero_cpu.transforms.writer import Writer

_RESHAPING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that keep the numbers of keys."""
_ATTRIBUTES = (
    "causal do_rotary k_quant_type kv_cache_bit_width kv_num_heads local_window_size num_heads qk_output rotary_interleaved scale "
    "sliding_window_cache smooth_softmax softcap v_quant_type"
)
_RANK = 4
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class EvenRows:
    """The condition on the inputs of a run under which `append_evenly` keeps the results of a network.

    `mask`: the position of the input (batch, keys) whose rows are summed for the numbers of keys; `pasts`: the positions of the caches;
    `others`: the positions of the remaining inputs, one of which is (batch, new keys, ...); `most_keys`: the rows of the shortest table of
    angles.
    """

    mask: int
    pasts: tuple[int, ...]
    others: tuple[int, ...]
    most_keys: int

    def holds(self, inputs: Sequence[Any], shapes: Sequence[Any]) -> bool:
        """Says whether each row of each cache is full before the run, and has all new keys."""
        mask = inputs[self.mask]
        return self.fits(shapes) and np.count_nonzero(mask == 1) == mask.size

    def fits(self, shapes: Sequence[Any]) -> bool:
        """Says whether the mask is as long as past and new keys together."""
        mask, pasts = shapes[self.mask], {shapes[index][2:3] for index in self.pasts}
        if len(mask) != 2 or len(pasts) > 1 or any([len(shapes[index]) != _RANK for index in self.pasts]):  # noqa: C419  # a generator takes twice as long
            return False
        steps = mask[1] - sum(pasts.pop() if pasts else ())
        return steps > 0 and mask[1] <= self.most_keys and any([shapes[index][1:2] == (steps,) for index in self.others])  # noqa: C419  # as above


def append_evenly(network: Network) -> tuple[Network, EvenRows | None]:
    """Returns the network with each GroupQueryAttention as operators of ONNX, and the condition under which the results are the same.

    The network itself and None if a node cannot be written so, or if the condition cannot be told from the inputs.
    """
    nodes = [node for node in network.nodes if node.op_type == "GroupQueryAttention" and node.domain == MICROSOFT]
    if not nodes:
        return network, None
    writer = _AttentionWriter(network, nodes)
    rows = writer.find_rows()
    rewritten = None if rows is None else writer.rewrite()
    return (network, None) if rewritten is None else (drop_unread(rewritten), rows)


class _AttentionWriter(Writer):
    def __init__(self, network: Network, attentions: Sequence[Node]) -> None:
        super().__init__(network)
        self.attentions = attentions
        self.angles: dict[tuple[str, str], Angles | None] = {}
        self.masks: dict[int, str] = {}
        self.caches: dict[str, ValueType] = {}
        """The types of inputs that are caches: heads and their size follow from the nodes, also where a model declares them as open."""

    def find_rows(self) -> EvenRows | None:
        """Returns the condition; None if it cannot be told."""
        first, network = self.attentions[0], self.network
        if any(len(node.inputs) < 7 or node.inputs[5:7] != first.inputs[5:7] for node in self.attentions):
            return None
        if len({bool(node.inputs[3]) for node in self.attentions}) > 1:
            return None
        index_of_input = network.index_of_input
        pasts = [value for node in self.attentions for value in node.inputs[3:5] if value]
        mask = self._find_mask_input(*first.inputs[5:7])
        if mask is None or any(value not in index_of_input for value in pasts):
            return None
        constants = network.initializers
        tables = [constants[value].shape[0] for node in self.attentions for value in node.inputs[7:9] if value in constants]
        positions = tuple(index_of_input[value] for value in dict.fromkeys(pasts))
        others = tuple(position for name, position in index_of_input.items() if name != mask and name not in pasts)
        return EvenRows(index_of_input[mask], positions, others, min(tables, default=1 << 31))

    def _find_mask_input(self, last_keys: str, total: str) -> str | None:
        """Returns the input whose rows are summed to `last_keys` + 1, and have the length `total`."""
        less, part = self._find_producer(last_keys, "Sub"), self._find_producer(total, "Gather")
        if less is None or part is None:
            return None
        if any(read_integers(self.network, node.inputs[1]) != (1,) for node in (less, part)):
            return None
        summed, shape = self._find_producer(less.inputs[0], "ReduceSum"), self._find_producer(part.inputs[0], "Shape")
        if summed is None or shape is None or shape.attributes or summed.attributes.get("noop_with_empty_axes", 0):
            return None
        mask, axes = shape.inputs[0], read_axes(self.network, summed)
        is_mask = axes in ((1,), (-1,)) and self._skip(summed.inputs[0]) == mask and mask in self.network.index_of_input
        return mask if is_mask else None

    def _find_producer(self, value: str, op_type: str) -> Node | None:
        node = self.network.find_producer(self._skip(value))
        return node if node is not None and node.op_type == op_type and not node.domain else None

    def _skip(self, value: str) -> str:
        """Returns the value whose numbers a value has."""
        while (node := self.network.find_producer(value)) is not None and not node.domain and node.op_type in _RESHAPING:
            value = node.inputs[0]
        return value

    def rewrite(self) -> Network | None:
        """Returns the network with all nodes written as operators of ONNX."""
        for node in self.network.nodes:
            self.label, self.origins = node.name, node.origins
            if node not in self.attentions:
                self.nodes.append(node)
            elif not self._write(node):
                return None
        self.types.update(self.caches)
        inputs = tuple(replace(spec, type=self.caches.get(spec.name, spec.type)) for spec in self.network.inputs)
        return replace(self.write_network(), inputs=inputs)

    def _write(self, node: Node) -> bool:
        get = node.attributes.get
        heads, groups, window = int(get("num_heads", 0)), int(get("kv_num_heads", 0)), int(get("local_window_size", -1))
        shape, past, is_causal = read_shape(self.network, node.inputs[0]), read_input(node, 3), bool(get("causal", 1))
        is_special = any(
            (get("sliding_window_cache", 0), get("softcap", 0.0), get("smooth_softmax", -1) == 1, get("rotary_interleaved", 0))
        )
        if is_special or not is_causal or window == 0 or not set(node.attributes) <= set(_ATTRIBUTES.split()):
            return False
        if any((*node.inputs[9:], *node.outputs[3:])) or bool(past) != bool(read_input(node, 4)):
            return False
        if shape is None or len(shape) != 3 or not isinstance(shape[2], int) or not groups or heads % groups:
            return False
        floats = [*filter(None, node.inputs[:5])]
        if not all(self.dtype(value) == "float32" for value in floats):
            return False
        is_packed = not node.inputs[1]
        size, rest = divmod(shape[2], heads + 2 * groups if is_packed else heads)
        if rest or not size:
            return False
        angles = self._find_angles(node) if get("do_rotary", 0) else None
        if get("do_rotary", 0) and (angles is None or angles[2] > size):
            return False
        query, key, value = self._lay_all_heads(node, (heads, groups, size), angles)
        presents = [*node.outputs[1:3], "", ""][:2]
        joined = []
        for cache, new, present in zip(node.inputs[3:5], (key, value), presents, strict=True):
            if past:
                declared = read_shape(self.network, cache) or ()
                batch, length = declared[::2] if len(declared) == _RANK else (None, None)
                self.caches[cache] = TensorType("float32", (batch, groups, length, size))
            joined.append(
                self.add("Concat", cache, new, axis=2, output=present) if past else self.add("Identity", new, output=present)
            )
        if heads != groups:
            wide, axis = self.add_integers(1, 1, heads // groups, 1, 1), self.add_integers(2)
            whole = self.add_integers(0, heads, -1, size)
            joined = [self.add("Reshape", self.add("Expand", self.add("Unsqueeze", x, axis), wide), whole) for x in joined]
        mixed = self.add("Attention", query, *joined, self._find_mask(window), scale=float(get("scale", 0.0)) or 1 / sqrt(size))
        self.join_heads(mixed, heads * size, node.outputs[0])
        return True

    def _lay_all_heads(self, node: Node, sizes: tuple[int, int, int], angles: Angles | None) -> tuple[str, str, str]:
        """Returns query, key and value by heads, query and key turned; together if they come so."""
        heads, groups, size = sizes
        if not node.inputs[1]:
            both, value = self.split(self.lay_heads(node.inputs[0], heads + 2 * groups, size), (heads + groups, groups), 1)
            if angles is not None:
                both = turn_heads(self, both, angles, size)
            query, key = self.split(both, (heads, groups), 1)
            return query, key, value
        query, key, value = (self.lay_heads(x, n, size) for x, n in zip(node.inputs[:3], (heads, groups, groups), strict=True))
        if angles is not None:
            query, key = (turn_heads(self, x, angles, size) for x in (query, key))
        return query, key, value

    @cached_property
    def _places(self) -> tuple[str, str]:
        """The places of the new keys, and of all keys, which are the same for all nodes."""
        node = self.attentions[0]
        scalar, zero, step = (self.add_constant(np.array(x, np.int64)) for x in (2, 0, 1))
        past = read_input(node, 3)
        begin = self.add("Gather", self.add("Shape", past), scalar, axis=0) if past else zero
        total = self.add("Reshape", self.add("Cast", node.inputs[6], to=7), self.add_integers())
        return self.add("Range", begin, total, step), self.add("Range", zero, total, step)

    def _find_angles(self, node: Node) -> Angles | None:
        """Returns the angles of the new keys."""
        tables = read_input(node, 7), read_input(node, 8)
        if tables not in self.angles:
            self.angles[tables] = find_angles(self, tables, self._places[0], 0, 1)
        return self.angles[tables]

    def _find_mask(self, window: int) -> str:
        """Returns 0 for each key that a query may see, and the lowest number for all others."""
        if window not in self.masks:
            new, keys = self._places
            queries = self.add("Unsqueeze", new, self.add_integers(1))
            allowed = self.add("LessOrEqual", keys, queries)
            if window > 0:
                first = self.add("Sub", queries, self.add_constant(np.array(window, np.int64)))
                allowed = self.add("And", allowed, self.add("Greater", keys, first))
            limits = (self.add_constant(np.array(number, np.float32)) for number in (0.0, _LOWEST))
            self.masks[window] = self.add("Where", allowed, *limits)
        return self.masks[window]
