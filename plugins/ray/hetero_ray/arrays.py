"""Arrays in the object store: a device returns a reference, and the elements stay on the node that made them.

    actor on a ──put──> store of a ══> reference: driver ──reference──> actor on b ──get──> store of b

An object holds bytes; type and shape travel with the reference, so that Ray pickles no type that it does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import ray

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import DeviceCrashedError

MEMORY = "ray"
"""The name of the memory of all nodes: each of them can read a reference."""


class RayArray:
    """A reference to an array in the object store, with its type and shape; `node` is the name of the node that made it."""

    # NumPy's functions raise a TypeError for this array in place of reading it element by element.
    __array_ufunc__ = None
    __slots__ = ("dtype", "nbytes", "node", "ref", "shape")

    def __init__(self, ref: Any, dtype: np.dtype[Any], shape: tuple[int, ...], node: str = "") -> None:
        self.ref, self.dtype, self.shape, self.node = ref, dtype, shape, node
        self.nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array in Ray's object store cannot be read by the host; to_host fetches it")


class Shipment(list[Any]):
    """References to the buffers of a network."""


class Shipments:
    """The networks and blobs that this program has put into the store, each content once while a loaded network uses it. Safe for threads.

    The last network stays in the store, because a load mostly follows its query.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()
        self._last = Shipment()
        self._known: WeakValueDictionary[tuple[bytes, ...], Shipment] = WeakValueDictionary()

    def put(self, buffers: Sequence[Any]) -> Shipment:
        """Returns references to buffers; puts buffers of new content into the store."""
        key = tuple(sha256(buffer).digest() for buffer in buffers)
        with self._lock:
            shipment = self._known.get(key)
            if shipment is None:
                shipment = self._known[key] = Shipment(map(put_buffer, buffers))
                self.nbytes += sum(memoryview(buffer).nbytes for buffer in buffers)
            self._last = shipment
            return shipment


def put_array(array: Any) -> RayArray:
    """Returns an array in the store of this node; copies once."""
    contiguous = np.ascontiguousarray(array)
    return RayArray(put_buffer(contiguous.reshape(-1).view(np.uint8)), contiguous.dtype, np.shape(array))


def put_buffer(buffer: Any) -> Any:
    """Returns a reference to these bytes."""
    return ray.put(np.frombuffer(buffer, np.uint8) if not isinstance(buffer, np.ndarray) else buffer)


def get_arrays(arrays: Sequence[RayArray]) -> list[np.ndarray[Any, Any]]:
    """Returns read-only arrays from the store of this node; arrays of other nodes are fetched first.

    Raises: DeviceCrashedError that names the node of a value that is lost.
    """
    try:
        buffers = ray.get([array.ref for array in arrays])
    except ray.exceptions.ObjectLostError as error:
        nodes = sorted({array.node for array in arrays if array.node})
        raise DeviceCrashedError(
            f"a value in Ray's object store is lost with what made it, on node {' or '.join(nodes) or 'of the caller'}; "
            "run the request again, and reset its states where it has some"
        ) from error
    return [buffer.view(array.dtype).reshape(array.shape) for buffer, array in zip(buffers, arrays, strict=True)]


def pack_values(values: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """Returns the description of values for a message, and the references beside it; texts and sequences stand in the message."""
    places: list[Any] = []
    refs: list[Any] = []
    for value in values:
        if isinstance(value, RayArray):
            places.append((dtype_of_numpy(value.dtype), tuple(value.shape), value.node))
            refs.append(value.ref)
        else:
            places.append((value,))
    return tuple(places), refs


def unpack_values(places: Sequence[Any], refs: Sequence[Any], node: str = "") -> tuple[Any, ...]:
    """Returns the values that `pack_values` packed. `node` is the node of values without a node in the message."""
    rest = iter(refs)
    return tuple(
        place[0] if len(place) == 1 else RayArray(next(rest), numpy_dtype(place[0]), tuple(place[1]), place[2] or node)
        for place in places
    )
