"""The values of a plan with zeros around their images: those that only convolutions and their like read, as far as their pads reach.

A convolution with pads reads beyond the image. With a halo around it, which whoever makes the image leaves as zeros, that needs neither a
copy nor a test for the border.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_cpu.open.sizes import is_open
from hetero_cpu.operators.winograd.transforms import choose_winograd
from hetero_cpu.planning.fusion import Group
from hetero_cpu.planning.recipe import NO_HALO, Halo

_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


class HaloTable:
    """The halo of each value, found when it is asked for."""

    def __init__(self, network: Network, types: Mapping[str, TensorType], groups: Sequence[Group], width: int) -> None:
        self._network, self._types, self._width = network, types, width
        self._group_of_node = {node.name: group for group in groups for node in group.members}
        self._found: dict[str, Halo | None] = {}

    def find(self, value: str) -> Halo:
        """Returns the zeros that the readers of a value want around it; none where one of them could not read it then."""
        return self._find(value) or NO_HALO

    def _find(self, value: str) -> Halo | None:
        if value not in self._found:
            self._found[value] = self._join(value)
        return self._found[value]

    def _join(self, value: str) -> Halo | None:
        """Returns the halo that covers what all readers want, None if one wants none at all."""
        network, value_type = self._network, self._types.get(value)
        if (
            value_type is None
            or value_type.dtype != "float32"
            or len(value_type.shape or ()) != 4
            or value in network.names_of_outputs
        ):
            return None
        halo = NO_HALO
        for index in network.index_of_consumers.get(value, ()):
            read_halo = self._ask(network.nodes[index], value)
            if read_halo is None:
                return None
            halo = halo.widen(read_halo)
        return halo

    def _ask(self, node: Node, value: str) -> Halo | None:
        group = self._group_of_node[node.name]
        anchor = group.node
        if anchor.domain:
            return None
        if anchor.op_type == "Conv":
            if value in anchor.inputs[1:]:
                return None
            return self._read_convolution(anchor) if value == anchor.inputs[0] else NO_HALO
        if anchor.op_type in _POOLS and not group.epilogue and len(anchor.writes) == 1:
            return NO_HALO
        if anchor.op_type == "Concat" and anchor.attributes.get("axis") in (1, -3):
            return self._find(anchor.outputs[0])
        return None

    def _read_convolution(self, node: Node) -> Halo | None:
        shapes = [self._types[name].shape if name in self._types else None for name in node.inputs[:2]]
        if any(shape is None or len(shape) != 4 for shape in shapes):
            return None
        sizes = [tuple(size for size in shape or () if isinstance(size, int)) for shape in shapes]
        auto_pad = node.attributes.get("auto_pad", "NOTSET")
        if auto_pad not in AUTO_PADS:
            return None
        pads, strides, dilations = (node.attributes.get(name) for name in ("pads", "strides", "dilations"))
        try:
            windows = lay_windows(sizes[0][2:], sizes[1][2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
        except (ValueError, TypeError):  # the step functions refuse it as well
            return None
        outputs, channels = sizes[1][0], sizes[0][1]
        size = choose_winograd(
            windows, channels=channels, outputs=outputs, group=int(node.attributes.get("group", 1)), width=self._width
        )
        return halo_of_tiles(windows, sizes[0][2:], size) if size else reach_of_windows(windows, sizes[0][2:])


def make_halo_table(network: Network, types: Mapping[str, TensorType], groups: Sequence[Group]) -> HaloTable:
    """Returns the halos as the processor's vectors have them."""
    from hetero_cpu.machine.compiler import find_width  # LLVM

    return HaloTable(network, types, groups, find_width())


def halo_of_tiles(windows: Windows, sizes: Sequence[int], size: int) -> Halo:
    """Returns how far Winograd's tiles of `size` x `size` results reach beyond an image of (height, width) on each side."""
    begins = [max(before, 0) for before, _ in windows.pads]
    ends = []
    for axis, side in enumerate(windows.outputs):
        # Of a symbol the last tile reaches as far as any does.
        whole = side + size - 1 if is_open(side) else -(-side // size) * size
        ends.append(int(max(whole + 2 - begins[axis] - sizes[axis], 0)))
    return Halo(begins[0], begins[1], ends[0], ends[1])


def reach_of_windows(windows: Windows, sizes: Sequence[int]) -> Halo:
    """Returns how far windows reach beyond an image of (height, width) on each side."""
    begins = [max(before, 0) for before, _ in windows.pads]
    ends = []
    for axis in (0, 1):
        if is_open(windows.outputs[axis]):
            # What no window passes; how many of these zeros the last one reads depends on the size.
            ends.append(int(max(windows.pads[axis][1], 0)))
            continue
        last = (windows.outputs[axis] - 1) * windows.strides[axis] + (windows.kernel[axis] - 1) * windows.dilations[axis] + 1
        ends.append(max(last - begins[axis] - sizes[axis], 0))
    return Halo(begins[0], begins[1], ends[0], ends[1])
