"""Machine code that runs calls of kernels in order: alone or with a team's help, and the life of a helper.

A program is a table with one row of COLUMNS for each call. A team is a block of memory, its places named below. The caller alone moves
from call to call; for one with several chunks it publishes kernel, numbers and chunks, and then the ticket: the number of the call in the
life of the team (upper bits) and how many chunks are unclaimed (lower bits). A thread that lowers the ticket by 1 has claimed a chunk,
and, as the ticket was the same before and after, has read what belongs to it. A helper that is late finds another ticket and claims
nothing, so no thread ever waits for a helper without a chunk; the caller waits for the chunks of helpers, which are counted
when they are done. A call of one chunk is the caller's: it costs no more than without a team.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from hetero_cpu.machine.compiler import COMPILER, Kernel

if TYPE_CHECKING:
    from hetero_cpu.machine.code import Code
    from hetero_cpu.machine.terms import Number

COLUMNS = ("kernel", "numbers", "chunks", "reserved")
"""Of a program's table, int64 each: address of the machine code, address of its numbers, count of chunks."""
MOST_CHUNKS = 2**24 - 1
"""Of a call: the largest number in the lower bits of a ticket."""

# Places of a team in bytes. Places that different threads write lie in cache lines of their own, in pairs as the processor fetches them.
TICKET, KERNEL, NUMBERS, CHUNKS = 0, 8, 16, 24
DONE, PARKED, CALLED, STOP, SEMAPHORE = 128, 256, 264, 384, 512
TEAM_BYTES = 640

# In steps of the processor's clock, which makes 2 to 4 in a nanosecond. After a wait of 5 to 10 us the other
# thread is most likely not running; a wait of 0.4 to 0.75 ms is longer than most pauses between two runs in a row.
_YIELD_AFTER = 20_000
_PARK_AFTER = 1_500_000
_TICKETS = MOST_CHUNKS + 1
_ROW_BYTES = 8 * len(COLUMNS)


def list_interpreters(workers: int) -> tuple[Kernel, ...]:
    """Returns the machine code that every program needs, for one thread or for several."""
    return (ALONE, TOGETHER) if workers == 1 else (ALONE, TOGETHER, HELPER)


@cache
def open_interpreter(kernel: Kernel, parameters: int) -> Callable[..., None]:
    """Returns the function of an interpreter, compiled if it is not yet: of so many int64.

    ALONE (table, begin, end) runs the calls of a table in the calling thread. TOGETHER (table, begin, end, team, helpers) runs them with
    a team, of which so many helpers are woken first if they sleep. HELPER (team, worker) returns when the team is stopped.
    """
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * parameters)(COMPILER.compile(kernel))


def _begin(name: str, parameters: int, width: int) -> Code:
    from hetero_cpu.machine.code import Code  # the language of kernels: stored kernels are not emitted

    return Code(name, parameters, width)


def _emit_alone(name: str, width: int) -> Code:
    code = _begin(name, 3, width)
    table, begin, end = code.parameters
    with code.loop(table + begin * _ROW_BYTES, table + end * _ROW_BYTES, _ROW_BYTES) as row:
        _emit_chunks(code, row, code.load_number(row, 16))
    return code.finish()


def _emit_chunks(code: Code, row: Number, chunks: Number) -> None:
    """All chunks of a call by the caller."""
    kernel, numbers = code.load_number(row), code.load_number(row, 8)
    with code.loop(0, chunks) as chunk:
        code.call_address(kernel, numbers, chunk, 0)


def _emit_together(name: str, width: int) -> Code:
    code = _begin(name, 5, width)
    table, begin, end, team, helpers = code.parameters
    wake = code.find_inner("wake", 2, _emit_wake)
    code.call(wake, team, helpers)
    # No helper works between two calls, so that the count stands still here.
    expected = code.variable(code.load_atomically(team + DONE))
    with code.loop(table + begin * _ROW_BYTES, table + end * _ROW_BYTES, _ROW_BYTES) as row:
        chunks = code.load_number(row, 16)
        with code.either(chunks < 2) as (single, several):
            with single:
                _emit_chunks(code, row, chunks)
            with several:
                kernel, numbers = code.load_number(row), code.load_number(row, 8)
                code.store_atomically(team + KERNEL, kernel)
                code.store_atomically(team + NUMBERS, numbers)
                code.store_atomically(team + CHUNKS, chunks)
                last = code.load_atomically(team + TICKET)
                code.store_atomically(team + TICKET, (last // _TICKETS + 1) * _TICKETS + chunks)
                with code.when(helpers > 0):
                    code.call(wake, team, chunks - 1)
                others = code.variable(chunks)
                with code.repeat() as leave_if:
                    ticket = code.load_atomically(team + TICKET)
                    free = ticket % _TICKETS
                    leave_if(free.equals(0))
                    with code.when(code.exchange_if(team + TICKET, ticket, ticket - 1)):
                        code.call_address(kernel, numbers, chunks - free, 0)
                        others.set(others.get() - 1)
                expected.set(expected.get() + others.get())
                _emit_wait(code, team, expected.get())
    return code.finish()


def _emit_wake(code: Code) -> None:
    """A function (team, helpers) that wakes as many helpers, or all that sleep if they are fewer.

    To wake a helper costs about 10 us. The caller wakes a helper, and each helper that wakes up wakes two more.
    """
    team, helpers = code.parameters
    remaining = code.variable(helpers)
    with code.repeat() as leave_if:
        parked = code.load_atomically(team + PARKED)
        count = parked.at_most(remaining.get())
        leave_if(count <= 0)
        with code.when(code.exchange_if(team + PARKED, parked, parked - count)):
            code.add_atomically(team + CALLED, count)
            _emit_pass_on(code, team, 1)
            remaining.set(code.number(0))
    code.finish()


def _emit_pass_on(code: Code, team: Number, most: int) -> None:
    """Wakes up to `most` of the helpers that are called and not woken yet."""
    remaining = code.variable(code.number(most))
    with code.repeat() as leave_if:
        called = code.load_atomically(team + CALLED)
        leave_if((called <= 0) | (remaining.get() <= 0))
        with code.when(code.exchange_if(team + CALLED, called, called - 1)):
            code.call_outside("sem_post", team + SEMAPHORE)
            remaining.set(remaining.get() - 1)


def _emit_wait(code: Code, team: Number, expected: Number) -> None:
    """Waits until as many chunks are done by others in the life of the team."""
    begin = code.read_cycles()
    with code.repeat() as leave_if:
        leave_if(code.load_atomically(team + DONE).equals(expected))
        code.pause()
        with code.when(code.read_cycles() - begin > _YIELD_AFTER):
            code.call_outside("sched_yield")


def _emit_helper(name: str, width: int) -> Code:
    code = _begin(name, 2, width)
    team, worker = code.parameters
    idle_since = code.variable(code.read_cycles())
    with code.repeat() as leave_if:
        leave_if(code.load_atomically(team + STOP) > 0)
        ticket = code.load_atomically(team + TICKET)
        free = ticket % _TICKETS
        with code.either(free > 0) as (work, no_work):
            with work:
                kernel, numbers, chunks = (code.load_atomically(team + place) for place in (KERNEL, NUMBERS, CHUNKS))
                with code.when(code.exchange_if(team + TICKET, ticket, ticket - 1)):
                    code.call_address(kernel, numbers, chunks - free, worker)
                    code.add_atomically(team + DONE, 1)
                    idle_since.set(code.read_cycles())
            with no_work:
                code.pause()
                idle = code.read_cycles() - idle_since.get()
                with code.when(idle > _YIELD_AFTER):
                    code.call_outside("sched_yield")
                with code.when(idle > _PARK_AFTER):
                    _emit_park(code, team)
                    idle_since.set(code.read_cycles())
    return code.finish()


def _emit_park(code: Code, team: Number) -> None:
    """Sleeps until a thread or the end of the team posts the semaphore, once for each sleeper."""
    code.add_atomically(team + PARKED, 1)
    with code.repeat() as leave_if:
        # An int, of which the upper half of the register says nothing; not 0 when a signal ended the wait.
        leave_if((code.call_outside("sem_wait", team + SEMAPHORE) % 2**32).equals(0))
    _emit_pass_on(code, team, 2)


ALONE = Kernel("interpreter_alone", _emit_alone)
TOGETHER = Kernel("interpreter_together", _emit_together)
HELPER = Kernel("interpreter_helper", _emit_helper)
