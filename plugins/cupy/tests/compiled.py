"""Networks as GPU compiles them, for the tests of its passes."""

from __future__ import annotations

from hetero_cupy.passes import choose_kernels, prepare_network

from hetero_core.network.graph import Network


def transform_network(
    network: Network, *, precision: str, fuses: bool, attends: bool = False, has_epilogues: bool = False
) -> Network:
    """Returns the network as it is compiled; attention is one node with `attends`, a product with its bias with `has_epilogues`."""
    prepared = prepare_network(network, precision=precision, attends=attends)
    return choose_kernels(prepared, fuses=fuses, attends=attends, has_epilogues=has_epilogues)
