"""The reasons why an order to compile fails. Imports nothing, since plans of NumPy import it, too."""


class OrderDroppedError(Exception):
    """Nobody wants the kernels any more; never leaves the device."""
