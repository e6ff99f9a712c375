"""Why an order to compile came to nothing. Imports nothing: whoever serves with NumPy asks for it, too."""


class OrderDroppedError(Exception):
    """Nobody wants the kernels any more; never leaves the device."""
