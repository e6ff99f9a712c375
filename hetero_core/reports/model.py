"""A plan as an ONNX model: the network itself, each node with its device, so that other viewers show the split.

Each node gets the metadata `hetero.affinity`, which hetero reads back as pins, and a device configuration with its subgraph as pipeline
stage. Source: ONNX IR version 11, DeviceConfigurationProto, NodeDeviceConfigurationProto. Imports onnx only inside functions.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hetero_core.contract import freeze_mapping
from hetero_core.network.graph import Network
from hetero_core.network.writer import write_network
from hetero_core.plan import Plan

if TYPE_CHECKING:
    import onnx

CONFIGURATION = "hetero"
"""The name of the device configuration in the model."""
_IR_VERSION = 11
"""The first with device configurations."""


def write_planned_network(network: Network, plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes the network with the plan noted at each node; large weights go to a file beside it, as `write_network` does.

    A node without a device gets no note.
    """
    planned = replace(network, affinity=freeze_mapping(plan.device_of_node))
    write_network(planned, path, annotate=lambda model: annotate_model(model, plan))


def annotate_model(model: onnx.ModelProto, plan: Plan) -> None:
    """Adds the device configuration of the plan, and to each node of the root graph its stage and the device of its outputs."""
    devices = tuple(dict.fromkeys((*plan.priorities, *plan.device_of_node.values())))
    stage_of_node = {name: stage.index for stage in plan.stages for name in stage.nodes}
    model.ir_version = max(model.ir_version, _IR_VERSION)
    model.configuration.add(name=CONFIGURATION, num_devices=len(devices), device=devices)
    for node in model.graph.node:
        device = plan.device_of_node.get(node.name)
        if device is None or node.name not in stage_of_node:
            continue
        configuration = node.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=stage_of_node[node.name])
        for value in node.output:
            if value:
                configuration.sharding_spec.add(tensor_name=value, device=[devices.index(device)])
