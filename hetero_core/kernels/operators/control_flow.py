"""If, Loop, Scan and SequenceMap: kernels that get their graph attributes as callables (`execution.BoundBody`).

A body is called with its inputs and returns a tuple of its outputs. Conditions and trip counts live on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.kernels.precision import Array, Integers, Namespace, normalize_axis
from hetero_core.kernels.registry import ANY, BOOL, INT64, kernel
from hetero_core.network.types import SequenceType, TensorType, ValueSpec

_SINCE = (11, 13, 16, 19, 21, 23, 24, 25)
Body = Any
"""An `execution.BoundBody`; that module imports the table of kernels."""


@kernel("If", since=(1, *_SINCE), dtypes=BOOL, host=(0,), bodies=("then_branch", "else_branch"), outputs=None)
def choose_branch(xp: Namespace, cond: Array, *, then_branch: Body, else_branch: Body) -> tuple[Array, ...]:
    """Returns the outputs of a branch."""
    outputs: tuple[Array, ...] = then_branch() if bool(cond.reshape(-1)[0]) else else_branch()
    return outputs


@kernel("Loop", since=(1, *_SINCE), dtypes=(INT64, BOOL, ANY), host=(0, 1), bodies=("body",), outputs=None)
def loop(xp: Namespace, trip_count: Array | None, cond: Array | None, *carried: Array, body: Body) -> tuple[Array, ...]:
    """Returns the final carried values, then each scan output stacked over the iterations."""
    limit = None if trip_count is None else int(trip_count.reshape(-1)[0])
    goes_on = True if cond is None else bool(cond.reshape(-1)[0])
    state = tuple(carried)
    scans = body.program.outputs[1 + len(carried) :]
    collected: list[tuple[Array, ...]] = []
    trips, true = 0, xp.asarray(True)
    while goes_on and (limit is None or trips < limit):
        results = body(xp.asarray(trips, dtype=np.int64), true, *state)
        goes_on = bool(body.program.memory.to_host(results[0]).reshape(-1)[0])
        state = results[1 : 1 + len(carried)]
        trips += 1
        # Nothing grows with the trips of a loop without scan outputs.
        if scans:
            collected.append(results[1 + len(carried) :])
    return (*state, *(_stack(xp, [row[index] for row in collected], spec, 0) for index, spec in enumerate(scans)))


@kernel("Scan", since=(9, 11, 16, 19, 21, 23, 24, 25), dtypes=ANY, bodies=("body",), outputs=None)
def scan(
    xp: Namespace,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Integers = (),
    scan_input_directions: Integers = (),
    scan_output_axes: Integers = (),
    scan_output_directions: Integers = (),
) -> tuple[Array, ...]:
    """Returns the final states, then each scan output stacked along its axis."""
    state, scanned = tuple(inputs[: len(inputs) - num_scan_inputs]), inputs[len(inputs) - num_scan_inputs :]
    state_count = len(state)
    axes = scan_input_axes or (0,) * num_scan_inputs
    reverse = scan_input_directions or (0,) * num_scan_inputs
    moved = [xp.moveaxis(x, normalize_axis(axis, x.ndim), 0) for x, axis in zip(scanned, axes, strict=True)]
    rows = [x[::-1] if backward else x for x, backward in zip(moved, reverse, strict=True)]
    collected: list[tuple[Array, ...]] = []
    for step in range(rows[0].shape[0]):
        results = body(*state, *(xp.asarray(row[step]) for row in rows))
        state = results[:state_count]
        collected.append(results[state_count:])
    scans = body.program.outputs[state_count:]
    output_axes = scan_output_axes or (0,) * len(scans)
    prepends = scan_output_directions or (0,) * len(scans)
    columns = ([row[index] for row in (collected[::-1] if prepends[index] else collected)] for index in range(len(scans)))
    return (*state, *(_stack(xp, *each) for each in zip(columns, scans, output_axes, strict=True)))


@kernel("Scan", since=(8,), dtypes=(INT64, ANY), host=(0,), bodies=("body",), outputs=None)
def scan_batched(
    xp: Namespace, sequence_lens: Array | None, *inputs: Array, body: Body, num_scan_inputs: int, directions: Integers = ()
) -> tuple[Array, ...]:
    """Returns states and scan outputs of a scan over axis 1 for each element of a batch; the rest is zero."""
    state_count = len(inputs) - num_scan_inputs
    batch, length = inputs[state_count].shape[:2]
    lengths = [length] * batch if sequence_lens is None else [int(value) for value in sequence_lens]
    per_item = []
    for item in range(batch):
        states = [xp.asarray(value[item]) for value in inputs[:state_count]]
        rows = [value[item, : lengths[item]] for value in inputs[state_count:]]
        results = scan(xp, *states, *rows, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)
        padded = [_extend(xp, value, length) for value in results[state_count:]]
        per_item.append((*results[:state_count], *padded))
    return tuple(xp.stack(column) for column in zip(*per_item, strict=True))


@kernel("SequenceMap", since=(17,), dtypes=ANY, bodies=("body",), outputs=None)
def map_sequence(xp: Namespace, sequence: list[Array], *others: Any, body: Body) -> tuple[list[Array], ...]:
    """Returns sequences of the body's results; further sequences are walked alongside."""
    rows = []
    for index, element in enumerate(sequence):
        rows.append(body(element, *(other[index] if isinstance(other, list) else other for other in others)))
    return tuple([row[index] for row in rows] for index in range(len(body.program.outputs)))


def _extend(xp: Namespace, x: Array, length: int) -> Array:
    return xp.concatenate([x, xp.zeros((length - x.shape[0], *x.shape[1:]), dtype=x.dtype)])


def _stack(xp: Namespace, column: list[Any], spec: ValueSpec, axis: int) -> Any:
    """Returns a scan output: stacked tensors, or for no iterations an empty tensor of the declared type."""
    if column:
        return column if isinstance(column[0], list) else xp.stack(column, axis=axis)
    if isinstance(spec.type, SequenceType):
        return []
    assert isinstance(spec.type, TensorType), f"scan output '{spec.name}' is not a tensor"
    if spec.type.dtype is None:
        raise ValueError(f"no iteration ran, and the element type of scan output '{spec.name}' is unknown")
    inner = [size if isinstance(size, int) else 0 for size in spec.type.shape or ()]
    inner.insert(normalize_axis(axis, len(inner) + 1), 0)
    return xp.zeros(tuple(inner), dtype=numpy_dtype(spec.type.dtype))
