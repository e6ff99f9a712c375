"""A list of calls of machine code that runs in one call from Python, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hetero_cpu.machine.compiler import COMPILER
from hetero_cpu.machine.interpreter import COLUMNS, MOST_CHUNKS, open_alone, open_together
from hetero_cpu.machine.native import NativeCall, address_of
from hetero_cpu.machine.team import Team

Numbers = np.ndarray[Any, Any]


class NativeProgram:
    """Calls in the order in which they run. Kernels that are not compiled yet are, here.

    Keeps all memory that the calls point to. One thread at a time may run it, unless its calls may run beside themselves.
    """

    __slots__ = ("_alone", "_calls", "_keep", "_rows", "_several", "_table", "_together", "numbers")

    def __init__(self, calls: Sequence[NativeCall], *, is_open: bool = False) -> None:
        """`is_open`: numbers and chunks are symbols; they are written into `numbers`, and by `set_chunks`."""
        if is_open:
            calls = [NativeCall(call.kernel, (0,) * len(call.numbers), 0, call.keep) for call in calls]
        assert all(0 <= call.chunks <= MOST_CHUNKS for call in calls), "chunks of a call: a planner's mistake"
        numbers = np.array([number for call in calls for number in call.numbers], np.int64)
        table = np.zeros((len(calls), len(COLUMNS)), np.int64)
        begin = address_of(numbers)
        for row, call in zip(table, calls, strict=True):
            row[:3] = COMPILER.compile(call.kernel), begin, call.chunks
            begin += numbers.itemsize * len(call.numbers)
        self._calls = len(calls)
        self.numbers = numbers
        """The numbers of all calls, in order: a change counts from the next run on."""
        self._rows = table
        self._keep = (table, *(array for call in calls for array in call.keep))
        self._table = address_of(table)
        # How many of the calls before have several chunks: where none is between two places, no team is of use.
        self._several = [0, *accumulate(int(call.chunks > 1) for call in calls)]
        self._alone, self._together = open_alone(), open_together()

    def set_chunks(self, calls: Numbers, chunks: Numbers) -> None:
        """Has these calls other counts of chunks."""
        assert ((chunks >= 0) & (chunks <= MOST_CHUNKS)).all(), "chunks of a call: a planner's mistake"
        self._rows[calls, 2] = chunks
        self._several = [0, *np.cumsum(self._rows[:, 2] > 1).tolist()]

    def __len__(self) -> int:
        return self._calls

    def run(self, begin: int, end: int, team: Team | None = None) -> None:
        """Runs calls begin to end - 1, each when the one before is over; with a team where one is given and a call has several chunks."""
        assert 0 <= begin <= end <= self._calls
        if team is None or team.workers == 1 or self._several[begin] == self._several[end]:
            self._alone(self._table, begin, end)
        else:
            self._together(self._table, begin, end, team.address, team.workers - 1)
