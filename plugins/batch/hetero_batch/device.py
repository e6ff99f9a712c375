"""The BATCH device: its hooks. The network gets an open batch size, is loaded on the device of the list, and runs in batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero_batch.axes import BatchAxes, find_batch_axes
from hetero_batch.executable import BatchExecutable
from hetero_core.composing.blobs import export_part, import_part, pack_index, read_index, select_steering
from hetero_core.composing.composer import Composer
from hetero_core.composing.properties import PROPERTIES_KEY, configure_children, share_processors
from hetero_core.contract import ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult, freeze_mapping
from hetero_core.devices.names import ListedDevice
from hetero_core.devices.query import answer_query, require_all_supported
from hetero_core.errors import DeviceNameError, InvalidNetworkError, NotImplementedByDeviceError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.transforms.reshaping import rebatch_network

DEVICE_KEY = "AUTO_BATCH_DEVICE_CONFIG"
TIMEOUT_KEY = "AUTO_BATCH_TIMEOUT"
DEFAULT_SIZE = 8


class BatchDevice(Composer):
    """Runs the requests of a network together, as a batch of the device of the list."""

    title = "BATCH: several requests as one batch"
    own_keys = freeze_mapping(
        {
            DEVICE_KEY: ConfigKey(
                str,
                None,
                "The device and how many images it gets at once, as behind the colon of BATCH:GPU(16).",
                is_arguments=True,
                aliases=("MULTI_DEVICE_PRIORITIES",),
            ),
            TIMEOUT_KEY: ConfigKey(
                int, 20, "The milliseconds that a request waits for others, where there are others.", runtime=True, least=0
            ),
            PROPERTIES_KEY: ConfigKey(dict, None, "Keys for the device of the list alone: {device: {key: value}}."),
        }
    )
    example = "BATCH:GPU(16)"
    purpose = "gather requests for"
    takes_counts = True

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The nodes that the device of the list takes, apart from nodes that mix images."""
        result, _, _, _ = self._examine(device, network, config)
        return result

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Loads the network with an open batch size."""
        result, answer, opened, axes = self._examine(device, network, config)
        require_all_supported(device, network, result)
        entry, name = self._require_entry(device)
        own = configure_children(self._core, device, [name], config)[name]
        threads = share_processors(self._core, name, config, own, sharers=1, requests=None)
        child = self._core.load_network(opened, name, {**own, **threads}, query=answer)
        return BatchExecutable(
            network.inputs, network.outputs, child, axes, size=self._find_size(device, entry), seconds=config[TIMEOUT_KEY] / 1000
        )

    @hookimpl
    def export_network(self, executable: BatchExecutable) -> Payload:
        """The blob of the device, and the batch axes."""
        sections: dict[str, Any] = {}
        row = export_part(executable.child, None, "device", sections)
        fields = {"axes": [executable.axes.inputs, executable.axes.outputs], "size": executable.size, "device": row}
        return pack_index(executable.inputs, executable.outputs, fields, sections)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Imports the network on the device of the list."""
        _, name = self._require_entry(device)

        def read(fields: Mapping[str, Any]) -> tuple[BatchAxes, int, dict[str, Any]]:
            axes_in, axes_out = (tuple(None if axis is None else int(axis) for axis in side) for side in fields["axes"])
            size, row = int(fields["size"]), dict(fields["device"])
            counts = len(fields["inputs"]), len(fields["outputs"])
            if (len(axes_in), len(axes_out)) != counts or size < 1 or row["device"] != name:
                raise ValueError("numbers or a device that do not fit together")
            return BatchAxes(axes_in, axes_out, {}), size, row

        inputs, outputs, (axes, size, row) = read_index(payload, read, owner="BATCH")
        own = configure_children(self._core, device, [name], config)[name]
        threads = share_processors(self._core, name, config, own, sharers=1, requests=None)
        steered = {**select_steering(self._core, name, config, own), **threads}
        child, _ = import_part(self._core, row, "device", payload.sections, steered, owner=device.name)
        return BatchExecutable(inputs, outputs, child, axes, size=size, seconds=config[TIMEOUT_KEY] / 1000)

    @hookimpl
    def add_extension(self, device: DeviceName, extension: Extension) -> bool:
        """Refuses, since a function may mix images."""
        raise NotImplementedByDeviceError(
            f"device {device} takes no extensions, as nothing says that {extension.op_type} keeps the images of a batch apart; "
            "give it to the device of the list and put BATCH around the rest, as in 'HETERO:(BATCH:GPU),GPU'"
        )

    def _require_entry(self, device: DeviceName) -> tuple[ListedDevice, str]:
        """Returns the only entry of the list. Raises: DeviceNameError."""
        self.require_children(device)
        entries = self.list_entries(device)
        if len(entries) > 1:
            raise DeviceNameError(
                f"device {device} has {len(entries)} devices in its list; BATCH has one, as in '{self.example}'. "
                f"Use BATCH:(MULTI:{device.arguments}) for batches on several"
            )
        return entries[0], str(entries[0].device)

    def _find_size(self, device: DeviceName, entry: ListedDevice) -> int:
        """Returns the largest number of images in a batch. Raises: DeviceNameError for more than the device takes."""
        most = int(self._core.get_metric(str(entry.device), "MAX_BATCH_SIZE"))
        if most and entry.count is not None and entry.count > most:
            raise DeviceNameError(
                f"device {device} asks for batches of {entry.count} images; {entry.device} takes {most} at most (MAX_BATCH_SIZE)"
            )
        size = DEFAULT_SIZE if entry.count is None else entry.count
        return min(size, most) if most else size

    def _examine(
        self, device: DeviceName, network: Network, config: Mapping[str, Any]
    ) -> tuple[QueryResult, QueryResult, Network, BatchAxes]:
        """Returns the answer of BATCH, the answer of its device, the network to load, and its batch axes.

        The batch size of the network is open. If the device refuses an open size, the network has the size in the list, and smaller
        batches are padded.
        """
        entry, name = self._require_entry(device)
        own = configure_children(self._core, device, [name], config)[name]
        axes = find_batch_axes(network)
        opened, reason = network, ""
        if not axes.refused:
            try:
                opened = network if _is_open(network, axes) else _rebatch(network, axes, "batch_of_requests")
            except InvalidNetworkError as error:
                reason = f"the batch size cannot be left open: {error}"
        answer = self._core.query_network(opened, name, own)
        if answer.refused and not axes.refused and not reason and any(axis is not None for axis in axes.inputs):
            fixed = _rebatch(network, axes, self._find_size(device, entry))
            answer_fixed = self._core.query_network(fixed, name, own)
            if len(answer_fixed.refused) < len(answer.refused):
                opened, answer = fixed, answer_fixed
        others = dict.fromkeys(network.index_of_node, reason) if reason else {}
        mixing = {node: f"it mixes the images of a batch: {why}" for node, why in axes.refused.items()}
        return answer_query(device, network, {**others, **answer.refused, **mixing}), answer, opened, axes


def _is_open(network: Network, axes: BatchAxes) -> bool:
    """Says whether no input has a fixed number of images."""
    places = zip(network.inputs, axes.inputs, strict=True)
    return not any(axis is not None and spec.shape is not None and isinstance(spec.shape[axis], int) for spec, axis in places)


def _rebatch(network: Network, axes: BatchAxes, size: int | str) -> Network:
    """Returns the network with this size on its batch axes. Raises: InvalidNetworkError."""
    # Only those inputs: a size that is equal by chance does not belong to the batch.
    layouts = {
        spec.name: "".join("N" if place == axis else "." for place in range(len(spec.shape or ())))
        for spec, axis in zip(network.inputs, axes.inputs, strict=True)
    }
    bordered = replace(network, border=replace(network.border, layouts=freeze_mapping(layouts)))
    return replace(rebatch_network(bordered, size), border=network.border)
