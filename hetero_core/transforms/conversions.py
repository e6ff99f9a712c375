"""The permitted conversions between element types: those that keep the range. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.dtypes import FLOAT_DTYPES, INTEGER_DTYPES, bits_of_dtype
from hetero_core.errors import InvalidNetworkError
from hetero_core.network.border import precision_of_dtype


def check_conversion(source: str, target: str, where: str) -> None:
    """Raises InvalidNetworkError where values of `source` may lie outside of `target`, so that a Cast would make others of them.

    Between floats, and from integers to floats, ONNX rounds to the nearest; a float beyond the range becomes infinite, which shows.
    """
    if source == target or _keeps_range(source, target):
        return
    raise InvalidNetworkError(
        f"{where}: {precision_of_dtype(source)} cannot become {precision_of_dtype(target)} without losing values: fractions or numbers "
        "out of range; put the rounding or the clipping that you mean into the model"
    )


def _keeps_range(source: str, target: str) -> bool:
    if target in FLOAT_DTYPES:
        return source in FLOAT_DTYPES or source in INTEGER_DTYPES or source == "bool"
    if target not in INTEGER_DTYPES:
        return False
    if source == "bool":
        return True
    if source not in INTEGER_DTYPES:
        return False
    wanted, given = bits_of_dtype(target) or 0, bits_of_dtype(source) or 0
    is_signed, was_signed = target.startswith("int"), source.startswith("int")
    return wanted >= given if is_signed == was_signed else is_signed and wanted > given
