"""Addresses of arrays as integers that know their array, wherever they are added to."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Address(int):
    """The address of an array, or of something at a fixed distance from it. Adding or subtracting an integer gives another address in
    `array`; every other operation gives a plain integer."""

    array: Array

    def __new__(cls, number: int, array: Array) -> Address:
        """Returns `number` as an address in `array`."""
        address = int.__new__(cls, number)
        address.array = array
        return address

    def __add__(self, distance: int) -> Address:
        return Address(int.__add__(self, int(distance)), self.array) if _is_number(distance) else NotImplemented

    __radd__ = __add__

    def __sub__(self, distance: int) -> Address:
        return Address(int.__sub__(self, int(distance)), self.array) if _is_number(distance) else NotImplemented


def _is_number(distance: object) -> bool:
    """Says whether a distance is one integer: no array, and no symbol, whose type says that it is an `int`."""
    return isinstance(distance, np.integer) or issubclass(type(distance), int)
