"""Values outside the arena in a run: inputs are read where the caller has them, outputs are written where the caller gets them.

```text
plan:     value ── find_outside ──> a place at the end of the arena, its own for the whole run; calls are bound to it
instance: addresses of arrays in such a place ── OutsidePlaces ──> where they stand among the numbers of the program
run:      array of the caller ── move ──> the same numbers count on from that array; nothing is copied
```

Only machine code can follow, since its addresses are numbers that a run may change; a function of NumPy keeps the arrays that it was
bound to. An array that does not fit is copied into the place, and the numbers point there. Memory that nobody touches is not there: such
a place costs addresses alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_cpu.planning.output_memory import OutputMemory
from hetero_cpu.planning.plan import NOTHING_OUTSIDE, Block, Derived, ExecutionPlan, Foreign, Outside
from hetero_cpu.planning.recipe import NO_HALO, Array, Recipe

if TYPE_CHECKING:  # LLVM
    from hetero_cpu.machine.native import NativeCall
    from hetero_cpu.machine.program import NativeProgram

FEWEST_BYTES = 1 << 16
"""Of a value that may lie outside: from there on a copy costs more than to change addresses, some microseconds."""


def find_outside(
    inputs: Sequence[str],
    outputs: Sequence[str],
    steps: Iterable[tuple[Recipe | Foreign, Sequence[str]]],
    places: Mapping[str, Block | Derived],
    prototypes: Mapping[str, Array],
    find_root: Callable[[str], str | None],
) -> Outside:
    """Returns the values that may lie outside: large, in one piece in C order, and only machine code touches their memory.

    `steps`: what computes, and the values that it writes. An input must not be written, and nothing of it be an output; an output must be
    all of its block, and no other output share that.
    """
    from hetero_cpu.open.sizes import is_open, value_of  # a plan that is read needs no symbols

    fixed: set[str | None] = set()
    written: set[str | None] = set()
    for work, writes in steps:
        roots = {find_root(value) for value in writes}
        written |= roots
        if isinstance(work, Foreign) or not work.kernels or work.calls_functions:
            fixed |= roots | {find_root(value) for value in work.reads}
    # An input that lies in another block is copied into it.
    fixed |= {root for value in inputs if (root := find_root(value)) != value}
    roots_of_outputs = [find_root(value) for value in outputs]

    def may_move(root: str) -> bool:
        block = places[root]
        if not isinstance(block, Block) or block.halo != NO_HALO:
            return False
        # A size that is open grows: a class that was made for few keys serves many.
        is_large = is_open(block.nbytes) or value_of(block.nbytes) >= FEWEST_BYTES
        return is_large and root not in fixed and prototypes[root].flags.c_contiguous

    def is_whole(value: str, root: str) -> bool:
        return prototypes[value].nbytes == prototypes[root].nbytes and prototypes[value].flags.c_contiguous

    read = [value for value in inputs if find_root(value) == value and value not in written and value not in roots_of_outputs]
    own = [
        (value, root)
        for value, root in zip(outputs, roots_of_outputs, strict=True)
        if root is not None and root in written and root not in inputs and roots_of_outputs.count(root) == 1
    ]
    outside = Outside(
        tuple(value for value in read if may_move(value)),
        {value: root for value, root in own if may_move(root) and is_whole(value, root)},
    )
    return outside if outside.roots else NOTHING_OUTSIDE


class OutsidePlaces:
    """Positions of the addresses of some places among the numbers of a program, to be moved to other memory of the same size."""

    __slots__ = ("_addresses", "_begins", "_current", "_numbers", "_owners", "_positions", "_rows")

    def __init__(self, program: NativeProgram | None, calls: Sequence[NativeCall], places: Mapping[str, Array]) -> None:
        """`calls`: those of the program; `places`: the arrays to which they are bound, by name."""
        self._rows = {name: row for row, name in enumerate(places)}
        self._begins = np.array([array.ctypes.data for array in places.values()], np.int64)
        self._current = self._begins
        self._addresses: Mapping[str, int] = {}
        self._numbers = np.zeros(0, np.int64) if program is None else program.numbers
        positions, arrays = _list_positions(calls)
        rows = [
            np.flatnonzero((arrays >= begin) & (arrays < begin + array.nbytes))
            for begin, array in zip(self._begins, places.values(), strict=True)
        ]
        self._positions = positions[np.concatenate([np.zeros(0, np.int64), *rows])]
        self._owners = np.repeat(np.arange(len(rows)), [len(own) for own in rows])

    def move(self, addresses: Mapping[str, int]) -> None:
        """Has the program work at these addresses, by the names of the places; and in the places for which none is given."""
        # Also where there are no places. A caller that fills the same arrays again and again needs none of what follows.
        if addresses == self._addresses:
            return
        begins = self._begins.copy()
        for name, address in addresses.items():
            begins[self._rows[name]] = address
        self._numbers[self._positions] += (begins - self._current)[self._owners]
        self._current, self._addresses = begins, addresses


def _list_positions(calls: Sequence[NativeCall]) -> tuple[Array, Array]:
    """Returns of all addresses their positions among the numbers of a program, and where their arrays begin."""
    from hetero_cpu.machine.native import list_addresses  # LLVM

    positions, arrays, begin = [], [], 0
    for call in calls:
        for position, address in list_addresses(call):
            positions.append(begin + position)
            arrays.append(address.array.ctypes.data)
        begin += len(call.numbers)
    return np.array(positions, np.int64), np.array(arrays, np.int64)


class OutsideArrays:
    """The arrays outside the arena of an instance: the caller's inputs, and memory for outputs that the caller gets."""

    __slots__ = ("_inputs", "_outputs", "_places", "_values")

    def __init__(
        self, plan: ExecutionPlan, program: NativeProgram | None, calls: Sequence[NativeCall], arrays: Mapping[str, Array]
    ) -> None:
        """`calls`: those of the program; `arrays`: what they are bound to, by value."""
        outside = plan.outside
        self._inputs = [(plan.inputs.index(value), value, arrays[value]) for value in outside.inputs]
        self._values = plan.outputs
        self._outputs = {value: (root, arrays[value], OutputMemory(arrays[value].dtype)) for value, root in outside.outputs.items()}
        self._places = OutsidePlaces(program, calls, {root: arrays[root] for root in outside.roots})

    def move(self, inputs: Sequence[Any], presets: Sequence[Array | None] | None, *, owns_presets: bool) -> dict[str, Array]:
        """Has the program read inputs where they are and write outputs where they stay; returns these arrays by value.

        Outputs for which the caller has set an array are among them only where the run owns that array and it fits: otherwise a run that
        was cancelled may be under way when the caller has its arrays back. Nor are inputs that do not fit.
        """
        addresses, moved = {}, {}
        for index, value, place in self._inputs:
            if _fits(inputs[index], place):
                moved[value], addresses[value] = inputs[index], inputs[index].ctypes.data
        for index, value in enumerate(self._values):
            if value not in self._outputs:
                continue
            root, place, memory = self._outputs[value]
            preset = None if presets is None else presets[index]
            if preset is None:
                moved[value], addresses[root] = memory.take(place.shape)
            elif owns_presets and preset.shape == place.shape and preset.flags.writeable and _fits(preset, place):
                moved[value], addresses[root] = preset, preset.ctypes.data
        self._places.move(addresses)
        return moved


def _fits(array: Array, place: Array) -> bool:
    return array.dtype == place.dtype and array.flags.c_contiguous and array.flags.aligned
